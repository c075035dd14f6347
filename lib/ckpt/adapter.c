/*
 * adapter.c - what an adapter has, held against what the model has a place for
 */
#include "ckpt/adapter.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/adapter_impl.h"
#include "ckpt/carried.h"

bool adapter_is(const char *path)
{
    struct str name = { 0 };

    str_printf(&name, "%s/" ADAPTER_CONFIG, path);
    int is = file_exists(str_text(&name));
    str_release(&name);
    return is;
}

const struct hf_tensor *adapter_module(const struct hf_names *names, const struct model_spec *spec,
                                       int layer, enum lora_module module, int expert)
{
    struct lora_target target = lora_target_of(spec, layer, module);
    const struct hf_whole *whole =
        hf_names_of(names, parameters_id(spec, target.module, PART_WEIGHT, layer));
    int n = lora_n_pairs(spec, module);

    if (!whole || whole->n % n || (whole->n / n > 1) != (target.piece >= 0))
        return NULL;
    return &names->tensors[whole->first + (target.piece < 0 ? 0 : target.piece) * n + expert];
}

/* ---- a peft folder ---- */

struct opening {
    struct adapter *adapter;
    struct adapter_config config;
    struct lora_place *places;
    char *used; /* by the file's tensors */
};

/* The file's tensor of this name, which is then used; NULL if there is none. */
static const struct safetensors_tensor *take(struct opening *o, const char *name)
{
    const struct safetensors_index *index = &o->adapter->file->index;
    const struct safetensors_tensor *t = safetensors_find(index, name);

    if (t)
        o->used[t - index->tensors] = 1;
    return t;
}

static int check_shape(const struct opening *o, const struct safetensors_tensor *t, int64_t rows,
                       int64_t cols, struct err *err)
{
    int n_dims = cols ? 2 : 1, dtype = safetensors_type_dtype(t->type);

    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_F16)
        return err_set(err, ERR_DATA, "%s: tensor %.200s has dtype %s, which is not supported",
                       o->adapter->file->path, t->name, safetensors_type_name(t->type));
    if (t->n_dims == n_dims && t->shape[0] == rows && (n_dims == 1 || t->shape[1] == cols))
        return 0;
    return err_set(err, ERR_DATA,
                   "%s: tensor %.200s is %lld x %lld, expected %lld x %lld (hint: does it belong "
                   "to another model?)",
                   o->adapter->file->path, t->name, (long long)t->shape[0],
                   (long long)(t->n_dims > 1 ? t->shape[1] : 1), (long long)rows,
                   (long long)(cols ? cols : 1));
}

/* "base_model.model.model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight" */
static const char *module_name(const struct hf_tensor *t, struct arena *arena)
{
    const char *dot = strrchr(t->name, '.');

    return arena_printf(arena, ADAPTER_PREFIX "%.*s", (int)(dot - t->name), t->name);
}

/* alpha / r is the adapter's scale: a config of another rank is of other tensors. */
static int check_rank(const struct opening *o, const char *name, int64_t rank, struct err *err)
{
    const char *key;
    int said = adapter_config_rank(&o->config, name + strlen(ADAPTER_PREFIX), &key);

    if (!said || said == rank)
        return 0;
    return err_set(err, ERR_DATA,
                   "%s: %.200s.lora_A.weight has rank %lld, %s of " ADAPTER_CONFIG
                   " says %d (hint: do the files belong to the same adapter?)",
                   o->adapter->file->path, name, (long long)rank, key, said);
}

/* Of an expert: of all of its layer, or none. */
static int check_experts(const struct opening *o, const char *name, struct lora_place *place,
                         const struct safetensors_tensor *const *pair, int expert, struct err *err)
{
    if (!expert || (!pair[0] && !place->rank) || (pair[0] && pair[0]->shape[0] == place->rank))
        return 0;
    return err_set(err, ERR_DATA,
                   "%s: %.200s has rank %lld, the experts before it %d: experts of a layer that "
                   "differ in this are not supported",
                   o->adapter->file->path, name, pair[0] ? (long long)pair[0]->shape[0] : 0,
                   place->rank);
}

static int take_pair(struct opening *o, int layer, enum lora_module module, int expert,
                     struct err *err)
{
    struct adapter *a = o->adapter;
    const struct hf_tensor *theirs = adapter_module(&a->names, &a->spec, layer, module, expert);
    struct lora_place *place = &o->places[layer * N_LORA_MODULES + (int)module];

    if (!theirs)
        return 0;
    const char *name = module_name(theirs, &a->arena);
    const struct safetensors_tensor **pair = a->pairs[adapter_pair(a, layer, module, expert)];
    pair[0] = take(o, arena_printf(&a->arena, "%s.lora_A.weight", name));
    pair[1] = take(o, arena_printf(&a->arena, "%s.lora_B.weight", name));
    if (!pair[0] && !pair[1])
        return check_experts(o, name, place, pair, expert, err);
    if (!pair[0] || !pair[1])
        return err_set(err, ERR_DATA, "%s: %.200s has only one of lora_A and lora_B", a->file->path,
                       name);
    int64_t rank = pair[0]->shape[0];
    if (rank < 1 || rank > 65536)
        return err_set(err, ERR_DATA, "%s: %.200s: rank %lld is not in 1..65536", a->file->path,
                       name, (long long)rank);
    if (check_experts(o, name, place, pair, expert, err) < 0 ||
        check_rank(o, name, rank, err) < 0 ||
        check_shape(o, pair[0], rank, theirs->whole->cols, err) < 0 ||
        check_shape(o, pair[1], theirs->n_rows, rank, err) < 0)
        return -1;
    double alpha = adapter_config_alpha(&o->config, name + strlen(ADAPTER_PREFIX));
    struct lora_place found = { (int)rank, lora_scale(alpha, (int)rank, o->config.rslora) };
    if (expert && found.scale != place->scale)
        return err_set(err, ERR_DATA,
                       "%s: %.200s has another alpha than the experts before it: that is not "
                       "supported",
                       a->file->path, name);
    *place = found;
    return 0;
}

static int take_pairs(struct opening *o, struct err *err)
{
    const struct model_spec *s = &o->adapter->spec;

    for (int i = 0; i < s->n_layers * N_LORA_MODULES; i++) {
        enum lora_module module = (enum lora_module)(i % N_LORA_MODULES);

        for (int expert = 0; expert < lora_n_pairs(s, module); expert++)
            if (take_pair(o, i / N_LORA_MODULES, module, expert, err) < 0)
                return -1;
    }
    return 0;
}

/* A module that was trained whole, or a bias. */
static int take_replacement(struct opening *o, int i, struct err *err)
{
    struct adapter *a = o->adapter;
    const struct hf_tensor *theirs = &a->names.tensors[i];
    const char *name = arena_printf(&a->arena, ADAPTER_PREFIX "%s", theirs->name);
    const char *dot = strrchr(name, '.');
    const struct safetensors_tensor *t = take(o, name);

    /* Of an adapted module. */
    if (!t)
        t = take(o, arena_printf(&a->arena, "%.*s.base_layer%s", (int)(dot - name), name, dot));
    a->replacements[i] = t;
    if (!t)
        return 0;
    if (theirs->transposed)
        return err_set(err, ERR_DATA,
                       "%s: %.200s is a full matrix of a layer, which is not supported",
                       a->file->path, t->name);
    return check_shape(o, t, theirs->n_rows, theirs->whole->n_dims == 1 ? 0 : theirs->whole->cols,
                       err);
}

/* A head and an embedding that are one here must be the same there. */
static int take_tied_head(struct opening *o, struct err *err)
{
    struct adapter *a = o->adapter;
    const struct hf_whole *embedding = hf_names_of(
        &a->names, parameters_id(&a->spec, MODULE_EMBEDDING, PART_WEIGHT, LAYER_BEFORE));
    const struct safetensors_tensor *head = take(o, ADAPTER_PREFIX HF_NAMES_HEAD);
    const struct safetensors_tensor *table = embedding ? a->replacements[embedding->first] : NULL;

    if (!a->spec.tied_embeddings || (!head && !table))
        return 0;
    if (!head || !table)
        return err_set(err, ERR_DATA,
                       "%s has %s alone, but the model's head and embedding are tied: untying them "
                       "is not supported",
                       a->file->path, head ? "a head" : "an embedding");
    if (check_shape(o, head, table->shape[0], table->shape[1], err) < 0)
        return -1;
    return head->type == table->type
               ? 0
               : err_set(err, ERR_DATA, "%s: head and embedding have different dtypes",
                         a->file->path);
}

/* Whether the file's tensor is LoRA's of this module of ours, which is none of a layer's. */
static bool is_lora_of(const struct adapter *a, const char *tensor, enum module_id module)
{
    const struct hf_whole *whole =
        hf_names_of(&a->names, parameters_id(&a->spec, module, PART_WEIGHT, LAYER_BEFORE));
    const char *theirs = whole ? a->names.tensors[whole->first].name : NULL;
    size_t n = theirs ? (size_t)(strrchr(theirs, '.') - theirs) : 0;

    return theirs && !strncmp(tensor, ADAPTER_PREFIX, strlen(ADAPTER_PREFIX)) &&
           !strncmp(tensor + strlen(ADAPTER_PREFIX), theirs, n) &&
           !strncmp(tensor + strlen(ADAPTER_PREFIX) + n, ".lora_", 6);
}

/* What of peft a tensor is of that lmtrain does not have; NULL if it is of nothing that is
 * known. */
static const char *unsupported(const struct adapter *a, const char *tensor)
{
    if (strstr(tensor, "lora_magnitude_vector"))
        return "DoRA";
    if (strstr(tensor, "trainable_tokens"))
        return "training some rows of the embedding";
    if (is_lora_of(a, tensor, MODULE_EMBEDDING))
        return "LoRA of the embedding";
    if (strstr(tensor, ".experts.lora_") || strstr(tensor, ".experts.base_layer.lora_"))
        return "LoRA of experts in one tensor (it is read where each has its own)";
    /* A tied head is none of ours. */
    return is_lora_of(a, tensor, MODULE_HEAD) || strstr(tensor, "lm_head.lora_")
               ? "LoRA of the head"
               : NULL;
}

static int check_supported(const struct adapter *a, struct err *err)
{
    const struct safetensors_index *index = &a->file->index;

    for (int i = 0; i < index->n_tensors; i++) {
        const char *name = index->tensors[i].name, *what = unsupported(a, name);

        if (what)
            return err_set(err, ERR_DATA,
                           "%s: tensor %.200s: lmtrain does not support %s (hint: train the module "
                           "in full with modules_to_save; or " ADAPTER_MERGE_HINT ")",
                           a->file->path, name, what);
    }
    return 0;
}

static int check_used(const struct opening *o, struct err *err)
{
    const struct safetensors_index *index = &o->adapter->file->index;

    for (int i = 0; i < index->n_tensors; i++)
        if (!o->used[i])
            return err_set(err, ERR_DATA,
                           "%s: tensor %.200s does not belong to an adapter of this model (hint: "
                           "does it belong to another model?)",
                           o->adapter->file->path, index->tensors[i].name);
    return index->n_tensors ? 0
                            : err_set(err, ERR_DATA, "%s has no tensors", o->adapter->file->path);
}

#define VOCAB_MAX (1 << 24)

/* Tokens that were added are rows of whole tables that are longer than the model's. */
static int grow(struct adapter *a, struct err *err)
{
    static const enum module_id tables[2] = { MODULE_EMBEDDING, MODULE_HEAD };
    int64_t rows[2] = { 0, 0 };

    for (int i = 0; i < 2 - !!a->spec.tied_embeddings; i++) {
        const struct hf_whole *whole =
            hf_names_of(&a->names, parameters_id(&a->spec, tables[i], PART_WEIGHT, LAYER_BEFORE));
        const struct safetensors_tensor *t =
            whole ? safetensors_find(&a->file->index,
                                     arena_printf(&a->arena, ADAPTER_PREFIX "%s",
                                                  a->names.tensors[whole->first].name))
                  : NULL;

        rows[i] = t ? t->shape[0] : 0;
    }
    if (a->spec.tied_embeddings)
        rows[1] = rows[0];
    if (rows[0] <= a->spec.vocab_size || rows[0] != rows[1] || rows[0] > VOCAB_MAX)
        return 0; /* of another shape: the tensor's check says so */
    a->spec.vocab_size = (int)rows[0];
    return hf_names_build(&a->names, a->names.family, &a->spec, &a->arena, err);
}

static int open_tensors(struct adapter *a, struct err *err)
{
    const char *path = arena_printf(&a->arena, "%s/" ADAPTER_TENSORS, a->path);

    if (!file_exists(path) && file_exists(arena_printf(&a->arena, "%s/" ADAPTER_PICKLE, a->path)))
        return err_set(err, ERR_DATA,
                       "%s/" ADAPTER_PICKLE " is a pickle, which can run code when it is read: "
                       "lmtrain never does (hint: save it as safetensors, in Python: PeftModel"
                       ".from_pretrained(model, \"%s\").save_pretrained(\"%s-safetensors\"))",
                       a->path, a->path, a->path);
    return safetensors_open(&a->file, path, err);
}

static int open_peft(struct adapter *a, struct err *err)
{
    struct opening o = { .adapter = a };
    int n_places = a->spec.n_layers * N_LORA_MODULES;

    if (adapter_config_read(&o.config, a->path, &a->arena, err) < 0 || open_tensors(a, err) < 0 ||
        check_supported(a, err) < 0 || grow(a, err) < 0)
        return -1;
    if (carried_has_tokenizer(a->path))
        a->tokenizer = a->path;
    o.places = arena_array(&a->arena, struct lora_place, n_places);
    o.used = arena_array(&a->arena, char, a->file->index.n_tensors + 1);
    a->pairs =
        (void *)arena_array(&a->arena, const struct safetensors_tensor *,
                            2 * adapter_pair(a, a->spec.n_layers, (enum lora_module)0, 0) + 1);
    a->replacements =
        arena_array(&a->arena, const struct safetensors_tensor *, a->names.n_tensors + 1);
    if (take_pairs(&o, err) < 0)
        return -1;
    for (int i = 0; i < a->names.n_tensors; i++)
        if (take_replacement(&o, i, err) < 0)
            return -1;
    if (take_tied_head(&o, err) < 0 || check_used(&o, err) < 0)
        return -1;
    a->tuning = (struct tuning){ .has_lora = 1, .places = o.places, .n_layers = a->spec.n_layers };
    return 0;
}

/* ---- a checkpoint ---- */

static int open_checkpoint(struct adapter *a, struct err *err)
{
    struct job *job = arena_new(&a->arena, struct job);

    if (!file_is_folder(a->path))
        return err_set(
            err, ERR_DATA,
            "--adapter %s is neither a folder with " ADAPTER_CONFIG " nor a run of lmtrain lora%s",
            a->path, file_exists(a->path) ? " (hint: the folder, not a file in it)" : "");
    const char *newest = store_newest(a->path, &a->arena, err);
    if (!newest || store_open(&a->store, newest, err) < 0)
        return -1;
    cJSON *state = cJSON_Parse(store_state(a->store));
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(state, "job");
    int status = cJSON_IsString(text)
                     ? job_read_model(job, text->valuestring, strlen(text->valuestring), newest,
                                      NULL, 0, &a->arena, err)
                     : err_set(err, ERR_DATA, "%s does not contain its job", newest);
    cJSON_Delete(state);
    if (status < 0)
        return -1;
    if (!job->lora.rank)
        return err_set(err, ERR_DATA, "%s belongs to a job without lora: it is not an adapter",
                       newest);
    if (job->model.n_layers != a->spec.n_layers || job->model.hidden_size != a->spec.hidden_size)
        return err_set(err, ERR_DATA, "%s is an adapter of another model", newest);
    if (job->model.vocab_size > a->spec.vocab_size) {
        a->spec.vocab_size = job->model.vocab_size;
        if (hf_names_build(&a->names, a->names.family, &a->spec, &a->arena, err) < 0)
            return -1;
    }
    a->tuning = *job->tuning;
    const char *own = arena_printf(&a->arena, "%s/" STORE_CARRIED, newest);
    a->tokenizer = carried_has_tokenizer(own) ? own : job->data.tokenizer;
    return 0;
}

int adapter_open(struct adapter **out, const char *path, const char *family,
                 const struct model_spec *spec, struct err *err)
{
    struct adapter *a = calloc(1, sizeof *a);

    if (!a)
        return err_set(err, ERR_DEVICE, "out of host memory");
    a->spec = *spec;
    a->path = arena_strdup(&a->arena, path);
    int status = hf_names_build(&a->names, family, spec, &a->arena, err);
    if (!status)
        status = adapter_is(path) ? open_peft(a, err) : open_checkpoint(a, err);
    if (status < 0) {
        adapter_close(a);
        return -1;
    }
    *out = a;
    return 0;
}

void adapter_close(struct adapter *a)
{
    if (!a)
        return;
    if (a->store)
        store_close(a->store);
    if (a->file)
        safetensors_close(a->file);
    arena_release(&a->arena);
    free(a);
}

const struct tuning *adapter_tuning(const struct adapter *a)
{
    return &a->tuning;
}

const char *adapter_tokenizer(const struct adapter *a)
{
    return a->tokenizer;
}

int adapter_vocab_size(const struct adapter *a)
{
    return a->spec.vocab_size;
}
