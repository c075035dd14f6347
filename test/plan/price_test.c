/*
 * price_test.c - ops by formula: those of whole programs, products in closed form, memory's floor
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <cmocka.h>

#include "plan/price_impl.h"
#include "support/tiny_model.h"

struct fixture {
    struct device_spec device;
    struct cluster cluster;
    struct prices prices;
    struct arena arena;
};

static void open_fixture(struct fixture *f)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (device_read(&f->device, "a100-sxm-80", &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, 8, &f->arena);
    f->prices.cluster = &f->cluster;
}

static struct tensor bf16(int64_t rows, int64_t cols)
{
    return (struct tensor){ .rows = rows, .cols = cols, .stride = cols, .dtype = DTYPE_BF16 };
}

static struct op_shape linear(int64_t m, int64_t n, int64_t k)
{
    struct op_shape op = { .kind = OP_LINEAR };

    op.in[LINEAR_X] = bf16(m, k);
    op.in[LINEAR_W] = bf16(n, k);
    op.out[OPS_FIRST] = bf16(m, n);
    return op;
}

/* All SMs busy with whole waves of tiles: the peak, times the share reached, and the ends of K. */
static void test_products(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    /* 108 tiles of 128 x 256. */
    for (int64_t k = 1024; k <= 65536; k *= 4) {
        struct op_shape op = linear(128 * 9, 256 * 12, k);
        double flops = 2.0 * 128 * 9 * 256 * 12 * (double)k;
        double compute = 1e9 * flops / (312e12 * 0.76) * ((double)k + 96) / (double)k;
        double memory = 1e9 * op_bytes(&op) / (0.85 * 2.04e12);
        double expected = fmax(compute, memory) + 3000;

        assert_true(fabs((double)price_op(&f.prices, &op).ns / expected - 1) < 1e-3);
    }
    /* A 109th tile is a second wave. */
    struct op_shape whole = linear(128 * 9, 256 * 12, 65536);
    struct op_shape more = linear(128 * 9 + 1, 256 * 12, 65536);
    assert_true(price_op(&f.prices, &more).ns > price_op(&f.prices, &whole).ns);
    /* One row reads all of the weight. */
    struct op_shape row = linear(1, 8192, 8192);
    double floor = 1e9 * 2 * 8192.0 * 8192 / (0.85 * 2.04e12);
    assert_true((double)price_op(&f.prices, &row).ns >= floor);
    arena_release(&f.arena);
}

/* Steps of large matrices take what their products take one by one, and what lies between them;
 * those of small ones the launches. */
static void test_newton_schulz(void **state)
{
    struct op_attributes a = {
        .matrix_rows = 4096, .matrices = 2, .matrix_parts = 1, .steps = 5, .scale = 1
    };
    struct op_shape op = { .kind = OP_NEWTON_SCHULZ, .attributes = a };
    struct op_shape gram = linear(4096, 4096, 8192), square = linear(4096, 4096, 4096);
    struct op_shape step = linear(4096, 8192, 4096);
    struct fixture f;

    (void)state;
    open_fixture(&f);
    op.in[NEWTON_SCHULZ_X] = bf16(2 * 4096, 8192);
    assert_true(op_flops(&op) == 10 * (op_flops(&gram) + op_flops(&square) + op_flops(&step)));
    double products =
        10 * (double)(price_op(&f.prices, &gram).ns + price_op(&f.prices, &square).ns +
                      price_op(&f.prices, &step).ns);
    double between = 10 * 1e9 * 8 * 4096 * (4096 + 8192) / (0.78 * 2.04e12);
    double ns = (double)price_op(&f.prices, &op).ns;
    assert_true(fabs(ns / (products + between) - 1) < 0.01);
    assert_true(products > 5 * between);
    assert_int_equal(price_op(&f.prices, &op).bound, BOUND_FLOPS);
    op.attributes.steps = 10;
    assert_true(fabs((double)price_op(&f.prices, &op).ns / ns - 2) < 0.01);
    op.in[NEWTON_SCHULZ_X] = bf16(2 * 64, 64);
    op.attributes.matrix_rows = 64;
    assert_true(price_op(&f.prices, &op).ns > 2 * 10 * 5 * 3000);
    arena_release(&f.arena);
}

/* What bounds an op: its products, its bytes, the launch of a kernel that has little to do. */
static void test_bounds(void **state)
{
    struct op_shape large = linear(4096, 4096, 4096), add = { .kind = OP_ADD };
    struct op_shape small = linear(16, 16, 16), gather = { .kind = OP_ALL_GATHER };
    const struct group_shape group = {
        .n = 8, .per_node = 8, .per_domain = 8, .n_nodes = 1, .n_domains = 1
    };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_int_equal(price_op(&f.prices, &large).bound, BOUND_FLOPS);
    add.in[0] = add.in[1] = add.out[0] = bf16(4096, 4096);
    assert_int_equal(price_op(&f.prices, &add).bound, BOUND_BYTES);
    add.in[0] = add.in[1] = add.out[0] = bf16(16, 16);
    assert_int_equal(price_op(&f.prices, &add).bound, BOUND_ISSUE);
    assert_int_equal(price_op(&f.prices, &small).bound, BOUND_ISSUE);
    gather.in[OPS_FIRST] = bf16(8, 1024);
    gather.out[OPS_FIRST] = bf16(64, 1024);
    assert_int_equal(price_collective(&f.prices, &group, &gather).bound, BOUND_LINK);
    assert_int_equal(price_link_bytes(&gather, 8), 7 * 8 * 1024 * 2);
    assert_string_equal(price_bound_name(BOUND_LINK), "link");
    assert_string_equal(price_source_name(price_op(&f.prices, &large).source), "formula");
    arena_release(&f.arena);
}

/* Of rows of experts, which are a bound, as many are priced as are expected. */
static void test_expected_rows(void **state)
{
    static const enum op_kind kinds[] = { OP_EXPERT_LINEAR, OP_EXPERT_LINEAR_DX,
                                          OP_EXPERT_LINEAR_DW };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 3; i++) {
        bool is_dw = kinds[i] == OP_EXPERT_LINEAR_DW;
        struct op_shape room = { .kind = kinds[i], .attributes.n_rows = 4096 };

        room.in[0] = bf16(8 * 4096, 2048);
        room.in[is_dw ? 2 : 1] = (struct tensor){ NULL, 1, 8, 8, DTYPE_I32 };
        room.in[is_dw ? 1 : 2] = is_dw ? bf16(8 * 4096, 2048) : bf16(8 * 2048, 2048);
        room.out[0] = is_dw ? bf16(8 * 2048, 2048) : bf16(8 * 4096, 2048);
        struct op_shape full = op_expected(&room);
        assert_int_equal(full.in[0].rows, 4096);
        assert_int_equal(full.out[0].rows, is_dw ? 8 * 2048 : 4096);
        full.attributes.n_rows = 0;
        assert_int_equal(price_op(&f.prices, &room).ns, price_op(&f.prices, &full).ns);
        assert_true(op_flops(&room) == op_flops(&full));
        assert_true(op_flops(&full) == 2 * 4096.0 * 2048 * 2048);
        assert_true(op_bytes(&room) == op_bytes(&full));
        room.attributes.n_rows = 0;
        assert_true(op_flops(&room) == 8 * op_flops(&full));
        assert_true(price_op(&f.prices, &room).ns > 6 * price_op(&f.prices, &full).ns);
    }
    arena_release(&f.arena);
}

static void test_efficiency(void **state)
{
    (void)state;
    for (int m = 1; m < 40000; m = m * 5 / 3 + 1)
        for (int k = 16; k < 40000; k *= 5) {
            struct product product = { m, 3000, k, 1 };
            double efficiency = price_product_efficiency(&product, FORMAT_BF16, 132);

            assert_true(efficiency > 0 && efficiency <= 1);
            product.k *= 2;
            assert_true(price_product_efficiency(&product, FORMAT_BF16, 132) >= efficiency);
        }
}

static void has_prices(const struct fixture *f, const struct function *function,
                       const struct program *p)
{
    for (int i = 0; i < function->n_ops; i++) {
        struct op_shape op = program_op_shape(p, &function->ops[i]);

        if (op_is_collective(op.kind))
            continue;
        struct price price = price_op(&f->prices, &op);
        double floor = 1e9 * op_bytes(&op) / f->device.hbm;
        assert_in_range(price.ns, f->device.launch, 1000 * 1000);
        assert_true((double)price.ns >= floor);
        assert_true(price.issue_ns >= f->cluster.software.host_op);
    }
}

/* With scores in memory two products and four passes over them; four and seven backward. */
static void test_unfused_attention(void **state)
{
    struct fixture f;
    struct op_shape op = { .kind = OP_ATTENTION,
                           .attributes = {
                               .seq_len = 2048, .n_heads = 8, .n_kv_heads = 8, .head_dim = 96 } };
    double pairs = 4096.0 * 2048 * 8, product = 2 * pairs * 96 / (0.45 * 312e12);
    double pass = 2 * pairs / (0.78 * 2.04e12);

    (void)state;
    open_fixture(&f);
    op.in[ATTENTION_Q] = op.in[ATTENTION_K] = op.in[ATTENTION_V] = bf16(4096, 768);
    op.out[OPS_FIRST] = bf16(4096, 768);
    double fused = price_attention(&f.prices, &op).ns;
    f.cluster.software.has_unfused_attention = true;
    double unfused = price_attention(&f.prices, &op).ns;
    assert_true(fabs(unfused / (1e9 * (2 * product + 4 * pass)) - 1) < 1e-9);
    assert_true(unfused > 2 * fused);
    op.kind = OP_ATTENTION_GRAD;
    op.in[ATTENTION_GRAD_Q] = bf16(4096, 768);
    unfused = price_attention(&f.prices, &op).ns;
    assert_true(fabs(unfused / (1e9 * (4 * product + 7 * pass)) - 1) < 1e-9);
    arena_release(&f.arena);
}

/* Every op of a step has a price, and none is faster than its bytes. */
static void test_programs(void **state)
{
    static const char *const models[] = { "llama", "gpt2", "mixture" };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 3; i++) {
        struct model_spec spec = tiny_spec(models[i]);
        struct compile_train options = tiny_compile(&spec, 2);
        struct program p;
        struct err err;

        if (compile_train(&p, &options, &err) < 0)
            fail_msg("%s", err.text);
        for (int k = 0; k < p.n_functions; k++)
            has_prices(&f, &p.functions[k], &p);
        program_release(&p);
    }
    arena_release(&f.arena);
}

/* A fixed order of sums moves the terms and adds them: more than where the library adds. */
static void test_sums(void **state)
{
    struct fixture f;
    struct mesh mesh = mesh_data_parallel(8);
    struct op_shape op = { .kind = OP_REDUCE_SCATTER };

    (void)state;
    open_fixture(&f);
    op.in[OPS_FIRST] =
        (struct tensor){ .rows = 1, .cols = 1 << 26, .stride = 1 << 26, .dtype = DTYPE_F32 };
    op.out[OPS_FIRST] =
        (struct tensor){ .rows = 1, .cols = 1 << 23, .stride = 1 << 23, .dtype = DTYPE_F32 };
    struct group_shape group = collective_group(&f.cluster, &mesh, 0, AXIS_DP);
    struct price fixed = price_collective(&f.prices, &group, &op);
    f.prices.fast_reductions = true;
    struct price fast = price_collective(&f.prices, &group, &op);
    assert_true(fixed.ns > 0 && fast.ns > 0);
    assert_true(fast.ns <= fixed.ns);
    assert_int_equal(fast.issue_ns, f.cluster.software.nccl_op);
    arena_release(&f.arena);
}

/* Ranks that share a kv head give it to each other alone: as many bytes as among these alone. */
static void test_shared_heads(void **state)
{
    static const enum op_kind kinds[] = { OP_GATHER_HEADS, OP_GATHER_HEADS_GRAD };
    struct fixture f;
    struct mesh mesh = mesh_data_parallel(8), two = mesh_data_parallel(2);

    (void)state;
    open_fixture(&f);
    struct group_shape eight = collective_group(&f.cluster, &mesh, 0, AXIS_DP);
    struct group_shape pair = collective_group(&f.cluster, &two, 0, AXIS_DP);
    for (int i = 0; i < 2; i++) {
        struct op_shape op = { .kind = kinds[i],
                               .attributes = { .n_heads = 4, .n_kv_heads = 1, .head_dim = 128 } };

        op.attributes.group = 2;
        op.in[OPS_FIRST] = bf16(4096, 4 * 128 + (i ? 256 : 128));
        op.out[OPS_FIRST] = bf16(4096, 4 * 128 + (i ? 128 : 256));
        assert_int_equal(price_link_bytes(&op, 8), 4096 * 128 * 2);
        assert_int_equal(price_link_bytes(&op, 8), price_link_bytes(&op, 2));
        assert_int_equal(price_collective(&f.prices, &eight, &op).ns,
                         price_collective(&f.prices, &pair, &op).ns);
        op.attributes.group = 8;
        assert_true(price_collective(&f.prices, &eight, &op).ns >
                    price_collective(&f.prices, &pair, &op).ns);
    }
    arena_release(&f.arena);
}

/* Bytes on a link are those of an all-to-all of what is exchanged, kv heads as often as they are
 * sent, or of a gather; zigzag rows are copied, one sequence of others is not. */
static void test_sequences(void **state)
{
    struct fixture f;
    struct mesh mesh = mesh_data_parallel(8);
    struct op_shape to = { .kind = OP_ROWS_TO_HEADS,
                           .attributes = {
                               .seq_len = 1024, .n_heads = 32, .n_kv_heads = 4, .head_dim = 128 } };
    struct op_shape gather = { .kind = OP_GATHER_SEQUENCE, .attributes = { .seq_len = 1024 } };

    (void)state;
    open_fixture(&f);
    struct group_shape group = collective_group(&f.cluster, &mesh, 0, AXIS_DP);
    to.in[OPS_FIRST] = bf16(1024, 40 * 128);
    to.out[OPS_FIRST] = bf16(8192, 6 * 128);
    struct op_shape back = to;
    back.kind = OP_HEADS_TO_ROWS;
    back.in[OPS_FIRST] = to.out[OPS_FIRST];
    back.out[OPS_FIRST] = to.in[OPS_FIRST];
    assert_int_equal(price_link_bytes(&to, 8), 7 * 1024 * 6 * 128 * 2);
    assert_int_equal(price_link_bytes(&back, 8), 7 * 1024 * 6 * 128 * 2);
    int64_t exchange = all_to_all_ns(&f.cluster, &group, 8192 * 6 * 128 * 2);
    assert_true(price_collective(&f.prices, &group, &to).ns > exchange);
    assert_true(price_collective(&f.prices, &group, &back).ns >
                price_collective(&f.prices, &group, &to).ns);

    gather.in[OPS_FIRST] = bf16(1024, 8 * 128);
    gather.out[OPS_FIRST] = bf16(8192, 8 * 128);
    struct op_shape plain = gather;
    plain.kind = OP_ALL_GATHER;
    assert_int_equal(price_link_bytes(&gather, 8), 7 * 1024 * 8 * 128 * 2);
    assert_int_equal(price_collective(&f.prices, &group, &gather).ns,
                     price_collective(&f.prices, &group, &plain).ns);
    gather.attributes.zigzag = 1;
    assert_true(price_collective(&f.prices, &group, &gather).ns >
                price_collective(&f.prices, &group, &plain).ns);

    struct op_shape scatter = gather, sum = { .kind = OP_REDUCE_SCATTER };
    scatter.kind = OP_SCATTER_SEQUENCE;
    scatter.attributes.zigzag = 0;
    scatter.in[OPS_FIRST] = sum.in[OPS_FIRST] = gather.out[OPS_FIRST];
    scatter.out[OPS_FIRST] = sum.out[OPS_FIRST] = gather.in[OPS_FIRST];
    assert_int_equal(price_link_bytes(&scatter, 8), price_link_bytes(&sum, 8));
    assert_int_equal(price_collective(&f.prices, &group, &scatter).ns,
                     price_collective(&f.prices, &group, &sum).ns);
    arena_release(&f.arena);
}

/* Messages and groups of the table are priced with it, others by formula; links that are faster
 * make all of it faster. */
static void test_measured_exchanges(void **state)
{
    struct fixture f;
    struct price_table table = { .late_ns = 100000 };
    struct op_shape op = { .kind = OP_ALL_GATHER };

    (void)state;
    open_fixture(&f);
    cluster_of_device(&f.cluster, &f.device, 32, &f.arena);
    table.arena = &f.arena;
    f.cluster.table = &table;
    price_table_add_transfer(&table, false, 4096, 5000);
    price_table_add_transfer(&table, true, 4096, 50000);
    price_table_add_collective(&table, OP_ALL_GATHER, (struct price_span){ 1, 4 }, 4096, 70000);
    struct price near = price_transfer(&f.prices, 0, 1, 4096, 8);
    struct price far = price_transfer(&f.prices, 0, 8, 4096, 1);
    assert_true(near.ns == 5000 && near.source == PRICE_MEASURED);
    assert_true(far.ns == 50000 && far.source == PRICE_MEASURED);
    /* All ranks of a node have as many NICs: sharing starts beyond. */
    assert_true(price_transfer(&f.prices, 0, 8, 4096, 8).ns == 50000);
    assert_true(price_transfer(&f.prices, 0, 8, 4096, 64).ns > 50000);
    assert_int_equal(price_transfer(&f.prices, 3, 3, 4096, 1).ns, 0);

    op.in[OPS_FIRST] = bf16(1, 512);
    op.out[OPS_FIRST] = bf16(1, 2048);
    struct group_shape group = {
        .n = 4, .per_node = 1, .n_nodes = 4, .n_domains = 4, .n_leaves = 1
    };
    group.n_islands = group.per_domain = group.n_sharing = 1;
    struct price price = price_collective(&f.prices, &group, &op);
    assert_true(price.ns == 70000 && price.source == PRICE_MEASURED);
    /* A rotation's hop is a message; what windows see is two. */
    struct op_shape rotate = { .kind = OP_ROTATE };
    rotate.in[ROTATE_X] = rotate.out[ROTATE_Y] = op.out[OPS_FIRST];
    price = price_collective(&f.prices, &group, &rotate);
    assert_true(price.ns == 50000 && price.source == PRICE_MEASURED);
    assert_int_equal(price_link_bytes(&rotate, 4), 4096);
    struct op_shape window = { .kind = OP_GATHER_WINDOW,
                               .attributes = { .seq_len = 512, .window = 9 } };
    window.in[OPS_FIRST] = bf16(512, 256);
    window.out[OPS_FIRST] = bf16(2 * ops_window_rows(256, 9), 256);
    assert_int_equal(price_link_bytes(&window, 4), 2 * 8 * 256 * 2);
    price = price_collective(&f.prices, &group, &window);
    assert_true(price.ns > 100000 && price.source == PRICE_MEASURED);
    /* To experts goes each token that chose one of a rank's, once; back, each choice. */
    struct op_shape send = { .kind = OP_SEND_ROWS, .attributes = { .n_experts = 8 } };
    send.in[SEND_ROWS_X] = bf16(1024, 256);
    send.in[SEND_ROWS_CHOICES] = (struct tensor){ NULL, 4096, 2, 2, DTYPE_I32 };
    send.out[SEND_ROWS_Y] = bf16(4096, 256);
    struct op_shape back = { .kind = OP_RETURN_ROWS, .attributes = { .n_experts = 8 } };
    back.in[RETURN_ROWS_Y] = bf16(8192, 256);
    back.in[RETURN_ROWS_CHOICES] = send.in[SEND_ROWS_CHOICES];
    back.out[RETURN_ROWS_X] = bf16(2048, 256);
    double share = 1 - 6 * 5 / (8.0 * 7); /* of a rank's 2 of 8 experts, by 2 choices */
    assert_int_equal(price_link_bytes(&send, 4), (int64_t)(4 * 1024 * share) * 512 * 3 / 4);
    assert_int_equal(price_link_bytes(&back, 4), 2048 * 512 * 3 / 4);
    price = price_collective(&f.prices, &group, &send);
    assert_true(price.ns > price_collective(&f.prices, &group, &back).ns / 2);
    group.n = 8; /* not as many on each node */
    assert_int_equal(price_collective(&f.prices, &group, &op).source, PRICE_FORMULA);
    f.cluster.faster.links = 2;
    assert_int_equal(price_transfer(&f.prices, 0, 8, 4096, 1).ns, 25000);
    assert_int_equal(price_lateness(&f.prices, PRICE_APART_NS), 50000);
    arena_release(&f.arena);
}

/* Ranks that have computed for longer come farther apart, up to what sleeping between two questions
 * costs. */
static void test_lateness(void **state)
{
    struct fixture f;
    struct price_table table = { .late_ns = 100000 };

    (void)state;
    open_fixture(&f);
    assert_int_equal(price_lateness(&f.prices, PRICE_APART_NS), 0);
    f.cluster.table = &table;
    assert_int_equal(price_lateness(&f.prices, 0), 0);
    assert_int_equal(price_lateness(&f.prices, PRICE_APART_NS / 2), 50000);
    assert_int_equal(price_lateness(&f.prices, PRICE_APART_NS), 100000);
    assert_int_equal(price_lateness(&f.prices, 100 * PRICE_APART_NS), 100000);
    arena_release(&f.arena);
}

/* Four ranks of a node that serves two at full speed: all take twice as long when all compute; when
 * each computes half of the time, as the numbers that compute at a time say. */
static void test_ranks_share_a_node(void **state)
{
    struct fixture f;
    struct price_table table = { .contention = 2 };
    struct op_shape op = linear(128, 256, 512);

    (void)state;
    open_fixture(&f);
    cluster_of_device(&f.cluster, &f.device, 4, &f.arena);
    table.arena = &f.arena;
    f.cluster.table = &table;
    price_table_add_op(&table, &op, 100000, 100000);
    struct prices prices = { .cluster = &f.cluster };
    assert_int_equal(price_op(&prices, &op).ns, 100000);
    prices.n_computing = 4;
    assert_int_equal(price_op(&prices, &op).ns, 200000);
    prices.busy = 1;
    assert_int_equal(price_op(&prices, &op).ns, 200000);
    /* One or two at a time: as alone; three: 1.5; four: 2; of 1, 3, 3, 1 eighths. */
    prices.busy = 0.5;
    assert_int_equal(price_op(&prices, &op).ns, 131250);
    prices.busy = 1e-6;
    assert_int_equal(price_op(&prices, &op).ns, 100000);
    prices.busy = 0;
    prices.n_computing = 2;
    assert_int_equal(price_op(&prices, &op).ns, 100000);
    prices.n_computing = 3;
    assert_int_equal(price_op(&prices, &op).ns, 150000);
    arena_release(&f.arena);
}

/* What the host computes beside a GPU takes the time of its memory; on a CPU all memory is that. */
static void test_host_ops(void **state)
{
    struct fixture f;
    struct op_shape op = { .kind = OP_ADAMW };

    (void)state;
    open_fixture(&f);
    for (int k = OPTIMIZER_MASTER; k <= OPTIMIZER_V; k++)
        op.in[k] = (struct tensor){ .rows = 4096, .cols = 4096, .stride = 4096 };
    op.in[OPTIMIZER_GRADIENT] = op.in[OPTIMIZER_MASTER];
    f.cluster.links.host_memory = 50e9;
    assert_int_equal(price_host_op(&f.prices, &op).ns,
                     llround(op_bytes(&op) / 50) + f.cluster.software.host_op);
    assert_int_equal(price_host_op(&f.prices, &op).issue_ns, 0);
    assert_true(price_host_op(&f.prices, &op).ns > price_op(&f.prices, &op).ns);
    f.device.is_cpu = true;
    assert_int_equal(price_host_op(&f.prices, &op).ns, price_op(&f.prices, &op).ns);
    arena_release(&f.arena);
}

/* Over the link; on a CPU as fast as the job says; to a file by the slower of link and disk. */
static void test_copies(void **state)
{
    struct op_shape op = { .kind = OP_TO_HOST };
    int64_t n_bytes = 1 << 20;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    op.in[OPS_FIRST] = op.out[OPS_FIRST] = bf16(1024, 512);
    f.cluster.links.host_bandwidth = 20e9;
    f.prices.link_rate = 1e9; /* a GPU has its own */
    int64_t on_gpu = price_op(&f.prices, &op).ns;
    assert_in_range(on_gpu, n_bytes / 20, n_bytes / 20 + f.device.launch + 1);
    f.prices.file_rate = 1e9;
    assert_int_equal(price_file_copy(&f.prices, &op, true).ns, n_bytes);
    f.prices.file_rate = 0;
    assert_int_equal(price_file_copy(&f.prices, &op, true).ns, on_gpu);
    f.cluster.links.storage_write = 2e9;
    assert_int_equal(price_file_copy(&f.prices, &op, true).ns, n_bytes / 2);
    assert_int_equal(price_file_copy(&f.prices, &op, false).ns, on_gpu);

    f.device.is_cpu = true;
    f.device.launch = 0;
    f.cluster.software.host_op = 0;
    assert_int_equal(price_op(&f.prices, &op).ns, n_bytes);
    assert_int_equal(price_file_copy(&f.prices, &op, true).ns, n_bytes);
    f.prices.link_rate = 0;
    assert_in_range(price_op(&f.prices, &op).ns, n_bytes / 20, n_bytes / 20 + 1);
    arena_release(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),      cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_expected_rows), cmocka_unit_test(test_efficiency),
        cmocka_unit_test(test_programs),      cmocka_unit_test(test_unfused_attention),
        cmocka_unit_test(test_sums),          cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_shared_heads),  cmocka_unit_test(test_measured_exchanges),
        cmocka_unit_test(test_lateness),      cmocka_unit_test(test_ranks_share_a_node),
        cmocka_unit_test(test_host_ops),      cmocka_unit_test(test_copies),
        cmocka_unit_test(test_newton_schulz),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
