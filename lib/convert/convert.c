/*
 * convert.c - which way it goes
 */
#include "convert/convert.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/carried.h"
#include "convert/convert_impl.h"
#include "tokenizer/tokenizer.h"
#include "weights/model_files.h"

int64_t conversion_piece(const struct conversion *c)
{
    return c->options->piece_bytes ? c->options->piece_bytes : (int64_t)16 << 20;
}

enum dtype conversion_dtype(const struct conversion *c, enum dtype stored)
{
    return c->options->dtype >= 0 ? (enum dtype)c->options->dtype : stored;
}

enum dtype conversion_dtype_of(const struct conversion *c, struct parameter_id id,
                               enum dtype stored)
{
    if (c->options->dtype >= 0 && parameters_is_balance(id))
        return DTYPE_F32;
    return conversion_dtype(c, stored);
}

int conversion_had(const struct conversion *c, const char *word)
{
    cJSON *state = c->from.weights.store ? cJSON_Parse(store_state(c->from.weights.store)) : NULL;
    int had = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, word));

    cJSON_Delete(state);
    return had;
}

bool conversion_is_between(const struct conversion *c)
{
    return c->from.weights.store && c->options->as == CONVERT_CHECKPOINT &&
           !c->from.weights.is_merged;
}

void conversion_tell(struct conversion *c, const char *doing, int64_t n_bytes)
{
    c->done += n_bytes;
    if (c->options->progress)
        c->options->progress(c->options->context, doing, c->done, c->total);
}

/* An existing output is never replaced: it may be the only copy. */
static int check_target(const char *to, struct err *err)
{
    if (!file_exists(to) || file_is_empty_folder(to))
        return 0;
    return err_set(err, ERR_CONFIG, "--to %s exists already (hint: another name, or remove it)",
                   to);
}

/* The family of a checkpoint: of the folder it came from, else the plainest. */
static int find_family(struct conversion *c, struct err *err)
{
    const char *carried = c->from.base;

    if (c->from.weights.store)
        carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, carried);
    if (file_exists(arena_printf(&c->arena, "%s/config.json", carried)))
        c->family = hf_config_family(carried, &c->arena, err);
    else if (!(c->family = hf_config_family_of(&c->from.job.model, err)))
        err_add(err, "%s cannot become a Hugging Face folder", c->from.folder);
    if (!c->family)
        return -1;
    snprintf(c->result->family, sizeof c->result->family, "%s", c->family);
    return 0;
}

/* A model for others without its tokenizer is of no use to most. */
static int refuse_no_tokenizer(const struct conversion *c, struct err *err)
{
    const char *named = c->from.job.data.tokenizer;

    if (c->result->to_checkpoint || c->options->no_tokenizer)
        return 0;
    if (named)
        return err_set(err, ERR_DATA,
                       "%s has no tokenizer, and that of its job, %s, is not there (hint: "
                       "--tokenizer DIR, or --no-tokenizer)",
                       c->from.folder, named);
    log_warn("%s has no tokenizer, and so has %s (hint: --tokenizer DIR)", c->from.folder,
             c->options->to);
    return 0;
}

/* One that came with the model need not be of a kind that is read here. */
static int find_tokenizer(struct conversion *c, struct err *err)
{
    const struct convert_options *o = c->options;
    struct served *from = &c->from;
    struct tokenizer *tokenizer;

    if (o->no_tokenizer)
        from->job.data.tokenizer = NULL;
    if (!o->tokenizer && (!from->job.data.tokenizer || !file_exists(from->job.data.tokenizer)))
        return refuse_no_tokenizer(c, err);
    if (served_open_tokenizer(from, o->tokenizer, &tokenizer, err) < 0)
        return o->tokenizer || *from->tokenizer_hash ? -1 : 0;
    if (o->tokenizer)
        from->job.data.tokenizer = o->tokenizer;
    c->n_tokens = tokenizer_vocab_size(tokenizer);
    tokenizer_close(tokenizer);
    return 0;
}

int conversion_put_tokenizer(struct conversion *c, const char *folder, struct err *err)
{
    const char *tokenizer = c->from.job.data.tokenizer;

    if (c->options->no_tokenizer)
        return carried_remove_tokenizer(folder, err);
    /* A folder's own has come along with all else. */
    if (!tokenizer || !file_exists(tokenizer) ||
        (c->from.weights.folder && !strcmp(tokenizer, c->from.base)))
        return 0;
    return model_files_put_tokenizer(tokenizer, folder, err);
}

/* How many rows embedding and head are to have. */
static int find_vocabulary(struct conversion *c, struct err *err)
{
    const struct convert_options *o = c->options;
    struct model_spec *spec = &c->from.job.model;
    int is = spec->vocab_size, wanted = o->vocab_size ? o->vocab_size : max_int(is, c->n_tokens);

    if (wanted < is)
        return err_set(err, ERR_CONFIG,
                       "--vocab-size is %d, but %s has %d: rows are never removed, because ids "
                       "would change their meaning",
                       wanted, c->from.folder, is);
    if (o->pad_vocab)
        wanted = (int)round_up(wanted, o->pad_vocab);
    c->source = (struct vocab_source){ .weights = &c->from.weights, .rows_there = is, .rows = is };
    c->result->vocab_before = is;
    c->result->vocab_after = wanted;
    if (wanted == is)
        return 0;
    if (!o->vocab_size && !o->pad_vocab)
        log_info("%s: its tokenizer has %d tokens, but its embedding %d rows: the embedding grows "
                 "(hint: --vocab-size %d keeps it)",
                 c->from.folder, wanted, is, is);
    if (grown_vocab_grow(&c->source, spec, wanted, &c->arena, err) < 0)
        return -1;
    spec->vocab_size = wanted;
    return 0;
}

/* Between two checkpoints everything keeps its bits, or the run could not go on. */
static int check_options(const struct convert_options *o, bool to_checkpoint, struct err *err)
{
    if (to_checkpoint && (o->tokenizer || o->no_tokenizer))
        return err_set(err, ERR_CONFIG,
                       "--%stokenizer: not available from checkpoint to checkpoint (hint: convert "
                       "to a Hugging Face folder first)",
                       o->tokenizer ? "" : "no-");
    if (to_checkpoint && (o->dtype >= 0 || o->vocab_size || o->pad_vocab))
        return err_set(err, ERR_CONFIG,
                       "--%s: not available from checkpoint to checkpoint (hint: convert to a "
                       "Hugging Face folder first)",
                       o->dtype >= 0   ? "dtype"
                       : o->vocab_size ? "vocab-size"
                                       : "pad-vocab");
    return 0;
}

/* Adapters, of --adapter or of the run itself, are merged into the matrices. */
static int adapt(struct conversion *c, struct err *err)
{
    struct served *from = &c->from;
    const struct tuning *own = from->job.tuning;

    /* A run that has all in its checkpoint. */
    if (!from->weights.adapter && own && own->has_lora) {
        from->job.tuning = NULL;
        if (served_adapt(from, from->folder, err) < 0)
            return -1;
    }
    if (c->options->adapter) {
        if (served_adapt(from, c->options->adapter, err) < 0)
            return -1;
    }
    from->weights.is_merged = from->weights.adapter != NULL;
    if (from->weights.is_merged && c->options->as == CONVERT_CHECKPOINT && c->options->verify)
        return err_set(err, ERR_CONFIG,
                       "--as checkpoint: %s has adapters, which must be merged (hint: lmtrain "
                       "merge --base MODEL --adapter %s --as checkpoint)",
                       from->folder, from->folder);
    return 0;
}

/* Matrices that an adapter changes. */
static void count_merged(struct conversion *c)
{
    for (int i = 0; c->from.weights.is_merged && i < c->names.n_tensors; i++)
        c->result->n_merged +=
            adapter_changes(c->from.weights.adapter, c->names.tensors[i].whole->name);
}

/* A name without slashes at its end, or with the folder beside it still to be made. */
static const char *plain_path(struct arena *arena, const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return arena_strndup(arena, path, length);
}

static int make_parent(struct arena *arena, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');

    if (!slash || slash == path)
        return 0;
    return file_make_folders(arena_strndup(arena, path, (size_t)(slash - path)), err);
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Averages alone are no state that a run could go on from. */
static int choose_weights(struct conversion *c, bool to_checkpoint, struct err *err)
{
    const struct convert_options *o = c->options;

    if (o->weights && served_use_weights(&c->from, o->weights, err) < 0)
        return -1;
    if (c->from.weights.is_average && to_checkpoint)
        return err_set(
            err, ERR_CONFIG,
            "--weights %s: not available from checkpoint to checkpoint, which has all of "
            "them (hint: --as hf)",
            o->weights);
    return 0;
}

/* All that can be known before anything is written. */
static int prepare(struct conversion *c, struct err *err)
{
    const struct convert_options *o = c->options;

    if (!served_is(o->from))
        return hf_folder_refuse(o->from, err);
    if (is_same_folder(o->from, o->to))
        return err_set(err, ERR_CONFIG, "--from and --to are both %s", o->to);
    if (check_target(o->to, err) < 0 || served_open(&c->from, o->from, err) < 0 ||
        adapt(c, err) < 0)
        return -1;
    if (c->from.job.untied_by)
        log_warn("%s: " JOB_UNTIED, c->from.job.untied_by);
    bool is_merge = c->from.weights.is_merged;
    if (c->from.weights.folder && o->as == CONVERT_FOLDER && !is_merge)
        return err_set(err, ERR_CONFIG, "--as hf: %s is a Hugging Face folder already", o->from);
    bool is_between = conversion_is_between(c);
    c->result->to_checkpoint =
        is_merge ? o->as == CONVERT_CHECKPOINT : c->from.weights.folder || is_between;
    c->source = (struct vocab_source){ .weights = &c->from.weights };
    if (check_options(o, is_between, err) < 0 ||
        choose_weights(c, c->result->to_checkpoint, err) < 0)
        return -1;
    if (is_between)
        return make_parent(&c->arena, o->to, err);
    if (find_family(c, err) < 0 || find_tokenizer(c, err) < 0 || find_vocabulary(c, err) < 0)
        return -1;
    if (hf_names_build(&c->names, c->family, &c->from.job.model, &c->arena, err) < 0)
        return err_add(err, "%s", c->from.folder);
    count_merged(c);
    return make_parent(&c->arena, o->to, err);
}

/* From here on it exists. */
static int publish(struct conversion *c, struct err *err)
{
    const char *to = c->options->to;

    if (partial_forget(c, err) < 0)
        return -1;
    if (c->result->to_checkpoint)
        return store_publish(to, err);
    if (rename(c->partial, to) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", c->partial, to);
    return file_sync_folder(arena_printf(&c->arena, "%s/..", to), err);
}

static int convert_any(struct conversion *c, struct err *err)
{
    if (prepare(c, err) < 0)
        return -1;
    if ((c->result->to_checkpoint ? convert_to_checkpoint : convert_to_folder)(c, err) < 0)
        return -1;
    fault_at("convert:sealed", -1);
    if (c->options->verify && convert_verify(c, err) < 0)
        return -1;
    return publish(c, err);
}

int convert_model(const struct convert_options *options, struct convert_result *result,
                  struct err *err)
{
    struct conversion c = { .result = result, .options = options };
    struct convert_options plain = *options;
    struct err ignored;

    *result = (struct convert_result){ 0 };
    plain.to = plain_path(&c.arena, options->to);
    c.options = &plain;
    c.partial = store_partial(plain.to, &c.arena);
    int status = convert_any(&c, err);
    if (status < 0 && c.owns_partial)
        file_remove_tree(c.partial, &ignored);
    if (c.lock)
        close(c.lock);
    for (int i = 0; c.seen && i < c.names.n_tensors; i++)
        tensor_hashes_release(&c.seen[i]);
    served_close(&c.from);
    arena_release(&c.arena);
    return status;
}
