/*
 * run_log_fuzz.c - any bytes as metrics.jsonl: read, or refused, and what was read printed as JSON
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/run_json.h"
#include "report/run_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_table(const struct run_table *table)
{
    CHECK(table->n_rows >= 0 && table->n_columns >= 0);
    for (int i = 0; i < table->n_columns; i++)
        CHECK(table->columns[i].name && table->columns[i].values);
}

/* What a page shows of it is JSON, whatever was in the file. */
static void check_json(const struct run_log *log)
{
    const struct run_json_options options = { .n_points = 3, .n_digits = 6, .n_events = 2 };
    cJSON *json = cJSON_CreateObject(), *again;

    run_json_add_log(json, log, &options);
    char *text = cJSON_PrintUnformatted(json);
    CHECK(text);
    again = cJSON_Parse(text);
    CHECK(again);
    cJSON_Delete(again);
    cJSON_Delete(json);
    free(text);
}

static void check_log(const struct run_log *log)
{
    check_table(&log->steps);
    for (int i = 0; i < log->n_evaluations; i++)
        check_table(&log->evaluations[i]);
    for (int i = 0; i < log->n_events; i++)
        CHECK(log->events[i].kind && log->events[i].text);
    for (int i = 0; i < log->n_exposed; i++)
        CHECK(log->exposed[i].kind && log->exposed[i].n_steps > 0);
    for (int i = 0; i < log->n_experts; i++)
        CHECK(log->experts[i].n_experts >= 0);
    check_json(log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char folder[64], path[96];
    struct arena arena = { 0 };
    struct run_log log;
    struct err err = { 0 };

    snprintf(folder, sizeof folder, "/tmp/lmtrain-log-fuzz.%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    mkdir(folder, 0700);
    FILE *file = fopen(path, "we");
    CHECK(file && fwrite(data, 1, n_bytes, file) == n_bytes);
    CHECK(fclose(file) == 0);
    if (run_log_read(&log, folder, &arena, &err) < 0)
        CHECK(err.code == ERR_DATA && *err.text);
    else
        check_log(&log);
    unlink(path);
    rmdir(folder);
    arena_release(&arena);
    return 0;
}
