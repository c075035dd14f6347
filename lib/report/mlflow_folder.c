/*
 * mlflow_folder.c - requests as files: a row of a table each
 */
#include "report/mlflow_folder.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "report/append.h"
#include "report/json_values.h"

#define META_BYTES_MAX ((size_t)1 << 20)
enum { FOUND = 200, BAD = 400, NOT_FOUND = 404 };

struct folder_request {
    const char *folder; /* absolute */
    const char *query;  /* NULL: none */
    const cJSON *body;  /* NULL: none */
    struct str *reply;
    struct err *err;
};

/* ---- files ---- */

/* Within single quotes of YAML, on one line. */
static void add_yaml(struct str *out, const char *text)
{
    str_add_char(out, '\'');
    for (; *text; text++)
        if (*text == '\'')
            str_add(out, "''");
        else
            str_add_char(out, *text == '\n' || *text == '\r' ? ' ' : *text);
    str_add_char(out, '\'');
}

/* The value of a line "KEY: VALUE" of a meta.yaml, without its quotes; NULL: not there. */
static char *meta_value(const char *path, const char *key)
{
    struct err ignored;
    size_t n_bytes, n_key = strlen(key);
    char *text, *value = NULL;

    if (file_read(path, META_BYTES_MAX, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return NULL;
    for (char *line = text; line && !value; line = strchr(line, '\n'), line += line != NULL)
        if (!strncmp(line, key, n_key) && !strncmp(line + n_key, ": ", 2)) {
            char *from = line + n_key + 2, *to = value = malloc(strlen(from) + 1);
            bool is_quoted = *from == '\'';

            CHECK(value);
            for (from += is_quoted; *from && *from != '\n'; from++) {
                if (is_quoted && *from == '\'' && *++from != '\'')
                    break;
                *to++ = *from;
            }
            *to = '\0';
        }
    free(text);
    return value;
}

/* FOLDER/EXPERIMENT/RUN/KIND/KEY, whose folders are made: a key may have slashes. */
static int value_path(const struct folder_request *r, const char *run, const char *kind,
                      const char *key, struct str *path)
{
    str_clear(path);
    str_printf(path, "%s/%s/%s", run, kind, key);
    char *slash = strrchr(path->data, '/');
    *slash = '\0';
    int status = file_make_folders(path->data, r->err);
    *slash = '/';
    return status;
}

/* Keys come from this program; none leaves the run's folder. */
static bool is_key(const char *key)
{
    return key && *key && *key != '/' && !strstr(key, "..");
}

static int write_value(const struct folder_request *r, const char *run, const char *kind,
                       const cJSON *pair)
{
    const char *key = json_text(pair, "key", NULL), *value = json_text(pair, "value", NULL);
    struct str path = { 0 };

    if (!is_key(key) || !value)
        return 0;
    int status = value_path(r, run, kind, key, &path);
    /* The first value stays: that of the run's first start. */
    if (!status && access(str_text(&path), F_OK) < 0)
        status = file_write(str_text(&path), value, strlen(value), r->err);
    str_release(&path);
    return status;
}

/* All of a key's lines are of one call or of none. */
static int append_metric(const struct folder_request *r, const char *run, const cJSON *metric)
{
    const char *key = json_text(metric, "key", NULL);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(metric, "value");
    struct str path = { 0 };
    char line[96];

    if (!is_key(key) || !cJSON_IsNumber(value))
        return 0;
    int n = snprintf(line, sizeof line, "%" PRId64 " %.17g %" PRId64 "\n",
                     (int64_t)json_number(metric, "timestamp", 0), value->valuedouble,
                     (int64_t)json_number(metric, "step", 0));
    int status = value_path(r, run, "metrics", key, &path);
    int fd = status ? -1 : open(str_text(&path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

    if (!status && fd < 0)
        status = err_set_errno(r->err, ERR_FAILED, "%s", str_text(&path));
    if (!status)
        status = append_whole(fd, str_text(&path), line, (size_t)n, r->err);
    if (fd >= 0)
        close(fd);
    str_release(&path);
    return status;
}

/* The folder of the run, in *run: FOUND, or NOT_FOUND. */
static int find_run(const struct folder_request *r, const char *id, struct str *run)
{
    DIR *dir = id && is_key(id) ? opendir(r->folder) : NULL;
    struct dirent *entry;
    int status = NOT_FOUND;

    while (dir && status == NOT_FOUND && (entry = readdir(dir))) {
        struct str meta = { 0 };

        str_printf(&meta, "%s/%s/%s/meta.yaml", r->folder, entry->d_name, id);
        if (entry->d_name[0] != '.' && access(str_text(&meta), F_OK) == 0) {
            str_printf(run, "%s/%s/%s", r->folder, entry->d_name, id);
            status = FOUND;
        }
        str_release(&meta);
    }
    if (dir)
        closedir(dir);
    return status;
}

/* ---- experiments ---- */

static int find_experiment(const struct folder_request *r, const char *name, struct str *id)
{
    DIR *dir = opendir(r->folder);
    struct dirent *entry;

    while (dir && !id->length && (entry = readdir(dir))) {
        struct str path = { 0 };

        if (entry->d_name[0] == '.')
            continue;
        str_printf(&path, "%s/%s/meta.yaml", r->folder, entry->d_name);
        char *found = meta_value(str_text(&path), "name");
        if (found && !strcmp(found, name))
            str_add(id, entry->d_name);
        free(found);
        str_release(&path);
    }
    if (dir)
        closedir(dir);
    return id->length ? FOUND : NOT_FOUND;
}

static void unescape(const char *text, struct str *out)
{
    unsigned byte;

    for (; *text; text++)
        if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1) {
            str_add_char(out, (char)byte);
            text += 2;
        } else {
            str_add_char(out, *text);
        }
}

static int get_experiment(const struct folder_request *r)
{
    static const char parameter[] = "experiment_name=";
    struct str name = { 0 }, id = { 0 };

    if (!r->query || strncmp(r->query, parameter, sizeof parameter - 1) != 0)
        return BAD;
    unescape(r->query + sizeof parameter - 1, &name);
    int status = find_experiment(r, str_text(&name), &id);
    if (status == FOUND)
        str_printf(r->reply, "{\"experiment\":{\"experiment_id\":\"%s\"}}", str_text(&id));
    str_release(&name);
    str_release(&id);
    return status;
}

/* 18 digits, as MLflow's own. */
static void new_id(struct str *id)
{
    uint64_t draw;

    randombytes_buf(&draw, sizeof draw);
    str_printf(id, "%" PRIu64, 100000000000000000u + draw % 900000000000000000u);
}

static int write_experiment(const struct folder_request *r, const char *name, const char *id)
{
    struct str path = { 0 }, meta = { 0 };

    str_printf(&path, "%s/%s", r->folder, id);
    str_printf(&meta, "artifact_location: ");
    add_yaml(&meta, str_text(&path));
    int64_t now = (int64_t)time(NULL) * 1000;
    str_printf(&meta,
               "\ncreation_time: %" PRId64 "\nexperiment_id: '%s'\nlast_update_time: %" PRId64
               "\nlifecycle_stage: active\nname: ",
               now, id, now);
    add_yaml(&meta, name);
    str_add_char(&meta, '\n');
    int status = file_make_folders(str_text(&path), r->err);
    str_add(&path, "/meta.yaml");
    if (!status)
        status = file_write(str_text(&path), str_text(&meta), meta.length, r->err);
    str_release(&path);
    str_release(&meta);
    return status;
}

static int create_experiment(const struct folder_request *r)
{
    const char *name = json_text(r->body, "name", NULL);
    struct str id = { 0 };
    int status = BAD;

    if (name && *name) {
        status = find_experiment(r, name, &id); /* another run may have made it just now */
        if (status == NOT_FOUND) {
            new_id(&id);
            status = write_experiment(r, name, str_text(&id)) ? -1 : FOUND;
        }
    }
    if (status == FOUND)
        str_printf(r->reply, "{\"experiment_id\":\"%s\"}", str_text(&id));
    str_release(&id);
    return status;
}

/* ---- runs ---- */

static int write_run(const struct folder_request *r, const char *run, const char *experiment,
                     const char *id)
{
    const char *name = json_text(r->body, "run_name", NULL);
    const cJSON *tags = cJSON_GetObjectItemCaseSensitive(r->body, "tags"), *tag;
    struct str path = { 0 }, meta = { 0 };
    int status = 0;

    str_printf(&path, "%s/artifacts", run);
    str_add(&meta, "artifact_uri: ");
    add_yaml(&meta, str_text(&path));
    str_printf(&meta,
               "\nend_time: null\nentry_point_name: ''\nexperiment_id: '%s'\n"
               "lifecycle_stage: active\nrun_id: %s\nrun_name: ",
               experiment, id);
    add_yaml(&meta, name ? name : id);
    str_printf(&meta,
               "\nrun_uuid: %s\nsource_name: ''\nsource_type: 4\nsource_version: ''\n"
               "start_time: %" PRId64 "\nstatus: 1\ntags: []\nuser_id: lmtrain\n",
               id, (int64_t)json_number(r->body, "start_time", 0));
    static const char *const parts[] = { "artifacts", "metrics", "params", "tags" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++) {
        str_clear(&path);
        str_printf(&path, "%s/%s", run, parts[i]);
        status = file_make_folders(str_text(&path), r->err);
    }
    cJSON_ArrayForEach(tag, tags) status = status ? status : write_value(r, run, "tags", tag);
    str_clear(&path);
    str_printf(&path, "%s/meta.yaml", run);
    if (!status)
        status = file_write(str_text(&path), str_text(&meta), meta.length, r->err);
    str_release(&path);
    str_release(&meta);
    return status;
}

static int create_run(const struct folder_request *r)
{
    const char *experiment = json_text(r->body, "experiment_id", NULL);
    unsigned char draw[16];
    struct str run = { 0 };
    char id[2 * sizeof draw + 1];

    if (!is_key(experiment))
        return BAD;
    randombytes_buf(draw, sizeof draw);
    sodium_bin2hex(id, sizeof id, draw, sizeof draw);
    str_printf(&run, "%s/%s/%s", r->folder, experiment, id);
    int status = write_run(r, str_text(&run), experiment, id) ? -1 : FOUND;
    if (status == FOUND)
        str_printf(r->reply, "{\"run\":{\"info\":{\"run_id\":\"%s\"}}}", id);
    str_release(&run);
    return status;
}

static int log_batch(const struct folder_request *r)
{
    const cJSON *params = cJSON_GetObjectItemCaseSensitive(r->body, "params");
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(r->body, "metrics"), *item;
    struct str run = { 0 };
    int status = find_run(r, json_text(r->body, "run_id", NULL), &run), failed = 0;

    if (status == FOUND) {
        cJSON_ArrayForEach(item, params) failed =
            failed ? failed : write_value(r, str_text(&run), "params", item);
        cJSON_ArrayForEach(item, metrics) failed =
            failed ? failed : append_metric(r, str_text(&run), item);
    }
    str_release(&run);
    return failed ? -1 : status;
}

/* Line by line, so that what MLflow itself has added stays. */
static int update_meta(const struct folder_request *r, const char *path, int status_number)
{
    int64_t end = (int64_t)json_number(r->body, "end_time", 0);
    struct str meta = { 0 };
    size_t n_bytes;
    char *text, *rest;

    if (file_read(path, META_BYTES_MAX, ERR_FAILED, &text, &n_bytes, r->err) < 0)
        return -1;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (!strncmp(line, "status: ", 8))
            str_printf(&meta, "status: %d\n", status_number);
        else if (!strncmp(line, "end_time: ", 10) && end)
            str_printf(&meta, "end_time: %" PRId64 "\n", end);
        else if (!strncmp(line, "end_time: ", 10))
            str_add(&meta, "end_time: null\n");
        else
            str_printf(&meta, "%s\n", line);
    int status = file_write(path, str_text(&meta), meta.length, r->err);
    str_release(&meta);
    free(text);
    return status;
}

static int update_run(const struct folder_request *r)
{
    /* mlflow.entities.RunStatus */
    static const char *const words[] = {
        "", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"
    };
    const char *word = json_text(r->body, "status", NULL);
    struct str run = { 0 };
    int number = 0;

    for (int i = 1; word && i < (int)(sizeof words / sizeof *words); i++)
        number = !strcmp(word, words[i]) ? i : number;
    int status = number ? find_run(r, json_text(r->body, "run_id", NULL), &run) : BAD;
    if (status == FOUND) {
        str_add(&run, "/meta.yaml");
        if (update_meta(r, str_text(&run), number))
            status = -1;
    }
    str_release(&run);
    return status;
}

/* ---- one request ---- */

bool mlflow_is_folder(const char *url)
{
    return !str_starts_with(url, "http://") && !str_starts_with(url, "https://");
}

static const struct {
    const char *path;
    int (*answer)(const struct folder_request *request);
} answers[] = {
    { "experiments/get-by-name", get_experiment },
    { "experiments/create", create_experiment },
    { "runs/create", create_run },
    { "runs/log-batch", log_batch },
    { "runs/update", update_run },
};

static int answer(const struct folder_request *request, const char *path, size_t n_path)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (strlen(answers[i].path) == n_path && !strncmp(path, answers[i].path, n_path))
            return answers[i].answer(request);
    return NOT_FOUND;
}

int mlflow_folder_request(const char *folder, const char *path, const char *body, struct str *reply,
                          struct err *err)
{
    char absolute[PATH_MAX];
    size_t n_path = strcspn(path, "?");
    int fd;

    str_clear(reply);
    if (file_make_folders(folder, err) < 0)
        return -1;
    if (!realpath(folder, absolute) ||
        (fd = open(absolute, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return err_set_errno(err, ERR_FAILED, "%s", folder);
    cJSON *object = body ? cJSON_Parse(body) : NULL;
    struct folder_request request = { .folder = absolute,
                                      .query = path[n_path] ? path + n_path + 1 : NULL,
                                      .body = object,
                                      .reply = reply,
                                      .err = err };

    /* One experiment of a name; where files cannot be locked, runs that begin at once make two. */
    (void)flock(fd, LOCK_EX);
    int status = answer(&request, path, n_path);
    close(fd);
    cJSON_Delete(object);
    return status;
}
