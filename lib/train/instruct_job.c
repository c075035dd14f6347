/*
 * instruct_job.c - the data section of a job as options of instruct_prepare
 */
#include "train/instruct_job.h"

#include <string.h>

static const struct instruct_column *columns_of(const struct job *job, struct arena *arena)
{
    const struct job_texts *texts = &job->data.columns;
    struct instruct_column *columns = arena_array(arena, struct instruct_column, texts->n);

    for (int i = 0; i < texts->n; i++) {
        const char *text = texts->values[i], *value = strchr(text, '=');

        columns[i].field = arena_strndup(arena, text, (size_t)(value - text));
        columns[i].column = value + 1;
    }
    return columns;
}

int instruct_of_job(struct instruct_options *options, const struct job *job, struct arena *arena,
                    struct err *err)
{
    const char **inputs = arena_array(arena, const char *, job->data.n_train);

    if (!job->data.tokenizer)
        return err_set(err, ERR_CONFIG,
                       "data.tokenizer is missing (hint: the model's folder, if it has one)");
    for (int i = 0; i < job->data.n_train; i++)
        inputs[i] = job->data.train[i].path;
    *options = (struct instruct_options){
        .inputs = inputs,
        .n_inputs = job->data.n_train,
        .format = job->data.format,
        .columns = columns_of(job, arena),
        .n_columns = job->data.columns.n,
        .tokenizer = job->data.tokenizer,
        .chat = job->data.chat_template,
        .system = job->data.system,
        .mask = job->data.mask,
        .too_long = job->data.too_long,
        .bad_rows = job->data.bad_rows,
        .max_tokens = job->data.seq_len,
    };
    return 0;
}
