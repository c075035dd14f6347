/*
 * codec_start.c - the codec's start of the run that is resumed
 */
#include "train/codec_start.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "ckpt/store.h"

static bool starts_late(const struct job *job)
{
    return job->parallel.compress == CODEC_TOP_K || job->parallel.compress == CODEC_POWERSGD;
}

/* The job that the newest checkpoint of a folder has. */
static bool read_job(struct job *run, const char *folder, struct arena *arena)
{
    struct store *store;
    struct err ignored;
    const char *newest = store_newest(folder, arena, &ignored);

    if (!newest || store_open(&store, newest, &ignored) < 0)
        return false;
    cJSON *state = cJSON_Parse(store_state(store));
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(state, "job");
    bool is_there =
        cJSON_IsString(text) && !job_read_model(run, text->valuestring, strlen(text->valuestring),
                                                newest, NULL, 0, arena, &ignored);

    cJSON_Delete(state);
    store_close(store);
    return is_there;
}

bool codec_start_from_run(struct job *job, const char *resume, struct arena *arena)
{
    struct job run;
    struct err ignored;

    if (!starts_late(job) || job->parallel.compress_start >= 0 || !strcmp(resume, "none"))
        return false;
    const char *own = arena_printf(arena, "%s/checkpoints", job->output);
    bool is_own = !strcmp(resume, "auto");
    if (is_own && store_count(own, &ignored) <= 0)
        return false;
    if (!read_job(&run, is_own ? own : resume, arena) || !starts_late(&run))
        return false;
    job->parallel.compress_start = (int)job_codec(&run).start;
    return true;
}
