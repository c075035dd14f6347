/*
 * merge.c - lmtrain merge: merge a LoRA adapter into its base model
 */
#include <string.h>

#include "base/clock.h"
#include "base/dtype_choices.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "cmd.h"
#include "convert/convert.h"
#include "serve/served.h"

struct merge_request {
    const char *base, *adapter, *to, *dtype, *as;
    double max_shard_gb;
};

static int check(const struct merge_request *q, struct err *err)
{
    const char *missing = !q->base ? "base" : !q->adapter ? "adapter" : !q->to ? "to" : NULL;

    if (missing)
        return err_set(err, ERR_CONFIG,
                       "lmtrain merge: --%s is missing (hint: --base MODEL --adapter DIR --to DIR)",
                       missing);
    return adapter_is(q->adapter) || served_is(q->adapter)
               ? 0
               : err_set(err, ERR_DATA,
                         "--adapter %s is neither a folder with adapter_config.json nor a run of "
                         "lmtrain lora",
                         q->adapter);
}

static int answer(const struct merge_request *q, struct str *out, struct err *err)
{
    struct convert_options options = {
        .from = q->base,
        .to = q->to,
        .adapter = q->adapter,
        .as = strcmp(q->as, "checkpoint") ? CONVERT_FOLDER : CONVERT_CHECKPOINT,
        .tp = 1,
        .pp = 1,
        .dtype = cmd_dtype(q->dtype),
        .max_shard_bytes = (int64_t)(q->max_shard_gb * 1e9),
    };
    struct convert_result result;
    double begin = clock_seconds();
    char size[32], took[32];

    if (check(q, err) < 0)
        return -1;
    file_share(FILE_UMASK);
    interrupt_catch("the same command continues after the last complete file");
    if (convert_model(&options, &result, err) < 0)
        return -1;
    str_printf(out, "%s: %d of %d tensor%s of %s merged, %s, in %s\n", q->to, result.n_merged,
               result.n_tensors, str_s(result.n_tensors), result.family,
               str_bytes(size, sizeof size, (uint64_t)result.n_bytes),
               str_duration(took, sizeof took, clock_seconds() - begin));
    return 0;
}

int cmd_merge(int argc, char **argv)
{
    static const char *const kinds[] = { "hf", "checkpoint", NULL };
    struct merge_request q = { .dtype = "keep", .as = "hf", .max_shard_gb = 5 };
    const struct option table[] = {
        option_text("base", &q.base, "DIR",
                    "base model: a Hugging Face folder, a checkpoint or a run folder"),
        option_text("adapter", &q.adapter, "DIR",
                    "adapter: a folder with adapter_config.json and adapter_model.safetensors, or "
                    "a run folder of lmtrain lora"),
        option_text("to", &q.to, "DIR", "folder of the merged model; must not exist yet"),
        option_choice(
            "as", &q.as, "KIND", kinds,
            "format of the output: hf (a Hugging Face folder) or checkpoint (default: hf)"),
        option_named("dtype", &q.dtype, "TYPE", dtype_conversion_choices,
                     "dtype of all tensors: keep (that of the base model), fp32, bf16 or fp16 "
                     "(default: keep)"),
        option_float("max-shard-gb", &q.max_shard_gb, "GB", 0.001, 1000,
                     "maximum size of a safetensors file in GB (default: 5)"),
    };
    const struct options options = {
        .command = "lmtrain merge",
        .summary = "Merge a LoRA adapter into its base model",
        .details = "Each adapted matrix becomes W + scale B A, computed in fp32 and rounded once.\n"
                   "Exit status: 0; 1 failed; 2 usage; 3 data.\n",
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
