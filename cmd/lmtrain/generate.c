/*
 * generate.c - lmtrain generate: text from a trained model
 */
#include "generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "cmd.h"
#include "serve/generation_config.h"

/* The folder of a tokenizer: that or where its file lies. */
static const char *folder_of(struct arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');

    if (file_is_folder(path))
        return path;
    return slash ? arena_strndup(arena, path, (size_t)(slash - path)) : ".";
}

static int open_tokenizer(struct generation *g, struct err *err)
{
    const char *path = g->q->tokenizer ? g->q->tokenizer : g->served.job.data.tokenizer;
    int vocab_size = g->served.job.model.vocab_size;

    if (served_open_tokenizer(&g->served, g->q->tokenizer, &g->tokenizer, err) < 0)
        return -1;
    if (g->has_model && tokenizer_vocab_size(g->tokenizer) > vocab_size)
        return err_set(err, ERR_CONFIG, "%s has %d tokens, but the model's vocabulary has %d", path,
                       tokenizer_vocab_size(g->tokenizer), vocab_size);
    g->folder = folder_of(&g->served.arena, path);
    return 0;
}

static void add_end(struct generation *g, int64_t id)
{
    if (id < 0 || id >= tokenizer_vocab_size(g->tokenizer) ||
        g->options.n_ends == GENERATE_ENDS_MAX)
        return;
    for (int i = 0; i < g->options.n_ends; i++)
        if (g->ends[i] == id)
            return;
    g->ends[g->options.n_ends++] = (int32_t)id;
}

/* What a text ends at. An end of turn that is not a token is a text to stop at. */
static int find_ends(struct generation *g, const struct generation_config *config, struct err *err)
{
    g->options.ends = g->ends;
    add_end(g, tokenizer_end_of_text(g->tokenizer));
    for (int i = 0; i < config->n_ends; i++)
        add_end(g, config->ends[i]);
    g->options.stops = g->stops;
    for (int i = 0; i < g->q->stops.n; i++) {
        if (!*g->q->stops.items[i])
            return err_set(err, ERR_CONFIG, "--stop is empty");
        if (g->options.n_stops == GENERATE_STOPS_MAX - 1)
            return err_set(err, ERR_CONFIG, "more than %d times --stop", GENERATE_STOPS_MAX - 1);
        g->stops[g->options.n_stops++] = g->q->stops.items[i];
    }
    if (g->template && *chat_template_end_of_turn(g->template)) {
        const char *end = chat_template_end_of_turn(g->template);
        int id = tokenizer_find(g->tokenizer, end);

        if (id >= 0)
            add_end(g, id);
        else
            g->stops[g->options.n_stops++] = end;
    }
    return 0;
}

/*
 * What the command line leaves open. Where the model's authors say how to draw, as they say; else
 * texts are drawn with some caution, and answers and beams not at all: they are to be right.
 */
static void settle(struct generation *g, const struct generation_config *config)
{
    const struct generate_request *q = g->q;
    struct sampling *sampler = &g->options.sampler;
    bool draws = config->samples > 0 && q->options.n_beams == 1;

    sampler->seed = (uint64_t)q->seed;
    if (q->temperature >= 0)
        sampler->temperature = q->temperature;
    else if (draws)
        sampler->temperature = config->temperature >= 0 ? config->temperature : 1;
    else
        sampler->temperature = q->chat || q->options.n_beams > 1 || config->samples == 0 ? 0 : 0.8;
    if (sampler->top_k < 0)
        sampler->top_k = draws && config->top_k >= 0 ? config->top_k : 0;
    if (sampler->top_p < 0)
        sampler->top_p = !draws ? 0.95 : config->top_p > 0 ? config->top_p : 1;
    if (g->options.repetition_penalty < 0)
        g->options.repetition_penalty =
            config->repetition_penalty > 0 ? config->repetition_penalty : 1;
    if (!strcmp(q->early_stopping, "yes"))
        g->options.early_stopping = EARLY_STOPPING_YES;
    else if (!strcmp(q->early_stopping, "never"))
        g->options.early_stopping = EARLY_STOPPING_NEVER;
}

/* Everything but what computes. */
static int generation_open(struct generation *g, struct err *err)
{
    const struct generate_request *q = g->q;
    struct generation_config config;

    if (q->model || q->ensemble) {
        if ((q->model && cmd_check_model(q->model, err) < 0) ||
            serving_open_model(&g->served, q->model, q->ensemble, q->adapter, q->weights, err) < 0)
            return -1;
        g->has_model = true;
        serving_tell(g->serving, &g->served);
        if (serving_check(g->serving, &g->served.job.model, err) < 0)
            return -1;
    }
    if (open_tokenizer(g, err) < 0)
        return -1;
    if (q->chat && chat_template_open(&g->template, q->template, g->folder, err) < 0)
        return err->code == ERR_CONFIG && !q->template ? err_add(err, "--chat without --template")
                                                       : -1;
    if (generation_config_read(&config, g->folder, err) < 0 || find_ends(g, &config, err) < 0)
        return -1;
    settle(g, &config);
    return 0;
}

static int open_generator(struct generation *g, struct err *err)
{
    if (serving_open(g->serving, &g->served, g->q->threads, err) < 0)
        return -1;
    return generator_create(&g->generator, &g->served, g->serving->engine.kernels, g->tokenizer,
                            &g->options, err);
}

static void generation_close(struct generation *g)
{
    generator_destroy(g->generator);
    chat_template_close(g->template);
    tokenizer_close(g->tokenizer);
    if (g->has_model)
        served_close(&g->served);
    else
        arena_release(&g->served.arena);
}

static int check(struct generate_request *q, struct err *err)
{
    if (q->model && q->ensemble)
        return err_set(err, ERR_CONFIG, "lmtrain generate: give --model or --ensemble");
    if (!q->model && !q->ensemble && !(q->print_prompt && q->tokenizer))
        return err_set(
            err, ERR_CONFIG,
            "lmtrain generate: --model is missing (hint: --model DIR, a run, a checkpoint or a "
            "Hugging Face folder)");
    if (q->prompt && q->prompts)
        return err_set(err, ERR_CONFIG, "lmtrain generate: give --prompt TEXT or --prompts FILE");
    if (!q->prompt && !q->prompts && (!q->chat || q->json || q->print_prompt))
        return err_set(err, ERR_CONFIG, "lmtrain generate: give --prompt TEXT or --prompts FILE%s",
                       q->chat ? "" : " (or --chat alone for an interactive chat)");
    if (q->template && !q->chat)
        return err_set(err, ERR_CONFIG, "--template needs --chat");
    if (q->system && !q->chat)
        return err_set(err, ERR_CONFIG, "--system needs --chat");
    if (q->options.n_beams > 1 && !q->prompt && !q->prompts)
        return err_set(err, ERR_CONFIG,
                       "--beams does not work with an interactive chat, which streams its answers");
    return 0;
}

static void report(const struct generation *g, double seconds)
{
    char memory[32], cache[32];

    if (!g->generator)
        return;
    int64_t n = generator_n_generated(g->generator);
    log_info("%lld token%s in %.1f s, %.1f tokens/s, from %s (%s of memory, of which KV cache %s)",
             (long long)n, str_s(n), seconds, (double)n / seconds, g->served.folder,
             str_bytes(memory, sizeof memory, generator_bytes(g->generator)),
             str_bytes(cache, sizeof cache, generator_cache_bytes(g->generator)));
}

static int check_talk(const struct generate_request *q, const struct serving *serving,
                      struct err *err)
{
    if (q->prompt || q->prompts || !serving_is_shared(serving))
        return 0;
    return err_set(err, ERR_CONFIG,
                   "--chat without a prompt reads standard input, which is not available with "
                   "several ranks (hint: "
                   "--prompt or --prompts, or no --tp, --pp, --ranks, --hosts)");
}

/* As a rank, or alone. */
static int work(struct generation *g, struct err *err)
{
    const struct generate_request *q = g->q;
    double begin;

    if (!q->print_prompt && open_generator(g, err) < 0)
        return -1;
    begin = clock_seconds();
    int status = q->prompt    ? generate_one(g, err)
                 : q->prompts ? generate_file(g, err)
                              : generate_talk(g, err);
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = err_set(err, ERR_FAILED, "standard output cannot be written");
    if (!status && isatty(2) && replica_is_first(g->served.replica))
        report(g, clock_seconds() - begin - g->typing_s);
    return status;
}

static int run(struct generate_request *q, struct serving *serving, struct generation *g)
{
    struct err err;

    if (check(q, &err) < 0)
        return cmd_fail(&err);
    serving->stop_words = q->prompts ? "the printed texts are complete" : "the text is incomplete";
    serving_catch_signals(serving);
    g->options = q->options;
    if (!serving_starts(serving)) {
        int joined = serving_join(serving);

        if (joined)
            return joined;
    }
    int status = check_talk(q, serving, &err);
    if (!status)
        status = generation_open(g, &err);
    if (!status)
        status = serving_starts(serving) ? generate_try(g, &err) : work(g, &err);
    /* Others may wait for this one: it says why, and ends them. */
    if (status < 0)
        status = serving_fail(serving, &err);
    generation_close(g);
    serving_close(serving);
    return status;
}

enum { N_OWN = 24, N_OPTIONS = N_OWN + SERVING_N_OPTIONS };

static void list_options(struct generate_request *q, struct option *out)
{
    static const char *const when[] = { "no", "yes", "never", NULL };
    const struct option table[] = {
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
        option_text("prompt", &q->prompt, "TEXT", "prompt; the generated text is streamed"),
        option_text("prompts", &q->prompts, "FILE",
                    "file with one prompt per line (JSON if its name ends in .jsonl)"),
        option_flag(
            "chat", &q->chat,
            "treat prompts as chat messages; without a prompt, chat interactively on stdin"),
        option_text("system", &q->system, "TEXT", "system message of the conversation"),
        option_text(
            "template", &q->template, "NAME",
            "chat template: chatml, llama3, ... or a .jinja file (default: the model's own)"),
        option_int("max-new-tokens", &q->options.max_new_tokens, "N", 1, 1000000,
                   "generate at most N tokens (default: 100; 1024 with --chat)"),
        option_list("stop", &q->stops, "TEXT", "stop before TEXT is generated; may be repeated"),
        option_float("temperature", &q->temperature, "T", 0, 100,
                     "sampling temperature; 0: greedy (default: from the model's "
                     "generation_config.json, else 0.8; 0 with --chat or --beams)"),
        option_int("top-k", &q->options.sampler.top_k, "K", 0, 100000000,
                   "sample from the K most likely tokens; 0: all (default: from "
                   "generation_config.json, else 0)"),
        option_float("top-p", &q->options.sampler.top_p, "P", 1e-6, 1,
                     "nucleus sampling: sample from the smallest set of tokens with total "
                     "probability P (default: from generation_config.json, else 0.95)"),
        option_float("repetition-penalty", &q->options.repetition_penalty, "R", 0.01, 100,
                     "penalty for tokens that already occurred (Keskar et al. 2019); 1: none "
                     "(default: from generation_config.json, else 1)"),
        option_int("beams", &q->options.n_beams, "N", 1, GENERATE_BATCH_MAX,
                   "beam search with N beams; 1: sampling (default: 1)"),
        option_float("length-penalty", &q->options.length_penalty, "X", -10, 10,
                     "beam search: score is log-probability / length^X (default: 1)"),
        option_choice("early-stopping", &q->early_stopping, "WHEN", when,
                      "beam search: when to stop, as early_stopping of transformers: no, yes or "
                      "never (default: no)"),
        option_i64("seed", &q->seed, "N", 0, 9e15,
                   "random seed of sampling; the same seed gives the same text (default: 1)"),
        option_int("batch", &q->batch, "N", 1, GENERATE_BATCH_MAX,
                   "number of prompts of FILE generated in parallel (default: 8)"),
        option_flag("json", &q->json,
                    "print a JSON object per prompt: text, token ids, reason of the end"),
        option_flag("print-prompt", &q->print_prompt, "print the tokenized prompt and exit"),
        option_text("tokenizer", &q->tokenizer, "DIR",
                    "tokenizer folder (default: that of the model)"),
        option_int("threads", &q->threads, "N", 1, 1024,
                   "number of compute threads (default: all cores)"),
    };

    _Static_assert(sizeof table == sizeof *table * N_OWN, "all of them");
    memcpy(out, table, sizeof table);
}

int cmd_generate(int argc, char **argv)
{
    struct generate_request q = { .seed = 1,
                                  .batch = 8,
                                  .temperature = -1,
                                  .early_stopping = "no",
                                  .weights = served_weights_words[SERVED_TRAINED],
                                  .options = { .repetition_penalty = -1,
                                               .n_beams = 1,
                                               .length_penalty = 1,
                                               .sampler = { .top_k = -1, .top_p = -1 } } };
    struct option table[N_OPTIONS];
    const struct options options = {
        .command = "lmtrain generate",
        .arguments = "--model DIR {--prompt TEXT | --prompts FILE | --chat}",
        .summary = "Generate text with a trained model, or chat with it",
        .details =
            "Exit status: 0; 2 usage; 3 model or prompts unreadable; 4 device or memory; 5 a rank\n"
            "died.\n",
        .table = table,
        .n_options = N_OPTIONS,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct serving serving = { 0 };
    struct generation g = { .q = &q, .serving = &serving };
    struct err err;

    list_options(&q, table);
    serving_options(&serving, table + N_OWN);
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (!q.options.max_new_tokens)
        q.options.max_new_tokens = q.chat ? 1024 : 100;
    if (status < 0)
        status = serving_find(&serving, options.command, q.print_prompt, &arena, &err) < 0
                     ? cmd_fail(&err)
                     : run(&q, &serving, &g);
    if (!status && serving_starts(&serving))
        status = serving_start(&serving, &options, argc, argv, &arena);
    arena_release(&arena);
    return status;
}
