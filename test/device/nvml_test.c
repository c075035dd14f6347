/*
 * nvml_test.c - what is read of GPUs that nvml_stub.c plays
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/nvml.h"
#include "device/xid.h"
#include "support/nvml_script.h"

static struct nvml *open_with(const char *script)
{
    struct nvml *nvml = NULL;
    struct err err = { 0 };

    nvml_script(script);
    if (nvml_open(&nvml, &err) < 0)
        fail_msg("%s", err.text);
    return nvml;
}

static void a_healthy_gpu_says_all(void **state)
{
    struct nvml *nvml = open_with("driver 570.86.15\ncuda 12080\ngpus 2\n1.bus 0x9a\n1.sm 1755\n"
                                  "1.sm_max 1980\n1.mem_max 3201\n1.watts 412\n1.limit 700\n"
                                  "1.celsius 61\n1.busy 100\n1.used_mib 1024\n1.throttle 4\n"
                                  "1.ecc 0\n1.links 18\n");
    struct nvml_gpu gpu;
    struct nvml_state now;
    struct nvml_health health;
    struct err err;

    (void)state;
    assert_string_equal(nvml_driver_version(nvml), "570.86.15");
    assert_int_equal(nvml_cuda_version(nvml), 12080);
    assert_int_equal(nvml_n_gpus(nvml), 2);
    assert_int_equal(nvml_gpu(nvml, 1, &gpu, &err), 0);
    assert_string_equal(gpu.pci, "0000:9a:00.0");
    assert_string_equal(gpu.name, "NVIDIA H200");
    assert_string_equal(gpu.uuid, "GPU-00000000-0000-0000-0000-000000000001");
    assert_int_equal(gpu.memory_bytes, INT64_C(143771) << 20);
    assert_int_equal(gpu.sm_mhz_max, 1980);
    assert_int_equal(gpu.memory_mhz_max, 3201);
    assert_int_equal(gpu.power_limit_watts, 700);
    nvml_state(nvml, 1, &now);
    assert_false(now.is_lost);
    assert_int_equal(now.memory_used_bytes, 1 << 30);
    assert_int_equal(now.sm_mhz, 1755);
    assert_int_equal(now.memory_mhz, NVML_UNKNOWN); /* it does not say */
    assert_int_equal(now.power_watts, 412);
    assert_int_equal(now.temperature_celsius, 61);
    assert_int_equal(now.utilization_percent, 100);
    assert_int_equal(now.throttle, NVML_POWER_CAP);
    nvml_health(nvml, 1, &health);
    assert_int_equal(health.ecc_uncorrected, 0);
    assert_int_equal(health.n_links, 18);
    assert_int_equal(health.n_links_down, 0);
    assert_int_equal(health.link_errors, 0);
    nvml_close(nvml);
}

static void damage_is_told(void **state)
{
    struct nvml *nvml = open_with("0.ecc 3\n0.remap_pending 1\n0.links 18\n0.links_down 2\n"
                                  "0.link_errors 77\n");
    struct nvml_health health;

    (void)state;
    nvml_health(nvml, 0, &health);
    assert_int_equal(health.ecc_corrected, 0);
    assert_int_equal(health.ecc_uncorrected, 3);
    assert_int_equal(health.n_remapped_rows, 1);
    assert_true(health.is_remap_pending);
    assert_false(health.has_remap_failed);
    assert_int_equal(health.n_links, 18);
    assert_int_equal(health.n_links_down, 2);
    assert_int_equal(health.link_errors, 77);
    nvml_close(nvml);
}

static void a_lost_gpu_is_lost_and_not_unknown(void **state)
{
    struct nvml *nvml = open_with("0.sm 1980\n");
    struct nvml_state now;

    (void)state;
    nvml_state(nvml, 0, &now);
    assert_false(now.is_lost);
    nvml_script("0.sm 1980\n0.lost 1\n");
    nvml_state(nvml, 0, &now);
    assert_true(now.is_lost);
    assert_int_equal(now.sm_mhz, NVML_UNKNOWN);
    nvml_close(nvml);
}

static void a_gpu_of_another_job_is_not_broken(void **state)
{
    struct nvml *nvml = open_with("gpus 2\n0.forbidden 1\n");
    struct nvml_state now;
    struct nvml_gpu gpu;
    struct err err;

    (void)state;
    assert_int_equal(nvml_gpu(nvml, 0, &gpu, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    nvml_state(nvml, 0, &now);
    assert_false(now.is_lost);
    assert_int_equal(nvml_gpu(nvml, 1, &gpu, &err), 0);
    nvml_close(nvml);
}

static void xids_come_as_events(void **state)
{
    struct nvml *nvml = open_with("gpus 2\n");
    int index = -1, xid = -1;

    (void)state;
    assert_int_equal(nvml_wait_xid(nvml, 20, &index, &xid), 0);
    nvml_script("gpus 2\nxid 1 79\nxid 0 45\n");
    assert_int_equal(nvml_wait_xid(nvml, 1000, &index, &xid), 1);
    assert_int_equal(index, 1);
    assert_int_equal(xid, 79);
    assert_int_equal(nvml_wait_xid(nvml, 1000, &index, &xid), 1);
    assert_int_equal(index, 0);
    assert_int_equal(xid, 45);
    assert_int_equal(nvml_wait_xid(nvml, 20, &index, &xid), 0);
    nvml_close(nvml);
}

static void without_a_driver_there_is_none(void **state)
{
    struct nvml *nvml;
    struct err err;

    (void)state;
    nvml_script("init 9\n");
    assert_int_equal(nvml_open(&nvml, &err), -1);
    assert_non_null(strstr(err.text, "Driver Not Loaded"));
    setenv("LMTRAIN_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    assert_int_equal(nvml_open(&nvml, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "/nowhere"));
}

static void reasons_have_words(void **state)
{
    char text[256], little[12];

    (void)state;
    assert_string_equal(nvml_throttle_words(0, text, sizeof text), "");
    assert_string_equal(nvml_throttle_words(NVML_UNKNOWN, text, sizeof text), "");
    assert_string_equal(nvml_throttle_words(0x44, text, sizeof text),
                        "power cap, thermal slowdown by hardware");
    assert_string_equal(nvml_throttle_words(0x44, little, sizeof little), "power cap, ");
    assert_string_equal(xid_words(79), "the GPU has fallen off the bus");
    assert_int_equal(xid_kind(79), XID_BROKEN);
    assert_int_equal(xid_kind(94), XID_CONTAINED);
    assert_int_equal(xid_kind(31), XID_PROGRAM);
    assert_int_equal(xid_kind(45), XID_NOTE);
    assert_int_equal(xid_kind(9999), XID_NOTE);
    assert_non_null(strstr(xid_advice(79), "drain the node"));
}

static void an_ecc_error_is_broken_until_it_is_contained(void **state)
{
    (void)state;
    assert_true(xid_is_broken(48));
    assert_false(xid_is_final(48));
    assert_non_null(strstr(xid_advice(48), "drain the node"));
    assert_true(xid_kind(94) > xid_kind(48));
    assert_false(xid_is_broken(94));
    assert_true(xid_is_final(94));
    assert_true(xid_kind(95) > xid_kind(94));
    assert_true(xid_is_broken(95));
    assert_true(xid_kind(48) > xid_kind(31));
}

static void each_cuda_has_its_oldest_driver(void **state)
{
    (void)state;
    assert_int_equal(nvml_driver_needed(13000), 580);
    assert_int_equal(nvml_driver_needed(12040), 525);
    assert_int_equal(nvml_driver_needed(11080), 450);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_gpu_says_all),
        cmocka_unit_test(damage_is_told),
        cmocka_unit_test(a_lost_gpu_is_lost_and_not_unknown),
        cmocka_unit_test(a_gpu_of_another_job_is_not_broken),
        cmocka_unit_test(xids_come_as_events),
        cmocka_unit_test(reasons_have_words),
        cmocka_unit_test(an_ecc_error_is_broken_until_it_is_contained),
        cmocka_unit_test(each_cuda_has_its_oldest_driver),
        cmocka_unit_test(without_a_driver_there_is_none), /* last: it names another library */
    };

    return cmocka_run_group_tests(tests, nvml_script_begin, nvml_script_end);
}
