/*
 * eval.c - lmtrain eval: how good is a model
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cmd.h"
#include "eval/perplexity.h"
#include "train/engine.h"

struct request {
    const char *model, *adapter, *task, *data;
    int64_t limit;
    int threads, json;
};

static void show_progress(void *context, int64_t done, int64_t total)
{
    (void)context;
    fprintf(stderr, "\revaluating %" PRId64 "/%" PRId64 "%s", done, total,
            done == total ? "\r\033[K" : "");
}

static void print_json(const char *folder, const char *data, const struct perplexity *result,
                       struct str *out)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "task", "perplexity");
    cJSON_AddStringToObject(json, "model", folder);
    cJSON_AddStringToObject(json, "data", data);
    cJSON_AddNumberToObject(json, "loss", result->loss);
    cJSON_AddNumberToObject(json, "perplexity", exp(result->loss));
    cJSON_AddNumberToObject(json, "tokens", (double)result->tokens);
    char *text = cJSON_PrintUnformatted(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

static int measure(const struct request *q, struct served *served, struct engine *engine,
                   struct str *out, struct err *err)
{
    const char *data = q->data ? q->data : served->job.eval.data;
    struct perplexity result;

    if (!data)
        return err_set(err, ERR_CONFIG,
                       "the model's job names no eval.data (hint: --data PREFIX of .bin/.idx, made "
                       "by `lmtrain data tokenize`)");
    if (perplexity_measure(served, engine->kernels, data, q->limit,
                           isatty(2) ? show_progress : NULL, NULL, &result, err) < 0)
        return -1;
    if (q->json)
        print_json(served->folder, data, &result, out);
    else
        str_printf(out,
                   "%s on %s\nloss        %.4f nats a token\nperplexity  %.2f\ntokens      %" PRId64
                   "\n",
                   served->folder, data, result.loss, exp(result.loss), result.tokens);
    return 0;
}

static int answer(const struct request *q, struct str *out, struct err *err)
{
    struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct engine engine;
    struct served served;

    if (!q->model)
        return err_set(err, ERR_CONFIG, "lmtrain eval: --model is missing");
    if (cmd_check_model(q->model, err) < 0)
        return -1;
    if (served_open_adapted(&served, q->model, q->adapter, err) < 0)
        return -1;
    int status = engine_open(&engine, &alone, q->threads, err);
    if (!status) {
        status = measure(q, &served, &engine, out, err);
        engine_close(&engine);
    }
    served_close(&served);
    return status;
}

int cmd_eval(int argc, char **argv)
{
    static const char *const tasks[] = { "perplexity", NULL };
    struct request q = { .task = "perplexity" };
    const struct option table[] = {
        { .name = "model",
          .kind = OPTION_TEXT,
          .value = &q.model,
          .argument = "DIR",
          .help = "a run, a checkpoint, or a Hugging Face folder" },
        { .name = "adapter",
          .kind = OPTION_TEXT,
          .value = &q.adapter,
          .argument = "DIR",
          .help = "add an adapter to it: a folder in peft's format, or a run of lmtrain lora" },
        { .name = "task",
          .kind = OPTION_CHOICE,
          .value = &q.task,
          .argument = "NAME",
          .choices = tasks,
          .help = "perplexity: the mean loss over a tokenised text" },
        { .name = "data",
          .kind = OPTION_TEXT,
          .value = &q.data,
          .argument = "PREFIX",
          .help = "of .bin/.idx; the job's eval.data if not given" },
        { .name = "limit",
          .kind = OPTION_I64,
          .value = &q.limit,
          .argument = "N",
          .min = 1,
          .max = 9e15,
          .help = "only the first N windows, rounded up to whole micro-batches" },
        { .name = "threads",
          .kind = OPTION_INT,
          .value = &q.threads,
          .argument = "N",
          .min = 1,
          .max = 1024,
          .help = "compute threads (all cores)" },
        { .name = "json", .value = &q.json, .help = "print the result as JSON" },
    };
    const struct options options = {
        .command = "lmtrain eval",
        .arguments = "--model DIR",
        .summary = "Measure a trained model",
        .details = "Exit status: 0; 2 usage; 3 model or data unreadable; 4 device or memory.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err;
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = answer(&q, &out, &err) < 0 ? cmd_fail(&err) : cmd_print(&out);
    str_release(&out);
    arena_release(&arena);
    return status;
}
