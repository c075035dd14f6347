/*
 * eval.c - lmtrain eval: how good is a model
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "data/stream/token_meta.h"
#include "eval/perplexity.h"
#include "eval/task.h"
#include "eval_tasks.h"
#include "report/progress_line.h"
#include "train/engine.h"

static void show_progress(void *context, int64_t done, int64_t total)
{
    struct progress_line *line = context;
    char left[PROGRESS_LEFT_BYTES], text[64];

    if (!progress_line_is_due(line))
        return;
    snprintf(text, sizeof text, "evaluating %" PRId64 "/%" PRId64, done, total);
    progress_line_show(
        line,
        (const char *const[]){ text, progress_line_left(line, (double)done, (double)total, left) },
        2);
}

static void print_json(const struct served *served, const char *data,
                       const struct perplexity *result, struct str *out)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "task", "perplexity");
    cJSON_AddStringToObject(json, "model", served->folder);
    for (int i = 0; i < served->n_members; i++)
        cJSON_AddItemToArray(i ? cJSON_GetObjectItem(json, "members")
                               : cJSON_AddArrayToObject(json, "members"),
                             cJSON_CreateString(served->members[i].folder));
    cJSON_AddStringToObject(json, "data", data);
    cJSON_AddNumberToObject(json, "loss", result->loss);
    cJSON_AddNumberToObject(json, "perplexity", exp(result->loss));
    cJSON_AddNumberToObject(json, "tokens", (double)result->tokens);
    char *text = cJSON_PrintUnformatted(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

/* The model; of an ensemble all of them. */
static void print_members(const struct served *served, struct str *out)
{
    str_add(out, served->folder);
    for (int i = 0; i < served->n_members; i++)
        str_printf(out, ", %s", served->members[i].folder);
}

static int measure(const struct eval_request *q, struct served *served, struct engine *engine,
                   struct str *out, struct err *err)
{
    const char *data = q->data ? q->data : served->job.eval.data;
    struct perplexity result;
    struct progress_line line;

    if (!data)
        return err_set(err, ERR_CONFIG,
                       "the model's job has no eval.data (hint: --data PREFIX of .bin/.idx, made "
                       "by `lmtrain data tokenize`)");
    progress_line_begin(&line, 2);
    int status = perplexity_measure(served, engine->kernels, data, q->limit, show_progress, &line,
                                    &result, err);
    progress_line_end(&line);
    if (status < 0)
        return -1;
    if (q->json)
        print_json(served, data, &result, out);
    if (!q->json)
        print_members(served, out);
    if (!q->json)
        str_printf(
            out, " on %s\nloss        %.4f nats/token\nperplexity  %.2f\ntokens      %" PRId64 "\n",
            data, result.loss, exp(result.loss), result.tokens);
    return 0;
}

/* The tokens must be of the model's tokenizer, or of the one that is given. */
static int check_tokens(const struct eval_request *q, struct served *served, struct err *err)
{
    const char *data = q->data ? q->data : served->job.eval.data;
    const char *path = q->tokenizer ? q->tokenizer : served->job.data.tokenizer;
    char hash[TOKENIZER_HASH_BYTES] = "";
    struct tokenizer *tokenizer;
    struct token_meta meta;

    if (!data || token_meta_read(data, &meta, err) == 0)
        return 0;
    if (!q->tokenizer)
        memcpy(hash, served->tokenizer_hash, sizeof hash);
    if (!*hash && path) {
        if (tokenizer_open(&tokenizer, path, err) < 0)
            return q->tokenizer ? -1 : 0; /* of a kind that is not read here */
        tokenizer_hash_text(tokenizer, hash);
        tokenizer_close(tokenizer);
    }
    return token_meta_compare(data, hash, q->tokenizer ? q->tokenizer : "the model's",
                              "run lmtrain data tokenize with the model's tokenizer; or, if this "
                              "is intended, pass --tokenizer with that of the token file",
                              err);
}

/* As a rank, or alone; or to see whether ranks could. */
static int measure_text(const struct eval_request *q, struct str *out, struct err *err)
{
    struct served served;

    if (serving_open_model(&served, q->model, q->ensemble, q->adapter, q->weights, err) < 0)
        return -1;
    serving_tell(q->serving, &served);
    int status = check_tokens(q, &served, err);
    if (!status)
        status = serving_check(q->serving, &served.job.model, err);
    if (!status && !serving_starts(q->serving))
        status = serving_open(q->serving, &served, q->threads, err);
    if (!status && q->serving->has_engine)
        status = measure(q, &served, &q->serving->engine, out, err);
    served_close(&served);
    return status;
}

static int answer(const struct eval_request *q, struct str *out, struct err *err)
{
    return strcmp(q->task, "perplexity") ? eval_tasks(q, out, err) : measure_text(q, out, err);
}

static int check(const struct eval_request *q, struct err *err)
{
    if (q->print_prompts && strcmp(q->task, "perplexity") != 0)
        return 0;
    if (q->model && q->ensemble)
        return err_set(err, ERR_CONFIG, "lmtrain eval: give --model or --ensemble");
    if (!q->model && !q->ensemble)
        return err_set(
            err, ERR_CONFIG,
            "lmtrain eval: --model is missing (hint: --model DIR, a run, a checkpoint or a "
            "Hugging Face folder)");
    return q->model ? cmd_check_model(q->model, err) : 0;
}

/* Before all else, so that the helper knows nothing; the first rank alone judges. */
static int open_sandbox(struct eval_request *q, struct err *err)
{
    if (!q->allow_code || serving_starts(q->serving) || ranks_expected() != 0)
        return 0;
    if (sandbox_open(&q->sandbox, SANDBOX_ALL, err) < 0)
        return -1;
    fprintf(stderr, "sandbox: %s\n", sandbox_enforced(q->sandbox));
    return 0;
}

/* What the first rank has found is printed. */
static int work(const struct eval_request *q)
{
    struct str out = { 0 };
    struct err err;
    int status = answer(q, &out, &err);

    if (status < 0)
        status = serving_fail(q->serving, &err);
    else if (q->serving->rank.world_rank == 0 && !serving_starts(q->serving))
        status = cmd_print(&out);
    str_release(&out);
    return status;
}

static const char *stop_words(const struct eval_request *q)
{
    if (!strcmp(q->task, "perplexity"))
        return "no result is kept; the same command starts from the beginning";
    return q->output ? "finished items are in the FILE.journal of --output; the same command "
                       "continues from there"
                     : "no result is kept (hint: with --output FILE the same command continues)";
}

static int run(struct eval_request *q)
{
    struct err err;

    q->serving->stop_words = stop_words(q);
    serving_catch_signals(q->serving);
    if (check(q, &err) < 0 || open_sandbox(q, &err) < 0)
        return cmd_fail(&err);
    int status = serving_starts(q->serving) ? 0 : serving_join(q->serving);
    if (!status)
        status = work(q);
    serving_close(q->serving);
    sandbox_close(q->sandbox);
    return status;
}

enum { N_WHAT = 10, N_HOW = 8, N_OWN = N_WHAT + N_HOW, N_OPTIONS = N_OWN + SERVING_N_OPTIONS };

/* What is measured. */
static void list_what(struct eval_request *q, struct option *out)
{
    static const char *const styles[] = { "lmeval", "modellink", NULL };
    const struct option table[N_WHAT] = {
        option_text("model", &q->model, "DIR",
                    "a run folder, a checkpoint, or a Hugging Face folder"),
        option_text("ensemble", &q->ensemble, "DIR,...",
                    "in place of --model: average the token probabilities of these models, or of "
                    "the best trials (sweep.ensemble) of a sweep's folder"),
        option_text(
            "adapter", &q->adapter, "DIR",
            "apply a LoRA adapter: a folder in peft's format, or a run folder of lmtrain lora"),
        option_choice("weights", &q->weights, "WHICH", served_weights_words,
                      "which weights of a run or checkpoint: trained, or ema, their moving average "
                      "(train.ema) (default: trained)"),
        option_text("task", &q->task, "NAMES",
                    "comma-separated tasks: perplexity (mean loss over a token file; the default), "
                    "or benchmarks: mmlu, bbh, agieval, "
                    "humaneval, boolq, gsm8k, ceval, hellaswag, piqa"),
        option_text("data", &q->data, "PATH",
                    "prefix of a .bin/.idx pair, or the folder with the benchmarks' files"),
        option_choice("style", &q->style, "NAME", styles,
                      "prompts and scoring as in lmeval (lm-evaluation-harness) or modellink "
                      "(default: lmeval)"),
        option_int("shots", &q->shots, "N", 0, 1000,
                   "number of few-shot examples (default: that of the style)"),
        option_text("subjects", &q->subjects, "NAMES",
                    "comma-separated subjects or categories to evaluate; present: all that have "
                    "files (default: all)"),
        option_i64("limit", &q->limit, "N", 1, 9e15,
                   "evaluate only the first N items of each subject, or windows of a text"),
    };

    memcpy(out, table, sizeof table);
}

/* How, and what becomes of it. */
static void list_how(struct eval_request *q, struct option *out)
{
    const struct option table[N_HOW] = {
        option_text("output", &q->output, "FILE",
                    "write scores and every item to FILE as JSON; an interrupted run continues "
                    "from FILE.journal"),
        option_flag("allow-code-execution", &q->allow_code,
                    "allow running programs that the model wrote (humaneval), in a sandbox"),
        option_flag("print-prompts", &q->print_prompts,
                    "print the prompts, one JSON line per item; needs no model"),
        option_flag("no-chat-template", &q->no_chat_template,
                    "style modellink: plain-text prompts even if the model has a chat template"),
        option_int("max-new-tokens", &q->max_new_tokens, "N", 1, 100000,
                   "maximum length of generated answers (default: that of the style)"),
        option_text("tokenizer", &q->tokenizer, "DIR",
                    "tokenizer folder (default: that of the model)"),
        option_int("threads", &q->threads, "N", 1, 1024,
                   "number of compute threads (default: all cores)"),
        option_flag("json", &q->json, "print the scores as JSON"),
    };

    memcpy(out, table, sizeof table);
}

static const char *details(struct arena *arena)
{
    struct str text = { 0 };

    str_add(&text, "How to download the benchmarks' files for --data DATA:\n");
    task_print_sources(&text);
    str_add(&text, "Exit status: 0; 2 usage; 3 model or data unreadable; 4 device or memory; "
                   "5 a rank died.\n");
    const char *copy = arena_strdup(arena, str_text(&text));
    str_release(&text);
    return copy;
}

int cmd_eval(int argc, char **argv)
{
    struct arena arena = { 0 };
    struct serving serving = { 0 };
    struct eval_request q = {
        .task = "perplexity",
        .style = "lmeval",
        .weights = served_weights_words[SERVED_TRAINED],
        .shots = -1,
        .serving = &serving,
    };
    struct option table[N_OPTIONS];
    const struct options options = {
        .command = "lmtrain eval",
        .arguments = "--model DIR",
        .summary = "Evaluate a trained model: perplexity and benchmarks",
        .details = details(&arena),
        .table = table,
        .n_options = N_OPTIONS,
    };
    struct option_arguments arguments;
    struct err err;

    list_what(&q, table);
    list_how(&q, table + N_WHAT);
    serving_options(&serving, table + N_OWN);
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);
    if (status < 0)
        status = serving_find(&serving, options.command, q.print_prompts, &arena, &err) < 0
                     ? cmd_fail(&err)
                     : run(&q);
    if (!status && serving_starts(&serving))
        status = serving_start(&serving, &options, argc, argv, &arena);
    arena_release(&arena);
    return status;
}
