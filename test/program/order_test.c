/*
 * order_test.c - what waits for what, and by when ops are known to be done
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "program/order.h"

struct rig {
    struct program program;
    int function;
    int x; /* an input that nothing waits for */
};

static void open_rig(struct rig *rig)
{
    struct mesh mesh = mesh_data_parallel(1);

    program_init(&rig->program, &mesh);
    rig->x = program_cell(&rig->program, ROLE_INPUT, "x", 4, 8, DTYPE_F32);
    rig->function = program_function(&rig->program, "function", 0);
}

static int value(struct rig *rig)
{
    return program_value(&rig->program, 4, 8, DTYPE_F32);
}

/* y = a + b; on other streams than compute it stands for a collective. */
static void emit(struct rig *rig, enum stream stream, int a, int b, int y)
{
    program_emit(&rig->program, rig->function,
                 &(struct op){
                     .kind = OP_ADD, .in = { a, b }, .out = { y }, .stream = stream, .layer = -1 });
}

static void check(struct rig *rig, const int *wanted, int n)
{
    int completed_at[16];

    assert_int_equal(rig->program.functions[rig->function].n_ops, n);
    order_completion(&rig->program, rig->function, completed_at);
    for (int i = 0; i < n; i++)
        if (completed_at[i] != wanted[i])
            fail_msg("op %d is known to be done at %d, wanted %d", i, completed_at[i], wanted[i]);
    program_release(&rig->program);
}

#define CHECK_KNOWN(rig, ...) \
    check(rig, (const int[]){ __VA_ARGS__ }, \
          (int)(sizeof((const int[]){ __VA_ARGS__ }) / sizeof(int)))

/* The op that reads what it writes, not those that touch nothing of it; and nobody. */
static void direct(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int a = value(&rig), b = value(&rig), c = value(&rig), d = value(&rig);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, a);
    emit(&rig, STREAM_TP, a, a, b);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, c);
    emit(&rig, STREAM_COMPUTE, b, c, d);
    emit(&rig, STREAM_TP, d, d, value(&rig));
    CHECK_KNOWN(&rig, 0, 3, 2, 3, 5);
}

/* Whoever touches what it reads waits as well. */
static void by_its_input(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int a = value(&rig);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, a);
    emit(&rig, STREAM_TP, a, a, value(&rig));
    emit(&rig, STREAM_COMPUTE, a, rig.x, value(&rig));
    CHECK_KNOWN(&rig, 0, 2, 2);
}

static void by_a_view(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int b = value(&rig), view = program_view(&rig.program, b, 8, 2, 8, 8);
    emit(&rig, STREAM_TP, rig.x, rig.x, b);
    emit(&rig, STREAM_COMPUTE, view, view, program_value(&rig.program, 2, 8, DTYPE_F32));
    CHECK_KNOWN(&rig, 1, 1);
}

/* The second, of another stream, comes after the first and takes its place. */
static void by_a_later_collective(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int a = value(&rig), b = value(&rig), c = value(&rig);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, a);
    emit(&rig, STREAM_TP, a, a, b);
    emit(&rig, STREAM_DP_GATHER, b, b, c);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, value(&rig));
    emit(&rig, STREAM_COMPUTE, c, c, value(&rig));
    CHECK_KNOWN(&rig, 0, 4, 4, 3, 4);
}

/* A stream vouches for what came before in it, no other does. */
static void by_the_stream(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int a[3] = { value(&rig), value(&rig), value(&rig) }, last = value(&rig);
    for (int i = 0; i < 3; i++)
        emit(&rig, STREAM_COMPUTE, rig.x, rig.x, a[i]);
    emit(&rig, STREAM_DP_REDUCE, a[0], a[0], value(&rig));
    emit(&rig, STREAM_TP, a[1], a[1], value(&rig));
    emit(&rig, STREAM_TP, a[2], a[2], last);
    emit(&rig, STREAM_COMPUTE, last, last, value(&rig));
    CHECK_KNOWN(&rig, 0, 1, 2, 7, 6, 6, 6);
}

/* What is awaited is the second; the third is given after and stays. */
static void later_ones_stay(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig);
    int a = value(&rig), b = value(&rig);
    emit(&rig, STREAM_COMPUTE, rig.x, rig.x, a);
    emit(&rig, STREAM_TP, a, a, b);
    emit(&rig, STREAM_COMPUTE, b, b, value(&rig));
    emit(&rig, STREAM_TP, a, b, value(&rig));
    CHECK_KNOWN(&rig, 0, 2, 2, 4);
}

/* ---- users ---- */

/* Of what given ops touch alone, bases and views alike, each once, in the order of operands. */
static void users_of_what_is_given(void **state)
{
    struct rig rig;
    struct arena arena = { 0 };
    struct order order;
    int users[ORDER_MAX_USERS];

    (void)state;
    open_rig(&rig);
    struct program *p = &rig.program;
    int a = value(&rig), b = value(&rig), c = value(&rig), d = value(&rig);
    int view = program_view(p, b, 0, 4, 8, 8);
    emit(&rig, STREAM_TP, rig.x, a, b);
    emit(&rig, STREAM_COMPUTE, a, view, c);
    emit(&rig, STREAM_COMPUTE, c, c, d);
    order_open(&order, p, &arena);
    const struct op *ops = p->functions[rig.function].ops;
    assert_int_equal(order.n_users, 3);
    assert_int_equal(order.n_inputs, 1);
    assert_int_equal(order.inputs[0], rig.x);
    assert_int_equal(order_user(&order, 0, 0), ORDER_NO_USER);
    assert_int_equal(order_user(&order, c, 0), ORDER_NO_USER);
    assert_int_equal(order_user(&order, view, 0), order_user(&order, b, 0));
    assert_int_equal(order_users(&order, &ops[1], 0, users), 2);
    assert_int_equal(users[0], order_user(&order, a, 0));
    assert_int_equal(users[1], order_user(&order, b, 0));
    assert_int_equal(order_users(&order, &ops[2], 0, users), 0);
    program_release(p);
    arena_release(&arena);
}

/* A user for each slot, and as many variants as it takes to meet the same slots again. */
static void slots_have_their_own(void **state)
{
    struct action actions[1];
    struct stash stashes[2] = { { .n_slots = 2 }, { .n_slots = 3 } };
    struct rig rig;
    struct arena arena = { 0 };
    struct order order;

    (void)state;
    for (int n_micro_batches = 1; n_micro_batches <= 9; n_micro_batches += 4) {
        open_rig(&rig);
        struct program *p = &rig.program;
        int kept[2] = { value(&rig), value(&rig) };

        emit(&rig, STREAM_TP, rig.x, kept[0], kept[1]);
        for (int i = 0; i < 2; i++) {
            p->values[kept[i]].scope = SCOPE_STASH;
            p->values[kept[i]].stash = i;
        }
        p->stashes = stashes;
        p->n_stashes = 2;
        actions[0] = (struct action){ ACTION_RUN, .micro_batch = n_micro_batches - 1 };
        p->entries[ENTRY_STEP] = (struct entry){ actions, 1 };
        order_open(&order, p, &arena);
        assert_int_equal(order.n_users, 1 + 2 + 3);
        for (int m = 0; m < 9; m++) {
            assert_int_equal(order_user(&order, kept[0], m),
                             order_user(&order, kept[0], 0) + m % 2);
            assert_int_equal(order_user(&order, kept[1], m),
                             order_user(&order, kept[1], 0) + m % 3);
        }
        struct order_variants v = order_variants(&order, rig.function);
        assert_int_equal(v.n, n_micro_batches < 6 ? n_micro_batches : 6);
        assert_int_equal(order_variant(&v, -1), 0);
        assert_int_equal(order_variant(&v, v.n + 1), v.n > 1);
        assert_int_equal(order_variant_first(&v, v.n - 1), v.n - 1);
        program_release(p);
    }
    arena_release(&arena);
}

/* The end of a function waits for what nothing in it has waited for and dies with it. */
static void drained_streams(void **state)
{
    int completed_at[3];
    struct rig rig;

    (void)state;
    open_rig(&rig);
    struct program *p = &rig.program;
    int a = value(&rig), b = value(&rig), c = value(&rig);
    int cell = program_cell(p, ROLE_SCALAR, "cell", 4, 8, DTYPE_F32);
    emit(&rig, STREAM_TP, rig.x, rig.x, a);
    emit(&rig, STREAM_COMPUTE, a, a, b);
    emit(&rig, STREAM_DP_REDUCE, rig.x, rig.x, cell);
    order_completion(p, rig.function, completed_at);
    assert_int_equal(order_drains(p, rig.function, completed_at), 0);
    program_release(p);
    open_rig(&rig);
    a = value(&rig), b = value(&rig), c = value(&rig);
    emit(&rig, STREAM_TP, rig.x, rig.x, a);
    emit(&rig, STREAM_COMPUTE, a, a, b);
    emit(&rig, STREAM_DP_REDUCE, rig.x, b, c);
    order_completion(p, rig.function, completed_at);
    assert_int_equal(order_drains(p, rig.function, completed_at), 1 << STREAM_DP_REDUCE);
    program_release(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct),
        cmocka_unit_test(by_its_input),
        cmocka_unit_test(by_a_view),
        cmocka_unit_test(by_a_later_collective),
        cmocka_unit_test(by_the_stream),
        cmocka_unit_test(later_ones_stay),
        cmocka_unit_test(users_of_what_is_given),
        cmocka_unit_test(slots_have_their_own),
        cmocka_unit_test(drained_streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
