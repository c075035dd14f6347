/*
 * doctor_test.c - the doctor's verdict and its patience with other programs
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "doctor_impl.h"
#include "support/temporary.h"

static struct arena arena;
static char folder[256];
static char *old_path;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    old_path = strdup(getenv("PATH"));
    return 0;
}

static int tear_down(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(setenv("PATH", old_path, 1), 0);
    free(old_path);
    assert_int_equal(file_remove_tree(folder, &err), 0);
    arena_release(&arena);
    return 0;
}

/* A program of this name, first in the PATH. */
static void make_program(const char *name, const char *text)
{
    struct err err = { 0 };
    const char *path = arena_printf(&arena, "%s/%s", folder, name);

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(setenv("PATH", arena_printf(&arena, "%s:%s", folder, old_path), 1), 0);
}

static struct doctor new_doctor(void)
{
    return (struct doctor){ .arena = &arena, .part = "test" };
}

static const struct doctor_finding *find(const struct doctor *doctor, const char *name)
{
    for (int i = 0; i < doctor->n_findings; i++)
        if (strcmp(doctor->findings[i].name, name) == 0)
            return &doctor->findings[i];
    return NULL;
}

static const char *text_of(void (*print)(struct str *, const struct doctor *),
                           const struct doctor *doctor)
{
    struct str text = { 0 };

    print(&text, doctor);
    const char *copy = arena_strdup(&arena, str_text(&text));
    str_release(&text);
    return copy;
}

static void test_findings_are_printed_with_their_advice(void **state)
{
    struct doctor doctor = new_doctor();

    (void)state;
    doctor_add(&doctor, DOCTOR_OK, "cores", NULL, "%d", 2);
    doctor_add(&doctor, DOCTOR_WARNING, "memory", "end something", "%s", "little");
    const char *text = text_of(doctor_print, &doctor);
    assert_non_null(strstr(text, "test\n  ok       cores            2\n"));
    assert_non_null(strstr(text, "  warning  memory           little\n"));
    assert_non_null(strstr(text, " end something\n"));
    assert_non_null(strstr(text, "\nthis machine can train; 1 warning\n"));
}

static void test_one_problem_decides(void **state)
{
    struct doctor doctor = new_doctor();

    (void)state;
    doctor_add(&doctor, DOCTOR_WARNING, "a", NULL, "x");
    doctor_add(&doctor, DOCTOR_WARNING, "b", NULL, "x");
    doctor_add(&doctor, DOCTOR_PROBLEM, "c", "mend it", "x");
    assert_int_equal(doctor_count(&doctor, DOCTOR_PROBLEM), 1);
    assert_non_null(strstr(text_of(doctor_print, &doctor),
                           "\nthis machine cannot train: 1 problem, 2 warnings\n"));
}

static void test_json_says_the_same(void **state)
{
    struct doctor doctor = new_doctor();

    (void)state;
    doctor_add(&doctor, DOCTOR_NOTE, "quote\"d", NULL, "line\nbreak");
    doctor_add(&doctor, DOCTOR_PROBLEM, "c", "mend it", "x");
    cJSON *root = cJSON_Parse(text_of(doctor_print_json, &doctor));
    assert_non_null(root);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(root, "can_train")));
    assert_true(cJSON_GetObjectItem(root, "problems")->valueint == 1);
    assert_true(cJSON_GetObjectItem(root, "warnings")->valueint == 0);
    const cJSON *findings = cJSON_GetObjectItem(root, "findings");
    assert_int_equal(cJSON_GetArraySize(findings), 2);
    const cJSON *first = cJSON_GetArrayItem(findings, 0), *second = cJSON_GetArrayItem(findings, 1);
    assert_string_equal(cJSON_GetObjectItem(first, "name")->valuestring, "quote\"d");
    assert_string_equal(cJSON_GetObjectItem(first, "value")->valuestring, "line\nbreak");
    assert_string_equal(cJSON_GetObjectItem(first, "state")->valuestring, "note");
    assert_null(cJSON_GetObjectItem(first, "advice"));
    assert_string_equal(cJSON_GetObjectItem(second, "advice")->valuestring, "mend it");
    cJSON_Delete(root);
}

static void test_command_gives_both_streams(void **state)
{
    struct doctor doctor = new_doctor();
    char *const argv[] = { "talker", "word", NULL };

    (void)state;
    make_program("talker", "#!/bin/sh\necho \"out $1\"\necho err >&2\n");
    assert_string_equal(doctor_command(&doctor, argv, 10.0), "out word\nerr\n");
}

static void test_command_that_fails_or_is_absent_gives_nothing(void **state)
{
    struct doctor doctor = new_doctor();
    char *const fails[] = { "failer", NULL };
    char *const absent[] = { "no-such-program-here", NULL };

    (void)state;
    make_program("failer", "#!/bin/sh\necho something\nexit 1\n");
    assert_null(doctor_command(&doctor, fails, 10.0));
    assert_null(doctor_command(&doctor, absent, 10.0));
    assert_null(doctor_find_in_path(&doctor, "no-such-program-here"));
}

static void test_command_that_hangs_is_killed_with_its_children(void **state)
{
    struct doctor doctor = new_doctor();
    char *const argv[] = { "sleeper", NULL };
    const char *pid_path = arena_printf(&arena, "%s/pid", folder);
    struct timespec start, end;
    struct err err = { 0 };
    char *pid = NULL;
    size_t n_bytes = 0;

    (void)state;
    make_program("sleeper",
                 arena_printf(&arena, "#!/bin/sh\nsleep 100 &\necho $! > %s\nwait\n", pid_path));
    clock_gettime(CLOCK_MONOTONIC, &start);
    assert_null(doctor_command(&doctor, argv, 0.5));
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_in_range(end.tv_sec - start.tv_sec, 0, 20);
    assert_int_equal(file_read(pid_path, 64, ERR_DATA, &pid, &n_bytes, &err), 0);
    const char *entry = arena_printf(&arena, "/proc/%.*s/stat", (int)strcspn(pid, "\n"), pid);
    free(pid);
    /* Its parent is gone, so init reaps it: at once, or it is a zombie for good where init does
     * not. */
    int gone = 0;
    for (int i = 0; i < 100 && !gone; i++) {
        char *text = NULL;
        gone = file_read(entry, 4096, ERR_DATA, &text, &n_bytes, &err) != 0 ||
               strstr(text, ") Z ") != NULL;
        free(text);
        usleep(20000);
    }
    assert_true(gone);
}

static void test_command_that_talks_without_end_is_cut(void **state)
{
    struct doctor doctor = new_doctor();
    char *const argv[] = { "chatter", NULL };

    (void)state;
    make_program("chatter", "#!/bin/sh\nyes | head -c 100000\n");
    assert_int_equal(strlen(doctor_command(&doctor, argv, 20.0)), 8192);
}

static void test_slurm_with_without_and_hanging(void **state)
{
    struct doctor with = new_doctor(), without = new_doctor(), broken = new_doctor();

    (void)state;
    make_program("srun", "#!/bin/sh\necho 'MPI plugin types are...' >&2\necho pmix_v4 >&2\n");
    doctor_probe_software(&with);
    assert_non_null(find(&with, "Slurm"));
    assert_int_equal(find(&with, "Slurm")->state, DOCTOR_OK);

    make_program("srun", "#!/bin/sh\necho none\n");
    doctor_probe_software(&without);
    assert_int_equal(find(&without, "Slurm")->state, DOCTOR_WARNING);
    assert_non_null(find(&without, "Slurm")->advice);

    make_program("srun", "#!/bin/sh\nexit 1\n");
    doctor_probe_software(&broken);
    assert_int_equal(find(&broken, "Slurm")->state, DOCTOR_WARNING);
}

static void test_folder_for_temporary_files_is_tried(void **state)
{
    struct doctor good = new_doctor(), bad = new_doctor();
    const char *saved = getenv("TMPDIR");
    char *old = saved == NULL ? NULL : strdup(saved);

    (void)state;
    setenv("TMPDIR", folder, 1);
    doctor_probe_system(&good);
    assert_int_not_equal(find(&good, "temporary files")->state, DOCTOR_PROBLEM);
    setenv("TMPDIR", "/no/such/folder", 1);
    doctor_probe_system(&bad);
    assert_int_equal(find(&bad, "temporary files")->state, DOCTOR_PROBLEM);
    assert_non_null(find(&bad, "temporary files")->advice);
    if (old == NULL)
        unsetenv("TMPDIR");
    else
        setenv("TMPDIR", old, 1);
    free(old);
}

static void test_versions_are_told(void **state)
{
    static const char *const libraries[] = { "PMIx", "libyaml", "cJSON", "xxHash", "zstd" };
    struct doctor doctor = new_doctor();

    (void)state;
    doctor_probe_software(&doctor);
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
        const struct doctor_finding *finding = find(&doctor, libraries[i]);
        assert_non_null(finding);
        assert_int_equal(finding->state, DOCTOR_OK);
        assert_non_null(strpbrk(finding->value, "0123456789"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_findings_are_printed_with_their_advice, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_one_problem_decides, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_json_says_the_same, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_command_gives_both_streams, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_command_that_fails_or_is_absent_gives_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_command_that_hangs_is_killed_with_its_children, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_command_that_talks_without_end_is_cut, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_slurm_with_without_and_hanging, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder_for_temporary_files_is_tried, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_versions_are_told, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
