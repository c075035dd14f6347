/*
 * job_file_test.c - which job.yaml may be replaced, and what becomes of one that may not
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
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/log.h"
#include "train/job_file.h"

static struct arena arena;
static struct job job;

static void no_log(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static int setup(void **state)
{
    static const char text[] = "model: llama-100m\ndata: {train: x}\ntrain: {steps: 3}\n";
    const char *tmp = getenv("TMPDIR");
    char *folder = arena_printf(&arena, "%s/lmtrain-job.XXXXXX", tmp ? tmp : "/tmp");
    struct err err;

    (void)state;
    log_set_sink(no_log, NULL);
    if (!mkdtemp(folder) || job_read_text(&job, text, strlen(text), "text", NULL, 0, &arena, &err))
        return -1;
    job.output = folder;
    return 0;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    int failed = file_remove_tree(job.output, &err);
    arena_release(&arena);
    return failed;
}

static char *path_of(const char *name)
{
    return arena_printf(&arena, "%s/%s", job.output, name);
}

static const char *read_file(const char *name)
{
    char *text;
    size_t n_bytes;
    struct err err;

    if (file_read(path_of(name), 1 << 20, ERR_DATA, &text, &n_bytes, &err) < 0)
        fail_msg("%s", err.text);
    const char *kept = arena_strdup(&arena, text);
    free(text);
    return kept;
}

static void put_file(const char *name, const char *text)
{
    struct err err;

    assert_int_equal(file_write(path_of(name), text, strlen(text), &err), 0);
}

static void write_job(void)
{
    struct err err;

    if (job_file_write(&job, &err) < 0)
        fail_msg("%s", err.text);
}

/* Neither by the check nor by the write, and it stays as it was. */
static void is_refused(const char *text)
{
    struct err err;

    put_file("job.yaml", text);
    assert_int_equal(job_file_check(&job, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "job.yaml was not written by lmtrain"));
    assert_non_null(strstr(err.text, "hint: use a different output folder"));
    assert_int_equal(job_file_write(&job, &err), -1);
    assert_string_equal(read_file("job.yaml"), text);
}

static void what_people_wrote_is_kept(void **state)
{
    struct str printed = { 0 };

    (void)state;
    is_refused("model: llama-100m\n");
    is_refused("# written by me\nmodel: llama-100m\n");
    is_refused("model:\n  name: mine\n");
    /* All fields, as `lmtrain config` prints them, and a remark. */
    str_add(&printed, "# my run\n");
    job_print(&job, &printed);
    is_refused(str_text(&printed));
    str_release(&printed);
    put_file("job.yaml", "");
    write_job();
}

static void what_lmtrain_wrote_is_replaced(void **state)
{
    struct str printed = { 0 };
    struct job again;
    struct err err;

    (void)state;
    write_job();
    const char *first = read_file("job.yaml");
    assert_true(str_starts_with(first, "# written by lmtrain"));
    if (job_read(&again, path_of("job.yaml"), NULL, 0, &arena, &err) < 0)
        fail_msg("%s", err.text);
    job.train.steps = 4;
    write_job();
    assert_string_not_equal(read_file("job.yaml"), first);
    /* Without a mark, as older versions wrote it. */
    job_print(&job, &printed);
    put_file("job.yaml", str_text(&printed));
    str_release(&printed);
    write_job();
    assert_true(str_starts_with(read_file("job.yaml"), "# written by lmtrain"));
    assert_false(file_exists(path_of("job.yaml.edited")));
}

static void what_was_edited_is_kept_aside(void **state)
{
    (void)state;
    write_job();
    const char *first = read_file("job.yaml");
    const char *edited = arena_printf(&arena, "%s# more\n", first);
    put_file("job.yaml", edited);
    write_job();
    assert_string_equal(read_file("job.yaml"), first);
    assert_string_equal(read_file("job.yaml.edited"), edited);
    put_file("job.yaml",
             "# written by lmtrain at each start of this run (edit a copy), XXH3 what\n");
    write_job();
    assert_string_equal(read_file("job.yaml"), first);
    assert_string_equal(read_file("job.yaml.edited"), edited);
    assert_true(file_exists(path_of("job.yaml.edited2")));
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_people_wrote_is_kept),
        TEST(what_lmtrain_wrote_is_replaced),
        TEST(what_was_edited_is_kept_aside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
