/*
 * head_gpus_test.c - for how long ranks may stand still beside a broken GPU, on a clock that is
 * played
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <unistd.h>
#include <cmocka.h>

#include "launch/head/head_impl.h"
#include "launch/watch/rank_gpu_impl.h"

enum { XID_OFF_THE_BUS = 79, LOST_SECONDS = 10 };

/* Two ranks on two nodes, of which the first's daemon is ours (this process); rank 1's GPU is
 * broken. */
static struct head_node nodes[2];
static struct head_rank ranks[2];
static struct hang_rank watched[2];
static struct launch_head head;

static void begin(double now)
{
    for (int i = 0; i < 2; i++) {
        nodes[i] =
            (struct head_node){ .host = "a", .host_index = -1, .first_rank = i, .n_ranks = 1 };
        nodes[i].link.heard_at = now;
        ranks[i] = (struct head_rank){ .node = i, .running = 1 };
        watched[i] = (struct hang_rank){ .world_rank = i, .running = 1, .slot = &ranks[i].slot };
    }
    nodes[0].daemon = getpid();
    atomic_store(&ranks[1].slot.gpu.n_seen, 1);
    atomic_store(&ranks[1].slot.gpu.xid, XID_OFF_THE_BUS);
    head = (struct launch_head){ .n_ranks = 2,
                                 .n_nodes = 2,
                                 .nodes = nodes,
                                 .ranks = ranks,
                                 .watched = watched,
                                 .lost_seconds = LOST_SECONDS,
                                 .cause.rank = -1 };
}

/* The look at time now, at which the other host is heard, too; whether rank 1 is the cause by
 * then. */
static int look(double now)
{
    nodes[1].link.heard_at = now;
    head_watch_gpus(&head, now);
    return head.cause.verdict.weight == WEIGHT_OWN && head.cause.rank == 1;
}

static void all_stand(void **state)
{
    (void)state;
    begin(100);
    assert_false(look(100));
    assert_false(look(100 + RANK_GPU_GRACE_SECONDS - 1));
    assert_true(look(100 + RANK_GPU_GRACE_SECONDS));
    assert_int_equal(head.cause.verdict.status, ERR_DEVICE);
}

static void one_moves(void **state)
{
    (void)state;
    begin(100);
    assert_false(look(100));
    atomic_store(&ranks[0].slot.beat, 1);
    assert_false(look(110));
    assert_false(look(100 + RANK_GPU_GRACE_SECONDS));
    assert_true(look(110 + RANK_GPU_GRACE_SECONDS));
}

static void one_is_stopped(void **state)
{
    (void)state;
    begin(100);
    assert_false(look(100));
    watched[0].stopped = 1;
    assert_false(look(100 + RANK_GPU_GRACE_SECONDS));
    watched[0].stopped = 0;
    assert_false(look(101 + RANK_GPU_GRACE_SECONDS));
    assert_true(look(100 + 2 * RANK_GPU_GRACE_SECONDS));
}

static void one_is_not_seen(void **state)
{
    (void)state;
    begin(100);
    assert_false(look(100));
    head_watch_gpus(&head, 100 + RANK_GPU_GRACE_SECONDS); /* nothing heard of the other host */
    assert_int_equal(head.cause.verdict.weight, WEIGHT_NONE);
    assert_false(look(101 + RANK_GPU_GRACE_SECONDS));
    assert_true(look(100 + 2 * RANK_GPU_GRACE_SECONDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_stand),
        cmocka_unit_test(one_moves),
        cmocka_unit_test(one_is_stopped),
        cmocka_unit_test(one_is_not_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
