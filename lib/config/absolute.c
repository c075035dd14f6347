/*
 * absolute.c - a job whose paths are the same from every folder
 */
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "config/fields_impl.h"

#define PATH_BYTES 4096

static const char *absolute(const char *path, const char *folder, struct arena *arena)
{
    if (!path || !*path || *path == '/')
        return path;
    while (!strncmp(path, "./", 2))
        path += 2 + strspn(path + 2, "/");
    return !*path || !strcmp(path, ".") ? folder : arena_printf(arena, "%s/%s", folder, path);
}

/* "NAME=PATH" of each. */
static struct job_texts absolute_pairs(const struct job_texts *pairs, const char *folder,
                                       struct arena *arena)
{
    const char **values = arena_array(arena, const char *, pairs->n);

    for (int i = 0; i < pairs->n; i++) {
        const char *path = strchr(pairs->values[i], '=') + 1;

        values[i] = arena_printf(arena, "%.*s%s", (int)(path - pairs->values[i]), pairs->values[i],
                                 absolute(path, folder, arena));
    }
    return (struct job_texts){ values, pairs->n };
}

void job_make_absolute(struct job *job, const char *folder, struct arena *arena)
{
    struct job_dataset *train = arena_array(arena, struct job_dataset, job->data.n_train);
    const char *template = job->data.chat_template;

    for (int i = 0; i < job->data.n_train; i++) {
        train[i] = job->data.train[i];
        train[i].path = absolute(train[i].path, folder, arena);
    }
    job->data.train = train;
    job->data.tokenizer = absolute(job->data.tokenizer, folder, arena);
    job->train.init = absolute(job->train.init, folder, arena);
    job->eval.data = absolute(job->eval.data, folder, arena);
    job->eval.sets = absolute_pairs(&job->eval.sets, folder, arena);
    job->output = absolute(job->output, folder, arena);
    job->metrics.prometheus = absolute(job->metrics.prometheus, folder, arena);
    if (job->tracking.mlflow && !strstr(job->tracking.mlflow, "://"))
        job->tracking.mlflow = absolute(job->tracking.mlflow, folder, arena);
    /* Else it is the name of a built-in one. */
    if (template && (strchr(template, '/') || str_ends_with(template, ".jinja")))
        job->data.chat_template = absolute(template, folder, arena);
}

void job_print_absolute(const struct job *job, struct str *out)
{
    struct arena arena = { 0 };
    struct job copy = *job;
    char folder[PATH_BYTES];

    if (getcwd(folder, sizeof folder))
        job_make_absolute(&copy, folder, &arena);
    job_print(&copy, out);
    arena_release(&arena);
}
