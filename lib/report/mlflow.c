/*
 * mlflow.c - the queue of metrics, and the thread that sends them
 *
 * The thread goes through the steps of enum stage, one request each; each is repeated until the
 * server takes it. The mutex is not held during a request.
 */
#include "report/mlflow.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "base/thread.h"
#include "report/http.h"
#include "report/mlflow_folder.h"

/* Limits of the API: runs/log-batch. */
#define N_METRICS_MAX 1000
#define N_PARAMS_MAX 100
#define PARAM_BYTES_MAX 6000
#define REQUEST_BYTES_MAX 900000

static const double batch_seconds = 1;
static const double first_pause = 1, longest_pause = 60;
static const double connect_seconds = 10, request_seconds = 30;
static const double slack_seconds = 2;

/* The next request. */
enum stage { STAGE_EXPERIMENT, STAGE_CREATE, STAGE_RUN, STAGE_RESUME, STAGE_PARAMS, STAGE_METRICS };

struct waiting_metric {
    char *key;
    double value;
    int64_t time_ms, step;
};

struct mlflow {
    struct arena arena;
    const char *url, *experiment, *run_name, *run_file;
    struct mlflow_param *params;
    int n_params, n_params_sent;
    struct http *http; /* NULL: url is a folder */

    /* The thread's. */
    enum stage stage;
    char experiment_id[64], run_id[64];
    struct str reply;
    double pause;
    bool is_failing;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct waiting_metric *waiting; /* [MLFLOW_WAITING_MAX] of a ring */
    int first, n;
    int64_t n_lost;
    enum mlflow_status status; /* of the end */
    bool is_closing;           /* send what waits, and the end */
    bool is_over;              /* send nothing any more */
    bool has_ended;            /* the thread touches nothing of this any more */
    bool has_sent_end;
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- requests ---- */

static bool must_stop(void *context)
{
    struct mlflow *m = context;

    pthread_mutex_lock(&m->mutex);
    bool over = m->is_over;
    pthread_mutex_unlock(&m->mutex);
    return over;
}

/* The server's message, or what it sent, in a line. */
static void describe_reply(const struct mlflow *m, int status, char *text, size_t size)
{
    cJSON *object = cJSON_ParseWithLength(str_text(&m->reply), m->reply.length);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(object, "message");

    snprintf(text, size, "status %d: %.200s", status,
             cJSON_IsString(message) ? message->valuestring : str_text(&m->reply));
    str_make_printable(text);
    cJSON_Delete(object);
}

static void tell_failure(struct mlflow *m, const char *why, bool is_refused)
{
    if (!m->is_failing)
        log_warn("tracking.mlflow: %s%.100s: %s; training continues, and it is tried again%s",
                 m->url, m->stage == STAGE_METRICS ? "" : " (the run is not there yet)", why,
                 is_refused ? " (hint: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
                              "MLFLOW_TRACKING_PASSWORD)"
                            : "");
    m->is_failing = true;
}

/*
 * Returns the status: what the server said of it is for the caller; or -1 where it is to be tried
 * again: no answer, 401, 403, 408, 429, 5xx. path may have a query.
 */
static int request(struct mlflow *m, const char *path, const char *body)
{
    struct str url = { 0 };
    struct err err;
    char why[320];

    str_printf(&url, "%s/api/2.0/mlflow/%s", m->url, path);
    int status = m->http ? http_request(m->http, str_text(&url), body, &m->reply, &err)
                         : mlflow_folder_request(m->url, path, body, &m->reply, &err);
    str_release(&url);
    if (status < 0) {
        tell_failure(m, err.text, false);
        return -1;
    }
    if (status == 401 || status == 403 || status == 408 || status == 429 || status >= 500) {
        describe_reply(m, status, why, sizeof why);
        tell_failure(m, why, status == 401 || status == 403);
        return -1;
    }
    if (m->is_failing)
        log_info("tracking.mlflow: %s %s again", m->url, m->http ? "answers" : "is written");
    m->is_failing = false;
    m->pause = first_pause;
    return status;
}

/* The text of a member of an object of the reply: "experiment", "experiment_id". */
static int take_id(const struct mlflow *m, const char *object, const char *key, char id[64])
{
    cJSON *reply = cJSON_ParseWithLength(str_text(&m->reply), m->reply.length);
    const cJSON *parent = object ? cJSON_GetObjectItemCaseSensitive(reply, object) : reply;
    const cJSON *info = cJSON_GetObjectItemCaseSensitive(parent, "info");
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(info ? info : parent, key);
    int status =
        cJSON_IsString(value) && *value->valuestring && strlen(value->valuestring) < 64 ? 0 : -1;

    if (!status)
        snprintf(id, 64, "%s", value->valuestring);
    cJSON_Delete(reply);
    return status;
}

/* A server that says what it should not: as a failure, and again later. */
static int surprise(struct mlflow *m, int status)
{
    char why[320];

    describe_reply(m, status, why, sizeof why);
    tell_failure(m, why, false);
    return -1;
}

/* ---- stages: 0, or -1 to try again ---- */

static int find_experiment(struct mlflow *m)
{
    struct str path = { 0 };

    str_add(&path, "experiments/get-by-name?experiment_name=");
    http_add_escaped(&path, m->experiment);
    int status = request(m, str_text(&path), NULL);
    str_release(&path);
    if (status == 404)
        m->stage = STAGE_CREATE;
    else if (status == 200 && !take_id(m, "experiment", "experiment_id", m->experiment_id))
        m->stage = STAGE_RUN;
    else
        return status < 0 ? -1 : surprise(m, status);
    return 0;
}

static int create_experiment(struct mlflow *m)
{
    struct str body = { 0 };

    str_add(&body, "{\"name\":");
    json_add_string(&body, m->experiment);
    str_add(&body, "}");
    int status = request(m, "experiments/create", str_text(&body));
    str_release(&body);
    if (status < 0)
        return -1;
    /* Another run may have created it just now. */
    m->stage = STAGE_EXPERIMENT;
    if (status == 200 && !take_id(m, NULL, "experiment_id", m->experiment_id))
        m->stage = STAGE_RUN;
    return status == 200 ? 0 : surprise(m, status);
}

/* For restarts. */
static void keep_run(const struct mlflow *m)
{
    struct str text = { 0 };
    struct err err;

    str_add(&text, "{\"url\":");
    json_add_string(&text, m->url);
    str_printf(&text, ",\"experiment_id\":\"%s\",\"run_id\":\"%s\"}\n", m->experiment_id,
               m->run_id);
    if (file_write(m->run_file, str_text(&text), text.length, &err) < 0)
        log_warn("%s: a restart will be another run in MLflow", err.text);
    str_release(&text);
}

static int create_run(struct mlflow *m)
{
    struct str body = { 0 };

    str_printf(&body, "{\"experiment_id\":\"%s\",\"start_time\":%" PRId64 ",\"run_name\":",
               m->experiment_id, now_ms());
    json_add_string(&body, m->run_name);
    str_add(&body, ",\"tags\":[{\"key\":\"mlflow.source.name\",\"value\":\"lmtrain\"}]}");
    int status = request(m, "runs/create", str_text(&body));
    str_release(&body);
    if (status < 0)
        return -1;
    if (status != 200 || take_id(m, "run", "run_id", m->run_id) < 0)
        return surprise(m, status);
    keep_run(m);
    log_info("tracking.mlflow: run %s of experiment %s, %s%s/%s/%s%s", m->run_name, m->experiment,
             m->url, m->http ? "/#/experiments" : "", m->experiment_id, m->http ? "runs/" : "",
             m->run_id);
    m->stage = STAGE_PARAMS;
    return 0;
}

static int update_run(struct mlflow *m, const char *status_word, bool is_end)
{
    struct str body = { 0 };

    str_printf(&body, "{\"run_id\":\"%s\",\"status\":\"%s\"", m->run_id, status_word);
    if (is_end)
        str_printf(&body, ",\"end_time\":%" PRId64, now_ms());
    str_add(&body, "}");
    int status = request(m, "runs/update", str_text(&body));
    str_release(&body);
    return status;
}

/* A run that was deleted there is created again. */
static int resume_run(struct mlflow *m)
{
    int status = update_run(m, "RUNNING", false);

    if (status < 0)
        return -1;
    m->stage = status == 200 ? STAGE_PARAMS : STAGE_EXPERIMENT;
    return 0;
}

/* Of a run that is gone on with the server keeps the first values, and refuses others. */
static int send_params(struct mlflow *m)
{
    struct str body = { 0 };
    int n = 0;

    str_printf(&body, "{\"run_id\":\"%s\",\"params\":[", m->run_id);
    while (n < N_PARAMS_MAX && m->n_params_sent + n < m->n_params &&
           body.length < REQUEST_BYTES_MAX / 2) {
        const struct mlflow_param *param = &m->params[m->n_params_sent + n];

        str_add(&body, n ? ",{\"key\":" : "{\"key\":");
        json_add_string(&body, param->key);
        str_add(&body, ",\"value\":");
        json_add_string(&body, param->value);
        str_add(&body, "}");
        n++;
    }
    str_add(&body, "]}");
    int status = n ? request(m, "runs/log-batch", str_text(&body)) : 200;
    str_release(&body);
    if (status < 0)
        return -1;
    m->n_params_sent += n;
    if (m->n_params_sent == m->n_params)
        m->stage = STAGE_METRICS;
    return 0;
}

/* As many as a request may have, from the first on; the mutex is held. */
static int add_metrics(const struct mlflow *m, struct str *body)
{
    int n = 0;

    while (n < m->n && n < N_METRICS_MAX && body->length < REQUEST_BYTES_MAX) {
        const struct waiting_metric *metric = &m->waiting[(m->first + n) % MLFLOW_WAITING_MAX];

        str_add(body, n ? ",{\"key\":" : "{\"key\":");
        json_add_string(body, metric->key);
        str_printf(body, ",\"value\":%.17g,\"timestamp\":%" PRId64 ",\"step\":%" PRId64 "}",
                   metric->value, metric->time_ms, metric->step);
        n++;
    }
    return n;
}

/* The mutex is held. */
static void drop_metrics(struct mlflow *m, int n)
{
    for (int i = 0; i < n; i++)
        free(m->waiting[(m->first + i) % MLFLOW_WAITING_MAX].key);
    m->first = (m->first + n) % MLFLOW_WAITING_MAX;
    m->n -= n;
}

/* What the server refuses would be refused again: it is lost. */
static int send_metrics(struct mlflow *m)
{
    struct str body = { 0 };
    char why[320];

    str_printf(&body, "{\"run_id\":\"%s\",\"metrics\":[", m->run_id);
    pthread_mutex_lock(&m->mutex);
    int n = add_metrics(m, &body);
    pthread_mutex_unlock(&m->mutex);
    str_add(&body, "]}");
    int status = n ? request(m, "runs/log-batch", str_text(&body)) : 200;
    str_release(&body);
    if (status < 0)
        return -1;
    if (status != 200) {
        describe_reply(m, status, why, sizeof why);
        log_warn("tracking.mlflow: %d metrics are refused: %s", n, why);
    }
    pthread_mutex_lock(&m->mutex);
    m->n_lost += status == 200 ? 0 : n;
    drop_metrics(m, n);
    pthread_mutex_unlock(&m->mutex);
    return 0;
}

static int advance(struct mlflow *m)
{
    switch (m->stage) {
    case STAGE_EXPERIMENT:
        return find_experiment(m);
    case STAGE_CREATE:
        return create_experiment(m);
    case STAGE_RUN:
        return create_run(m);
    case STAGE_RESUME:
        return resume_run(m);
    case STAGE_PARAMS:
        return send_params(m);
    case STAGE_METRICS:
        return send_metrics(m);
    }
    return -1;
}

/* ---- the thread ---- */

/* The mutex is held, and let go of meanwhile. is_woken: by the run's end, too. */
static void pause_for(struct mlflow *m, double seconds)
{
    bool was_closing = m->is_closing;
    double end = clock_seconds() + seconds;

    while (clock_seconds() < end && !m->is_over && m->is_closing == was_closing) {
        struct timespec until;
        double left = end - clock_seconds();

        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + (int64_t)(fmax(left, 0) * 1e9);
        until.tv_sec += (time_t)(ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
        pthread_cond_timedwait(&m->changed, &m->mutex, &until);
    }
}

/* 0: the end is sent. */
static int send_end(struct mlflow *m)
{
    static const char *const words[] = {
        [MLFLOW_FINISHED] = "FINISHED", [MLFLOW_FAILED] = "FAILED", [MLFLOW_KILLED] = "KILLED"
    };

    return update_run(m, words[m->status], true) < 0 ? -1 : 0;
}

static void *track(void *context)
{
    struct mlflow *m = context;

    pthread_mutex_lock(&m->mutex);
    while (!m->is_over) {
        bool is_ready = m->stage == STAGE_METRICS;
        bool is_at_end = is_ready && m->is_closing && !m->n;
        bool has_work = !is_ready || m->n || is_at_end;

        pthread_mutex_unlock(&m->mutex);
        int failed = is_at_end ? send_end(m) : has_work ? advance(m) : 0;
        pthread_mutex_lock(&m->mutex);
        if (is_at_end && !failed) {
            m->has_sent_end = true;
            break;
        }
        if (failed) {
            pause_for(m, m->is_closing ? first_pause : m->pause);
            m->pause = fmin(2 * m->pause, longest_pause);
        } else if (is_ready && !m->is_closing) {
            pause_for(m, batch_seconds);
        }
    }
    m->has_ended = true;
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

/* ---- its caller ---- */

static void release(struct mlflow *m)
{
    drop_metrics(m, m->n);
    http_close(m->http);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mutex);
    str_release(&m->reply);
    free(m->waiting);
    arena_release(&m->arena);
    free(m);
}

/* The run's id of an earlier process, of the same server. */
static void read_run(struct mlflow *m)
{
    struct err ignored;
    size_t n_bytes;
    char *text;

    if (file_read(m->run_file, 1 << 16, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return;
    cJSON *object = cJSON_ParseWithLength(text, n_bytes);
    const cJSON *url = cJSON_GetObjectItemCaseSensitive(object, "url");
    const cJSON *run = cJSON_GetObjectItemCaseSensitive(object, "run_id");
    const cJSON *experiment = cJSON_GetObjectItemCaseSensitive(object, "experiment_id");

    if (cJSON_IsString(url) && !strcmp(url->valuestring, m->url) && cJSON_IsString(run) &&
        cJSON_IsString(experiment) && strlen(run->valuestring) < sizeof m->run_id &&
        strlen(experiment->valuestring) < sizeof m->experiment_id) {
        snprintf(m->run_id, sizeof m->run_id, "%s", run->valuestring);
        snprintf(m->experiment_id, sizeof m->experiment_id, "%s", experiment->valuestring);
        m->stage = STAGE_RESUME;
    }
    cJSON_Delete(object);
    free(text);
}

static void copy_options(struct mlflow *m, const struct mlflow_options *options)
{
    size_t length = strlen(options->url);

    while (length && options->url[length - 1] == '/')
        length--;
    m->url = arena_strndup(&m->arena, options->url, length);
    m->experiment = arena_strdup(&m->arena, options->experiment);
    m->run_name = arena_strdup(&m->arena, options->run_name);
    m->run_file = arena_strdup(&m->arena, options->run_file);
    m->n_params = options->n_params;
    m->params = arena_array(&m->arena, struct mlflow_param, options->n_params);
    for (int i = 0; i < options->n_params; i++) {
        const struct mlflow_param *from = &options->params[i];

        m->params[i].key = arena_strdup(&m->arena, from->key);
        m->params[i].value =
            arena_strndup(&m->arena, from->value, strnlen(from->value, PARAM_BYTES_MAX));
    }
    read_run(m);
}

static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text && *text ? text : NULL;
}

int mlflow_open(struct mlflow **mlflow, const struct mlflow_options *options, struct err *err)
{
    struct mlflow *m = calloc(1, sizeof *m);
    struct http_options http = { .token = variable("MLFLOW_TRACKING_TOKEN"),
                                 .user = variable("MLFLOW_TRACKING_USERNAME"),
                                 .password = variable("MLFLOW_TRACKING_PASSWORD"),
                                 .connect_seconds = connect_seconds,
                                 .seconds = request_seconds,
                                 .must_stop = must_stop,
                                 .context = m };
    pthread_condattr_t monotonic;

    CHECK(m);
    m->waiting = calloc(MLFLOW_WAITING_MAX, sizeof *m->waiting);
    CHECK(m->waiting);
    m->pause = first_pause;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    copy_options(m, options);
    int status = mlflow_is_folder(m->url) ? 0 : http_open(&m->http, &http, err);
    if (!status && (errno = thread_start(NULL, NULL, track, m)))
        status = err_set_errno(err, ERR_DEVICE, "cannot start a thread");
    if (status < 0) {
        release(m);
        return err_add(err, "tracking.mlflow");
    }
    *mlflow = m;
    return 0;
}

void mlflow_put(struct mlflow *m, int64_t step, const struct events_scalar *scalars, int n)
{
    int64_t time_ms = now_ms();

    if (!m)
        return;
    pthread_mutex_lock(&m->mutex);
    for (int i = 0; i < n; i++) {
        if (!isfinite(scalars[i].value))
            continue;
        if (m->n == MLFLOW_WAITING_MAX) {
            m->n_lost++;
            continue;
        }
        char *key = strdup(scalars[i].tag);
        CHECK(key);
        m->waiting[(m->first + m->n++) % MLFLOW_WAITING_MAX] =
            (struct waiting_metric){ key, scalars[i].value, time_ms, step };
    }
    pthread_mutex_unlock(&m->mutex);
}

void mlflow_close(struct mlflow *m, enum mlflow_status status, double seconds,
                  bool (*may_wait)(void *context), void *context)
{
    if (!m)
        return;
    double end = clock_seconds() + seconds;

    pthread_mutex_lock(&m->mutex);
    m->status = status;
    m->is_closing = true;
    pthread_cond_broadcast(&m->changed);
    while (!m->has_ended) {
        if (!m->is_over && (clock_seconds() >= end || !may_wait(context))) {
            m->is_over = true;
            end = clock_seconds() + slack_seconds;
            pthread_cond_broadcast(&m->changed);
        }
        if (m->is_over && clock_seconds() >= end)
            break;
        pthread_mutex_unlock(&m->mutex);
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        pthread_mutex_lock(&m->mutex);
    }
    bool has_ended = m->has_ended;
    int64_t n_lost = m->n_lost + m->n;
    if (n_lost || !m->has_sent_end)
        log_warn("tracking.mlflow: %s: %" PRId64 " metrics were not sent%s", m->url, n_lost,
                 m->has_sent_end ? "" : ", nor the run's end");
    pthread_mutex_unlock(&m->mutex);
    if (has_ended)
        release(m);
}
