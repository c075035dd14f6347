/*
 * generate.c - lmtrain generate: text from a trained model
 */
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
#include "serve/decode.h"
#include "serve/sample.h"
#include "tokenizer/tokenizer.h"
#include "train/engine.h"

#define BATCH_MAX 8 /* prompts side by side */

struct request {
    const char *model, *adapter, *prompt, *prompts, *tokenizer;
    int max_new_tokens, threads;
    struct sampler sampler;
    int64_t seed;
};

struct generation {
    const struct request *q;
    struct served served;
    struct engine engine;
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    int n_sequences, length; /* the decoder's */
    int32_t *order;
    int64_t n_generated;
};

/* One prompt on its way. */
struct text {
    const char *prompt;
    struct token_list tokens; /* prompt, then what was drawn */
    int64_t n_prompt;
    size_t n_shown; /* bytes of the continuation that were printed */
    int done;
};

static int open_tokenizer(struct generation *g, struct err *err)
{
    const char *path = g->q->tokenizer ? g->q->tokenizer : g->served.job.data.tokenizer;

    if (!path)
        return err_set(err, ERR_CONFIG,
                       "the model's job names no data.tokenizer (hint: --tokenizer DIR)");
    if (tokenizer_open(&g->tokenizer, path, err) < 0)
        return g->q->tokenizer ? -1
                               : err_add(err, "the job's data.tokenizer, else --tokenizer DIR");
    if (tokenizer_vocab_size(g->tokenizer) > g->served.job.model.vocab_size)
        return err_set(err, ERR_CONFIG, "%s has %d tokens, the model %d", path,
                       tokenizer_vocab_size(g->tokenizer), g->served.job.model.vocab_size);
    return 0;
}

static int generation_open(struct generation *g, struct err *err)
{
    struct launch_rank alone = { 0, 1, 0, 1, 0 };

    if (served_open_adapted(&g->served, g->q->model, g->q->adapter, err) < 0 || open_tokenizer(g, err) < 0 ||
        engine_open(&g->engine, &alone, g->q->threads, err) < 0)
        return -1;
    g->order = calloc((size_t)g->served.job.model.vocab_size, sizeof *g->order);
    return g->order ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
}

static void generation_close(struct generation *g)
{
    decoder_destroy(g->decoder);
    engine_close(&g->engine);
    tokenizer_close(g->tokenizer);
    served_close(&g->served);
    free(g->order);
}

/* Positions that the model knows: a table's rows, or no limit but memory. */
static int check_length(const struct generation *g, int length, struct err *err)
{
    const struct model_spec *spec = &g->served.job.model;

    if (spec->position == POSITION_LEARNED && length > spec->max_seq_len)
        return err_set(err, ERR_CONFIG,
                       "prompt and --max-new-tokens come to %d positions, the model has %d", length,
                       spec->max_seq_len);
    return 0;
}

/* Show what is whole of the continuation. With several prompts it is shown at the end instead. */
static void show(struct generation *g, struct text *text, int all)
{
    struct str out = { 0 };

    tokenizer_decode(g->tokenizer, text->tokens.ids + text->n_prompt,
                     text->tokens.n - text->n_prompt, &out);
    size_t whole = all ? out.length : tokenizer_whole_length(str_text(&out), out.length);
    if (whole > text->n_shown)
        fwrite(str_text(&out) + text->n_shown, 1, whole - text->n_shown, stdout);
    text->n_shown = whole;
    fflush(stdout);
    str_release(&out);
}

static void append(struct token_list *list, int32_t id)
{
    if (list->n == list->capacity) {
        list->capacity = max_i64(64, list->capacity * 2);
        list->ids = realloc(list->ids, sizeof *list->ids * (size_t)list->capacity);
        CHECK(list->ids);
    }
    list->ids[list->n++] = id;
}

/* Draw the next token of each text that goes on; returns how many do. */
static int draw(struct generation *g, struct text *texts, int n, int64_t first, int stream)
{
    int end = tokenizer_end_of_text(g->tokenizer), n_going_on = 0;

    for (int i = 0; i < n; i++) {
        struct text *t = &texts[i];

        if (t->done)
            continue;
        int32_t id = sample_token(&g->q->sampler, decoder_logits(g->decoder, i),
                                  tokenizer_vocab_size(g->tokenizer), (uint64_t)(first + i),
                                  t->tokens.n, g->order);
        g->n_generated++;
        if (id == end) {
            t->done = 1;
            continue;
        }
        append(&t->tokens, id);
        if (stream)
            show(g, t, 0);
        t->done = t->tokens.n - t->n_prompt >= g->q->max_new_tokens;
        n_going_on += !t->done;
    }
    return n_going_on;
}

/* An empty decoder for n sequences of so many positions: the last one where it is large enough. */
static int ready_decoder(struct generation *g, int n, int length, struct err *err)
{
    if (g->decoder && n <= g->n_sequences && length <= g->length) {
        decoder_reset(g->decoder);
        return 0;
    }
    decoder_destroy(g->decoder);
    g->decoder = NULL;
    g->n_sequences = n;
    g->length = length;
    return decoder_create(&g->decoder, &g->served, g->engine.kernels, n, length, err);
}

static int continue_texts(struct generation *g, struct text *texts, int n, int64_t first,
                          int stream, struct err *err)
{
    /* Sequences of the decoder beyond n stay empty. */
    const int32_t *tokens[BATCH_MAX] = { NULL };
    int counts[BATCH_MAX] = { 0 }, longest = 0;

    for (int i = 0; i < n; i++) {
        if (tokenizer_encode(g->tokenizer, texts[i].prompt, strlen(texts[i].prompt),
                             &texts[i].tokens, err) < 0)
            return -1;
        /* An empty prompt begins where documents do. */
        if (!texts[i].tokens.n)
            append(&texts[i].tokens, max_int(0, tokenizer_end_of_text(g->tokenizer)));
        texts[i].n_prompt = texts[i].tokens.n;
        longest = max_int(longest, (int)texts[i].tokens.n);
    }
    int length = longest + g->q->max_new_tokens;
    if (check_length(g, length, err) < 0)
        return -1;
    if (ready_decoder(g, n, length, err) < 0)
        return -1;
    if (stream)
        printf("%s", texts[0].prompt);
    for (int i = 0; i < n; i++) {
        tokens[i] = texts[i].tokens.ids;
        counts[i] = (int)texts[i].tokens.n;
    }
    do {
        if (decoder_feed(g->decoder, tokens, counts, err) < 0)
            return -1;
        if (!draw(g, texts, n, first, stream))
            break;
        for (int i = 0; i < n; i++) {
            counts[i] = texts[i].done ? 0 : 1;
            tokens[i] = texts[i].tokens.ids + texts[i].tokens.n - 1;
        }
    } while (1);
    return 0;
}

static int run_one(struct generation *g, struct err *err)
{
    struct text text = { .prompt = g->q->prompt };

    int status = continue_texts(g, &text, 1, 0, 1, err);
    if (!status) {
        show(g, &text, 1);
        printf("\n");
    }
    token_list_release(&text.tokens);
    return status;
}

/* Before the first is continued. */
static int check_prompts(const char *path, const char *data, size_t n_bytes, struct err *err)
{
    const unsigned char *bytes = (const unsigned char *)data;
    long long line = 1;
    size_t begin = 0;

    for (size_t at = 0; at < n_bytes;) {
        int length = bytes[at] ? str_utf8_length(bytes + at, n_bytes - at) : 0;

        if (!length)
            return err_set(err, ERR_DATA, "%s:%lld: byte %zu (0x%02x) is no UTF-8 text", path, line,
                           at - begin, bytes[at]);
        if (bytes[at] == '\n') {
            line++;
            begin = at + 1;
        }
        at += (size_t)length;
    }
    return 0;
}

/* A line of FILE is a prompt. */
static int run_file(struct generation *g, struct err *err)
{
    char *data, *rest, *line;
    size_t n_bytes;
    struct text texts[BATCH_MAX];
    int64_t first = 0;
    int n, status = 0;

    if (file_read(g->q->prompts, (size_t)64 << 20, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    status = check_prompts(g->q->prompts, data, n_bytes, err);
    for (rest = data, n = 1; n && !status;) {
        memset(texts, 0, sizeof texts);
        for (n = 0; n < BATCH_MAX && (line = strsep(&rest, "\n"));)
            if (*line)
                texts[n++].prompt = line;
        if (n)
            status = continue_texts(g, texts, n, first, 0, err);
        for (int i = 0; i < n; i++) {
            if (!status) {
                printf("%s", texts[i].prompt);
                show(g, &texts[i], 1);
                printf("\n\n");
            }
            token_list_release(&texts[i].tokens);
        }
        first += n;
    }
    free(data);
    return status;
}

static int run(struct request *q)
{
    struct generation g = { .q = q };
    double begin = clock_seconds();
    struct err err;
    int status = 0;

    q->sampler.seed = (uint64_t)q->seed;
    if (!q->model)
        status = err_set(&err, ERR_CONFIG, "lmtrain generate: --model is missing");
    else if (!q->prompt == !q->prompts)
        status = err_set(&err, ERR_CONFIG,
                         "lmtrain generate: give one of --prompt TEXT and --prompts FILE");
    if (!status)
        status = cmd_check_model(q->model, &err);
    if (!status)
        status = generation_open(&g, &err);
    if (!status)
        status = q->prompt ? run_one(&g, &err) : run_file(&g, &err);
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = err_set(&err, ERR_FAILED, "standard output cannot be written");
    if (!status && isatty(2))
        log_info("%lld tokens in %.1f s from %s", (long long)g.n_generated, clock_seconds() - begin,
                 g.served.folder);
    generation_close(&g);
    return status < 0 ? cmd_fail(&err) : 0;
}

enum { N_OPTIONS = 11 };

static void list_options(struct request *q, struct option *out)
{
    const struct option table[N_OPTIONS] = {
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
        { .name = "prompt",
          .kind = OPTION_TEXT,
          .value = &q->prompt,
          .argument = "TEXT",
          .help = "what to continue; the text streams as it comes" },
        { .name = "prompts",
          .kind = OPTION_TEXT,
          .value = &q->prompts,
          .argument = "FILE",
          .help = "continue each line of FILE" },
        { .name = "max-new-tokens",
          .kind = OPTION_INT,
          .value = &q->max_new_tokens,
          .argument = "N",
          .min = 1,
          .max = 1000000,
          .help = "stop after N tokens (100), or earlier at the end of the text" },
        { .name = "temperature",
          .kind = OPTION_FLOAT,
          .value = &q->sampler.temperature,
          .argument = "T",
          .max = 100,
          .help = "0.8; 0 takes the most likely token" },
        { .name = "top-k",
          .kind = OPTION_INT,
          .value = &q->sampler.top_k,
          .argument = "K",
          .max = 100000000,
          .help = "draw among the K most likely (0: all)" },
        { .name = "top-p",
          .kind = OPTION_FLOAT,
          .value = &q->sampler.top_p,
          .argument = "P",
          .min = 1e-6,
          .max = 1,
          .help = "and among the fewest that have probability P together (0.95)" },
        { .name = "seed",
          .kind = OPTION_I64,
          .value = &q->seed,
          .argument = "N",
          .max = 9e15,
          .help = "of the draws (1): the same seed, the same text" },
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
    };

    memcpy(out, table, sizeof table);
}

int cmd_generate(int argc, char **argv)
{
    struct request q = { .max_new_tokens = 100,
                         .seed = 1,
                         .sampler = { .temperature = 0.8, .top_p = 0.95 } };
    struct option table[N_OPTIONS];
    const struct options options = {
        .command = "lmtrain generate",
        .arguments = "--model DIR --prompt TEXT",
        .summary = "Continue a text with a trained model",
        .details = "Exit status: 0; 2 usage; 3 model or prompts unreadable; 4 device or memory.\n",
        .table = table,
        .n_options = N_OPTIONS,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };

    list_options(&q, table);
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = run(&q);
    arena_release(&arena);
    return status;
}
