/*
 * file_copy_test.c - the rank's file: opened, refused, copied to and from in both ways, and damaged
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "comm/worker.h"
#include "run/file_copy.h"
#include "support/offload.h"

static char folder[] = "/tmp/lmtrain-file-copy-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    unsetenv("LMTRAIN_FILE_IO");
    return rmdir(folder); /* fails if it is not empty */
}

static int n_entries(void)
{
    DIR *dir = opendir(folder);
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

static void open_tier(struct file_tier *tier, size_t n_bytes, bool is_summed)
{
    struct err err;

    if (file_tier_open(tier, folder, n_bytes, is_summed, &err) < 0)
        fail_msg("%s", err.text);
}

/* It has no name while it is open: a rank that is killed leaves nothing. */
static void test_no_name(void **state)
{
    struct file_tier tier;

    (void)state;
    open_tier(&tier, 5000, false);
    assert_int_equal(tier.n_bytes, 8192);
    assert_int_equal(lseek(tier.fd, 0, SEEK_END), 8192);
    assert_int_equal(n_entries(), 0);
    file_tier_close(&tier);
    file_tier_close(&tier);
}

static void test_refused(void **state)
{
    struct rlimit before, limit;
    struct file_tier tier;
    struct err err;

    (void)state;
    assert_int_equal(file_tier_open(&tier, "/tmp/is/not/there", 5000, false, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "8192 bytes) in /tmp/is/not/there: No such file"));
    file_tier_close(&tier);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(file_tier_open(&tier, folder, (size_t)3 << 20, false, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "3.0 MiB (3145728 bytes)"));
    assert_non_null(strstr(err.text, folder));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    file_tier_close(&tier);
    assert_int_equal(n_entries(), 0);
}

static void test_addresses(void **state)
{
    int on_stack = 0;

    (void)state;
    assert_false(file_tier_has(&on_stack));
    assert_false(file_tier_has(NULL));
    assert_true(file_tier_has(file_tier_address(0)));
    assert_int_equal(file_tier_offset(file_tier_address(4096) + 17), 4113);
}

/* ---- copies ---- */

struct rig {
    struct file_tier tier;
    struct file_lane lane;
    struct worker *worker;
};

static void open_rig(struct rig *rig, size_t n_bytes)
{
    struct err err;

    open_tier(&rig->tier, n_bytes, true);
    assert_int_equal(file_lane_open(&rig->lane, &rig->tier, device_host(), &err), 0);
    assert_int_equal(worker_create(&rig->worker, -1, &err), 0);
}

static void close_rig(struct rig *rig)
{
    worker_destroy(rig->worker);
    file_lane_close(&rig->lane);
    file_tier_close(&rig->tier);
}

static int copy(struct rig *rig, void *to, const void *from, size_t n_bytes, struct err *err)
{
    struct file_copy c = file_copy_of(to, from, n_bytes, &rig->lane, "layers.3.kept");

    c.copy.base.worker = rig->worker;
    return worker_wait(rig->worker, worker_post(rig->worker, 0, stream_op_run, &c), err);
}

static unsigned char *numbers(size_t n_bytes, uint64_t seed)
{
    unsigned char *bytes = malloc(n_bytes);

    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 4096 + seed);
    return bytes;
}

/* Sizes around those of pieces and pages, at aligned places and at others. */
static void round_trips(void)
{
    static const size_t sizes[] = { 1,
                                    4095,
                                    4096,
                                    4097,
                                    FILE_LANE_PIECE_BYTES,
                                    FILE_LANE_PIECE_BYTES + 12,
                                    3 * FILE_LANE_BYTES - 4096 };
    struct rig rig;
    struct err err;

    open_rig(&rig, 3 * FILE_LANE_BYTES + 8192);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t at = 0; at <= 4096 + 64; at += at ? 64 : 4096) {
            unsigned char *out = numbers(sizes[i], i + at), *back = calloc(sizes[i] + 1, 1);

            assert_non_null(back);
            if (copy(&rig, file_tier_address(at), out, sizes[i], &err) < 0 ||
                copy(&rig, back, file_tier_address(at), sizes[i], &err) < 0)
                fail_msg("%s", err.text);
            assert_memory_equal(out, back, sizes[i]);
            assert_int_equal(back[sizes[i]], 0);
            memset(back, 0, sizes[i]);
            assert_int_equal(file_tier_read(&rig.tier, back, file_tier_address(at), sizes[i], &err),
                             0);
            assert_memory_equal(out, back, sizes[i]);
            free(out);
            free(back);
        }
    close_rig(&rig);
}

static void test_by_whatever_there_is(void **state)
{
    (void)state;
    unsetenv("LMTRAIN_FILE_IO");
    round_trips();
}

static void test_by_a_thread(void **state)
{
    struct rig rig;

    (void)state;
    setenv("LMTRAIN_FILE_IO", "thread", 1);
    open_rig(&rig, 4096);
    assert_string_equal(file_queue_way(rig.lane.queue), "thread");
    close_rig(&rig);
    round_trips();
    unsetenv("LMTRAIN_FILE_IO");
}

/* Neighbours stay as they are, whatever the tail of a value. */
static void test_neighbours(void **state)
{
    size_t n = FILE_LANE_PIECE_BYTES + 100;
    unsigned char *out = numbers(n, 5), after[4096 - 100];
    struct rig rig;
    struct err err;

    (void)state;
    open_rig(&rig, 2 * FILE_LANE_PIECE_BYTES);
    memset(after, 7, sizeof after);
    assert_int_equal(file_tier_write(&rig.tier, file_tier_address(n), after, sizeof after, &err),
                     0);
    assert_int_equal(copy(&rig, file_tier_address(0), out, n, &err), 0);
    assert_int_equal(file_tier_read(&rig.tier, after, file_tier_address(n), sizeof after, &err), 0);
    for (size_t i = 0; i < sizeof after; i++)
        assert_int_equal(after[i], 7);
    free(out);
    close_rig(&rig);
}

static void test_damage_shows(void **state)
{
    size_t n = 2 * FILE_LANE_PIECE_BYTES;
    unsigned char *out = numbers(n, 5), *back = malloc(n), byte = 0;
    struct rig rig;
    struct err err;

    (void)state;
    assert_non_null(back);
    open_rig(&rig, 2 * n);
    assert_int_equal(copy(&rig, file_tier_address(n), out, n, &err), 0);
    assert_int_equal(copy(&rig, back, file_tier_address(n), n, &err), 0);
    /* The host may put other bytes there. */
    assert_int_equal(file_tier_write(&rig.tier, file_tier_address(n + 5000), &byte, 1, &err), 0);
    assert_int_equal(copy(&rig, back, file_tier_address(n), n, &err), 0);
    assert_int_equal(copy(&rig, file_tier_address(n), out, n, &err), 0);
    byte = (unsigned char)~out[n - 9];
    assert_int_equal(pwrite(rig.tier.fd, &byte, 1, (off_t)(2 * n - 9)), 1);
    assert_int_equal(copy(&rig, back, file_tier_address(n), n, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "layers.3.kept, 524288 bytes at 524288, is not what was"));
    free(out);
    free(back);
    close_rig(&rig);
}

/* What a disk says of a request comes back as the copy's error. */
static void test_failure_of_the_disk(void **state)
{
    unsigned char *out = numbers(8192, 1);
    struct rig rig;
    struct err err;

    (void)state;
    open_rig(&rig, 8192);
    assert_int_equal(ftruncate(rig.tier.fd, 4096), 0);
    assert_int_equal(copy(&rig, out, file_tier_address(0), 8192, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "cannot read layers.3.kept"));
    free(out);
    close_rig(&rig);
}

/* ---- in programs ---- */

static void play(uint64_t seed, int poison, int tp_size)
{
    struct offload_play play = {
        .shape = { .n_layers = 6,
                   .tp_size = tp_size,
                   .n_micro_batches = 5,
                   .rows = 3,
                   .cols = 5,
                   .in_file = true },
        .poison = poison,
        .seed = seed,
        .folder = folder,
    };

    assert_int_equal(offload_run(&play), 0);
    play.shape.rows = 310;
    play.shape.cols = 257;
    play.shape.n_layers = 3;
    assert_int_equal(offload_run(&play), 0);
    assert_int_equal(n_entries(), 0);
}

static void test_programs(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        setenv("LMTRAIN_FILE_IO", i / 2 ? "thread" : "", 1);
        play((uint64_t)(i % 2), i % 2, 1 + i % 2);
    }
    unsetenv("LMTRAIN_FILE_IO");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_name),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_addresses),    cmocka_unit_test(test_by_whatever_there_is),
        cmocka_unit_test(test_by_a_thread),  cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_damage_shows), cmocka_unit_test(test_failure_of_the_disk),
        cmocka_unit_test(test_programs),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
