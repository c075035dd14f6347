/*
 * eval.c - lmtrain eval: how good is a model
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "eval/perplexity.h"
#include "eval_tasks.h"
#include "train/engine.h"

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

static int measure(const struct eval_request *q, struct served *served, struct engine *engine,
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

static int answer(const struct eval_request *q, struct str *out, struct err *err)
{
    struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct engine engine;
    struct served served;

    if (q->print_prompts && strcmp(q->task, "perplexity") != 0)
        return eval_tasks(q, out, err);
    if (!q->model)
        return err_set(err, ERR_CONFIG, "lmtrain eval: --model is missing");
    if (cmd_check_model(q->model, err) < 0)
        return -1;
    if (strcmp(q->task, "perplexity") != 0)
        return eval_tasks(q, out, err);
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

enum { N_WHAT = 8, N_HOW = 8, N_OPTIONS = N_WHAT + N_HOW };

/* What is measured. */
static void list_what(struct eval_request *q, struct option *out)
{
    static const char *const styles[] = { "lmeval", "modellink", NULL };
    const struct option table[N_WHAT] = {
        { .name = "model",
          .kind = OPTION_TEXT,
          .value = &q->model,
          .argument = "DIR",
          .help = "a run, a checkpoint, or a Hugging Face folder" },
        { .name = "adapter",
          .kind = OPTION_TEXT,
          .value = &q->adapter,
          .argument = "DIR",
          .help = "add an adapter to it: a folder in peft's format, or a run of lmtrain lora" },
        { .name = "task",
          .kind = OPTION_TEXT,
          .value = &q->task,
          .argument = "NAMES",
          .help = "perplexity: the mean loss over a tokenised text; or of mmlu, bbh, agieval, "
                  "humaneval, boolq, gsm8k, ceval, hellaswag, piqa, split by commas" },
        { .name = "data",
          .kind = OPTION_TEXT,
          .value = &q->data,
          .argument = "PATH",
          .help = "the prefix of .bin/.idx, or the folder of the tasks' files" },
        { .name = "style",
          .kind = OPTION_CHOICE,
          .value = &q->style,
          .argument = "NAME",
          .choices = styles,
          .help = "whose prompts and scores: lmeval (lm-evaluation-harness) or modellink" },
        { .name = "shots",
          .kind = OPTION_INT,
          .value = &q->shots,
          .argument = "N",
          .max = 1000,
          .help = "examples in front of an item, instead of the style's number" },
        { .name = "subjects",
          .kind = OPTION_TEXT,
          .value = &q->subjects,
          .argument = "NAMES",
          .help = "only these, or those of a category; present: those that there are files of" },
        { .name = "limit",
          .kind = OPTION_I64,
          .value = &q->limit,
          .argument = "N",
          .min = 1,
          .max = 9e15,
          .help = "the first N items of each subject, or windows of a text" },
    };

    memcpy(out, table, sizeof table);
}

/* How, and what becomes of it. */
static void list_how(struct eval_request *q, struct option *out)
{
    const struct option table[N_HOW] = {
        { .name = "output",
          .kind = OPTION_TEXT,
          .value = &q->output,
          .argument = "FILE",
          .help = "write scores and every item as JSON; what was interrupted goes on from "
                  "FILE.journal" },
        { .name = "allow-code-execution",
          .value = &q->allow_code,
          .help = "run programs that the model wrote (humaneval), in a sandbox" },
        { .name = "print-prompts",
          .value = &q->print_prompts,
          .help =
              "print what the model would be asked, a line of JSON an item; no model is needed" },
        { .name = "no-chat-template",
          .value = &q->no_chat_template,
          .help = "modellink: prompts as plain text, though the model has a chat template" },
        { .name = "max-new-tokens",
          .kind = OPTION_INT,
          .value = &q->max_new_tokens,
          .argument = "N",
          .min = 1,
          .max = 100000,
          .help = "of texts that the model writes, instead of the style's number" },
        { .name = "tokenizer",
          .kind = OPTION_TEXT,
          .value = &q->tokenizer,
          .argument = "DIR",
          .help = "instead of the one the model's job names" },
        { .name = "threads",
          .kind = OPTION_INT,
          .value = &q->threads,
          .argument = "N",
          .min = 1,
          .max = 1024,
          .help = "compute threads (all cores)" },
        { .name = "json", .value = &q->json, .help = "print the scores as JSON" },
    };

    memcpy(out, table, sizeof table);
}

int cmd_eval(int argc, char **argv)
{
    struct eval_request q = { .task = "perplexity", .style = "lmeval", .shots = -1 };
    struct option table[N_OPTIONS];
    const struct options options = {
        .command = "lmtrain eval",
        .arguments = "--model DIR",
        .summary = "Measure a trained model",
        .details = "Exit status: 0; 2 usage; 3 model or data unreadable; 4 device or memory.\n",
        .table = table,
        .n_options = N_OPTIONS,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err;

    list_what(&q, table);
    list_how(&q, table + N_WHAT);
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);
    if (status < 0)
        status = answer(&q, &out, &err) < 0 ? cmd_fail(&err) : cmd_print(&out);
    str_release(&out);
    arena_release(&arena);
    return status;
}
