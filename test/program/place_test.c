/*
 * place_test.c - nothing that lives at the same time overlaps, and little memory is wasted
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "support/golden_text.h"
#include "support/offload.h"
#include "support/tiny_model.h"
#include "support/tp_layers.h"

#define N_RANDOM 300
#define ALIGNMENT 64

/* ---- random programs: two or three functions of adds and gathers over values of many sizes */

struct random {
    uint64_t seed, count;
};

/* 0..n-1 */
static int draw(struct random *r, int n)
{
    struct rng_block block = rng_at(r->seed, RNG_TEST, 0, r->count++);

    return (int)(block.word[0] % (uint32_t)n);
}

#define N_SIZES 5
#define N_OPS_MAX 60

/* Values of each size that were written so far, by this function or one before. */
struct written {
    int ids[N_SIZES][4 * N_OPS_MAX];
    int n[N_SIZES];
};

static int64_t rows_of(int size)
{
    static const int64_t rows[N_SIZES] = { 1, 3, 16, 100, 257 };

    return rows[size];
}

static void emit_random(struct program *p, struct random *r, int function, struct written *w,
                        int n_before[N_SIZES])
{
    int size = draw(r, N_SIZES), n = w->n[size];
    /* Mostly what is fresh, sometimes what another function wrote. */
    int low = draw(r, 8) ? min_int(n_before[size], n - 1) : 0;
    int a = w->ids[size][low + draw(r, n - low)], b = w->ids[size][max_int(0, n - 1 - draw(r, 3))];
    int y = program_value(p, rows_of(size), 8, DTYPE_F32);
    struct op op = { .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = -1 };

    if (draw(r, 10) == 0)
        op.stream = draw(r, 2) ? STREAM_DP_GATHER : STREAM_TP;
    if (draw(r, 6) == 0)
        op.in[1] = program_view(p, b, 0, rows_of(size), 8, 8);
    program_emit(p, function, &op);
    w->ids[size][w->n[size]++] = y;
}

static void random_program(struct program *p, uint64_t seed)
{
    struct random r = { .seed = seed };
    struct mesh mesh = mesh_data_parallel(1);
    static struct written w;

    program_init(p, &mesh);
    memset(&w, 0, sizeof w);
    for (int size = 0; size < N_SIZES; size++)
        w.ids[size][w.n[size]++] =
            program_cell(p, ROLE_INPUT, "input", rows_of(size), 8, DTYPE_F32);
    int n_functions = 1 + draw(&r, 3);
    for (int f = 0; f < n_functions; f++) {
        int function = program_function(p, "function", 0), n_ops = 1 + draw(&r, N_OPS_MAX);
        int n_before[N_SIZES];

        memcpy(n_before, w.n, sizeof n_before);
        for (int i = 0; i < n_ops; i++)
            emit_random(p, &r, function, &w, n_before);
    }
    program_value(p, 5, 5, DTYPE_F32); /* that nobody uses */
}

/* ---- an independent, slow check ---- */

static int touches(const struct program *p, const struct op *op, int base)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && program_base(p, op->in[k]) == base)
            return 1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_base(p, op->out[k]) == base)
            return 1;
    return 0;
}

static int touches_any_of(const struct program *p, const struct op *op, const struct op *other)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (other->in[k] && touches(p, op, program_base(p, other->in[k])))
            return 1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (other->out[k] && touches(p, op, program_base(p, other->out[k])))
            return 1;
    return 0;
}

/*
 * Whether ops[k] of another stream may still be under way when ops[i], further on, begins. Those
 * that come after it are marked op by op; it is done once a compute op has touched what one of them
 * touches.
 */
static int may_run(const struct program *p, const struct function *f, int k, int i)
{
    char after[N_OPS_MAX] = { 0 };

    after[k] = 1;
    for (int j = k + 1; j < i; j++)
        for (int m = k; m < j && !after[j]; m++) {
            if (!after[m] || !touches_any_of(p, &f->ops[j], &f->ops[m]))
                continue;
            if (f->ops[j].stream == STREAM_COMPUTE)
                return 0;
            after[j] = 1;
        }
    return 1;
}

/* Does `base` live while ops[i] of f runs? Between two touches, and while other streams may touch
 * it. */
static int lives_at(const struct program *p, const struct function *f, int i, int base)
{
    int before = 0, after = 0;

    for (int k = 0; k <= i; k++)
        before |= touches(p, &f->ops[k], base);
    for (int k = 0; k < f->n_ops; k++)
        after |= touches(p, &f->ops[k], base) &&
                 (k >= i || (f->ops[k].stream != STREAM_COMPUTE && may_run(p, f, k, i)));
    return before && after;
}

static int in_memory(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return id && !v->base && (v->role != ROLE_NONE || v->segment != SEGMENT_WEIGHTS);
}

static int overlap(const struct program *p, int a, int b)
{
    const struct value *x = &p->values[a], *y = &p->values[b];

    size_t at_x = program_place(p, a, 0), at_y = program_place(p, b, 0);

    return x->segment == y->segment && at_x < at_y + program_value_bytes(p, b) &&
           at_y < at_x + program_value_bytes(p, a);
}

static void check_apart(const struct program *p, const char *what, int a, int b)
{
    if (overlap(p, a, b))
        fail_msg("%s: %%%d at %zu and %%%d at %zu overlap in %s", what, a, p->values[a].place_bytes,
                 b, p->values[b].place_bytes, segment_name(p->values[a].segment));
}

static int used_elsewhere(const struct program *p, int function, int base)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; f != function && i < p->functions[f].n_ops; i++)
            if (touches(p, &p->functions[f].ops[i], base))
                return 1;
    return 0;
}

/* Cells and stash values never share; scratch values only where their lives don't meet. */
static void check_lives(const struct program *p)
{
    for (int a = 1; a < p->n_values; a++)
        for (int b = 1; b < a; b++)
            if (in_memory(p, a) && in_memory(p, b) && p->values[a].segment != SEGMENT_SCRATCH)
                check_apart(p, "always", a, b);
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            int live[4 * N_OPS_MAX * N_SIZES], n = 0;

            for (int id = 1; id < p->n_values; id++)
                if (in_memory(p, id) && p->values[id].segment == SEGMENT_SCRATCH &&
                    lives_at(p, &p->functions[f], i, id))
                    live[n++] = id;
            for (int a = 0; a < n; a++) {
                assert_false(used_elsewhere(p, f, live[a]));
                for (int b = 0; b < a; b++)
                    check_apart(p, p->functions[f].name, live[a], live[b]);
            }
        }
}

/* Inside, aligned, views at their place in the base; no segment larger than all its values in a
 * row. */
static void check_extents(const struct program *p)
{
    size_t sums[N_SEGMENTS] = { 0 };

    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id], *base = &p->values[v->base];
        size_t end = v->place_bytes + program_value_bytes(p, id);

        if (v->base) {
            assert_int_equal(v->segment, base->segment);
            assert_int_equal(v->scope, base->scope);
            assert_int_equal(v->place_bytes,
                             base->place_bytes + (size_t)v->offset * dtype_bytes(v->dtype));
            assert_true(end <= base->place_bytes + program_value_bytes(p, v->base));
        } else if (in_memory(p, id)) {
            assert_int_equal(v->place_bytes % ALIGNMENT, 0);
            assert_true(end <= (v->segment == SEGMENT_STASH ? p->stashes[v->stash].slot_bytes
                                                            : p->segment_bytes[v->segment]));
            sums[v->segment] += align_up(program_value_bytes(p, id), ALIGNMENT);
        }
    }
    assert_int_equal(p->segment_bytes[SEGMENT_STASH], sums[SEGMENT_STASH]); /* no actions: 1 slot */
    assert_true(p->segment_bytes[SEGMENT_SCRATCH] <= sums[SEGMENT_SCRATCH]);
    assert_int_equal(p->segment_bytes[SEGMENT_GRADIENTS], sums[SEGMENT_GRADIENTS]);
    assert_int_equal(p->segment_bytes[SEGMENT_STATES], sums[SEGMENT_STATES]);
}

static void random_programs(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_RANDOM; seed++) {
        struct program p;
        struct err err;

        random_program(&p, seed);
        place(&p);
        check_lives(&p);
        check_extents(&p);
        if (verify(&p, &err) < 0)
            fail_msg("%s", err.text);
        program_release(&p);
    }
}

/* Many values that live long: the calendar's other half. */
static void long_lives(void **state)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program p;
    int values[100];

    (void)state;
    program_init(&p, &mesh);
    int x = program_cell(&p, ROLE_INPUT, "x", 4, 4, DTYPE_F32);
    int f = program_function(&p, "function", 0);
    for (int i = 0; i < 100; i++) {
        values[i] = program_value(&p, 4, 4, DTYPE_F32);
        program_emit(&p, f, &(struct op){ .kind = OP_ADD, .in = { x, x }, .out = { values[i] } });
    }
    for (int i = 99; i >= 0; i--) {
        int y = program_value(&p, 4, 4, DTYPE_F32);
        program_emit(&p, f, &(struct op){ .kind = OP_ADD, .in = { x, values[i] }, .out = { y } });
    }
    place(&p);
    check_lives(&p);
    check_extents(&p);
    assert_int_equal(p.segment_bytes[SEGMENT_SCRATCH], 101 * 64);
    program_release(&p);
}

/* ---- real models: scratch against what must live at once whatever one does ---- */

struct life {
    int first, last;
};

static void live(const struct program *p, struct life *lives, int id, int i)
{
    int base = program_base(p, id);

    if (!base || p->values[base].segment != SEGMENT_SCRATCH)
        return;
    if (lives[base].first < 0)
        lives[base].first = i;
    lives[base].last = i;
}

static size_t live_bytes(const struct program *p, const struct function *f, struct life *lives)
{
    size_t *change = test_calloc((size_t)f->n_ops + 1, sizeof *change), now = 0, most = 0;

    for (int id = 0; id < p->n_values; id++)
        lives[id] = (struct life){ -1, -1 };
    for (int i = 0; i < f->n_ops; i++) {
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            live(p, lives, f->ops[i].in[k], i);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            live(p, lives, f->ops[i].out[k], i);
    }
    for (int id = 0; id < p->n_values; id++)
        if (lives[id].first >= 0) {
            change[lives[id].first] += program_value_bytes(p, id);
            change[lives[id].last + 1] -= program_value_bytes(p, id);
        }
    for (int i = 0; i < f->n_ops; i++) {
        now += change[i];
        most = now > most ? now : most;
    }
    test_free(change);
    return most;
}

static void check_waste(const char *name, enum recompute_kind kind, int dp_size)
{
    struct model_spec spec = real_spec(name);
    struct compile_train options = tiny_compile(&spec, dp_size);
    struct program p;
    struct err err;
    size_t bound = 0;

    options.dtype = DTYPE_BF16;
    options.micro_batch = 4;
    options.seq_len = 1024;
    options.recompute = kind;
    options.gradients.bucket_bytes = (size_t)25 << 20;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    struct life *lives = test_calloc((size_t)p.n_values, sizeof *lives);
    for (int f = 0; f < p.n_functions; f++) {
        size_t n_bytes = live_bytes(&p, &p.functions[f], lives);

        bound = n_bytes > bound ? n_bytes : bound;
    }
    double ratio = (double)p.segment_bytes[SEGMENT_SCRATCH] / (double)bound;
    if (!(ratio >= 1 && ratio <= 1.3))
        fail_msg("%s, recompute %d: scratch is %.3f of what lives at once", name, kind, ratio);
    test_free(lives);
    program_release(&p);
}

static void little_scratch_is_wasted(void **state)
{
    (void)state;
    for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++) {
        check_waste("llama-100m", (enum recompute_kind)kind, 1);
        check_waste("gpt2", (enum recompute_kind)kind, 2);
        check_waste("llama2-70b", (enum recompute_kind)kind, 8);
    }
}

/* Layers' collectives are awaited by the next layer at the latest. */
static void scratch_of_layers_with_collectives(void **state)
{
    (void)state;
    for (int residual = 0; residual < 2; residual++) {
        size_t n_bytes[TP_LAYERS_MAX + 1];

        for (int n = 1; n <= 32; n *= 2) {
            static struct tp_layers t;
            struct err err;

            tp_layers_build(&t, n, 2, residual, 64, 32, 96);
            place(&t.program);
            if (verify(&t.program, &err) < 0)
                fail_msg("%s", err.text);
            n_bytes[n] = t.program.segment_bytes[SEGMENT_SCRATCH];
            program_release(&t.program);
        }
        assert_int_equal(n_bytes[8], n_bytes[4]);
        assert_int_equal(n_bytes[32], n_bytes[4]);
        /* No more than a layer's own values and the layers' beside it. */
        assert_true(n_bytes[8] <= (2 * 64 * 32 + 64 * 48 + 3 * 32 * 32) * sizeof(float));
    }
}

/* Placing again gives the same places. */
static void placing_is_repeatable(void **state)
{
    struct program p;

    (void)state;
    random_program(&p, 5);
    place(&p);
    struct value *before = test_calloc((size_t)p.n_values, sizeof *before);
    memcpy(before, p.values, sizeof *before * (size_t)p.n_values);
    size_t n_bytes = program_memory_bytes(&p);
    place(&p);
    assert_memory_equal(before, p.values, sizeof *before * (size_t)p.n_values);
    assert_int_equal(n_bytes, program_memory_bytes(&p));
    test_free(before);
    program_release(&p);
}

static void compile_length(struct program *p, const struct model_spec *spec, int length, int n)
{
    struct compile_train options = tiny_compile(spec, 2);
    struct err err;

    options.longest = 16;
    options.seq_len = length;
    options.n_micro_batches = n;
    if (compile_train(p, &options, &err) < 0)
        fail_msg("%s", err.text);
}

/* What is shorter lies where the longer has it, and is still a program; others are refused. */
static void shorter_sequences_lie_within(void **state)
{
    static const char *const names[] = { "llama", "gpt2", "mixture" };
    struct program longer, shorter, other;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_spec spec = tiny_spec(names[i]);

        compile_length(&longer, &spec, 16, 3);
        compile_length(&shorter, &spec, 4, 3);
        compile_length(&other, &spec, 4, 2);
        size_t before = program_memory_bytes(&longer);
        assert_true(program_memory_bytes(&shorter) < before);
        if (place_within(&shorter, &longer, &err) < 0 || verify(&shorter, &err) < 0)
            fail_msg("%s: %s", names[i], err.text);
        assert_true(program_memory_bytes(&longer) >= before);
        assert_memory_equal(shorter.segment_bytes, longer.segment_bytes,
                            sizeof longer.segment_bytes);
        for (int id = 1; id < shorter.n_values; id++)
            if (!shorter.values[id].base && !program_has_content(&shorter, id))
                assert_int_equal(program_place(&shorter, id, 2), program_place(&longer, id, 2));
        assert_int_equal(place_within(&other, &longer, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        program_release(&shorter);
        compile_length(&shorter, &spec, 4, 3);
        assert_int_equal(place_within(&longer, &shorter, &err), -1);
        program_release(&longer);
        program_release(&other);
        program_release(&shorter);
    }
}

/* ---- addresses, which golden programs leave out (print_test.c) ---- */

static void check_map(const struct program *p, const char *path)
{
    struct str text = { 0 };

    print_memory_map(p, &text);
    golden_text_check(path, str_text(&text));
    str_release(&text);
}

static void check_compiled_map(const struct compile_train *options, const char *path)
{
    struct program p;
    struct err err;

    if (compile_train(&p, options, &err) < 0)
        fail_msg("%s", err.text);
    check_map(&p, path);
    program_release(&p);
}

/* One stage; stages whose chunks share slots by a table; staging of gradients and gathered
 * weights. */
static void maps_of_programs(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train plain = tiny_compile(&spec, 2), chunks = tiny_compile(&spec, 1),
                         zero3 = tiny_compile(&spec, 2);

    (void)state;
    plain.recompute = RECOMPUTE_KIND_SELECTIVE;
    check_compiled_map(&plain, "test/program/golden/place.llama.txt");

    spec.n_layers = 4;
    chunks.mesh.size[AXIS_PP] = 2;
    chunks.pipeline.kind = PIPELINE_INTERLEAVED;
    chunks.pipeline.n_chunks = 2;
    chunks.n_micro_batches = 4;
    check_compiled_map(&chunks, "test/program/golden/place.interleaved.txt");

    zero3.gradients.zero = 3;
    zero3.gradients.early = 1;
    check_compiled_map(&zero3, "test/program/golden/place.zero-3.txt");
}

/* Copies to the host: its segments, and a stash there. */
static void map_of_host_memory(void **state)
{
    struct offload_shape shape = {
        .n_layers = 4, .tp_size = 2, .n_micro_batches = 6, .rows = 4, .cols = 16
    };
    struct offload o;

    (void)state;
    offload_build(&o, &shape);
    place(&o.program);
    check_map(&o.program, "test/program/golden/place.offload.txt");
    program_release(&o.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs),
        cmocka_unit_test(long_lives),
        cmocka_unit_test(little_scratch_is_wasted),
        cmocka_unit_test(scratch_of_layers_with_collectives),
        cmocka_unit_test(placing_is_repeatable),
        cmocka_unit_test(shorter_sequences_lie_within),
        cmocka_unit_test(maps_of_programs),
        cmocka_unit_test(map_of_host_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
