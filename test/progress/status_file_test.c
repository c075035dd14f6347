/*
 * status_file_test.c - a status file is renewed as long as its owner lives, and is always whole
 */
#include "support/folder_fixture.h"

#include <cjson/cJSON.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "progress/progress_page.h"
#include "progress/status_file.h"

/* NULL while there is none; else it must be whole. The caller deletes it. */
static cJSON *read_status(const char *path)
{
    struct err err;
    char *text;
    size_t n;

    if (file_read(path, 1 << 20, ERR_DATA, &text, &n, &err) < 0)
        return NULL;
    cJSON *object = cJSON_ParseWithOpts(text, NULL, 0);
    if (!object)
        fail_msg("no JSON: %s", text);
    free(text);
    return object;
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

/* A status in which `key` is at least `least`, within many times the second that it takes. */
static cJSON *wait_for(const char *path, const char *key, double least)
{
    for (double end = clock_seconds() + 20; clock_seconds() < end; nap()) {
        cJSON *status = read_status(path);
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(status, key);

        if (cJSON_IsNumber(item) && item->valuedouble >= least)
            return status;
        cJSON_Delete(status);
    }
    fail_msg("%s never came to %g", key, least);
    return NULL;
}

static void it_is_renewed_and_closed_with_what_was_put_last(void **state)
{
    const char *path = fixture_path(*state, "run.json");
    struct status_file *file = status_file_open(path, NULL, NULL);

    assert_non_null(file);
    status_file_put(file, ",\"step\":1");
    cJSON *first = wait_for(path, "step", 1);
    double written_at = number_of(first, "written_at"), said_at = number_of(first, "said_at");
    cJSON_Delete(first);
    /* Nothing is put: the time goes on. */
    cJSON *second = wait_for(path, "written_at", written_at + 0.5);
    assert_true(number_of(second, "said_at") == said_at);
    cJSON_Delete(second);
    status_file_put(file, ",\"step\":2");
    status_file_close(file, 20);
    cJSON *last = read_status(path);
    assert_true(number_of(last, "step") == 2);
    cJSON_Delete(last);
    assert_int_equal(access(fixture_path(*state, "run.json.part"), F_OK), -1);
}

static void add_now(void *context, struct str *out)
{
    str_printf(out, ",\"n\":%d", ++*(int *)context);
}

static void what_is_true_now_is_added_at_each_write(void **state)
{
    const char *path = fixture_path(*state, "run.json");
    int n = 0;
    struct status_file *file = status_file_open(path, add_now, &n);

    cJSON *status = wait_for(path, "n", 2);
    assert_true(number_of(status, "said_at") == 0);
    cJSON_Delete(status);
    status_file_close(file, 20);
}

/* A run folder that was removed is not made again by its status. */
static void no_folder_no_file(void **state)
{
    const char *path = fixture_path(*state, "gone/run.json");
    struct status_file *file = status_file_open(path, NULL, NULL);

    status_file_put(file, ",\"step\":1");
    status_file_close(file, 20);
    assert_int_equal(access(fixture_path(*state, "gone"), F_OK), -1);
    status_file_close(NULL, 1);
    status_file_put(NULL, "");
}

static void a_rank_as_json(void **state)
{
    struct progress_slot slot = { .op = -1 };
    struct status_rank rank = { .rank = 3, .host = "n\"1", .state = "running", .slot = &slot };
    struct str out = { 0 };

    (void)state;
    status_add_rank(&out, &rank);
    assert_string_equal(str_text(&out), "{\"rank\":3,\"host\":\"n\\\"1\",\"state\":\"running\","
                                        "\"doing\":\"starting\",\"waits\":false,\"heard_s\":0.0}");
    atomic_store(&slot.step, 7);
    atomic_store(&slot.op, 2);
    atomic_store(&slot.micro_batch, 1);
    atomic_store(&slot.pid, 99);
    atomic_store(&slot.resident_bytes, 4096);
    atomic_store(&slot.peak_bytes, 8192);
    progress_publish(&slot, "attention \x01\xff layers.9", true);
    rank.heard_s = 1.25;
    rank.gpu = "GPU 0";
    str_clear(&out);
    status_add_rank(&out, &rank);
    cJSON *object = cJSON_Parse(str_text(&out));
    assert_true(number_of(object, "step") == 7);
    assert_true(number_of(object, "micro_batch") == 1);
    assert_true(number_of(object, "pid") == 99);
    assert_true(number_of(object, "resident_bytes") == 4096);
    assert_true(number_of(object, "peak_bytes") == 8192);
    assert_string_equal(cJSON_GetObjectItem(object, "doing")->valuestring, "attention ?? layers.9");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(object, "waits")));
    assert_string_equal(cJSON_GetObjectItem(object, "gpu")->valuestring, "GPU 0");
    cJSON_Delete(object);
    str_release(&out);
    assert_true(status_resident_bytes(getpid()) > 100000);
    assert_true(status_resident_bytes(-1) == 0);

    /* What was in memory at most stays when it is given back, and when the process has ended. */
    size_t n_bytes = (size_t)64 << 20;
    char *memory = malloc(n_bytes);
    assert_non_null(memory);
    memset(memory, 1, n_bytes);
    status_look_at_memory(&slot, getpid());
    assert_true(atomic_load(&slot.resident_bytes) >= (int64_t)n_bytes);
    free(memory);
    status_look_at_memory(&slot, getpid());
    int64_t peak = atomic_load(&slot.peak_bytes);
    assert_true(peak >= (int64_t)n_bytes && peak >= atomic_load(&slot.resident_bytes));
    status_look_at_memory(&slot, 0);
    assert_true(atomic_load(&slot.peak_bytes) == peak && !atomic_load(&slot.resident_bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_renewed_and_closed_with_what_was_put_last,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(what_is_true_now_is_added_at_each_write, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(no_folder_no_file, fixture_setup, fixture_teardown),
        cmocka_unit_test(a_rank_as_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
