/*
 * replay_rendezvous_test.c - small programs of a few ranks, each legal by itself, that wait for
 * each other or don't
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "program/passes.h"

static void accepted(const struct program *const *list, const struct mesh *mesh)
{
    struct err err;

    if (verify_ranks(list, mesh, &err) < 0)
        fail_msg("%s", err.text);
}

/* Words: up to four texts that the message must contain. */
static void check_refused(const struct program *const *list, const struct mesh *mesh,
                          const char *const words[4])
{
    struct err err = { 0 };

    assert_int_equal(verify_ranks(list, mesh, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    for (int i = 0; i < 4; i++)
        if (words[i] && !strstr(err.text, words[i]))
            fail_msg("'%s' is not in: %s", words[i], err.text);
}

#define REFUSED(list, mesh, ...) check_refused(list, mesh, (const char *const[4]){ __VA_ARGS__ })

/* ---- a cycle through two groups, each in order by itself ---- */

/* Why the second of two collectives does not begin before the first is done. */
enum held {
    BY_USE,     /* a compute op uses its sum */
    BY_OPERAND, /* the second is of its sum */
    BY_END,     /* its sum dies with its function */
    BY_GATE,
    BY_LOAD,    /* it reads an input */
    BY_AGAIN,   /* it is given twice */
    BY_FULL,    /* it is of more than a stream takes */
    BY_NOTHING, /* it is of as many as a stream takes */
    BY_NO_SLOT, /* it is given twice, of two micro-batches */
    N_HELD
};

enum { STREAM_TAKES = 256 }; /* comm/worker.c */

static const enum mesh_axis sum_axes[] = { AXIS_TP, AXIS_DP };
static const enum stream sum_streams[] = { STREAM_TP, STREAM_DP_REDUCE };

/* A scalar that is owed a sum over tp or dp, or, where one sum is of the other's, over both. */
static int owed_cell(struct program *p, int k, enum held held)
{
    static const char *const names[] = { "x", "y" };
    int cell = program_cell(p, held == BY_LOAD || held == BY_NO_SLOT ? ROLE_INPUT : ROLE_SCALAR,
                            names[k], 1, 1, DTYPE_F64);

    p->values[cell].spread[sum_axes[k]] = SPREAD_PARTIAL;
    if (held == BY_OPERAND)
        p->values[cell].spread[sum_axes[!k]] = SPREAD_PARTIAL;
    return cell;
}

static int sum_cell(struct program *p, int k, enum held held)
{
    static const char *const names[] = { "x.sum", "y.sum" };

    return held == BY_END ? program_value(p, 1, 1, DTYPE_F64)
                          : program_cell(p, ROLE_SCALAR, names[k], 1, 1, DTYPE_F64);
}

static void sum_owed(struct program *p, int function, int k, int in, int out)
{
    memcpy(p->values[out].spread, p->values[in].spread, sizeof p->values[out].spread);
    p->values[out].spread[sum_axes[k]] = SPREAD_SAME;
    program_emit(p, function,
                 &(struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                               .attributes.axis = sum_axes[k],
                               .in = { in },
                               .out = { out },
                               .stream = sum_streams[k],
                               .layer = -1 });
}

/* Two functions, alike in both orders: x is summed over tp in one, y over dp in the other. */
static void two_sums(struct program *p, const struct mesh *mesh, int y_first, enum held held)
{
    static const char *const names[] = { "sum x", "sum y" };
    struct action actions[8] = { { .kind = ACTION_LOAD } };
    int functions[2], cells[2], sums[2], n_actions = 1;
    int n_runs = held == BY_AGAIN || held == BY_NO_SLOT ? 2 : 1;

    program_init(p, mesh);
    int ends = program_cell(p, ROLE_CONSTANT, "ends", 1, 1, DTYPE_I32);
    if (held == BY_NO_SLOT)
        actions[n_actions++] = (struct action){ .kind = ACTION_LOAD, .micro_batch = 1 };
    for (int k = 0; k < 2; k++) {
        functions[k] = program_function(p, names[k], 0);
        cells[k] = owed_cell(p, k, held);
        sums[k] = sum_cell(p, k, held);
    }
    for (int i = 0; i < 2; i++) {
        int k = i ^ y_first;

        int n = held == BY_FULL ? STREAM_TAKES + 1 : held == BY_NOTHING ? STREAM_TAKES : 1;
        while (n--)
            sum_owed(p, functions[k], k, held == BY_OPERAND && i ? sums[!k] : cells[k], sums[k]);
        if (held == BY_USE)
            program_emit(p, functions[k],
                         &(struct op){ .kind = OP_SUM_RUNS,
                                       .in = { sums[k], ends },
                                       .out = { program_value(p, 1, 1, DTYPE_F64) },
                                       .layer = -1 });
        if (i && (held == BY_GATE || held == BY_LOAD))
            actions[n_actions++].kind = held == BY_GATE ? ACTION_GATE : ACTION_LOAD;
        for (int run = 0; run < n_runs; run++)
            actions[n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                    .function = (int16_t)functions[k],
                                                    .micro_batch = held == BY_NO_SLOT ? run : 0 };
    }
    p->entries[ENTRY_STEP].actions = arena_array(&p->arena, struct action, n_actions);
    memcpy(p->entries[ENTRY_STEP].actions, actions, sizeof *actions * (size_t)n_actions);
    p->entries[ENTRY_STEP].n_actions = n_actions;
    place(p);
}

/* Programs of 2 x 2 ranks, of which one of each group has the other order. */
static void cross_sums(enum held held)
{
    struct program orders[2];
    struct mesh mesh = mesh_data_parallel(2);
    const struct program *list[4];
    struct err err;

    mesh.size[AXIS_TP] = 2;
    for (int i = 0; i < 2; i++) {
        two_sums(&orders[i], &mesh, i, held);
        /* Each passes by itself, and where all have it. */
        if (verify(&orders[i], &err) < 0)
            fail_msg("%s", err.text);
        for (int rank = 0; rank < 4; rank++)
            list[rank] = &orders[i];
        accepted(list, &mesh);
    }
    for (int rank = 0; rank < 4; rank++)
        list[rank] = &orders[rank == 1 || rank == 2];
    if (held == BY_NOTHING || held == BY_NO_SLOT)
        accepted(list, &mesh);
    else
        REFUSED(list, &mesh, "deadlock",
                "tp rank 0, dp rank 0 (world rank 0) waits in all_reduce_scalar over tp of 8 bytes "
                "(fp64)",
                "in sum x, micro-batch 0 for tp rank 1, dp rank 0 (world rank 1)",
                "tp rank 1, dp rank 0 (world rank 1) waits in all_reduce_scalar over dp");
    for (int i = 0; i < 2; i++)
        program_release(&orders[i]);
}

static void cycles_through_two_groups(void **state)
{
    (void)state;
    for (int held = 0; held < N_HELD; held++)
        cross_sums((enum held)held);
}

/* ---- a cycle through a group and a channel ---- */

/* Two stages sum x; the first sends the sum, the second uses what it receives. */
static void sum_and_transfer(struct program *p, const struct mesh *mesh, int rank,
                             int receives_first)
{
    program_init(p, mesh);
    int function = program_function(p, "forward 0", 0);
    int ends = program_cell(p, ROLE_CONSTANT, "ends", 1, 1, DTYPE_I32);
    int x = program_cell(p, ROLE_SCALAR, "x", 1, 1, DTYPE_F64);
    int sum = program_cell(p, ROLE_SCALAR, "x.sum", 1, 1, DTYPE_F64);
    int y = program_value(p, 1, 1, DTYPE_F64), used = program_value(p, 1, 1, DTYPE_F64);
    struct op all = { .kind = OP_ALL_REDUCE_SCALAR,
                      .attributes.axis = AXIS_PP,
                      .in = { x },
                      .out = { sum },
                      .stream = STREAM_PP,
                      .layer = -1 };
    struct op transfer = { .kind = rank ? OP_RECEIVE : OP_SEND,
                           .attributes = { .axis = AXIS_PP, .peer = rank ? -1 : 1 },
                           .stream = rank ? STREAM_F_FROM_PREVIOUS : STREAM_F_TO_NEXT,
                           .layer = -1 };
    struct op use = { .kind = OP_SUM_RUNS, .in = { y, ends }, .out = { used }, .layer = -1 };

    p->values[x].spread[AXIS_PP] = SPREAD_PARTIAL;
    *(rank ? &transfer.out[0] : &transfer.in[0]) = rank ? y : sum;
    if (!receives_first)
        program_emit(p, function, &all);
    program_emit(p, function, &transfer);
    if (rank)
        program_emit(p, function, &use);
    if (receives_first)
        program_emit(p, function, &all);
    p->entries[ENTRY_STEP].actions = arena_array(&p->arena, struct action, 1);
    p->entries[ENTRY_STEP].actions[0] = (struct action){ .kind = ACTION_RUN };
    p->entries[ENTRY_STEP].n_actions = 1;
    place(p);
}

/*
 * The sender has given its send, but it comes after a sum that the receiver enters only when it has
 * what is sent.
 */
static void send_that_comes_after(void **state)
{
    (void)state;
    for (int receives_first = 0; receives_first < 2; receives_first++) {
        struct program ranks[2];
        struct mesh mesh = mesh_data_parallel(1);
        const struct program *list[2];

        mesh.size[AXIS_PP] = 2;
        for (int rank = 0; rank < 2; rank++) {
            sum_and_transfer(&ranks[rank], &mesh, rank, rank && receives_first);
            list[rank] = &ranks[rank];
        }
        if (receives_first)
            REFUSED(list, &mesh, "deadlock", "pp rank 0 (world rank 0) waits in all_reduce_scalar",
                    "pp rank 1 (world rank 1) waits in receive");
        else
            accepted(list, &mesh);
        for (int rank = 0; rank < 2; rank++)
            program_release(&ranks[rank]);
    }
}

/* ---- many ---- */

/* One of sixteen does nothing at all, or nobody else does anything. */
static void many_waits(void **state)
{
    struct mesh mesh = mesh_data_parallel(16);
    struct program sums, nothing;
    const struct program *list[16];

    (void)state;
    two_sums(&sums, &mesh, 1, BY_USE);
    program_init(&nothing, &mesh);
    for (int rank = 0; rank < 16; rank++)
        list[rank] = rank == 5 ? &nothing : &sums;
    REFUSED(list, &mesh, "step: deadlock (8 of 15 waits): dp rank 0 (world rank 0) waits",
            "dp rank 8 (world rank 8) waits in all_reduce_scalar over dp of 8 bytes (fp64) y -> "
            "y.sum in sum y, micro-batch 0 for dp rank 5 (world rank 5), which is at its end");
    for (int rank = 0; rank < 16; rank++)
        list[rank] = rank ? &nothing : &sums;
    REFUSED(list, &mesh, "step: deadlock: dp rank 0 (world rank 0) waits",
            "for dp rank 1 (world rank 1), which is at its end and dp rank 2 (world rank 2), which "
            "is at its end and dp rank 3 (world rank 3), which is at its end and others");
    program_release(&sums);
    program_release(&nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cycles_through_two_groups),
        cmocka_unit_test(send_that_comes_after),
        cmocka_unit_test(many_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
