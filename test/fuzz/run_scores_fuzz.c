/*
 * run_scores_fuzz.c - any bytes as a file of benchmarks' scores beside a run: left out, or read
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/run_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char folder[64], path[96];
    struct arena arena = { 0 };
    struct run_scores scores;

    snprintf(folder, sizeof folder, "/tmp/lmtrain-scores-fuzz.%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/a.json", folder);
    mkdir(folder, 0700);
    FILE *file = fopen(path, "we");
    CHECK(file && fwrite(data, 1, n_bytes, file) == n_bytes);
    CHECK(fclose(file) == 0);
    run_scores_read(&scores, folder, &arena);
    for (int i = 0; i < scores.n; i++) {
        const struct run_score *score = &scores.items[i];

        CHECK(!strcmp(score->file, "a.json") && score->model && score->task && score->style);
        CHECK(score->metric && score->n_shots >= -1);
    }
    cJSON *json = cJSON_CreateObject();
    run_json_add_scores(json, &scores);
    char *text = cJSON_PrintUnformatted(json);
    CHECK(text);
    free(text);
    cJSON_Delete(json);
    unlink(path);
    rmdir(folder);
    arena_release(&arena);
    return 0;
}
