/*
 * served.c - from a folder to a job and weights
 */
#include "serve/served.h"

#include <cjson/cJSON.h>
#include <string.h>

static int read_job(struct served *served, struct err *err)
{
    cJSON *state = cJSON_Parse(store_state(served->store));
    const cJSON *job = cJSON_GetObjectItemCaseSensitive(state, "job");
    int status;

    if (cJSON_IsString(job))
        status = job_read_text(&served->job, job->valuestring, strlen(job->valuestring), "its job",
                               NULL, 0, &served->arena, err);
    else
        status = err_set(err, ERR_DATA, "it does not say what job it is of");
    cJSON_Delete(state);
    if (status < 0) {
        err->code = ERR_DATA;
        return err_add(err, "%s", served->folder);
    }
    return 0;
}

int served_open(struct served *served, const char *path, struct err *err)
{
    memset(served, 0, sizeof *served);
    served->folder = store_newest(path, &served->arena, err);
    if (served->folder && store_open(&served->store, served->folder, err) == 0 &&
        read_job(served, err) == 0)
        return 0;
    served_close(served);
    return -1;
}

void served_close(struct served *served)
{
    store_close(served->store);
    arena_release(&served->arena);
    memset(served, 0, sizeof *served);
}

int served_load(struct served *served, struct run *run, const struct program *program,
                struct err *err)
{
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        int64_t rows = p->n_dims == 1 ? p->cols : p->rows, cols = p->n_dims == 1 ? 1 : p->cols;
        struct store_slice slice = { .name = p->name,
                                     .dtype = program->values[p->weight].dtype,
                                     .n_dims = p->n_dims,
                                     .rows = rows,
                                     .cols = cols,
                                     .row_end = rows,
                                     .col_end = cols,
                                     .data = run_data(run, p->weight, 0) };

        if (store_read(served->store, &slice, err) < 0)
            return err_add(err, "%s", served->folder);
    }
    return 0;
}
