/*
 * tuned.c - the model, or the adapter, for others
 */
#include "tuned.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/carried.h"
#include "cmd.h"
#include "config/hf_config.h"
#include "convert/convert.h"
#include "serve/served.h"
#include "tokenizer/hf/tokenizer_extend.h"
#include "tokenizer/tokenizer.h"
#include "train/prepare_data.h"

static const char *result_folder(const struct job *job, struct arena *arena)
{
    return arena_printf(arena, "%s/%s", job->output, job->kind == JOB_LORA ? "adapter" : "model");
}

/* ---- before it begins ---- */

/* Whether lmtrain has used the output folder: for training, or to prepare it. */
static bool is_run_folder(const struct job *job, struct arena *arena)
{
    return file_exists(arena_printf(arena, "%s/lock", job->output)) ||
           file_exists(arena_printf(arena, "%s/samples/lock", job->output));
}

static int refuse_output(const struct job *job, const char *there, struct err *err)
{
    return err_set(err, ERR_CONFIG,
                   "output is %s, whose %s is not of this run and would be overwritten (hint: use "
                   "a different output folder, such as output: runs/NAME)",
                   job->output, there);
}

int tuned_check_output(const struct job *job, struct err *err)
{
    struct arena arena = { 0 };
    struct err ignored;
    const char *result = result_folder(job, &arena);
    const char *tokenizer = arena_printf(&arena, "%s/tokenizer", job->output);
    const char *checkpoints = arena_printf(&arena, "%s/checkpoints", job->output);
    int status = 0;

    /* A run leaves its result after its last checkpoint. */
    if (file_exists(result) && store_count(checkpoints, &ignored) <= 0)
        status = refuse_output(job, strrchr(result, '/') + 1, err);
    else if (job->data.added_tokens.n && file_exists(tokenizer) && !is_run_folder(job, &arena))
        status = refuse_output(job, "tokenizer", err);
    arena_release(&arena);
    return status;
}

static void say(void *context, const char *text)
{
    char *copy = arena_strdup(context, text), *line;

    while ((line = strsep(&copy, "\n")))
        if (*line)
            log_info("%s", line);
}

/*
 * The model that is there: its tokenizer, where the job names none, and whether its family has a
 * place for the adapters.
 */
static int look_at_model(struct job *job, struct arena *arena, struct err *err)
{
    struct served served;
    struct err ignored;
    int status = 0;

    if (!job->train.init)
        return 0;
    if (served_open(&served, job->train.init, err) < 0)
        return -1;
    if (served.job.data.tokenizer && !job->data.tokenizer)
        job->data.tokenizer = arena_strdup(arena, served.job.data.tokenizer);
    const char *family = job->kind == JOB_LORA ? served_family(&served, &ignored) : NULL;
    if (family)
        status = adapter_check(job, family, err);
    served_close(&served);
    return status;
}

/* Whether the folder is the tokenizer `from` with the job's tokens already. */
static bool is_extended(const char *folder, const char *from, const struct job_texts *tokens)
{
    struct tokenizer *theirs, *ours;
    struct err ignored;
    int n = 0, is = 0;

    if (!file_is_folder(folder) || tokenizer_open(&ours, folder, &ignored) < 0)
        return false;
    if (tokenizer_open(&theirs, from, &ignored) == 0) {
        for (int i = 0; i < tokens->n; i++)
            n += tokenizer_find(ours, tokens->values[i]) >= 0 &&
                 tokenizer_find(theirs, tokens->values[i]) < 0;
        is = tokenizer_vocab_size(ours) == tokenizer_vocab_size(theirs) + n;
        for (int i = 0; i < tokens->n; i++)
            is &= tokenizer_find(ours, tokens->values[i]) >= 0;
        tokenizer_close(theirs);
    }
    tokenizer_close(ours);
    return is;
}

/* The tokenizer with the job's tokens, in a folder that is there and empty. */
static int write_extended(const struct job *job, const char *folder, int *n_added, struct err *err)
{
    const struct job_texts *tokens = &job->data.added_tokens;

    if (carried_copy(job->data.tokenizer, folder, CARRIED_MODEL, err) < 0)
        return -1;
    if (tokenizer_extend(folder, tokens->values, tokens->n, n_added, err) < 0)
        return err_add(err, "data.added_tokens");
    return 0;
}

/* The lock is held. Readers without it see a whole folder or none. */
static int extend_tokenizer(const struct job *job, const char *folder, struct arena *arena,
                            struct err *err)
{
    const char *partial = arena_printf(arena, "%s.%ld.partial", folder, (long)getpid());
    struct err ignored;
    int n_added = 0;

    if (file_remove_tree(partial, err) < 0 || file_make_folder(partial, err) < 0)
        return -1;
    int status = write_extended(job, partial, &n_added, err);
    if (!status)
        status = file_remove_tree(folder, err);
    if (!status && rename(partial, folder) < 0)
        status = err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", partial, folder);
    if (!status)
        log_info("%d of %d data.added_tokens are new to the tokenizer, which is in %s now", n_added,
                 job->data.added_tokens.n, folder);
    else
        file_remove_tree(partial, &ignored);
    return status;
}

/*
 * By the first process of the job: the others wait and find it there. The lock's file marks the
 * output folder as a run's (is_run_folder) ahead of anything else in it.
 */
static int extend_once(const struct job *job, const char *folder, struct arena *arena,
                       struct err *err)
{
    int fd = prepare_data_lock(job, arena, err), status = 0;

    if (fd < 0)
        return -1;
    if (!is_extended(folder, job->data.tokenizer, &job->data.added_tokens))
        status = extend_tokenizer(job, folder, arena, err);
    close(fd);
    return status;
}

/* From here on the job's tokenizer is that of the run. */
static int add_tokens(struct job *job, struct arena *arena, struct err *err)
{
    const char *folder = arena_printf(arena, "%s/tokenizer", job->output);

    if (!job->data.added_tokens.n)
        return 0;
    if (!job->data.tokenizer)
        return err_set(
            err, ERR_CONFIG,
            "data.added_tokens is given, but there is not a tokenizer (hint: data.tokenizer)");
    if (!file_is_folder(job->data.tokenizer))
        return err_set(err, ERR_CONFIG,
                       "data.added_tokens needs a folder, but data.tokenizer is %s",
                       job->data.tokenizer);
    if (!is_extended(folder, job->data.tokenizer, &job->data.added_tokens) &&
        extend_once(job, folder, arena, err) < 0)
        return -1;
    job->data.tokenizer = folder;
    return 0;
}

/* Whether the weight of a module outside the layers is trained. */
static int trains(const struct job *job, enum module_id module)
{
    return tuning_trains_id(job->tuning, &job->model,
                            parameters_id(&job->model, module, PART_WEIGHT, LAYER_BEFORE));
}

/*
 * A tokenizer of more tokens than the model has rows: embedding and head grow, new rows are the
 * mean of the others (train/init_from.c). Adapters alone would belong to a model that is not
 * available elsewhere.
 */
static void grow_to(struct job *job, int wanted, struct arena *arena)
{
    int is = job->model.vocab_size;

    if (wanted <= is)
        return;
    if (job->kind == JOB_LORA &&
        (!trains(job, MODULE_EMBEDDING) || !trains(job, parameters_head(&job->model).module))) {
        log_warn("%s has %d tokens, the model %d: adapters cannot add embeddings, so samples must "
                 "not contain the new tokens (hint: lora.modules_to_save: [embed_tokens, lm_head])",
                 job->data.tokenizer, wanted, is);
        return;
    }
    log_info("the tokenizer has %d tokens, the model %d: embedding and head grow, new rows are "
             "initialised with the mean of the others",
             wanted, is);
    job_grow_vocabulary(job, wanted, arena);
}

static int grow_vocabulary(struct job *job, struct arena *arena, struct err *err)
{
    struct tokenizer *tokenizer;

    if (!job->train.init || !job->data.tokenizer)
        return 0;
    if (tokenizer_open(&tokenizer, job->data.tokenizer, err) < 0)
        return err_add(err, "data.tokenizer");
    grow_to(job, tokenizer_vocab_size(tokenizer), arena);
    tokenizer_close(tokenizer);
    return 0;
}

/* The model's own tokenizer, where the job names none; of a folder without weights too. */
static void find_tokenizer(struct job *job, struct arena *arena)
{
    struct served served;
    struct err ignored;

    if (job->data.tokenizer || !job->train.init)
        return;
    if (file_exists(arena_printf(arena, "%s/tokenizer.json", job->train.init))) {
        job->data.tokenizer = job->train.init;
    } else if (served_open(&served, job->train.init, &ignored) == 0) {
        if (served.job.data.tokenizer)
            job->data.tokenizer = arena_strdup(arena, served.job.data.tokenizer);
        served_close(&served);
    }
}

int tuned_tokenizer(struct job *job, struct arena *arena, struct err *err)
{
    find_tokenizer(job, arena);
    return add_tokens(job, arena, err);
}

/* How many of these the tokenizer lacks; a token that is given twice is one. */
static int count_new(const struct tokenizer *tokenizer, const struct job_texts *tokens)
{
    int n = 0;

    for (int i = 0; i < tokens->n; i++) {
        bool is_new = tokenizer_find(tokenizer, tokens->values[i]) < 0;

        for (int k = 0; k < i; k++)
            is_new &= strcmp(tokens->values[i], tokens->values[k]) != 0;
        n += is_new;
    }
    return n;
}

void tuned_foresee_vocabulary(struct job *job, struct arena *arena)
{
    const struct job_texts *added = &job->data.added_tokens;
    struct tokenizer *tokenizer;
    struct err err;

    if (job->kind == JOB_PRETRAIN || !job->train.init)
        return;
    find_tokenizer(job, arena);
    if (!job->data.tokenizer) {
        err_set(&err, ERR_CONFIG, "there is not a tokenizer");
    } else if (tokenizer_open(&tokenizer, job->data.tokenizer, &err) == 0) {
        grow_to(job, tokenizer_vocab_size(tokenizer) + count_new(tokenizer, added), arena);
        tokenizer_close(tokenizer);
        job->n_read_notes = job->n_notes;
        return;
    }
    if (added->n)
        log_warn("%s: the embeddings of data.added_tokens are not counted", err.text);
}

int tuned_prepare(struct job *job, struct arena *arena)
{
    struct prepare_data_hooks hooks = { .report = say, .context = arena };
    struct err err;

    if (look_at_model(job, arena, &err) < 0 || add_tokens(job, arena, &err) < 0 ||
        grow_vocabulary(job, arena, &err) < 0 || prepare_data(job, &hooks, arena, &err) < 0)
        return cmd_fail(&err);
    job->n_read_notes = job->n_notes;
    return 0;
}

/* ---- what it leaves ---- */

/* from: a run or a checkpoint. */
static int write_adapter(const struct job *job, const char *from, const char *to,
                         struct arena *arena, struct err *err)
{
    struct served served;
    struct job absolute = *job;
    char here[4096];

    if (served_open(&served, from, err) < 0)
        return -1;
    const char *carried = arena_printf(arena, "%s/" STORE_CARRIED, served.folder);
    const char *family = served_family(&served, err);
    if (getcwd(here, sizeof here))
        job_make_absolute(&absolute, here, arena);
    struct adapter_source source = {
        .weights = &served.weights, .job = job, .family = family, .base = absolute.train.init
    };
    int status = family ? adapter_write(to, &source, err) : -1;
    if (!status && file_is_folder(carried))
        status = carried_copy(carried, to, CARRIED_TOKENIZER, err);
    served_close(&served);
    return status;
}

void tuned_saved(void *context, const char *folder)
{
    const struct job *job = context;
    struct arena arena = { 0 };
    struct err err;

    if (job->kind == JOB_LORA &&
        write_adapter(job, folder, arena_printf(&arena, "%s/adapter", folder), &arena, &err) < 0)
        log_warn("%s: %s", folder, err.text);
    arena_release(&arena);
}

static int write_model(const struct job *job, const char *to, struct err *err)
{
    struct convert_options options = {
        .from = job->output,
        .to = to,
        .tp = 1,
        .pp = 1,
        .dtype = (int)job->train.dtype,
        .max_shard_bytes = INT64_C(5) << 30,
    };
    struct convert_result result;

    if (file_remove_tree(to, err) < 0)
        return -1;
    return convert_model(&options, &result, err);
}

bool tuned_is_unfinished(const struct job *job)
{
    struct arena arena = { 0 };
    int is = !file_exists(result_folder(job, &arena));

    arena_release(&arena);
    return is;
}

int tuned_finish(const struct job *job)
{
    struct arena arena = { 0 };
    bool is_lora = job->kind == JOB_LORA;
    const char *to = result_folder(job, &arena);
    struct err err;
    enum file_sharing before = file_share(FILE_UMASK); /* it is an export */
    int status =
        is_lora ? write_adapter(job, job->output, to, &arena, &err) : write_model(job, to, &err);

    file_share(before);
    if (!status)
        log_info("%s is in %s", is_lora ? "the adapter" : "the model in Hugging Face format", to);
    arena_release(&arena);
    return status < 0 ? cmd_fail(&err) : 0;
}
