/*
 * metrics_test.c - each line is JSON with the fields of design.md §10, to the bit
 */
#include "report_fixture.h"

#include <cjson/cJSON.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "base/str.h"
#include "report/metrics.h"

/* The lines of metrics.jsonl, parsed; the caller deletes them. */
static int read_lines(const char *folder, cJSON **lines, int n_max)
{
    size_t n_bytes;
    char *text = fixture_read(fixture_path(folder, "metrics.jsonl"), &n_bytes);
    int n = 0;

    while (*text) {
        char *end = strchr(text, '\n');

        assert_non_null(end);
        *end = '\0';
        assert_true(n < n_max);
        lines[n] = cJSON_ParseWithOpts(text, NULL, 1);
        if (!lines[n++])
            fail_msg("not JSON: %s", text);
        text = end + 1;
    }
    return n;
}

static const cJSON *get(const cJSON *line, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);

    assert_non_null(item);
    return item;
}

static const struct metrics_step sample = {
    .step = 40,
    .loss = 0.1 + 0.2,
    .loss_mean = 0.25,
    .grad_norm = 1.0 / 3,
    .lr = 3e-4,
    .tokens = INT64_C(1) << 40,
    .tokens_per_s = 12345.678,
    .step_s = 0.25,
    .mfu = 0.41,
    .memory_bytes = 1288490189,
    .skipped = 2,
    .elapsed_s = 3600.0126,
    .numerics = 0x0123456789abcdefu,
};

static void a_gpu_is_told_as_far_as_it_is_known(void **state)
{
    static const char *const keys[] = { "gpu_memory_bytes", "gpu_sm_mhz", "gpu_power_w",
                                        "gpu_throttle" };
    const struct metrics_gpu gpu = { INT64_C(5) << 33, 1755, 412, -1, "power cap" };
    struct metrics_step step = sample;
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[4];

    step.gpu = &gpu;
    assert_ok(metrics_open(&metrics, fixture_path(*state, "gpu"), 1, &err), &err);
    assert_ok(metrics_step(metrics, &step, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(fixture_path(*state, "gpu"), lines, 4), 1);
    const cJSON *item = cJSON_GetObjectItem(lines[0], "numerics")->next;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++, item = item->next)
        assert_string_equal(item->string, keys[i]);
    assert_null(item);
    assert_true(get(lines[0], "gpu_memory_bytes")->valuedouble == 42949672960.0);
    assert_int_equal(get(lines[0], "gpu_sm_mhz")->valueint, 1755);
    assert_int_equal(get(lines[0], "gpu_power_w")->valueint, 412);
    assert_string_equal(get(lines[0], "gpu_throttle")->valuestring, "power cap");
    cJSON_Delete(lines[0]);
}

static void exposed_seconds_are_told_by_collective(void **state)
{
    static const struct metrics_exposed_kind kinds[] = { { "reduce_scatter dp", 0.5 },
                                                         { "send pp", 0.125 } };
    struct metrics_exposed exposed = { 2, kinds, 3, 0.75 };
    struct metrics_step step = sample;
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[4];

    step.exposed = &exposed;
    assert_ok(metrics_open(&metrics, fixture_path(*state, "exposed"), 1, &err), &err);
    assert_ok(metrics_step(metrics, &step, &err), &err);
    exposed = (struct metrics_exposed){ .most_rank = -1 };
    assert_ok(metrics_step(metrics, &step, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(fixture_path(*state, "exposed"), lines, 4), 2);
    assert_true(get(get(lines[0], "exposed_s"), "reduce_scatter dp")->valuedouble == 0.5);
    assert_true(get(get(lines[0], "exposed_s"), "send pp")->valuedouble == 0.125);
    assert_true(get(get(lines[0], "exposed_max"), "seconds")->valuedouble == 0.75);
    assert_int_equal(get(get(lines[0], "exposed_max"), "rank")->valueint, 3);
    assert_int_equal(cJSON_GetArraySize(get(lines[1], "exposed_s")), 0);
    assert_null(cJSON_GetObjectItem(lines[1], "exposed_max"));
    cJSON_Delete(lines[0]);
    cJSON_Delete(lines[1]);
}

static void a_step_has_all_fields_to_the_bit(void **state)
{
    static const char *const keys[] = { "step",         "loss",          "loss_hex", "loss_mean",
                                        "grad_norm",    "grad_norm_hex", "lr",       "tokens",
                                        "tokens_per_s", "step_s",        "mfu",      "memory_bytes",
                                        "skipped",      "useful_s",      "time",     "elapsed_s",
                                        "numerics" };
    time_t now = time(NULL);
    struct metrics *metrics;
    struct err err = { 0 };
    struct stat status;
    cJSON *lines[4];

    assert_ok(metrics_open(&metrics, fixture_path(*state, "run"), 1, &err), &err);
    assert_ok(metrics_step(metrics, &sample, &err), &err);
    /* Flushed: it is there before the close. */
    assert_int_equal(read_lines(fixture_path(*state, "run"), lines, 4), 1);
    metrics_close(metrics);
    const cJSON *item = lines[0]->child;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++, item = item->next)
        assert_string_equal(item->string, keys[i]);
    assert_null(item);
    assert_true(get(lines[0], "loss")->valuedouble == sample.loss);
    assert_true(strtod(get(lines[0], "loss_hex")->valuestring, NULL) == sample.loss);
    assert_string_equal(get(lines[0], "loss_hex")->valuestring, "0x1.3333333333334p-2");
    assert_true(strtod(get(lines[0], "grad_norm_hex")->valuestring, NULL) == sample.grad_norm);
    assert_true(get(lines[0], "grad_norm")->valuedouble == sample.grad_norm);
    assert_true(get(lines[0], "lr")->valuedouble == 3e-4);
    assert_true(get(lines[0], "tokens")->valuedouble == 0x1p40);
    assert_true(get(lines[0], "tokens_per_s")->valuedouble == 12345.678);
    assert_true(get(lines[0], "mfu")->valuedouble == 0.41);
    assert_true(get(lines[0], "memory_bytes")->valuedouble == 1288490189);
    assert_int_equal(get(lines[0], "skipped")->valueint, 2);
    assert_true(get(lines[0], "loss_mean")->valuedouble == 0.25);
    assert_true(get(lines[0], "elapsed_s")->valuedouble == 3600.013);
    assert_true(get(lines[0], "time")->valuedouble >= (double)now);
    assert_true(get(lines[0], "time")->valuedouble <= (double)time(NULL));
    assert_string_equal(get(lines[0], "numerics")->valuestring, "0123456789abcdef");
    cJSON_Delete(lines[0]);
    assert_int_equal(stat(fixture_path(*state, "run/metrics.jsonl"), &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}

/* Behind all the others; in other dtypes there is none. */
static void the_loss_scale_of_fp16(void **state)
{
    static const int layers[] = { 1, 3 };
    static const double stats[] = { 1, 1, 1, 1.5, 0, 2 };
    struct metrics_step step = sample;
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[4];

    step.loss_scale = 65536;
    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_ok(metrics_step(metrics, &step, &err), &err);
    step.balance = 1.25;
    step.experts = (struct metrics_experts){ 2, 2, layers, stats };
    step.dropped = (const double[]){ 3, 0 };
    assert_ok(metrics_step(metrics, &step, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 4), 2);
    for (int i = 0; i < 2; i++)
        assert_true(get(lines[i], "loss_scale")->valuedouble == 65536);
    assert_null(cJSON_GetObjectItem(lines[0], "balance"));
    assert_true(get(lines[1], "balance")->valuedouble == 1.25);
    assert_null(cJSON_GetObjectItem(lines[0], "expert_layers"));
    const cJSON *last = cJSON_GetArrayItem(get(lines[1], "expert_layers"), 1);
    assert_int_equal(cJSON_GetArraySize(get(lines[1], "expert_layers")), 2);
    assert_true(get(last, "layer")->valuedouble == 3 && get(last, "balance")->valuedouble == 1.5);
    assert_true(cJSON_GetArrayItem(get(last, "load"), 1)->valuedouble == 2);
    assert_null(cJSON_GetObjectItem(lines[0], "dropped"));
    assert_int_equal(cJSON_GetArraySize(get(lines[1], "dropped")), 2);
    assert_true(cJSON_GetArrayItem(get(lines[1], "dropped"), 0)->valuedouble == 3);
    for (int i = 0; i < 2; i++)
        cJSON_Delete(lines[i]);
}

static void what_is_not_finite_stays_json(void **state)
{
    const struct metrics_evaluation huge = { .step = 40, .loss = 1e6, .tokens = 10 };
    struct metrics_step step = sample;
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[4];

    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    step.loss = -(double)NAN;
    step.grad_norm = INFINITY;
    step.mfu = NAN;
    step.loss_mean = NAN;
    assert_ok(metrics_step(metrics, &step, &err), &err);
    step.grad_norm = -INFINITY;
    assert_ok(metrics_step(metrics, &step, &err), &err);
    assert_ok(metrics_eval(metrics, &huge, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 4), 3);
    assert_true(cJSON_IsNull(get(lines[0], "loss")));
    assert_string_equal(get(lines[0], "loss_hex")->valuestring, "nan");
    assert_true(cJSON_IsNull(get(lines[0], "grad_norm")));
    assert_string_equal(get(lines[0], "grad_norm_hex")->valuestring, "inf");
    assert_true(cJSON_IsNull(get(lines[0], "mfu")));
    assert_true(cJSON_IsNull(get(lines[0], "loss_mean")));
    assert_string_equal(get(lines[1], "grad_norm_hex")->valuestring, "-inf");
    assert_true(get(lines[2], "eval_loss")->valuedouble == 1e6);
    assert_true(cJSON_IsNull(get(lines[2], "perplexity")));
    for (int i = 0; i < 3; i++)
        cJSON_Delete(lines[i]);
}

static void evaluations_and_events(void **state)
{
    const struct metrics_evaluation evaluation = {
        .step = 3, .loss = 2.0, .tokens = 999, .elapsed_s = 1.5
    };
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[4];

    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_ok(metrics_eval(metrics, &evaluation, &err), &err);
    assert_ok(metrics_event(metrics, 4, "skip", "a \"b\"\\\n\t\x01 \xc3\xa9 \xff\xe2\x82", &err),
              &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 4), 2);
    assert_int_equal(get(lines[0], "step")->valueint, 3);
    assert_string_equal(get(lines[0], "eval_loss_hex")->valuestring, "0x1p+1");
    assert_int_equal(get(lines[0], "eval_tokens")->valueint, 999);
    assert_true(get(lines[0], "elapsed_s")->valuedouble == 1.5);
    assert_true(get(lines[0], "time")->valuedouble > 1e9);
    assert_true(fabs(get(lines[0], "perplexity")->valuedouble - exp(2.0)) < 1e-12);
    assert_string_equal(get(lines[1], "event")->valuestring, "skip");
    /* Bytes that are no UTF-8 become U+FFFD each. */
    assert_string_equal(get(lines[1], "text")->valuestring,
                        "a \"b\"\\\n\t\x01 \xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    cJSON_Delete(lines[0]);
    cJSON_Delete(lines[1]);
}

static void write_steps(const char *folder, int first, int last)
{
    struct metrics *metrics;
    struct err err = { 0 };

    assert_ok(metrics_open(&metrics, folder, first, &err), &err);
    for (int step = first; step <= last; step++) {
        struct metrics_step one = sample;

        one.step = step;
        one.tokens = first * 1000 + step;
        assert_ok(metrics_step(metrics, &one, &err), &err);
    }
    metrics_close(metrics);
}

static void keep_line(void *context, enum log_level level, const char *line)
{
    assert_int_equal(level, LOG_WARN);
    str_printf(context, "%s\n", line);
}

/* The one that will be done again, and no other line. */
static void an_evaluation_is_dropped(void **state)
{
    static const struct metrics_evaluation evaluations[] = {
        { .step = 1, .loss = 3.5, .tokens = 10 },
        { .step = 2, .loss = 2.5, .tokens = 10 },
    };
    struct metrics *metrics;
    cJSON *lines[8];
    struct err err = { 0 };

    assert_ok(metrics_drop_eval(*state, 2, &err), &err); /* no file yet */
    write_steps(*state, 1, 2);
    assert_ok(metrics_open(&metrics, *state, 3, &err), &err);
    assert_ok(metrics_eval(metrics, &evaluations[0], &err), &err);
    assert_ok(metrics_eval(metrics, &evaluations[1], &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 8), 4);
    for (int i = 0; i < 4; i++)
        cJSON_Delete(lines[i]);
    assert_ok(metrics_drop_eval(*state, 2, &err), &err);
    assert_int_equal(read_lines(*state, lines, 8), 3);
    assert_true(cJSON_HasObjectItem(lines[1], "loss"));
    assert_true(cJSON_GetObjectItem(lines[2], "eval_loss")->valuedouble == 3.5);
    for (int i = 0; i < 3; i++)
        cJSON_Delete(lines[i]);
}

static void a_resumed_run_drops_later_steps(void **state)
{
    struct str said = { 0 };
    cJSON *lines[16];
    size_t n_bytes;

    write_steps(*state, 1, 9);
    /* A kill tore the last line, and something else is in the way. */
    const char *path = fixture_path(*state, "metrics.jsonl");
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs("[]\n{\"step\":null}\nnonsense\n{\"step\":2,\"lo", file);
    fclose(file);
    log_set_sink(keep_line, &said);
    write_steps(*state, 6, 8);
    assert_non_null(
        strstr(str_text(&said), "metrics.jsonl: 4 lines that cannot be read dropped\n"));
    str_clear(&said);
    int n = read_lines(*state, lines, 16);
    assert_int_equal(n, 8);
    for (int i = 0; i < n; i++) {
        assert_int_equal(get(lines[i], "step")->valueint, i + 1);
        assert_int_equal(get(lines[i], "tokens")->valueint, (i < 5 ? 1000 : 6000) + i + 1);
        cJSON_Delete(lines[i]);
    }
    /* Nothing to drop: nothing is rewritten. */
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    write_steps(*state, 9, 8);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    /* A run from the start forgets all. */
    write_steps(*state, 0, -1);
    fixture_read(path, &n_bytes);
    assert_int_equal(n_bytes, 0);
    assert_non_null(fixture_find(*state, "events.out.tfevents.", 3));
    /* Steps that are taken again are no loss. */
    assert_string_equal(str_text(&said), "");
    log_set_sink(NULL, NULL);
    str_release(&said);
}

/* What the lines of earlier processes say, of which one died after step 9 and was saved at 6. */
static void earlier_processes_are_known(void **state)
{
    struct metrics_history history;
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[16];

    for (int start = 0; start < 3; start++) {
        int first = start ? 7 : 1;
        time_t now = time(NULL);

        assert_ok(metrics_open(&metrics, *state, first, &err), &err);
        history = metrics_history(metrics);
        assert_int_equal(history.n_starts, start);
        if (start) {
            assert_true(history.begun_at > (double)now - 600 && history.begun_at <= (double)now);
            /* Step 5 was the last one logged: another of its length followed. */
            assert_true(fabs(history.useful_s - (5 * 0.2 + sample.step_s)) < 1e-9);
        } else {
            assert_true(history.begun_at == 0 && history.useful_s == 0);
        }
        assert_ok(metrics_event(metrics, first - 1, "started", "here", &err), &err);
        for (int step = first; step <= 9; step++) {
            struct metrics_step one = sample;

            one.step = step;
            one.useful_s = step * 0.2;
            if (step % 2)
                assert_ok(metrics_step(metrics, &one, &err), &err);
        }
        assert_ok(metrics_event(metrics, 9, "straggler", "rank 1", &err), &err);
        metrics_close(metrics);
    }
    int n = read_lines(*state, lines, 16);
    assert_int_equal(n, 3 + 3 + 3 + 2); /* starts, stragglers, steps 1, 3, 5, and 7, 9 */
    for (int i = 0; i < n; i++)
        cJSON_Delete(lines[i]);
}

static void op_times_are_a_line_of_their_own(void **state)
{
    static const struct metrics_op ops[] = { { "linear", 0.25 }, { "rope", 1e-6 } };
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[2];

    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_ok(metrics_op_times(metrics, 7, 14, ops, 2, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 2), 1);
    assert_int_equal(get(lines[0], "step")->valueint, 7);
    assert_int_equal(get(lines[0], "rank_steps")->valueint, 14);
    assert_true(get(get(lines[0], "ops_s"), "rope")->valuedouble == 1e-6);
    cJSON_Delete(lines[0]);
}

/* A planned end and the start after it are a pause; a start that nothing planned is a restart. */
static void pauses_are_no_restarts(void **state)
{
    static const char *const events[] = { "started", "paused",  "resumed", "started",
                                          "paused",  "resumed", "paused" };
    struct metrics_history history;
    struct metrics *metrics;
    struct err err = { 0 };

    for (int i = 0; i < 7; i++) {
        assert_ok(metrics_open(&metrics, *state, 5, &err), &err);
        assert_ok(metrics_event(metrics, 4, events[i], "as planned", &err), &err);
        metrics_close(metrics);
    }
    assert_ok(metrics_open(&metrics, *state, 5, &err), &err);
    history = metrics_history(metrics);
    metrics_close(metrics);
    assert_int_equal(history.n_starts, 4);
    assert_int_equal(history.n_pauses, 2);
    assert_true(history.paused_s >= 0 && history.paused_s < 600);
    assert_true(history.paused_at >= history.begun_at);
    assert_int_equal(history.pause_step, 4);
}

/* Make a locale with decimal commas in folder; 0, or -1 where its source is not installed. */
static int make_comma_locale(const char *folder)
{
    const char *path = fixture_path(folder, "de_DE.UTF-8");
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        execlp("localedef", "localedef", "-i", "de_DE", "-f", "UTF-8", path, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* LC_NUMERIC is not ours to choose: a comma must not get into JSON. */
static void numbers_have_points_in_every_locale(void **state)
{
    struct metrics *metrics;
    struct err err = { 0 };
    cJSON *lines[2];

    if (make_comma_locale(*state) < 0)
        skip();
    assert_int_equal(setenv("LOCPATH", *state, 1), 0);
    assert_non_null(setlocale(LC_NUMERIC, "de_DE.UTF-8"));
    unsetenv("LOCPATH");
    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_ok(metrics_step(metrics, &sample, &err), &err);
    metrics_close(metrics);
    setlocale(LC_NUMERIC, "C");
    assert_int_equal(read_lines(*state, lines, 2), 1);
    assert_string_equal(get(lines[0], "loss_hex")->valuestring, "0x1.3333333333334p-2");
    assert_true(get(lines[0], "loss")->valuedouble == sample.loss);
    cJSON_Delete(lines[0]);
}

static void failures_are_told(void **state)
{
    struct metrics *metrics = NULL;
    struct rlimit before, small;
    struct err err = { 0 };

    assert_ok(file_write(fixture_path(*state, "file"), "x", 1, &err), &err);
    assert_int_equal(metrics_open(&metrics, fixture_path(*state, "file"), 1, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_ok(file_make_folders(fixture_path(*state, "run/metrics.jsonl"), &err), &err);
    assert_int_equal(metrics_open(&metrics, fixture_path(*state, "run"), 1, &err), -1);
    assert_non_null(strstr(err.text, "metrics.jsonl"));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 200, .rlim_max = before.rlim_max };
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failed = metrics_step(metrics, &sample, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failed, -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "File too large"));
    metrics_close(metrics);
    metrics_close(NULL);
}

/* A file that may not grow over some lines stands for a disk that is full for a while. */
static void a_full_disk_delays_lines(void **state)
{
    struct metrics *metrics = NULL;
    struct metrics_step step = sample;
    struct rlimit before, small;
    cJSON *lines[8];
    struct err err = { 0 };

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    small = (struct rlimit){ .rlim_cur = 1000, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int n_failed = 0;
    for (step.step = 1; step.step <= 6; step.step++)
        n_failed += metrics_step(metrics, &step, &err) < 0;
    int n_whole = read_lines(*state, lines, 8);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_in_range(n_failed, 1, 5);
    assert_int_equal(n_whole, 6 - n_failed);
    for (int i = 0; i < n_whole; i++)
        cJSON_Delete(lines[i]);
    assert_ok(metrics_step(metrics, &step, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 8), 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(get(lines[i], "step")->valueint, i + 1);
        cJSON_Delete(lines[i]);
    }
}

static void events_of_machines_stay(void **state)
{
    struct metrics *metrics = NULL;
    struct metrics_step step = sample;
    cJSON *lines[8];
    struct err err = { 0 };

    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    for (step.step = 1; step.step <= 3; step.step++)
        assert_ok(metrics_step(metrics, &step, &err), &err);
    assert_ok(metrics_event(metrics, 3, "skipped", "x", &err), &err);
    assert_ok(metrics_event(metrics, 3, "diverged", "rank 1", &err), &err);
    metrics_close(metrics);
    assert_ok(metrics_open(&metrics, *state, 2, &err), &err);
    metrics_close(metrics);
    assert_int_equal(read_lines(*state, lines, 8), 2);
    assert_int_equal(get(lines[0], "step")->valueint, 1);
    assert_string_equal(get(lines[1], "event")->valuestring, "diverged");
    cJSON_Delete(lines[0]);
    cJSON_Delete(lines[1]);
}

/* From another process, of a run that has begun; it outlives the steps that are taken again. */
static void test_note(void **state)
{
    struct metrics *metrics;
    struct err err;
    cJSON *lines[4];

    assert_ok(metrics_note(*state, 3, "died", 1e9, "rank 1", &err), &err);
    assert_false(file_exists(fixture_path(*state, "metrics.jsonl")));
    for (int first = 1; first <= 2; first++) {
        assert_ok(metrics_open(&metrics, *state, first, &err), &err);
        metrics_close(metrics);
        if (first == 1)
            assert_ok(metrics_note(*state, 3, "died", 1e9, "rank \"1\"", &err), &err);
    }
    assert_ok(metrics_note(*state, -1, "hung", 1e9, "a\nb", &err), &err);
    assert_int_equal(read_lines(*state, lines, 4), 2);
    assert_string_equal(get(lines[0], "event")->valuestring, "died");
    assert_string_equal(get(lines[0], "text")->valuestring, "rank \"1\"");
    assert_true(get(lines[0], "time")->valuedouble == 1e9);
    assert_true(get(lines[1], "step")->valuedouble == 0);
    assert_string_equal(get(lines[1], "text")->valuestring, "a\nb");
    for (int i = 0; i < 2; i++)
        cJSON_Delete(lines[i]);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(exposed_seconds_are_told_by_collective),
        TEST(a_step_has_all_fields_to_the_bit),
        TEST(a_gpu_is_told_as_far_as_it_is_known),
        TEST(the_loss_scale_of_fp16),
        TEST(what_is_not_finite_stays_json),
        TEST(evaluations_and_events),
        TEST(an_evaluation_is_dropped),
        TEST(a_resumed_run_drops_later_steps),
        TEST(earlier_processes_are_known),
        TEST(op_times_are_a_line_of_their_own),
        TEST(pauses_are_no_restarts),
        TEST(numbers_have_points_in_every_locale),
        TEST(failures_are_told),
        TEST(a_full_disk_delays_lines),
        TEST(events_of_machines_stay),
        cmocka_unit_test_setup_teardown(test_note, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
