/*
 * memory_test.c - the keys memory.*: bytes and rates with units, what may leave, what must fit
 * together
 */
#include "config_fixture.h"

#include <math.h>

#include "base/rng.h"
#include "config/fields_impl.h"

#define JOB(keys) "{model: llama-tiny, data: {train: a}, train: {steps: 1}, memory: {" keys "}}"

static void nothing_leaves_by_default(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    must_read(&j, SMALL, &arena);
    assert_true(j.memory.device_bytes == 0 && j.memory.host_bytes == 0);
    assert_null(j.memory.file);
    assert_int_equal(j.memory.offload, OFFLOAD_NONE);
    assert_true(bitset_is_empty(&j.memory.offload_kinds));
    assert_int_equal(j.memory.update, UPDATE_AUTO);
    assert_true(j.memory.link_rate == 0 && j.memory.file_rate == 0);
    arena_release(&arena);
}

static void all_keys(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    setenv("LMTRAIN_TEST_FOLDER", "/tmp/x", 1);
    must_read(&j,
              JOB("device_bytes: 20 GiB, host_bytes: 3000000000, file: '${LMTRAIN_TEST_FOLDER}/y', "
                  "offload: [weights, activations], update: device, link: 12 GB/s, file_link: "
                  "100 MB/s"),
              &arena);
    assert_true(j.memory.device_bytes == INT64_C(20) << 30);
    assert_true(j.memory.host_bytes == 3000000000);
    assert_string_equal(j.memory.file, "/tmp/x/y");
    assert_int_equal(j.memory.offload, OFFLOAD_LIST);
    for (int kind = 0; kind < N_OFFLOAD_KINDS; kind++)
        assert_int_equal(bitset_has(&j.memory.offload_kinds, kind),
                         kind == OFFLOAD_WEIGHTS || kind == OFFLOAD_ACTIVATIONS);
    assert_int_equal(j.memory.update, UPDATE_DEVICE);
    assert_true(j.memory.link_rate == 12e9 && j.memory.file_rate == 100e6);
    must_read(&j, JOB("offload: auto, update: host"), &arena);
    assert_int_equal(j.memory.offload, OFFLOAD_AUTO);
    assert_true(bitset_is_empty(&j.memory.offload_kinds));
    assert_int_equal(j.memory.update, UPDATE_HOST);
    must_read(&j, JOB("offload: [optimizer], update: host"), &arena);
    must_read(&j, JOB("link: 1 GB/s"), &arena);
    assert_true(has_note(&j, "memory.link has no effect"));
    arena_release(&arena);
}

static void set_text(struct job *job, const char *key, const char *text, struct arena *arena)
{
    struct err err = { 0 };

    if (read_job_with(job, SMALL, arena_printf(arena, "%s=%s", key, text), arena, &err))
        fail_msg("%s", err.text);
}

/* What is written, the number, and how it is printed. */
static void quantities(void **state)
{
    static const struct {
        const char *key, *text;
        double number;
        const char *printed;
    } rows[] = {
        { "memory.device_bytes", "20 GiB", 20 * 0x1p30, "20 GiB" },
        { "memory.device_bytes", "20GiB", 20 * 0x1p30, "20 GiB" },
        { "memory.device_bytes", "'20 GiB'", 20 * 0x1p30, "20 GiB" },
        { "memory.device_bytes", "700 MiB", 700 * 0x1p20, "700 MiB" },
        { "memory.device_bytes", "1.5 GB", 1.5e9, "1500 MB" },
        { "memory.device_bytes", "1.5 GiB", 1.5 * 0x1p30, "1536 MiB" },
        { "memory.device_bytes", "2_000_000", 2e6, "2 MB" },
        { "memory.device_bytes", "1048576", 0x1p20, "1 MiB" },
        { "memory.device_bytes", "1000001", 1000001, "1000001" },
        { "memory.device_bytes", "1025", 1025, "1025" },
        { "memory.device_bytes", "0.1 GiB", 107374182, "107374182" },
        { "memory.device_bytes", "1000 TB", 1e15, "1000 TB" },
        { "memory.device_bytes", "100000 KiB", 102400000, "100000 KiB" },
        { "memory.device_bytes", "auto", 0, "auto" },
        { "memory.link", "12 GB/s", 12e9, "12 GB/s" },
        { "memory.link", "100MB/s", 100e6, "100 MB/s" },
        { "memory.link", "2000 MB/s", 2e9, "2 GB/s" },
        { "memory.link", "3.3 MB/s", 3.3e6, "3.3 MB/s" },
        { "memory.link", "0.1 GB/s", 0.1e9, "100 MB/s" },
        { "memory.link", "1.5 B/s", 1.5, "1.5 B/s" },
        { "memory.link", "auto", 0, "auto" },
    };
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct job j;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_text(&j, rows[i].key, rows[i].text, &arena);
        assert_true((double)j.memory.device_bytes + j.memory.link_rate == rows[i].number);
        str_clear(&out);
        field_print(field_find(rows[i].key), &j, &out);
        assert_string_equal(str_text(&out), rows[i].printed);
    }
    str_release(&out);
    arena_release(&arena);
}

/* Any number of bytes, and any rate, is printed as what reads back to it. */
static void printed_quantities_read_back(void **state)
{
    struct arena arena = { 0 };
    struct str out = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct rng_block r = rng_at(7, RNG_TEST, 0, i);
        double rate = (double)r.word[2] * exp((double)r.word[3] * 5e-9) / 1e4 + 1;
        double bytes = floor(((double)r.word[0] + 1) * 1e5 * exp(-(double)r.word[1] * 3e-9)) + 1024;

        str_clear(&out);
        quantity_print(bytes, BYTES, &out);
        if (strchr(str_text(&out), ' '))
            assert_true(quantity_parse(str_text(&out), BYTES) == bytes);
        else
            assert_true(strtod(str_text(&out), NULL) == bytes);
        str_clear(&out);
        quantity_print(rate, RATE, &out);
        assert_true(quantity_parse(str_text(&out), RATE) == rate);
    }
    str_release(&out);
    arena_release(&arena);
}

/* YAML and JSON of a job with all keys read back to the same job. */
static void jobs_read_back(void **state)
{
    static const char *const jobs[] = {
        JOB("device_bytes: 20 GiB, host_bytes: 3000000001, file: /x, offload: [weights, "
            "activations], update: device, link: 12.5 GB/s, file_link: 100 MB/s"),
        JOB("device_bytes: 1.5 GB, offload: auto, update: host"),
    };
    struct arena arena = { 0 };
    struct str text = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct job j, again;

        must_read(&j, jobs[i], &arena);
        for (int json = 0; json < 2; json++) {
            str_clear(&text);
            (json ? job_print_json : job_print)(&j, &text);
            must_read(&again, str_text(&text), &arena);
            assert_true(j.memory.device_bytes == again.memory.device_bytes &&
                        j.memory.host_bytes == again.memory.host_bytes &&
                        j.memory.link_rate == again.memory.link_rate &&
                        j.memory.file_rate == again.memory.file_rate);
            assert_memory_equal(&j.memory.offload_kinds, &again.memory.offload_kinds,
                                sizeof j.memory.offload_kinds);
            assert_true(j.memory.offload == again.memory.offload &&
                        j.memory.update == again.memory.update);
            assert_string_equal(j.memory.file ? j.memory.file : "",
                                again.memory.file ? again.memory.file : "");
        }
    }
    assert_non_null(strstr(str_text(&text), "\"device_bytes\": \"1500 MB\""));
    str_release(&text);
    arena_release(&arena);
}

#define UNITS "(units: TB, GB, MB, kB, TiB, GiB, MiB, KiB; without: bytes) or auto"

/* The keys, and a part of what must be said about them. */
static const char *const mistakes[][2] = {
    { JOB("device_bytes: 20 GX"), "memory.device_bytes is 20 GX, not bytes from 1 KiB to 1000 TB "
                                  "such as 20 GiB " UNITS },
    { JOB("device_bytes: 20 gb"), UNITS " (hint: 20 GB)" },
    { JOB("device_bytes: 20gi"), "(hint: 20 GiB)" },
    { JOB("device_bytes: 20"), "(hint: 20 GiB)" },
    { JOB("device_bytes: 2e9"), "(hint: 2000000000)" },
    { JOB("device_bytes: '3000000000'"), "(hint: 3000000000 without quotes)" },
    { JOB("device_bytes: -3 GB"), "memory.device_bytes is -3 GB, not bytes" },
    { JOB("device_bytes: 0"), "memory.device_bytes is 0, not bytes" },
    { JOB("device_bytes: 9e9 TB"), "memory.device_bytes is 9e9 TB, not bytes" },
    { JOB("device_bytes: .nan"), "memory.device_bytes is .nan, not bytes" },
    { JOB("device_bytes: [1]"), "memory.device_bytes is a list, not bytes" },
    { JOB("device_bytes: "), "memory.device_bytes is empty, not bytes" },
    { JOB("link: 12"), "memory.link is 12, not a rate from 1 B/s to 1000 TB/s such as 12 GB/s "
                       "(units: TB/s, GB/s, MB/s, kB/s, B/s) or auto" },
    { JOB("link: 12 GB"), "(hint: 12 GB/s)" },
    { JOB("link: 12 Gb/s"), "kB/s, B/s) or auto" },
    { JOB("offload: optimizer"), "or a list of activations, optimizer, gradients, weights (hint: "
                                 "[optimizer])" },
    { JOB("offload: [weights, optimiser]"),
      "memory.offload has optimiser, which is not a kind of memory (hint: optimizer)" },
    { JOB("offload: []"), "memory.offload is an empty list (hint: none)" },
    { JOB("update: cpu"), "memory.update is cpu, not one of auto, device, host" },
    /* what does not fit together */
    { JOB("file: /x"), "memory.file is given, but memory.offload is none: nothing leaves the "
                       "device (hint: memory.offload: auto)" },
    { JOB("host_bytes: 1 GB"), "memory.host_bytes is given, but memory.offload is none: nothing "
                               "leaves the device (hint: memory.offload: auto)" },
    { JOB("file: none, offload: auto"), "memory.file is none, not an absolute path (hint: a folder "
                                        "on a disk of each node, such as ${TMPDIR}; null: none)" },
    { JOB("file_link: 1 GB/s, offload: auto"),
      "memory.file_link is given, but memory.file is not (hint: memory.file: a folder" },
    { JOB("update: host"), "memory.update is host, but memory.offload is none: the optimizer's "
                           "states stay on the device (hint: memory.offload: [optimizer])" },
    { JOB("update: host, offload: [weights]"),
      "memory.update is host, but memory.offload has no optimizer: the optimizer's states stay on "
      "the device (hint: memory.offload: auto, or a list with optimizer)" },
    /* other tools' names */
    { JOB("offload_optimizer: {device: cpu}"),
      "unknown key memory.offload_optimizer (hint: memory.offload: [optimizer])" },
    { "{offload_param: {device: cpu}}", "(hint: memory.offload: [weights])" },
    { "{cpu_offload: true}", "(hint: memory.offload: auto)" },
    { "{optimizer-cpu-offload: true}", "(hint: memory.offload: [optimizer])" },
    { "{cpu_checkpointing: true}", "(hint: memory.offload: [activations])" },
    { "{train: {enable_activation_offloading: true}}", "(hint: memory.offload: [activations])" },
    { "{nvme_path: /x}", "(hint: memory.file)" },
    { "{memori: {offload: auto}}", "unknown key memori (hint: memory)" },
};

static void mistakes_have_a_way_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct arena arena = { 0 };
        struct err err = { 0 };
        struct job job;

        if (!read_job(&job, mistakes[i][0], &arena, &err))
            fail_msg("no mistake in:\n%s", mistakes[i][0]);
        if (!strstr(err.text, mistakes[i][1]))
            fail_msg("%s\ngave \"%s\"\nnot  \"%s\"", mistakes[i][0], err.text, mistakes[i][1]);
        assert_int_equal(err.code, ERR_CONFIG);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_leaves_by_default),
        cmocka_unit_test(all_keys),
        cmocka_unit_test(quantities),
        cmocka_unit_test(printed_quantities_read_back),
        cmocka_unit_test(jobs_read_back),
        cmocka_unit_test(mistakes_have_a_way_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
