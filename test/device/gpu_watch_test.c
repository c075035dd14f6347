/*
 * gpu_watch_test.c - what the thread sees of GPUs that are played, and that nobody waits for it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "device/gpu_watch.h"
#include "support/nvml_script.h"

#define FIRST "0000:17:00.0"
#define SECOND "0000:18:00.0"

/* Until it is seen, with an Xid where one is expected; the test fails where it never is. */
static struct gpu_sight wait_for(struct gpu_watch *watch, const char *pci, int xid)
{
    struct gpu_sight sight;

    for (int i = 0; i < 1000; i++, usleep(10000))
        if (!gpu_watch_see(watch, pci, &sight) && sight.xid == xid)
            return sight;
    fail_msg("%s is not seen with Xid %d", pci, xid);
    return sight;
}

static void a_gpu_is_seen_by_its_address(void **state)
{
    (void)state;
    nvml_script("gpus 2\n0.sm 1980\n1.sm 210\n1.throttle 0x40\n");
    struct gpu_watch *watch = gpu_watch_open(NULL);
    struct gpu_sight sight = wait_for(watch, SECOND, 0);
    assert_int_equal(sight.index, 1);
    assert_int_equal(sight.state.sm_mhz, 210);
    assert_int_equal(sight.state.throttle, NVML_HARDWARE_THERMAL);
    assert_int_equal(wait_for(watch, FIRST, 0).state.sm_mhz, 1980);
    assert_int_equal(gpu_watch_see(watch, "0000:99:00.0", &sight), -1);
    gpu_watch_close(watch);
}

static void only_the_named_one_is_watched(void **state)
{
    struct gpu_sight sight;

    (void)state;
    nvml_script("gpus 2\n");
    struct gpu_watch *watch = gpu_watch_open(SECOND);
    wait_for(watch, SECOND, 0);
    assert_int_equal(gpu_watch_see(watch, FIRST, &sight), -1);
    gpu_watch_close(watch);
}

/*
 * Xid 45 follows from others: it does not hide the cause, whether it comes before it or after. 48
 * and 94 are of one error, in whatever order, and 48 alone is not the last word.
 */
static void one_xid_stands_for_all(void **state)
{
    (void)state;
    nvml_script("gpus 2\nxid 0 45\nxid 0 48\nxid 0 79\nxid 0 94\nxid 1 45\nxid 1 48\n");
    struct gpu_watch *watch = gpu_watch_open(NULL);
    wait_for(watch, SECOND, 48);
    assert_int_equal(wait_for(watch, FIRST, 79).xid, 79);
    gpu_watch_wait_xid(watch, FIRST, 60); /* returns at once */
    double begin = clock_seconds();
    gpu_watch_wait_xid(watch, SECOND, 0.5);
    assert_true(clock_seconds() - begin >= 0.5);
    nvml_script("gpus 2\nxid 0 45\nxid 0 48\nxid 0 79\nxid 0 94\nxid 1 45\nxid 1 48\n"
                "xid 1 94\nxid 1 48\nxid 0 95\n");
    gpu_watch_wait_xid(watch, SECOND, 60);
    usleep(300000); /* the others are heard */
    assert_int_equal(wait_for(watch, SECOND, 94).xid, 94);
    assert_int_equal(wait_for(watch, FIRST, 79).xid, 79);
    gpu_watch_close(watch);
}

static void a_gpu_that_does_not_answer_is_off_the_bus(void **state)
{
    (void)state;
    nvml_script("");
    struct gpu_watch *watch = gpu_watch_open(NULL);
    wait_for(watch, FIRST, 0);
    nvml_script("0.lost 1\n");
    assert_true(wait_for(watch, FIRST, 79).state.is_lost);
    gpu_watch_close(watch);
}

/* NVML that takes for ever: readers and the closer go on. */
static void nobody_waits_for_the_driver(void **state)
{
    struct gpu_sight sight;

    (void)state;
    nvml_script("");
    struct gpu_watch *watch = gpu_watch_open(NULL);
    wait_for(watch, FIRST, 0);
    nvml_script("0.slow_ms 4000\n");
    usleep(1500000); /* it is in there by now */
    double begin = clock_seconds();
    assert_int_equal(gpu_watch_see(watch, FIRST, &sight), 0);
    assert_true(sight.age_seconds > 0.4);
    gpu_watch_close(watch);
    assert_true(clock_seconds() - begin < 2);
    sleep(4); /* the thread frees what it holds */
}

static void without_nvml_nothing_is_seen(void **state)
{
    struct gpu_sight sight;

    (void)state;
    nvml_script("init 9\n");
    struct gpu_watch *watch = gpu_watch_open(NULL);
    gpu_watch_wait_xid(watch, FIRST, 60); /* returns as soon as that is known */
    assert_int_equal(gpu_watch_see(watch, FIRST, &sight), -1);
    gpu_watch_close(watch);
    assert_int_equal(gpu_watch_see(NULL, FIRST, &sight), -1);
    gpu_watch_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_is_seen_by_its_address),
        cmocka_unit_test(only_the_named_one_is_watched),
        cmocka_unit_test(a_gpu_that_does_not_answer_is_off_the_bus),
        cmocka_unit_test(nobody_waits_for_the_driver),
        cmocka_unit_test(without_nvml_nothing_is_seen),
        cmocka_unit_test(one_xid_stands_for_all), /* last: the stand-in tells each Xid once */
    };

    return cmocka_run_group_tests(tests, nvml_script_begin, nvml_script_end);
}
