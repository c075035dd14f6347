/*
 * convert.c - lmtrain convert: between Hugging Face folders and checkpoints
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dtype_choices.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "cmd.h"
#include "convert/convert.h"
#include "serve/served.h"
#include "train/engine.h"

struct convert_request {
    const char *from, *to, *dtype, *as, *tokenizer, *weights;
    bool no_tokenizer;
    int tp, pp;
    bool verify;
    int threads, vocab_size, pad_vocab;
    double max_shard_gb;
};

/* What the progress line has shown. Each kind of work is timed from its own beginning. */
struct shown {
    char doing[32];
    double last, began;
    int64_t done_before;
};

static void show_progress(void *context, const char *doing, int64_t done, int64_t total)
{
    struct shown *shown = context;
    double now = clock_seconds();
    char is[32], all[32], left[32];

    if (strcmp(shown->doing, doing) != 0) {
        snprintf(shown->doing, sizeof shown->doing, "%s", doing);
        shown->began = now;
        shown->done_before = done;
    }
    if (done < total && now - shown->last < 0.1)
        return;
    shown->last = now;
    double seconds = now - shown->began, speed = (double)(done - shown->done_before);
    speed = seconds > 0.2 ? speed / seconds : 0;
    fprintf(stderr, "\r%s %s of %s", doing, str_bytes(is, sizeof is, (uint64_t)done),
            str_bytes(all, sizeof all, (uint64_t)total));
    if (speed > 0)
        fprintf(stderr, ", %.0f MB/s, %s left", speed * 1e-6,
                str_duration(left, sizeof left, (double)(total - done) / speed));
    fprintf(stderr, "\033[K%s", done >= total ? "\r\033[K" : "");
}

static void describe(const struct convert_request *q, const struct convert_result *r,
                     double seconds, struct str *out)
{
    char size[32], took[32];
    const char *family = *r->family ? r->family : "a checkpoint";

    str_bytes(size, sizeof size, (uint64_t)r->n_bytes);
    str_duration(took, sizeof took, seconds);
    if (r->to_checkpoint)
        str_printf(out, "%s: %d tensor%s of %s, %s, as a checkpoint of %d file%s (tp %d x pp %d)",
                   q->to, r->n_tensors, str_s(r->n_tensors), family, size, r->n_files,
                   str_s(r->n_files), q->tp ? q->tp : 1, q->pp ? q->pp : 1);
    else
        str_printf(out, "%s: %d tensor%s of %s, %s, as a Hugging Face folder of %d file%s", q->to,
                   r->n_tensors, str_s(r->n_tensors), family, size, r->n_files, str_s(r->n_files));
    str_printf(out, " in %s (%.0f MB/s)\n", took, (double)r->n_bytes * 1e-6 / seconds);
    if (r->n_found_whole)
        str_printf(out, "%d of the files %s already complete\n", r->n_found_whole,
                   r->n_found_whole == 1 ? "was" : "were");
    if (r->vocab_after > r->vocab_before)
        str_printf(out,
                   "embedding and head have %d rows, of which %d %s new (initialised with the mean "
                   "of the others)\n",
                   r->vocab_after, r->vocab_after - r->vocab_before,
                   r->vocab_after - r->vocab_before == 1 ? "is" : "are");
    if (r->n_dropped)
        str_printf(
            out,
            "%d tensor%s of optimizer state %s not copied: a Hugging Face folder cannot store %s\n",
            r->n_dropped, str_s(r->n_dropped), r->n_dropped == 1 ? "was" : "were",
            r->n_dropped == 1 ? "it" : "them");
}

static void describe_verified(const struct convert_result *r, struct str *out)
{
    str_printf(out, "verified: %d tensor%s equal, bit for bit", r->n_verified,
               r->n_verified == 1 ? " is" : "s are");
    if (r->logits == CONVERT_LOGITS_TOO_LARGE)
        str_add(out, "; logits are not compared: the model is larger than this machine's memory");
    else if (r->logits_off > 0)
        str_printf(out,
                   " but for their dtype; the logits of a prompt differ by %.2g of the largest",
                   r->logits_off);
    else
        str_add(out, ", and so are the logits of a prompt");
    str_add_char(out, '\n');
}

static int answer(const struct convert_request *q, struct str *out, struct err *err)
{
    double begin = clock_seconds();
    struct shown shown = { .doing = "" };
    int tp = q->tp ? q->tp : 1, pp = q->pp ? q->pp : 1;
    struct convert_options options = { .from = q->from,
                                       .to = q->to,
                                       .tokenizer = q->tokenizer,
                                       .no_tokenizer = q->no_tokenizer,
                                       .weights = q->weights,
                                       .tp = tp,
                                       .pp = pp,
                                       .as = CONVERT_OTHER,
                                       .dtype = cmd_dtype(q->dtype),
                                       .vocab_size = q->vocab_size,
                                       .pad_vocab = q->pad_vocab,
                                       .max_shard_bytes = (int64_t)(q->max_shard_gb * 1e9),
                                       .verify = q->verify,
                                       .progress = isatty(2) ? show_progress : NULL,
                                       .context = &shown };
    struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct convert_result result;
    struct engine engine;

    if (!q->from || !q->to)
        return err_set(err, ERR_CONFIG,
                       "lmtrain convert: --%s is missing (hint: --from MODEL --to DIR, MODEL is a "
                       "run, a checkpoint or a Hugging Face folder; DIR must not exist yet)",
                       q->from ? "to" : "from");
    if (!strcmp(q->as, "checkpoint") || q->tp || q->pp)
        options.as = CONVERT_CHECKPOINT;
    if (!strcmp(q->as, "hf"))
        options.as = CONVERT_FOLDER;
    if (q->tokenizer && q->no_tokenizer)
        return err_set(err, ERR_CONFIG,
                       "--tokenizer and --no-tokenizer are both given (hint: give one of them)");
    if (!strcmp(q->as, "hf") && (q->tp || q->pp))
        return err_set(err, ERR_CONFIG,
                       "--tp and --pp divide the files of a checkpoint, but --as is hf (hint: --as "
                       "checkpoint)");
    if (fault_init(0, 0, err) < 0)
        return -1;
    file_share(FILE_UMASK);
    if (q->verify) {
        const struct engine_request request = { q->threads, JOB_DEVICE_CPU };

        if (engine_open(&engine, &alone, &request, err) < 0)
            return -1;
        options.kernels = engine.kernels;
        options.available_bytes = engine_available_bytes(&engine);
    }
    interrupt_catch("the same command continues after the last complete file");
    /* A limit on file sizes is then an error of write. */
    signal(SIGXFSZ, SIG_IGN);
    int status = convert_model(&options, &result, err);
    if (q->verify)
        engine_close(&engine);
    if (status < 0)
        return -1;
    describe(q, &result, clock_seconds() - begin, out);
    if (q->verify)
        describe_verified(&result, out);
    return 0;
}

enum { N_OPTIONS = 14 };

static void list_options(struct convert_request *q, struct option *out)
{
    static const char *const kinds[] = { "other", "checkpoint", "hf", NULL };
    const struct option table[N_OPTIONS] = {
        option_text("from", &q->from, "DIR",
                    "model to convert: a Hugging Face folder, a checkpoint, or a run folder"),
        option_text("to", &q->to, "DIR", "output folder; must not exist yet"),
        option_choice("as", &q->as, "KIND", kinds,
                      "output format: checkpoint or hf (default: the opposite of the input's; "
                      "checkpoint if --tp or --pp is given)"),
        option_int("tp", &q->tp, "N", 1, 65536,
                   "tensor parallel size that the checkpoint's files are divided for (default: 1)"),
        option_int("pp", &q->pp, "N", 1, 65536,
                   "pipeline parallel size that the checkpoint's files are divided for (default: "
                   "1); any layout can read any checkpoint"),
        option_choice("weights", &q->weights, "WHICH", served_weights_words,
                      "which weights of a run or checkpoint become a Hugging Face folder: trained, "
                      "or ema, their moving average (train.ema) (default: trained)"),
        option_named("dtype", &q->dtype, "TYPE", dtype_conversion_choices,
                     "dtype of all tensors: keep (unchanged), fp32, bf16 or fp16 (default: keep)"),
        option_text("tokenizer", &q->tokenizer, "DIR",
                    "tokenizer folder to copy to the output (default: the model's own)"),
        option_flag("no-tokenizer", &q->no_tokenizer,
                    "copy no tokenizer; also if the job's tokenizer does not exist"),
        option_int("vocab-size", &q->vocab_size, "N", 1, 16777216,
                   "vocabulary size: resize embedding and output head to N rows (at least the "
                   "tokenizer's tokens)"),
        option_int("pad-vocab", &q->pad_vocab, "N", 1, 1 << 20,
                   "pad the vocabulary size to a multiple of N"),
        option_float(
            "max-shard-gb", &q->max_shard_gb, "GB", 1e-6, 1e6,
            "maximum size of a safetensors file in GB, for a Hugging Face folder (default: 5)"),
        option_flag("verify", &q->verify,
                    "verify the output: hash of every tensor, no NaN or infinity, and the logits "
                    "of a prompt"),
        option_int("threads", &q->threads, "N", 1, 1024,
                   "number of compute threads for --verify (default: all cores)"),
    };

    memcpy(out, table, sizeof table);
}

int cmd_convert(int argc, char **argv)
{
    struct convert_request q = { .dtype = "keep",
                                 .as = "other",
                                 .weights = served_weights_words[SERVED_TRAINED],
                                 .max_shard_gb = 5 };
    struct option table[N_OPTIONS];
    const struct options options = {
        .command = "lmtrain convert",
        .arguments = "--from DIR --to DIR",
        .summary = "Convert a model between a Hugging Face folder and a checkpoint",
        .details = "The direction follows from the input folder. Tensors are copied bit for "
                   "bit.\nAn interrupted conversion continues after the last complete file when it "
                   "is started again.\n"
                   "Exit status: 0; 1 cannot be written; 2 usage; 3 the model is unreadable.\n",
        .table = table,
        .n_options = N_OPTIONS,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err;

    list_options(&q, table);
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = answer(&q, &out, &err) < 0 ? cmd_fail(&err) : cmd_print(&out);
    str_release(&out);
    arena_release(&arena);
    return status;
}
