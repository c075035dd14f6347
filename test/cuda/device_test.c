/*
 * device_test.c - which GPUs there are, and what is said of those that cannot be used; queues
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "train/engine.h"

static const struct launch_rank alone = { 0, 1, 0, 1, 0 };

static int open_engine(enum job_device wish, int *is_host, struct err *err)
{
    struct engine engine;

    if (engine_open(&engine, &alone, &(struct engine_request){ 1, wish }, err) < 0)
        return -1;
    *is_host = device_is_host(engine.device);
    engine_close(&engine);
    return 0;
}

/* Where no GPU is seen the processor trains, unless a GPU was asked for. */
static void none_seen(void **state)
{
    struct err err;
    int is_host = 0;

    (void)state;
    unsetenv("LMTRAIN_EMULATE_DEVICES");
    assert_int_equal(open_engine(JOB_DEVICE_AUTO, &is_host, &err), 0);
    assert_true(is_host);
}

/* A driver that is too old: not a word less than an error, with both versions. */
static void old_driver(void **state)
{
    struct err err;
    int is_host = 0;

    (void)state;
    setenv("LMTRAIN_EMULATE_DEVICES", "2", 1);
    setenv("LMTRAIN_EMULATE_DRIVER", "12040", 1);
    assert_int_equal(open_engine(JOB_DEVICE_AUTO, &is_host, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "there are 2 GPUs here, but lmtrain cannot use any"));
    assert_non_null(strstr(err.text, "driver is made for CUDA 12.4, this lmtrain for 13.0"));
    assert_non_null(strstr(err.text, "device: cpu"));
    assert_int_equal(open_engine(JOB_DEVICE_CUDA, &is_host, &err), -1);
    assert_non_null(strstr(err.text, "12.4"));
    assert_int_equal(open_engine(JOB_DEVICE_CPU, &is_host, &err), 0);
    assert_true(is_host);
    unsetenv("LMTRAIN_EMULATE_DRIVER");
    assert_int_equal(open_engine(JOB_DEVICE_AUTO, &is_host, &err), 0);
    assert_false(is_host);
}

/* $CUDA_VISIBLE_DEVICES chooses among the machine's GPUs, also without the driver. */
static void visible_ones(void **state)
{
    static const struct {
        const char *list;
        int n;
        const char *first;
    } lists[] = { { "1", 1, "0000:18:00.0" },
                  { "2,0", 2, "0000:19:00.0" },
                  { "0,3", 1, "0000:17:00.0" },
                  { "GPU-00000000-0000-0000-0000-000000000002,0", 1, "0000:19:00.0" },
                  { "", 0, "" } };

    (void)state;
    setenv("LMTRAIN_EMULATE_DEVICES", "3", 1);
    setenv("LMTRAIN_EMULATE_PCI", "0000:17:00.0,0000:18:00.0,0000:19:00.0", 1);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char pci[32] = "";

        setenv("CUDA_VISIBLE_DEVICES", lists[i].list, 1);
        assert_int_equal(device_cuda_count(NULL), lists[i].n);
        assert_int_equal(device_cuda_seen(), lists[i].n);
        assert_int_equal(device_cuda_pci(0, pci, sizeof pci), lists[i].n ? 0 : -1);
        assert_string_equal(pci, lists[i].first);
        assert_int_equal(device_cuda_pci(lists[i].n, pci, sizeof pci), -1);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("LMTRAIN_EMULATE_PCI");
}

/* All hardware queues are asked for before the driver starts, and NCCL's connections before it
 * does, unless somebody set them. */
static void environment(void **state)
{
    (void)state;
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
    assert_string_equal(getenv("NCCL_RUNTIME_CONNECT"), "0");
}

/* A queue is made once, and one that was never made has nothing to wait for. */
static void queues(void **state)
{
    struct device *device;
    struct err err;
    char host[64] = "from here", *there, back[64] = "";
    void *memory;

    (void)state;
    setenv("LMTRAIN_EMULATE_DEVICES", "1", 1);
    assert_int_equal(device_cuda_open(&device, 0, &err), 0);
    assert_int_equal(device->ops->wait(device, DEVICE_TRAFFIC + 5, &err), 0);
    assert_int_equal(device->ops->open_queue(device, DEVICE_TRAFFIC + 5, &err), 0);
    assert_int_equal(device->ops->open_queue(device, DEVICE_TRAFFIC + 5, &err), 0);
    assert_int_equal(device->ops->allocate(device, sizeof host, &memory, &err), 0);
    there = memory;
    device->ops->copy(device, DEVICE_TRAFFIC + 5, there, host, sizeof host);
    device->ops->copy(device, DEVICE_TRAFFIC + 5, back, there, sizeof host);
    assert_int_equal(device->ops->wait(device, DEVICE_TRAFFIC + 5, &err), 0);
    assert_string_equal(back, "from here");
    device->ops->release(device, memory);
    device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_seen),   cmocka_unit_test(old_driver), cmocka_unit_test(visible_ones),
        cmocka_unit_test(environment), cmocka_unit_test(queues),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
