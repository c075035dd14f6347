/*
 * history_test.c - what is written reads back, torn lines are left out, and decisions replay
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "support/temporary.h"
#include "sweep/history.h"

static char folder[512];
static struct arena arena;
static const int64_t rungs[] = { 4, 12 };

static const struct history_header header = { .command = "lora",
                                              .job = "a \"b\".yaml",
                                              .metric = "eval.loss",
                                              .parameters = "{\"train.seed\": [1, 2, 3]}",
                                              .search = SWEEP_GRID,
                                              .goal = SWEEP_MAXIMIZE,
                                              .stop = SWEEP_STOP_ASHA,
                                              .seed = 9223372036854775807u,
                                              .eta = 3,
                                              .min_trials = 2,
                                              .n_trials = 3,
                                              .rungs = rungs,
                                              .n_rungs = 2 };

static struct err err;

static void must(int status)
{
    if (status < 0)
        fail_msg("%s", err.text);
}

static void add(int fd, enum history_event event, int trial, int rung, double value)
{
    struct history_record r = { .event = event,
                                .trial = trial,
                                .rung = rung,
                                .step = rungs[rung],
                                .value = value,
                                .text = "why\n" };

    must(history_add(fd, &r, &err));
}

/* Three trials of which the second one, as the larger value is better, goes on. */
static const char *write_one(bool is_right)
{
    const char *path = history_path(folder, &arena);

    unlink(path);
    int fd = history_open(path, 0, &err);
    must(fd);
    must(history_add_header(fd, &header, &err));
    for (int i = 0; i < 3; i++)
        must(history_add_trial(fd, i, "{\"train.seed\": 1}", &err));
    for (int i = 0; i < 3; i++)
        add(fd, HISTORY_START, i, 0, 0);
    add(fd, HISTORY_VALUE, 1, 0, 0.1 + 0.2);
    add(fd, HISTORY_VALUE, 0, 0, NAN);
    add(fd, HISTORY_RETRY, 2, 0, 0);
    add(fd, HISTORY_FAIL, 2, 0, 0);
    add(fd, is_right ? HISTORY_STOP : HISTORY_GO_ON, 0, 0, 0);
    add(fd, HISTORY_GO_ON, 1, 0, 0);
    add(fd, HISTORY_START, 1, 1, 0);
    close(fd);
    return path;
}

static void what_is_written_reads_back(void **state)
{
    const char *path = write_one(true);
    struct history h;

    (void)state;
    must(history_read(&h, path, &arena, &err));
    assert_string_equal(h.header.command, "lora");
    assert_string_equal(h.header.job, "a \"b\".yaml");
    assert_string_equal(h.header.parameters, header.parameters);
    assert_int_equal(h.header.search, SWEEP_GRID);
    assert_int_equal(h.header.goal, SWEEP_MAXIMIZE);
    assert_true(h.header.seed == header.seed);
    assert_int_equal(h.header.n_rungs, 2);
    assert_int_equal(h.header.rungs[1], 12);
    assert_int_equal(h.n_settings, 3);
    assert_int_equal(h.n_records, 10);
    assert_true(h.records[3].value == 0.1 + 0.2); /* to the bit */
    assert_true(isnan(h.records[4].value));
    assert_int_equal(h.records[5].event, HISTORY_RETRY);
    assert_string_equal(h.records[5].text, "why\n");
    assert_string_equal(h.records[6].text, "why\n");
    assert_int_equal((int64_t)h.n_bytes, file_size(path));
}

static void it_replays_to_the_judge(void **state)
{
    struct history h;
    struct judge judge;
    int n_written;

    (void)state;
    must(history_read(&h, write_one(true), &arena, &err));
    must(history_replay(&h, &judge, &n_written, &arena, &err));
    assert_int_equal(n_written, 2);
    assert_int_equal(judge.trials[0].state, JUDGE_STOPPED);
    assert_int_equal(judge.trials[1].state, JUDGE_RUNNING);
    assert_int_equal(judge.trials[1].rung, 1);
    assert_int_equal(judge.trials[2].state, JUDGE_FAILED);
}

static void other_decisions_are_refused(void **state)
{
    struct history h;
    struct judge judge;
    int n_written;

    (void)state;
    must(history_read(&h, write_one(false), &arena, &err));
    assert_int_equal(history_replay(&h, &judge, &n_written, &arena, &err), -1);
    assert_string_equal(err.text,
                        "sweep.jsonl: trial 0, rung 0: it went on, which by the rules it did not");
}

/* Cut anywhere, as by a kill: what is whole is read, and replays. */
static void every_beginning_is_a_history(void **state)
{
    const char *path = write_one(true);
    char *text;
    size_t n;

    (void)state;
    must(file_read(path, 1 << 20, ERR_DATA, &text, &n, &err));
    for (size_t cut = 0; cut <= n; cut++) {
        struct history h;
        struct judge judge;
        int n_written;

        FILE *file = fopen(path, "we"); /* file_write would sync each */
        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, cut, file), cut);
        assert_int_equal(fclose(file), 0);
        must(history_read(&h, path, &arena, &err));
        assert_true(h.n_bytes <= cut && (h.n_bytes == 0 || text[h.n_bytes - 1] == '\n'));
        if (h.header.n_trials)
            must(history_replay(&h, &judge, &n_written, &arena, &err));
    }
    free(text);
}

static void refuse(const char *text, const char *why)
{
    const char *path = history_path(folder, &arena);
    struct history h;

    must(file_write(path, text, strlen(text), &err));
    assert_int_equal(history_read(&h, path, &arena, &err), -1);
    if (!strstr(err.text, why))
        fail_msg("%s", err.text);
}

static void wrong_lines_are_named(void **state)
{
    (void)state;
    refuse("{\"event\": \"start\", \"trial\": 0, \"rung\": 0}\n",
           "jsonl:1: a line that does not fit");
    refuse("{\"event\": \"sweep\", \"version\": 2}\n", "version 2 of the history");
    refuse("{\"event\": \"sweep\", \"version\": 1}\n", "jsonl:1: not a line");
    refuse("{\"event\": \"dance\"}\n", "jsonl:1: not a line");
    refuse("nothing\n", "jsonl:1: not a line");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(it_replays_to_the_judge),
        cmocka_unit_test(other_decisions_are_refused),
        cmocka_unit_test(every_beginning_is_a_history),
        cmocka_unit_test(wrong_lines_are_named),
    };

    if (temporary_folder(folder, sizeof folder) < 0)
        return 1;
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    arena_release(&arena);
    file_remove_tree(folder, &err);
    return status;
}
