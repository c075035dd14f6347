/*
 * cluster_test.c - device files: those that are shipped, and every mistake with its place
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/cluster.h"
#include "config/embedded.h"

#define FOLDER "configs/devices/"

/* All that a file must have. */
static const char whole[] = "memory: 80 GB\n"
                            "sms: 132\n"
                            "hbm: 3.35 TB/s\n"
                            "peak: {fp32: 67 TFLOP/s, bf16: 0.989 PFLOP/s}\n"
                            "kernel_reach: {fp32: 0.9, bf16: 0.76}\n"
                            "step_reach: {fp32: 0.9, bf16: 0.68}\n"
                            "fast: {bus: 360 GB/s, link: 450 GB/s, latency: 12 us, domain: 8}\n"
                            "nic: 50 GB/s\n"
                            "launch: 3000 ns\n"
                            "host_link: 55 GB/s\n";

static int read_text(struct device_spec *device, const char *text, struct arena *arena,
                     struct err *err)
{
    char path[] = "/tmp/device-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    int status = device_read(device, path, arena, err);
    unlink(path);
    return status;
}

static void test_units(void **state)
{
    struct device_spec device;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    if (read_text(&device, whole, &arena, &err))
        fail_msg("%s", err.text);
    assert_int_equal(device.memory, 80000000000);
    assert_int_equal(device.reserve, 0);
    assert_int_equal(device.launch, 3000);
    assert_int_equal(device.fast_latency, 12000);
    assert_int_equal(device.fast_domain, 8);
    assert_true(device.hbm == 3.35e12 && device.peak[FORMAT_BF16] == 989e12);
    assert_true(device.peak[FORMAT_F8] == 0 && !device.has_nvls);
    arena_release(&arena);
}

/* Every shipped file reads, by its name alone, and says where its figures are from. */
static void test_shipped(void **state)
{
    int n = 0;

    (void)state;
    for (int i = 0; i < n_embedded_files; i++) {
        const char *path = embedded_files[i].path;
        struct device_spec device;
        struct arena arena = { 0 };
        struct err err;
        char name[64];

        if (strncmp(path, FOLDER, strlen(FOLDER)) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(strlen(path) - strlen(FOLDER) - strlen(".yaml")),
                 path + strlen(FOLDER));
        if (device_read(&device, name, &arena, &err))
            fail_msg("%s: %s", name, err.text);
        assert_true(device.n_sources > 0);
        assert_true(device.step_reach[FORMAT_BF16] <= device.kernel_reach[FORMAT_BF16]);
        assert_true(device.peak[FORMAT_BF16] >= device.peak[FORMAT_F32]);
        for (int s = 0; s < device.n_sources; s++)
            assert_int_equal(strncmp(device.sources[s], "https://", 8), 0);
        /* Machine code is for compute capabilities 8.0 to 9.0. */
        assert_int_equal(device.is_planning_only,
                         strncmp(name, "a100", 4) != 0 && strncmp(name, "h", 1) != 0);
        arena_release(&arena);
        n++;
    }
    assert_true(n >= 8);
}

/* The line of `whole` that begins so, replaced. */
static void refuses(const char *begins, const char *by, const char *expected)
{
    struct device_spec device;
    struct arena arena = { 0 };
    struct err err;
    char text[2048];
    const char *at = strstr(whole, begins);

    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, by, strchr(at, '\n') + 1);
    assert_int_equal(read_text(&device, text, &arena, &err), -1);
    if (!strstr(err.text, expected))
        fail_msg("\"%s\" instead of \"%s\"", err.text, expected);
    arena_release(&arena);
}

static void test_mistakes(void **state)
{
    (void)state;
    refuses("memory", "", "key memory is missing (hint: 80 GB)");
    refuses("memory", "memory: 80\n", ":1:9: memory is not a value such as 80 GB");
    refuses("memory", "memory: 80 GB/s\n", ":1:9: memory is not a value such as 80 GB");
    refuses("memory", "memory: -80 GB\n", ":1:9: memory is not a value such as 80 GB");
    refuses("memory", "memory: [80 GB]\n", "memory is not a value such as 80 GB");
    refuses("sms", "sms: many\n", ":2:6: sms is not a value such as 132");
    refuses("hbm", "hbm: 1e40 TB/s\n", ":3:6: hbm is not a value such as 3.35 TB/s");
    refuses("peak", "peak: {bf16: 989 TFLOP/s}\n", "peak.fp32 is missing");
    refuses("peak", "peak: {fp32: 67 TFLOP/s, fp8: 1979 TFLOP/s}\n",
            "peak has fp8, which kernel_reach or step_reach lacks");
    refuses("peak", "peak: {fp33: 67 TFLOP/s}\n", ":4:8: unknown key fp33");
    refuses("step_reach", "step_reach: {fp32: 1.1}\n", ":6:20: fp32 is not a value such as 0.68");
    refuses("fast", "fast: {bus: 360 GB/s}\n", "key fast.link is missing");
    refuses("fast", "fast: {speed: 360 GB/s}\n", ":7:8: unknown key speed");
    refuses("nic", "nick: 50 GB/s\n", ":8:1: unknown key nick");
    refuses("nic", "nic: ib-nrd\n",
            ":8:6: nic is not a value such as 50 GB/s, or one of ib-hdr, ib-ndr, ib-xdr, roce-400, "
            "efa-v2");
    refuses("nic", "nic: pcie5-x16\n", ":8:6: nic is not a value such as 50 GB/s, or one of ");
    refuses("host_link", "host_link: ib-ndr\n",
            ":10:12: host_link is not a value such as 55 GB/s, or one of pcie4-x16, pcie5-x16, "
            "c2c");
}

static void test_unknown_name(void **state)
{
    struct device_spec device;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(device_read(&device, "h101", &arena, &err), -1);
    assert_non_null(
        strstr(err.text, "no device is named h101 (there are a100-sxm-40, a100-sxm-80, "));
    assert_int_equal(device_read(&device, "/nowhere/h100.yaml", &arena, &err), -1);
    arena_release(&arena);
}

static void test_clusters(void **state)
{
    static const int n_devices[] = { 1, 2, 8, 12, 64, 1000 };
    static const int n_nodes[] = { 1, 1, 1, 2, 8, 125 };
    struct device_spec device;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(device_read(&device, "h100-sxm", &arena, &err), 0);
    for (int i = 0; i < 6; i++) {
        struct cluster cluster;

        cluster_of_device(&cluster, &device, n_devices[i], &arena);
        assert_int_equal(cluster.islands[0].n_nodes, n_nodes[i]);
        assert_in_range(cluster_n_devices(&cluster), n_devices[i], n_devices[i] + 7);
    }
    arena_release(&arena);
}

/* ---- cluster files ---- */

static int read_cluster(struct cluster *cluster, const char *text, struct arena *arena,
                        struct err *err)
{
    char path[] = "/tmp/cluster-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    int status = cluster_read(cluster, path, arena, err);
    unlink(path);
    return status;
}

/* What a file does not say is the device's, or that of a cluster of one device. */
static void test_cluster_file(void **state)
{
    struct cluster cluster, plain;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    if (read_cluster(&cluster,
                     "islands:\n"
                     "  - {nodes: 4, device: h100-sxm, per_node: 8, nics: 4, nic: 25 GB/s}\n"
                     "  - {nodes: 2, device: h100-sxm, per_node: 4}\n"
                     "  - {nodes: 18, device: gb200, per_node: 4}\n"
                     "links: {fast: {bus: 300 GB/s}, spine: {oversubscription: 2.5}}\n"
                     "software: {jitter: 0.01, overlap: {nic: 0.05}}\n",
                     &arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&plain, cluster.islands[0].device, 8, &arena);
    assert_int_equal(cluster_n_devices(&cluster), 40 + 72);
    assert_true(cluster.islands[0].nic == 25e9 && cluster.islands[1].nic == 50e9);
    assert_int_equal(cluster.islands[0].n_nics, 4);
    assert_int_equal(cluster.islands[1].n_nics, 4);
    assert_int_equal(cluster.islands[0].fast_domain, 8);
    assert_int_equal(cluster.islands[1].fast_domain, 4); /* boards of four */
    assert_int_equal(cluster.islands[2].fast_domain, 72);
    assert_true(cluster.links.fast_bus == 300e9 && cluster.links.oversubscription == 2.5);
    assert_int_equal(cluster.links.rail_latency, plain.links.rail_latency);
    assert_true(cluster.software.jitter == 0.01 && cluster.software.overlap_nic == 0.05);
    assert_true(cluster.software.overlap_fast == plain.software.overlap_fast);
    arena_release(&arena);
}

/* A network by its name has a rate and the share that a step reaches, unless links says it. */
static void test_networks(void **state)
{
    static const struct {
        const char *nic, *links;
        double rate, efficiency;
    } cases[] = {
        { "ib-hdr", "", 25e9, 0.75 },
        { "ib-ndr", "", 50e9, 0.75 },
        { "ib-xdr", "", 100e9, 0.75 },
        { "roce-400", "", 50e9, 0.65 },
        { "efa-v2", "", 50e9, 0.6 },
        { "30 GB/s", "", 30e9, 0.75 },
        { "efa-v2", "links: {rail: {efficiency: 0.5}}\n", 50e9, 0.5 },
        { "ib-ndr", "links: {rail: {efficiency: 0.9}}\n", 50e9, 0.9 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster cluster;
        struct arena arena = { 0 };
        struct err err;
        char text[256];

        snprintf(text, sizeof text,
                 "%sislands:\n  - {nodes: 4, device: mi300x, per_node: 8, nic: %s}\n"
                 "  - {nodes: 4, device: mi300x, per_node: 8}\n",
                 cases[i].links, cases[i].nic);
        if (read_cluster(&cluster, text, &arena, &err))
            fail_msg("%s", err.text);
        assert_true(cluster.islands[0].nic == cases[i].rate);
        assert_true(cluster.islands[0].nic_efficiency == cases[i].efficiency);
        /* The device's own is roce-400. */
        assert_true(cluster.islands[1].nic == 50e9);
        assert_true(cluster.islands[1].nic_efficiency ==
                    (*cases[i].links ? cases[i].efficiency : 0.65));
        assert_string_equal(cluster_planning_only(&cluster)->name, "mi300x");
        arena_release(&arena);
    }
}

static void test_host_links(void **state)
{
    struct cluster cluster;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    if (read_cluster(&cluster,
                     "islands:\n  - {nodes: 1, device: h100-sxm, per_node: 8}\n"
                     "links: {host: {bandwidth: c2c}}\n",
                     &arena, &err))
        fail_msg("%s", err.text);
    assert_true(cluster.links.host_bandwidth == 400e9);
    assert_true(cluster.islands[0].device->host_link == 55e9);
    assert_null(cluster_planning_only(&cluster));
    arena_release(&arena);
}

/* All keys that there are. */
static void test_all_keys(void **state)
{
    static const char text[] =
        "name: two kinds\n"
        "islands:\n"
        "  - {nodes: 64, device: h100-sxm, per_node: 8, fast_domain: 8, nics: 8, nic: 50 GB/s,"
        " host_memory: 2 TiB, cores: 112, watts: 1100, price_per_hour: 2.5}\n"
        "  - {nodes: 16, device: a100-sxm-80, per_node: 8, nics: 8, nic: 25 GB/s,"
        " host_memory: 1 TB, cores: 128}\n"
        "links:\n"
        "  fast: {latency: 12 us, bus: 360 GB/s}\n"
        "  rail: {latency: 5 us, efficiency: 0.75}\n"
        "  spine: {latency: 2 us, oversubscription: 1.0, nodes_per_leaf: 32}\n"
        "  islands: {latency: 20 us, bandwidth: 12.5 GB/s}\n"
        "  host: {bandwidth: 55 GB/s, shared_by: 1, memory: 50 GB/s}\n"
        "  storage: {read: 40 GB/s, write: 25 GB/s}\n"
        "software: {host_op: 5 us, graph_op: 0.5 us, nccl_op: 10 us, constant: 30 ms,"
        " jitter: 0.004, overlap: {fast: 0.12, nic: 0.03}}\n"
        "calibration: {bf16: 1.02, fp8: 1.0}\n"
        "tables: two-kinds.tables.json\n";
    struct cluster cluster;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    if (read_cluster(&cluster, text, &arena, &err))
        fail_msg("%s", err.text);
    assert_string_equal(cluster.title, "two kinds");
    assert_int_equal(cluster_n_devices(&cluster), 640);
    assert_int_equal(cluster.islands[0].host_memory, INT64_C(2) << 40);
    assert_int_equal(cluster.islands[1].host_memory, 1000000000000);
    assert_true(cluster.links.host_memory == 50e9);
    assert_true(cluster.links.storage_read == 40e9 && cluster.links.storage_write == 25e9);
    assert_true(cluster.links.islands_bandwidth == 12.5e9);
    assert_true(cluster.calibration[FORMAT_BF16] == 1.02);
    assert_string_equal(cluster.tables, "/tmp/two-kinds.tables.json");
    arena_release(&arena);
}

static void test_cluster_mistakes(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        { "links: {}\n", "key islands is missing" },
        { "islands: []\n", ":1:10: islands is not a list of islands" },
        { "islands: 3\n", ":1:10: islands is not a list of islands" },
        { "islands:\n  - 3\n", "an island has no device (hint: h100-sxm)" },
        { "islands:\n  - {nodes: 1, per_node: 8}\n", "an island has no device" },
        { "islands:\n  - {nodes: 1, device: h100-sxm}\n", "key per_node is missing (hint: " },
        { "islands:\n  - {nodes: 1, device: h101, per_node: 8}\n", "no device is named h101" },
        { "islands:\n  - {nodes: 1, gpus: 8, device: h200}\n", ":2:16: unknown key gpus" },
        { "islands:\n  - {nodes: 1000000, device: h100-sxm, per_node: 1}\n"
          "  - {nodes: 1000000, device: h100-sxm, per_node: 1000000}\n",
          ":3:5: islands have 1000001000000 devices and more, at most 1000000 are possible" },
        { "links: {rail: {efficiency: 75}}\n", ":1:28: efficiency is not a value such as 0.68" },
        { "links: {rails: {latency: 5 us}}\n", ":1:17: unknown key latency" },
        { "software: {overlap: 0.1}\n", ":1:12: unknown key overlap" },
        { "links: {host: {bandwidth: pcie6}}\n",
          ":1:27: bandwidth is not a value such as 55 GB/s, or one of pcie4-x16, pcie5-x16, c2c" },
        { "racks: 3\n", ":1:1: unknown key racks" },
        { "- 3\n", "not a map of keys of a cluster" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster cluster;
        struct arena arena = { 0 };
        struct err err;

        assert_int_equal(read_cluster(&cluster, cases[i].text, &arena, &err), -1);
        if (!strstr(err.text, cases[i].expected))
            fail_msg("\"%s\" instead of \"%s\"", err.text, cases[i].expected);
        arena_release(&arena);
    }
}

static void test_shipped_clusters(void **state)
{
    int n = 0;

    (void)state;
    for (int i = 0; i < n_embedded_files; i++) {
        struct cluster cluster;
        struct arena arena = { 0 };
        struct err err;

        if (strncmp(embedded_files[i].path, "configs/clusters/", 17) != 0)
            continue;
        if (cluster_read(&cluster, embedded_files[i].path, &arena, &err))
            fail_msg("%s: %s", embedded_files[i].path, err.text);
        assert_true(cluster_n_devices(&cluster) >= 8);
        arena_release(&arena);
        n++;
    }
    assert_true(n >= 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_unknown_name),
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_cluster_file),
        cmocka_unit_test(test_all_keys),
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_host_links),
        cmocka_unit_test(test_cluster_mistakes),
        cmocka_unit_test(test_shipped_clusters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
