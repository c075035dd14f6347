/*
 * hf_names.c - the families' tables
 */
#include "ckpt/hf_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "config/hf_family.h"

/* Which rows of ours a row's tensor has. */
enum part { ALL, QUERIES, KEYS, VALUES, GATE, UP, BY_GROUPS, AN_EXPERT, EXPERT_GATE, EXPERT_UP };

/* Rows with parts of one of ours stand together. */
struct row {
    const char *ours, *theirs; /* ".N." is the layer, ".M." the expert */
    enum part part;
    int transposed;
};

struct family {
    const char *name, *prefix;
    const struct row *rows;
    int n_rows;
};

/* LLaMA's, and of those that came after it. */
#define SPLIT_BLOCK(kind) \
    { "layers.N.qkv." kind, "model.layers.N.self_attn.q_proj." kind, QUERIES, 0 }, \
        { "layers.N.qkv." kind, "model.layers.N.self_attn.k_proj." kind, KEYS, 0 }, \
        { "layers.N.qkv." kind, "model.layers.N.self_attn.v_proj." kind, VALUES, 0 }, \
        { "layers.N.attention_out." kind, "model.layers.N.self_attn.o_proj." kind, ALL, 0 }, \
        { "layers.N.gate_up." kind, "model.layers.N.mlp.gate_proj." kind, GATE, 0 }, \
        { "layers.N.gate_up." kind, "model.layers.N.mlp.up_proj." kind, UP, 0 }, \
    { \
        "layers.N.down." kind, "model.layers.N.mlp.down_proj." kind, ALL, 0 \
    }

static const struct row llama_rows[] = {
    { "embedding.weight", "model.embed_tokens.weight", ALL, 0 },
    { "layers.N.attention_norm.weight", "model.layers.N.input_layernorm.weight", ALL, 0 },
    { "layers.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight", ALL, 0 },
    SPLIT_BLOCK("weight"),
    SPLIT_BLOCK("bias"),
    { "layers.N.q_norm.weight", "model.layers.N.self_attn.q_norm.weight", ALL, 0 },
    { "layers.N.k_norm.weight", "model.layers.N.self_attn.k_norm.weight", ALL, 0 },
    { "layers.N.router.weight", "model.layers.N.mlp.gate.weight", ALL, 0 },
    { "layers.N.experts.gate_up.weight", "model.layers.N.mlp.experts.M.gate_proj.weight",
      EXPERT_GATE, 0 },
    { "layers.N.experts.gate_up.weight", "model.layers.N.mlp.experts.M.up_proj.weight", EXPERT_UP,
      0 },
    { "layers.N.experts.down.weight", "model.layers.N.mlp.experts.M.down_proj.weight", AN_EXPERT,
      0 },
    { "final_norm.weight", "model.norm.weight", ALL, 0 },
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

static const struct row mixtral_rows[] = {
    { "embedding.weight", "model.embed_tokens.weight", ALL, 0 },
    { "layers.N.attention_norm.weight", "model.layers.N.input_layernorm.weight", ALL, 0 },
    { "layers.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight", ALL, 0 },
    { "layers.N.qkv.weight", "model.layers.N.self_attn.q_proj.weight", QUERIES, 0 },
    { "layers.N.qkv.weight", "model.layers.N.self_attn.k_proj.weight", KEYS, 0 },
    { "layers.N.qkv.weight", "model.layers.N.self_attn.v_proj.weight", VALUES, 0 },
    { "layers.N.attention_out.weight", "model.layers.N.self_attn.o_proj.weight", ALL, 0 },
    { "layers.N.router.weight", "model.layers.N.block_sparse_moe.gate.weight", ALL, 0 },
    { "layers.N.experts.gate_up.weight", "model.layers.N.block_sparse_moe.experts.M.w1.weight",
      EXPERT_GATE, 0 },
    { "layers.N.experts.gate_up.weight", "model.layers.N.block_sparse_moe.experts.M.w3.weight",
      EXPERT_UP, 0 },
    { "layers.N.experts.down.weight", "model.layers.N.block_sparse_moe.experts.M.w2.weight",
      AN_EXPERT, 0 },
    { "final_norm.weight", "model.norm.weight", ALL, 0 },
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

/* Baichuan packs q, k and v as we do. */
static const struct row baichuan_rows[] = {
    { "embedding.weight", "model.embed_tokens.weight", ALL, 0 },
    { "layers.N.attention_norm.weight", "model.layers.N.input_layernorm.weight", ALL, 0 },
    { "layers.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight", ALL, 0 },
    { "layers.N.qkv.weight", "model.layers.N.self_attn.W_pack.weight", ALL, 0 },
    { "layers.N.attention_out.weight", "model.layers.N.self_attn.o_proj.weight", ALL, 0 },
    { "layers.N.gate_up.weight", "model.layers.N.mlp.gate_proj.weight", GATE, 0 },
    { "layers.N.gate_up.weight", "model.layers.N.mlp.up_proj.weight", UP, 0 },
    { "layers.N.down.weight", "model.layers.N.mlp.down_proj.weight", ALL, 0 },
    { "final_norm.weight", "model.norm.weight", ALL, 0 },
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

/* InternLM2 packs them by kv head: its queries, itself, its values. */
static const struct row internlm2_rows[] = {
    { "embedding.weight", "model.tok_embeddings.weight", ALL, 0 },
    { "layers.N.attention_norm.weight", "model.layers.N.attention_norm.weight", ALL, 0 },
    { "layers.N.ffn_norm.weight", "model.layers.N.ffn_norm.weight", ALL, 0 },
    { "layers.N.qkv.weight", "model.layers.N.attention.wqkv.weight", BY_GROUPS, 0 },
    { "layers.N.qkv.bias", "model.layers.N.attention.wqkv.bias", BY_GROUPS, 0 },
    { "layers.N.attention_out.weight", "model.layers.N.attention.wo.weight", ALL, 0 },
    { "layers.N.attention_out.bias", "model.layers.N.attention.wo.bias", ALL, 0 },
    { "layers.N.gate_up.weight", "model.layers.N.feed_forward.w1.weight", GATE, 0 },
    { "layers.N.gate_up.weight", "model.layers.N.feed_forward.w3.weight", UP, 0 },
    { "layers.N.down.weight", "model.layers.N.feed_forward.w2.weight", ALL, 0 },
    { "final_norm.weight", "model.norm.weight", ALL, 0 },
    { "head.weight", "output.weight", ALL, 0 },
};

#define GPT2_LINEAR(ours, theirs) \
    { "layers.N." ours ".weight", "transformer.h.N." theirs ".weight", ALL, 1 }, \
    { \
        "layers.N." ours ".bias", "transformer.h.N." theirs ".bias", ALL, 0 \
    }
#define GPT2_NORM(ours, theirs) \
    { ours ".weight", "transformer." theirs ".weight", ALL, 0 }, \
    { \
        ours ".bias", "transformer." theirs ".bias", ALL, 0 \
    }

static const struct row gpt2_rows[] = {
    { "embedding.weight", "transformer.wte.weight", ALL, 0 },
    { "position.weight", "transformer.wpe.weight", ALL, 0 },
    GPT2_NORM("layers.N.attention_norm", "h.N.ln_1"),
    GPT2_LINEAR("qkv", "attn.c_attn"),
    GPT2_LINEAR("attention_out", "attn.c_proj"),
    GPT2_NORM("layers.N.ffn_norm", "h.N.ln_2"),
    GPT2_LINEAR("up", "mlp.c_fc"),
    GPT2_LINEAR("down", "mlp.c_proj"),
    GPT2_NORM("final_norm", "ln_f"),
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

/* Qwen's first generation; w2 is the half that goes through the activation. */
static const struct row qwen_rows[] = {
    { "embedding.weight", "transformer.wte.weight", ALL, 0 },
    { "layers.N.attention_norm.weight", "transformer.h.N.ln_1.weight", ALL, 0 },
    { "layers.N.ffn_norm.weight", "transformer.h.N.ln_2.weight", ALL, 0 },
    { "layers.N.qkv.weight", "transformer.h.N.attn.c_attn.weight", ALL, 0 },
    { "layers.N.qkv.bias", "transformer.h.N.attn.c_attn.bias", ALL, 0 },
    { "layers.N.attention_out.weight", "transformer.h.N.attn.c_proj.weight", ALL, 0 },
    { "layers.N.attention_out.bias", "transformer.h.N.attn.c_proj.bias", ALL, 0 },
    { "layers.N.gate_up.weight", "transformer.h.N.mlp.w2.weight", GATE, 0 },
    { "layers.N.gate_up.weight", "transformer.h.N.mlp.w1.weight", UP, 0 },
    { "layers.N.gate_up.bias", "transformer.h.N.mlp.w2.bias", GATE, 0 },
    { "layers.N.gate_up.bias", "transformer.h.N.mlp.w1.bias", UP, 0 },
    { "layers.N.down.weight", "transformer.h.N.mlp.c_proj.weight", ALL, 0 },
    { "layers.N.down.bias", "transformer.h.N.mlp.c_proj.bias", ALL, 0 },
    { "final_norm.weight", "transformer.ln_f.weight", ALL, 0 },
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

/* The rows of q, k and v: head by head, each its three. */
#define BLOOM_LINEAR(ours, theirs, part) \
    { "layers.N." ours ".weight", "transformer.h.N." theirs ".weight", part, 0 }, \
    { \
        "layers.N." ours ".bias", "transformer.h.N." theirs ".bias", part, 0 \
    }

static const struct row bloom_rows[] = {
    { "embedding.weight", "transformer.word_embeddings.weight", ALL, 0 },
    GPT2_NORM("embedding_norm", "word_embeddings_layernorm"),
    GPT2_NORM("layers.N.attention_norm", "h.N.input_layernorm"),
    BLOOM_LINEAR("qkv", "self_attention.query_key_value", BY_GROUPS),
    BLOOM_LINEAR("attention_out", "self_attention.dense", ALL),
    GPT2_NORM("layers.N.ffn_norm", "h.N.post_attention_layernorm"),
    BLOOM_LINEAR("up", "mlp.dense_h_to_4h", ALL),
    BLOOM_LINEAR("down", "mlp.dense_4h_to_h", ALL),
    GPT2_NORM("final_norm", "ln_f"),
    { "head.weight", HF_NAMES_HEAD, ALL, 0 },
};

#define ROWS(rows) rows, (int)(sizeof(rows) / sizeof *(rows))

static const struct family families[] = {
    { "llama", "model.", ROWS(llama_rows) },       { "gpt2", "transformer.", ROWS(gpt2_rows) },
    { "qwen2", "model.", ROWS(llama_rows) },       { "mistral", "model.", ROWS(llama_rows) },
    { "internlm", "model.", ROWS(llama_rows) },    { "internlm2", "model.", ROWS(internlm2_rows) },
    { "baichuan", "model.", ROWS(baichuan_rows) }, { "qwen3", "model.", ROWS(llama_rows) },
    { "bloom", "transformer.", ROWS(bloom_rows) }, { "qwen", "transformer.", ROWS(qwen_rows) },
    { "mixtral", "model.", ROWS(mixtral_rows) },   { "qwen3_moe", "model.", ROWS(llama_rows) },
};

#define N_FAMILIES (sizeof families / sizeof *families)

/* ---- shapes of ours ---- */

struct widths {
    int64_t attention, kv, ffn, expert;
};

static struct widths widths_of(const struct model_spec *s)
{
    return (struct widths){ (int64_t)s->n_heads * s->head_dim, (int64_t)s->n_kv_heads * s->head_dim,
                            s->ffn_size, s->expert_ffn_size };
}

/* Likewise of what a layer with experts has, or has not. */
static int64_t shape_of_experts(const struct model_spec *s, const char *name, int64_t *cols)
{
    if (!strcmp(name, "router"))
        return s->n_experts;
    if (!strcmp(name, "experts.gate_up"))
        return 2 * (int64_t)s->n_experts * s->expert_ffn_size;
    if (strcmp(name, "experts.down") != 0)
        return 0;
    *cols = s->expert_ffn_size;
    return (int64_t)s->n_experts * s->hidden_size;
}

static int is_of_experts(const char *name)
{
    return !strcmp(name, "router") || !strncmp(name, "experts.", 8);
}

/* Outputs and inputs of one of ours by its name without layer and kind; 0 if the model, or this
 * layer of it, lacks it. */
static int64_t shape_of(const struct model_spec *s, const char *name, int layer, int64_t *cols)
{
    struct widths w = widths_of(s);
    int gated = s->activation == ACTIVATION_SWIGLU;
    int has_experts = model_spec_has_experts(s, layer);
    int is_ffn = !strcmp(name, "gate_up") || !strcmp(name, "up") || !strcmp(name, "down");

    *cols = s->hidden_size;
    if (is_of_experts(name))
        return has_experts ? shape_of_experts(s, name, cols) : 0;
    if (is_ffn && has_experts)
        return 0;
    if (!strcmp(name, "embedding"))
        return s->vocab_size;
    if (!strcmp(name, "head"))
        return s->tied_embeddings ? 0 : s->vocab_size;
    if (!strcmp(name, "position"))
        return s->position == POSITION_LEARNED ? s->max_seq_len : 0;
    if (!strcmp(name, "qkv"))
        return w.attention + 2 * w.kv;
    if (!strcmp(name, "q_norm") || !strcmp(name, "k_norm")) {
        *cols = 1;
        return s->qk_norm ? s->head_dim : 0;
    }
    if (!strcmp(name, "embedding_norm")) {
        *cols = 1;
        return s->embedding_norm ? s->hidden_size : 0;
    }
    if (!strcmp(name, "gate_up"))
        return gated ? 2 * w.ffn : 0;
    if (!strcmp(name, "up"))
        return gated ? 0 : w.ffn;
    if (!strcmp(name, "attention_out"))
        *cols = w.attention;
    else if (!strcmp(name, "down"))
        *cols = w.ffn;
    else
        *cols = 1; /* a norm */
    return s->hidden_size;
}

static int has_bias(const struct model_spec *s, const char *name, int is_norm)
{
    if (!strcmp(name, "qkv"))
        return model_spec_has_qkv_bias(s);
    if (!strcmp(name, "attention_out"))
        return model_spec_has_output_bias(s);
    return s->bias && (!is_norm || s->norm == NORM_LAYER);
}

/* Fill the whole tensor of a table's name; 0 if the model has none. */
static int describe(const struct model_spec *s, const char *ours, int layer,
                    struct store_slice *whole)
{
    char name[64];
    const char *begin = strncmp(ours, "layers.N.", 9) ? ours : ours + 9;
    const char *dot = strrchr(begin, '.');
    int is_bias = !strcmp(dot, ".bias");
    int64_t cols;

    CHECK((size_t)(dot - begin) < sizeof name);
    memcpy(name, begin, (size_t)(dot - begin));
    name[dot - begin] = '\0';
    int64_t rows = shape_of(s, name, layer, &cols);
    int is_norm = cols == 1;
    if (!rows || (is_bias && !has_bias(s, name, is_norm)))
        return 0;
    cols = is_bias ? 1 : cols;
    *whole = (struct store_slice){ .dtype = DTYPE_F32,
                                   .n_dims = is_bias || is_norm ? 1 : 2,
                                   .rows = rows,
                                   .cols = cols,
                                   .row_end = rows,
                                   .col_end = cols };
    return 1;
}

/* Where a part's rows are, of that expert where it is of one; returns how many pieces. */
static int pieces_of(const struct model_spec *s, enum part part, int expert, int64_t rows,
                     struct hf_piece *pieces)
{
    struct widths w = widths_of(s);
    int64_t head = s->head_dim, queries = w.attention / s->n_kv_heads, group = queries + 2 * head;
    const struct hf_piece plain[] = {
        [ALL] = { 0, 0, rows },
        [QUERIES] = { 0, 0, w.attention },
        [KEYS] = { 0, w.attention, w.kv },
        [VALUES] = { 0, w.attention + w.kv, w.kv },
        [GATE] = { 0, 0, w.ffn },
        [UP] = { 0, w.ffn, w.ffn },
        [AN_EXPERT] = { 0, expert * (int64_t)s->hidden_size, s->hidden_size },
        [EXPERT_GATE] = { 0, 2 * expert * w.expert, w.expert },
        [EXPERT_UP] = { 0, (2 * expert + 1) * w.expert, w.expert },
    };

    if (part != BY_GROUPS) {
        pieces[0] = plain[part];
        return 1;
    }
    for (int64_t g = 0; g < s->n_kv_heads; g++) {
        *pieces++ = (struct hf_piece){ g * group, g * queries, queries };
        *pieces++ = (struct hf_piece){ g * group + queries, w.attention + g * head, head };
        *pieces++ =
            (struct hf_piece){ g * group + queries + head, w.attention + w.kv + g * head, head };
    }
    return 3 * s->n_kv_heads;
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

/* The tensor at hand goes to the whole made last, or begins another. */
static void add(struct building *b, const struct row *row, int layer, int expert)
{
    struct hf_names *names = b->names;
    struct hf_piece *pieces;
    struct hf_whole whole = { .first = names->n_tensors };

    if (!describe(b->spec, row->ours, layer, &whole.whole))
        return;
    whole.whole.name = name_at(b->arena, row->ours, layer, expert);
    if (!names->n_wholes ||
        strcmp(names->wholes[names->n_wholes - 1].whole.name, whole.whole.name) != 0) {
        names->wholes = arena_grow(b->arena, names->wholes, sizeof whole, &b->whole_capacity,
                                   names->n_wholes + 1);
        names->wholes[names->n_wholes++] = whole;
    }
    names->wholes[names->n_wholes - 1].n++;
    pieces = arena_array(b->arena, struct hf_piece,
                         row->part == BY_GROUPS ? 3 * b->spec->n_kv_heads : 1);
    int n = pieces_of(b->spec, row->part, expert, whole.whole.rows, pieces);
    names->tensors = arena_grow(b->arena, names->tensors, sizeof *names->tensors,
                                &b->tensor_capacity, names->n_tensors + 1);
    names->tensors[names->n_tensors++] = (struct hf_tensor){
        .name =
            name_at(b->arena, hf_family_rename(b->described, row->theirs, b->arena), layer, expert),
        .n_rows = pieces[n - 1].theirs + pieces[n - 1].n,
        .transposed = row->transposed,
        .layer = layer,
        .n_pieces = n,
        .pieces = pieces
    };
}

/* A tensor, or one an expert. */
static void add_all(struct building *b, const struct row *row, int layer)
{
    int n = strstr(row->theirs, ".M.") ? b->spec->n_experts : 1;

    for (int expert = 0; expert < n; expert++)
        add(b, row, layer, expert);
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
    const struct family *f = families;
    int behind = -1;

    if (hf_family_read(&described, family, arena, err) < 0)
        return -1;
    while (f < families + N_FAMILIES && strcasecmp(f->name, described.like) != 0)
        f++;
    if (f == families + N_FAMILIES)
        return err_set(err, ERR_CONFIG, "model_type %.64s: its tensors' names are not known",
                       family);
    const char *prefix =
        hf_family_rename(&described, arena_strndup(arena, f->prefix, strlen(f->prefix) - 1), arena);
    *names = (struct hf_names){ .family = described.model_type,
                                .prefix = arena_printf(arena, "%s.", prefix) };
    for (int i = 0; i < f->n_rows; i++) {
        int is_layer = strstr(f->rows[i].ours, ".N.") != NULL;
        int begin = is_layer ? 0 : behind, end = is_layer ? spec->n_layers : begin + 1;

        /* All parts of a layer's one, then the next layer's. */
        behind = is_layer ? spec->n_layers : behind;
        for (int layer = begin; layer < end; layer++)
            for (int k = i; k < f->n_rows && !strcmp(f->rows[k].ours, f->rows[i].ours); k++)
                add_all(&b, &f->rows[k], layer);
        while (i + 1 < f->n_rows && !strcmp(f->rows[i + 1].ours, f->rows[i].ours))
            i++;
    }
    qsort(names->wholes, (size_t)names->n_wholes, sizeof *names->wholes, compare_wholes);
    for (int i = 0; i < names->n_wholes; i++)
        for (int k = 0; k < names->wholes[i].n; k++)
            names->tensors[names->wholes[i].first + k].whole = &names->wholes[i].whole;
    return 0;
}

const struct hf_whole *hf_names_find(const struct hf_names *names, const char *ours)
{
    struct hf_whole key = { .whole.name = ours };

    return bsearch(&key, names->wholes, (size_t)names->n_wholes, sizeof key, compare_wholes);
}

int hf_names_is_buffer(const char *name)
{
    return str_ends_with(name, ".rotary_emb.inv_freq") || str_ends_with(name, ".attn.bias") ||
           str_ends_with(name, ".attn.masked_bias");
}
