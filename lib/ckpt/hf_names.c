/*
 * hf_names.c - the families' tables
 */
#include "ckpt/hf_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "config/hf_family.h"

/*
 * The rows of a parameter (of one expert where the HF name has ".M.") that an HF tensor has: all
 * rows, those of one piece (config/parameters.h), or, of a fused qkv, the rows grouped by kv head:
 * its queries, its key, its value.
 */
enum row_piece { BY_GROUPS = -2, ALL = -1, QUERIES = 0, KEYS, VALUES, GATE = 0, UP };

/* Rows with parts of one of ours stand together. */
struct hf_name_row {
    enum module_id module;
    enum module_part part;
    const char *theirs; /* ".N." is the layer, ".M." the expert */
    enum row_piece piece;
    bool transposed;
};

struct hf_name_family {
    const char *name, *prefix;
    const struct hf_name_row *rows;
    int n_rows;
};

/* LLaMA's, and of those that came after it. */
#define SPLIT_BLOCK(part, kind) \
    { MODULE_QKV, part, "model.layers.N.self_attn.q_proj." kind, QUERIES, 0 }, \
        { MODULE_QKV, part, "model.layers.N.self_attn.k_proj." kind, KEYS, 0 }, \
        { MODULE_QKV, part, "model.layers.N.self_attn.v_proj." kind, VALUES, 0 }, \
        { MODULE_ATTENTION_OUT, part, "model.layers.N.self_attn.o_proj." kind, ALL, 0 }, \
        { MODULE_GATE_UP, part, "model.layers.N.mlp.gate_proj." kind, GATE, 0 }, \
        { MODULE_GATE_UP, part, "model.layers.N.mlp.up_proj." kind, UP, 0 }, \
    { \
        MODULE_DOWN, part, "model.layers.N.mlp.down_proj." kind, ALL, 0 \
    }

/* Experts, as in all families after Mixtral. */
#define LLAMA_ROWS \
    { MODULE_EMBEDDING, PART_WEIGHT, "model.embed_tokens.weight", ALL, 0 }, \
        { MODULE_ATTENTION_NORM, PART_WEIGHT, "model.layers.N.input_layernorm.weight", ALL, 0 }, \
        { MODULE_FFN_NORM, PART_WEIGHT, "model.layers.N.post_attention_layernorm.weight", ALL, \
          0 }, \
        SPLIT_BLOCK(PART_WEIGHT, "weight"), SPLIT_BLOCK(PART_BIAS, "bias"), \
        { MODULE_Q_NORM, PART_WEIGHT, "model.layers.N.self_attn.q_norm.weight", ALL, 0 }, \
        { MODULE_K_NORM, PART_WEIGHT, "model.layers.N.self_attn.k_norm.weight", ALL, 0 }, \
        { MODULE_ROUTER, PART_WEIGHT, "model.layers.N.mlp.gate.weight", ALL, 0 }, \
        { MODULE_EXPERTS_GATE_UP, PART_WEIGHT, "model.layers.N.mlp.experts.M.gate_proj.weight", \
          GATE, 0 }, \
        { MODULE_EXPERTS_GATE_UP, PART_WEIGHT, "model.layers.N.mlp.experts.M.up_proj.weight", UP, \
          0 }, \
        { MODULE_EXPERTS_DOWN, PART_WEIGHT, "model.layers.N.mlp.experts.M.down_proj.weight", ALL, \
          0 }, \
        { MODULE_FINAL_NORM, PART_WEIGHT, "model.norm.weight", ALL, 0 }, \
    { \
        MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 \
    }
#define SHARED_EXPERTS(theirs) \
    { MODULE_SHARED_GATE_UP, PART_WEIGHT, "model.layers.N.mlp." theirs ".gate_proj.weight", GATE, \
      0 }, \
        { MODULE_SHARED_GATE_UP, PART_WEIGHT, "model.layers.N.mlp." theirs ".up_proj.weight", UP, \
          0 }, \
    { \
        MODULE_SHARED_DOWN, PART_WEIGHT, "model.layers.N.mlp." theirs ".down_proj.weight", ALL, 0 \
    }

static const struct hf_name_row llama_rows[] = { LLAMA_ROWS };

static const struct hf_name_row qwen2_moe_rows[] = {
    LLAMA_ROWS,
    SHARED_EXPERTS("shared_expert"),
    { MODULE_SHARED_GATE, PART_WEIGHT, "model.layers.N.mlp.shared_expert_gate.weight", ALL, 0 },
};

/* DeepSeek's mixtures, and those of others that took them over. */
static const struct hf_name_row deepseek_rows[] = {
    LLAMA_ROWS,
    SHARED_EXPERTS("shared_experts"),
    { MODULE_ROUTER, PART_BIAS, "model.layers.N.mlp.gate.e_score_correction_bias", ALL, 0 },
};

static const struct hf_name_row mixtral_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "model.embed_tokens.weight", ALL, 0 },
    { MODULE_ATTENTION_NORM, PART_WEIGHT, "model.layers.N.input_layernorm.weight", ALL, 0 },
    { MODULE_FFN_NORM, PART_WEIGHT, "model.layers.N.post_attention_layernorm.weight", ALL, 0 },
    { MODULE_QKV, PART_WEIGHT, "model.layers.N.self_attn.q_proj.weight", QUERIES, 0 },
    { MODULE_QKV, PART_WEIGHT, "model.layers.N.self_attn.k_proj.weight", KEYS, 0 },
    { MODULE_QKV, PART_WEIGHT, "model.layers.N.self_attn.v_proj.weight", VALUES, 0 },
    { MODULE_ATTENTION_OUT, PART_WEIGHT, "model.layers.N.self_attn.o_proj.weight", ALL, 0 },
    { MODULE_ROUTER, PART_WEIGHT, "model.layers.N.block_sparse_moe.gate.weight", ALL, 0 },
    { MODULE_EXPERTS_GATE_UP, PART_WEIGHT, "model.layers.N.block_sparse_moe.experts.M.w1.weight",
      GATE, 0 },
    { MODULE_EXPERTS_GATE_UP, PART_WEIGHT, "model.layers.N.block_sparse_moe.experts.M.w3.weight",
      UP, 0 },
    { MODULE_EXPERTS_DOWN, PART_WEIGHT, "model.layers.N.block_sparse_moe.experts.M.w2.weight", ALL,
      0 },
    { MODULE_FINAL_NORM, PART_WEIGHT, "model.norm.weight", ALL, 0 },
    { MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 },
};

/* Baichuan packs q, k and v as we do. */
static const struct hf_name_row baichuan_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "model.embed_tokens.weight", ALL, 0 },
    { MODULE_ATTENTION_NORM, PART_WEIGHT, "model.layers.N.input_layernorm.weight", ALL, 0 },
    { MODULE_FFN_NORM, PART_WEIGHT, "model.layers.N.post_attention_layernorm.weight", ALL, 0 },
    { MODULE_QKV, PART_WEIGHT, "model.layers.N.self_attn.W_pack.weight", ALL, 0 },
    { MODULE_ATTENTION_OUT, PART_WEIGHT, "model.layers.N.self_attn.o_proj.weight", ALL, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "model.layers.N.mlp.gate_proj.weight", GATE, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "model.layers.N.mlp.up_proj.weight", UP, 0 },
    { MODULE_DOWN, PART_WEIGHT, "model.layers.N.mlp.down_proj.weight", ALL, 0 },
    { MODULE_FINAL_NORM, PART_WEIGHT, "model.norm.weight", ALL, 0 },
    { MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 },
};

/* InternLM2 packs them by kv head: its queries, itself, its values. */
static const struct hf_name_row internlm2_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "model.tok_embeddings.weight", ALL, 0 },
    { MODULE_ATTENTION_NORM, PART_WEIGHT, "model.layers.N.attention_norm.weight", ALL, 0 },
    { MODULE_FFN_NORM, PART_WEIGHT, "model.layers.N.ffn_norm.weight", ALL, 0 },
    { MODULE_QKV, PART_WEIGHT, "model.layers.N.attention.wqkv.weight", BY_GROUPS, 0 },
    { MODULE_QKV, PART_BIAS, "model.layers.N.attention.wqkv.bias", BY_GROUPS, 0 },
    { MODULE_ATTENTION_OUT, PART_WEIGHT, "model.layers.N.attention.wo.weight", ALL, 0 },
    { MODULE_ATTENTION_OUT, PART_BIAS, "model.layers.N.attention.wo.bias", ALL, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "model.layers.N.feed_forward.w1.weight", GATE, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "model.layers.N.feed_forward.w3.weight", UP, 0 },
    { MODULE_DOWN, PART_WEIGHT, "model.layers.N.feed_forward.w2.weight", ALL, 0 },
    { MODULE_FINAL_NORM, PART_WEIGHT, "model.norm.weight", ALL, 0 },
    { MODULE_HEAD, PART_WEIGHT, "output.weight", ALL, 0 },
};

#define GPT2_LINEAR(module, theirs) \
    { module, PART_WEIGHT, "transformer.h.N." theirs ".weight", ALL, 1 }, \
    { \
        module, PART_BIAS, "transformer.h.N." theirs ".bias", ALL, 0 \
    }
#define GPT2_NORM(module, theirs) \
    { module, PART_WEIGHT, "transformer." theirs ".weight", ALL, 0 }, \
    { \
        module, PART_BIAS, "transformer." theirs ".bias", ALL, 0 \
    }

static const struct hf_name_row gpt2_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "transformer.wte.weight", ALL, 0 },
    { MODULE_POSITION, PART_WEIGHT, "transformer.wpe.weight", ALL, 0 },
    GPT2_NORM(MODULE_ATTENTION_NORM, "h.N.ln_1"),
    GPT2_LINEAR(MODULE_QKV, "attn.c_attn"),
    GPT2_LINEAR(MODULE_ATTENTION_OUT, "attn.c_proj"),
    GPT2_NORM(MODULE_FFN_NORM, "h.N.ln_2"),
    GPT2_LINEAR(MODULE_UP, "mlp.c_fc"),
    GPT2_LINEAR(MODULE_DOWN, "mlp.c_proj"),
    GPT2_NORM(MODULE_FINAL_NORM, "ln_f"),
    { MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 },
};

/* Qwen's first generation; w2 is the half that goes through the activation. */
static const struct hf_name_row qwen_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "transformer.wte.weight", ALL, 0 },
    { MODULE_ATTENTION_NORM, PART_WEIGHT, "transformer.h.N.ln_1.weight", ALL, 0 },
    { MODULE_FFN_NORM, PART_WEIGHT, "transformer.h.N.ln_2.weight", ALL, 0 },
    { MODULE_QKV, PART_WEIGHT, "transformer.h.N.attn.c_attn.weight", ALL, 0 },
    { MODULE_QKV, PART_BIAS, "transformer.h.N.attn.c_attn.bias", ALL, 0 },
    { MODULE_ATTENTION_OUT, PART_WEIGHT, "transformer.h.N.attn.c_proj.weight", ALL, 0 },
    { MODULE_ATTENTION_OUT, PART_BIAS, "transformer.h.N.attn.c_proj.bias", ALL, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "transformer.h.N.mlp.w2.weight", GATE, 0 },
    { MODULE_GATE_UP, PART_WEIGHT, "transformer.h.N.mlp.w1.weight", UP, 0 },
    { MODULE_GATE_UP, PART_BIAS, "transformer.h.N.mlp.w2.bias", GATE, 0 },
    { MODULE_GATE_UP, PART_BIAS, "transformer.h.N.mlp.w1.bias", UP, 0 },
    { MODULE_DOWN, PART_WEIGHT, "transformer.h.N.mlp.c_proj.weight", ALL, 0 },
    { MODULE_DOWN, PART_BIAS, "transformer.h.N.mlp.c_proj.bias", ALL, 0 },
    { MODULE_FINAL_NORM, PART_WEIGHT, "transformer.ln_f.weight", ALL, 0 },
    { MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 },
};

/* The rows of q, k and v: head by head, each its three. */
#define BLOOM_LINEAR(module, theirs, piece) \
    { module, PART_WEIGHT, "transformer.h.N." theirs ".weight", piece, 0 }, \
    { \
        module, PART_BIAS, "transformer.h.N." theirs ".bias", piece, 0 \
    }

static const struct hf_name_row bloom_rows[] = {
    { MODULE_EMBEDDING, PART_WEIGHT, "transformer.word_embeddings.weight", ALL, 0 },
    GPT2_NORM(MODULE_EMBEDDING_NORM, "word_embeddings_layernorm"),
    GPT2_NORM(MODULE_ATTENTION_NORM, "h.N.input_layernorm"),
    BLOOM_LINEAR(MODULE_QKV, "self_attention.query_key_value", BY_GROUPS),
    BLOOM_LINEAR(MODULE_ATTENTION_OUT, "self_attention.dense", ALL),
    GPT2_NORM(MODULE_FFN_NORM, "h.N.post_attention_layernorm"),
    BLOOM_LINEAR(MODULE_UP, "mlp.dense_h_to_4h", ALL),
    BLOOM_LINEAR(MODULE_DOWN, "mlp.dense_4h_to_h", ALL),
    GPT2_NORM(MODULE_FINAL_NORM, "ln_f"),
    { MODULE_HEAD, PART_WEIGHT, HF_NAMES_HEAD, ALL, 0 },
};

#define ROWS(rows) rows, (int)(sizeof(rows) / sizeof *(rows))

static const struct hf_name_family families[] = {
    { "llama", "model.", ROWS(llama_rows) },
    { "gpt2", "transformer.", ROWS(gpt2_rows) },
    { "qwen2", "model.", ROWS(llama_rows) },
    { "mistral", "model.", ROWS(llama_rows) },
    { "internlm", "model.", ROWS(llama_rows) },
    { "internlm2", "model.", ROWS(internlm2_rows) },
    { "baichuan", "model.", ROWS(baichuan_rows) },
    { "qwen3", "model.", ROWS(llama_rows) },
    { "bloom", "transformer.", ROWS(bloom_rows) },
    { "qwen", "transformer.", ROWS(qwen_rows) },
    { "mixtral", "model.", ROWS(mixtral_rows) },
    { "qwen3_moe", "model.", ROWS(llama_rows) },
    { "qwen2_moe", "model.", ROWS(qwen2_moe_rows) },
    { "deepseek", "model.", ROWS(deepseek_rows) },
    { "dots1", "model.", ROWS(deepseek_rows) },
};

#define N_FAMILIES (sizeof families / sizeof *families)

/* ---- rows of ours ---- */

/* Head by head of k and v: its queries, itself, its values. */
static int groups_of(const struct model_spec *s, const struct parameter_spec *q,
                     struct hf_piece *pieces)
{
    int64_t queries = q->pieces[0] / s->n_kv_heads, head = q->pieces[1] / s->n_kv_heads;
    int64_t keys = parameters_piece_begin(q, 0, 1), values = parameters_piece_begin(q, 0, 2);
    int64_t group = queries + 2 * head;

    for (int64_t g = 0; g < s->n_kv_heads; g++) {
        *pieces++ = (struct hf_piece){ g * group, g * queries, queries };
        *pieces++ = (struct hf_piece){ g * group + queries, keys + g * head, head };
        *pieces++ = (struct hf_piece){ g * group + queries + head, values + g * head, head };
    }
    return 3 * s->n_kv_heads;
}

/* Where the row's tensor, or that expert's, is in ours. Returns how many pieces. */
static int pieces_of(const struct model_spec *s, const struct hf_name_row *row, int expert,
                     const struct parameter_spec *q, struct hf_piece *pieces)
{
    int piece = max_int(row->piece, 0);

    if (row->piece == BY_GROUPS)
        return groups_of(s, q, pieces);
    *pieces = (struct hf_piece){ 0, parameters_piece_begin(q, expert, piece), q->pieces[piece] };
    if (row->piece == ALL)
        pieces->n = q->rows / q->n_repeats;
    return 1;
}

/* ---- building ---- */

struct building {
    struct hf_names *names;
    const struct model_spec *spec;
    const struct hf_family *described;
    struct arena *arena;
    int tensor_capacity, whole_capacity;
};

/* The name with a number for a letter. */
static const char *numbered(struct arena *arena, const char *name, const char *letter, int number)
{
    const char *at = strstr(name, letter);

    if (!at)
        return arena_strdup(arena, name);
    return arena_printf(arena, "%.*s.%d.%s", (int)(at - name), name, number, at + 3);
}

/* The table's name with the layer's number for its N, the expert's for its M. */
static const char *name_at(struct arena *arena, const char *pattern, int layer, int expert)
{
    return numbered(arena, numbered(arena, pattern, ".N.", layer), ".M.", expert);
}

static struct store_slice whole_of(const struct building *b, const struct parameter_spec *q)
{
    return (struct store_slice){ .name = arena_strdup(b->arena, q->name),
                                 .dtype = DTYPE_F32,
                                 .n_dims = q->n_dims,
                                 .rows = q->rows,
                                 .cols = q->cols,
                                 .row_end = q->rows,
                                 .col_end = q->cols };
}

/* The whole made last, if it is this parameter, or another. */
static struct hf_whole *find_or_add(struct building *b, const struct parameter_spec *q)
{
    struct hf_names *names = b->names;
    struct hf_whole *last = names->n_wholes ? &names->wholes[names->n_wholes - 1] : NULL;

    if (last && parameters_index(last->id) == parameters_index(q->id))
        return last;
    names->wholes =
        arena_grow(b->arena, names->wholes, sizeof *last, &b->whole_capacity, names->n_wholes + 1);
    last = &names->wholes[names->n_wholes++];
    *last = (struct hf_whole){ .id = q->id, .whole = whole_of(b, q), .first = names->n_tensors };
    return last;
}

/* Nothing where the model, or this layer of it, has no such parameter. */
static void add(struct building *b, const struct hf_name_row *row, int layer, int expert)
{
    struct hf_names *names = b->names;
    struct parameter_spec q;

    if (!parameters_find(b->spec, parameters_id(b->spec, row->module, row->part, layer), &q))
        return;
    find_or_add(b, &q)->n++;
    struct hf_piece *pieces = arena_array(b->arena, struct hf_piece,
                                          row->piece == BY_GROUPS ? 3 * b->spec->n_kv_heads : 1);
    int n = pieces_of(b->spec, row, expert, &q, pieces);
    names->tensors = arena_grow(b->arena, names->tensors, sizeof *names->tensors,
                                &b->tensor_capacity, names->n_tensors + 1);
    names->tensors[names->n_tensors++] = (struct hf_tensor){
        .name =
            name_at(b->arena, hf_family_rename(b->described, row->theirs, b->arena), layer, expert),
        .id = q.id,
        .n_rows = pieces[n - 1].theirs + pieces[n - 1].n,
        .transposed = row->transposed,
        .layer = q.id.layer,
        .n_pieces = n,
        .pieces = pieces
    };
}

/* Of the same parameter. */
static bool is_same(const struct hf_name_row *a, const struct hf_name_row *b)
{
    return a->module == b->module && a->part == b->part;
}

/* A tensor, or one an expert. */
static void add_all(struct building *b, const struct hf_name_row *row, int layer)
{
    int n = strstr(row->theirs, ".M.") ? b->spec->n_experts : 1;

    for (int expert = 0; expert < n; expert++)
        add(b, row, layer, expert);
}

/* All parts of a layer's one, then the next layer's. */
static void add_rows(struct building *b, const struct hf_name_family *f)
{
    for (int i = 0, end; i < f->n_rows; i = end) {
        bool is_layers = parameters_is_of_layers(f->rows[i].module);

        for (end = i; end < f->n_rows && is_same(&f->rows[end], &f->rows[i]);)
            end++;
        for (int layer = 0; layer < (is_layers ? b->spec->n_layers : 1); layer++)
            for (int k = i; k < end; k++)
                add_all(b, &f->rows[k], layer);
    }
}

static int compare_wholes(const void *a, const void *b)
{
    return strcmp(((const struct hf_whole *)a)->whole.name,
                  ((const struct hf_whole *)b)->whole.name);
}

int hf_names_build(struct hf_names *names, const char *family, const struct model_spec *spec,
                   struct arena *arena, struct err *err)
{
    struct hf_family described;
    struct building b = { .names = names, .spec = spec, .described = &described, .arena = arena };
    const struct hf_name_family *f = families;

    if (hf_family_read(&described, family, arena, err) < 0)
        return -1;
    while (f < families + N_FAMILIES && strcasecmp(f->name, described.like) != 0)
        f++;
    if (f == families + N_FAMILIES)
        return err_set(err, ERR_CONFIG, "model_type %.64s: its tensor names are not known", family);
    const char *prefix =
        hf_family_rename(&described, arena_strndup(arena, f->prefix, strlen(f->prefix) - 1), arena);
    *names = (struct hf_names){ .family = described.model_type,
                                .prefix = arena_printf(arena, "%s.", prefix) };
    add_rows(&b, f);
    names->by_id = arena_array(arena, const struct hf_whole *, parameters_n_indices(spec));
    qsort(names->wholes, (size_t)names->n_wholes, sizeof *names->wholes, compare_wholes);
    for (int i = 0; i < names->n_wholes; i++) {
        const struct hf_whole *whole = &names->wholes[i];

        names->by_id[parameters_index(whole->id)] = whole;
        for (int k = 0; k < whole->n; k++)
            names->tensors[whole->first + k].whole = &whole->whole;
    }
    return 0;
}

const struct hf_whole *hf_names_find(const struct hf_names *names, const char *ours)
{
    struct hf_whole key = { .whole.name = ours };

    return bsearch(&key, names->wholes, (size_t)names->n_wholes, sizeof key, compare_wholes);
}

const struct hf_whole *hf_names_of(const struct hf_names *names, struct parameter_id id)
{
    return names->by_id[parameters_index(id)];
}

bool hf_names_is_buffer(const char *name)
{
    return str_ends_with(name, ".rotary_emb.inv_freq") || str_ends_with(name, ".attn.bias") ||
           str_ends_with(name, ".attn.masked_bias");
}
