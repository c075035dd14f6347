/*
 * progress_test.c - the page between two processes, its words, and pages that are not there
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "progress/progress_page.h"

static char path[128];

static int setup(void **state)
{
    const char *temporary = getenv("TMPDIR");

    (void)state;
    snprintf(path, sizeof path, "%.60s/progress-test-%d", temporary ? temporary : "/tmp", getpid());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    unsetenv(PROGRESS_VARIABLE);
    return 0;
}

static void test_two_processes(void **state)
{
    union progress_place *page;
    struct err err;
    struct stat stat_;
    int status;
    char words[200];

    (void)state;
    assert_int_equal(progress_page_create(&page, path, 3, &err), 0);
    assert_int_equal(stat(path, &stat_), 0);
    assert_int_equal(stat_.st_mode & 0777, 0600);
    assert_string_equal(progress_describe(&page[2].slot, words, sizeof words), "starting");
    setenv(PROGRESS_VARIABLE, path, 1);
    pid_t child = fork();
    if (!child) {
        struct progress_slot *slot = progress_join(2);
        struct progress_meeting meeting = { 7, 1, 2, 4, 3, 16 };

        atomic_store(&slot->step, 12);
        atomic_store(&slot->micro_batch, 1);
        atomic_store(&slot->op, 5);
        progress_wait(slot, "all_gather %10", &meeting);
        _exit(progress_join(0) == slot ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_string_equal(progress_describe(&page[2].slot, words, sizeof words),
                        "waits in all_gather %10, step 12, micro-batch 1");
    assert_int_equal(page[2].slot.pid, child);
    assert_int_equal(page[2].slot.awaits, 7);
    assert_int_equal(page[2].slot.group_first, 1);
    assert_int_equal(page[2].slot.group_stride, 2);
    assert_int_equal(page[2].slot.group_size, 4);
    assert_int_equal(page[2].slot.group_n_runs, 3);
    assert_int_equal(page[2].slot.group_apart, 16);
    assert_int_equal(page[2].slot.end, PROGRESS_RUNS);
    assert_int_equal(atomic_load(&page[1].slot.beat), 0);
    progress_page_close(page, 3);
    progress_page_close(NULL, 3);
}

/* Outside the step there is no micro-batch; a text that is torn or hostile stays one line. */
static void test_words(void **state)
{
    union progress_place place = { .slot = { .beat = 1, .op = -1, .step = 4 } };
    char words[300], tiny[8];

    (void)state;
    snprintf(place.slot.text, sizeof place.slot.text, "evaluate");
    assert_string_equal(progress_describe(&place.slot, words, sizeof words), "evaluate, step 4");
    place.slot.op = 3;
    place.slot.micro_batch = -1;
    assert_string_equal(progress_describe(&place.slot, words, sizeof words), "in evaluate, step 4");
    memset(place.slot.text, '\n', sizeof place.slot.text);
    place.slot.text[0] = 'x';
    progress_describe(&place.slot, words, sizeof words);
    assert_null(strchr(words, '\n'));
    assert_int_equal(strlen(words), strlen("in , step 4") + PROGRESS_TEXT_BYTES);
    progress_describe(&place.slot, tiny, sizeof tiny);
    assert_int_equal(strlen(tiny), sizeof tiny - 1);
}

/* Each kind of publication, and that nobody need ask. */
static void test_publishing(void **state)
{
    struct progress_slot slot = { .op = 3, .step = 2 };
    char words[300], longest[200];

    (void)state;
    memset(longest, 'y', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    progress_publish(&slot, longest, 0);
    assert_int_equal(strlen(slot.text), PROGRESS_TEXT_BYTES - 1);
    progress_publish(&slot, "adamw", 0);
    assert_string_equal(progress_describe(&slot, words, sizeof words),
                        "in adamw, step 2, micro-batch 0");
    progress_phase(&slot, "writing a checkpoint");
    assert_string_equal(progress_describe(&slot, words, sizeof words),
                        "writing a checkpoint, step 2");
    assert_int_equal(progress_advance(&slot), 1);
    progress_meet(&slot, "agreement");
    assert_int_equal(slot.position, 2);
    assert_int_equal(slot.awaits, 2);
    assert_int_equal(slot.group_size, 0);
    assert_string_equal(progress_describe(&slot, words, sizeof words),
                        "waits in agreement, step 2");
    progress_beat(&slot);
    assert_int_equal(slot.beat, 5);

    progress_publish(NULL, "x", 0);
    progress_phase(NULL, "x");
    progress_meet(NULL, "x");
    progress_beat(NULL);
    assert_int_equal(progress_advance(NULL), 0);
}

/* No page, a page that is too short, a path that is nothing: a private slot, the same each time. */
static void test_private_slot(void **state)
{
    union progress_place *page;
    struct err err;

    (void)state;
    unsetenv(PROGRESS_VARIABLE);
    struct progress_slot *private_slot = progress_join(0);
    assert_non_null(private_slot);
    setenv(PROGRESS_VARIABLE, "/nowhere/at/all", 1);
    assert_ptr_equal(progress_join(0), private_slot);
    assert_int_equal(progress_page_create(&page, path, 2, &err), 0);
    setenv(PROGRESS_VARIABLE, path, 1);
    assert_ptr_equal(progress_join(2), private_slot);
    assert_ptr_equal(progress_join(-1), private_slot);
    struct progress_slot *slot = progress_join(1);
    assert_ptr_not_equal(slot, private_slot);
    progress_end(PROGRESS_LEFT);
    assert_int_equal(page[1].slot.end, PROGRESS_LEFT);
    assert_ptr_equal(progress_join(0), slot); /* a rank has one */
    progress_adopt(NULL);
    unsetenv(PROGRESS_VARIABLE);
    progress_end(PROGRESS_LEFT);
    assert_ptr_equal(progress_join(1), private_slot);
    progress_page_close(page, 2);
}

static void test_cannot_create(void **state)
{
    union progress_place *page;
    struct err err;

    (void)state;
    assert_int_equal(progress_page_create(&page, "/nowhere/at/all", 1, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    assert_int_equal(progress_page_create(&page, path, 1, &err), 0);
    progress_page_close(page, 1);
    assert_int_equal(progress_page_create(&page, path, 1, &err), -1); /* it exists */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_processes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_words, setup, teardown),
        cmocka_unit_test(test_publishing),
        cmocka_unit_test_setup_teardown(test_private_slot, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cannot_create, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
