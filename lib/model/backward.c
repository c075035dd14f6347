/*
 * backward.c - the passes that make the backward of one chunk's forward, for one size of
 * micro-batches; program/passes.h states what each promises
 */
#include <stdbool.h>

#include "base/num.h"
#include "layout/axes.h"
#include "model/compile_impl.h"

static bool has_before(const struct compiling *c, int chunk)
{
    return c->chunks[chunk].stage > c->first_trained;
}

/* Set the gradient of the chunk's output: received from the next stage, or none. */
static void receive_gradient(struct compiling *c, int chunk)
{
    int behind = stages_neighbour(c, chunk, 1), stage = c->chunks[chunk].stage;

    if (stage < c->first_trained) {
        c->gradient[chunk] = 0;
    } else if (stage + 1 < c->n_stages && behind < 0) {
        c->gradient[chunk] = boundary_stream(c);
        c->functions[chunk].receive_backward =
            boundary_transfer(c, chunk, RECEIVE_BACKWARD, c->gradient[chunk]);
    } else if (behind >= 0) {
        c->gradient[chunk] = c->gradient_in[behind];
    }
}

static void differentiate_chunk(struct compiling *c, int chunk)
{
    struct chunk_functions *f = &c->functions[chunk];

    receive_gradient(c, chunk);
    struct gradient_seed seed = { c->value[chunk], c->gradient[chunk] };
    f->weight = f->backward = compile_function(c, "backward", chunk);
    c->gradient_in[chunk] = differentiate(c->program, f->forward, f->backward, &seed, 1,
                                          has_before(c, chunk) ? c->boundary[chunk] : 0);
}

static void ring_chunk(struct compiling *c, int chunk)
{
    const struct chunk_functions *f = &c->functions[chunk];

    if (c->builder.has_ring)
        ring(c->program, f->forward, f->backward);
}

static void slice_chunk(struct compiling *c, int chunk)
{
    const struct chunk_functions *f = &c->functions[chunk];

    if (c->options->key_slices > 1)
        slice_heads(c->program, f->forward, f->backward, c->options->key_slices);
}

static void fuse_chunk(struct compiling *c, int chunk)
{
    if (c->options->no_fuse)
        return;
    fuse(c->program, c->functions[chunk].forward);
    fuse_casts(c->program, c->functions[chunk].backward);
}

/* The backward of the last stage follows the forward of the same micro-batch at once: what would be
 * recomputed between them is kept in the same time and memory. */
static int count_kept(const struct compile_train *options, const struct compiling *c, int stage)
{
    bool is_last = stage > 0 && stage + 1 == c->n_stages;

    return is_last && c->spec.kind == PIPELINE_1F1B ? options->early_layers : 0;
}

/* Of a stage's layers the first ones are recomputed in full, those after them selectively, the
 * others as the options' kind says; the last ones may be kept. */
enum { SET_OTHERS, SET_FULL, SET_SELECTIVE, SET_KEPT, N_SETS };

static void levels_of_counts(struct recompute_levels *levels, const struct compile_train *options,
                             int stage, int n_kept, struct arena *arena)
{
    int n_full = options->full_layers ? options->full_layers[stage] : 0;
    int n_selective = options->selective_layers ? options->selective_layers[stage] : 0;
    struct keep_set *sets = arena_array(arena, struct keep_set, N_SETS);
    unsigned char *set_of_layer = arena_array(arena, unsigned char, levels->n_layers);

    sets[SET_OTHERS] = recompute_keep_set(options->recompute, &options->recompute_ops);
    sets[SET_FULL] = recompute_keep_set(RECOMPUTE_KIND_FULL, NULL);
    sets[SET_SELECTIVE] = recompute_keep_set(RECOMPUTE_KIND_SELECTIVE, NULL);
    sets[SET_KEPT] = recompute_keep_set(RECOMPUTE_KIND_NONE, NULL);
    for (int i = 0; i < levels->n_layers; i++)
        set_of_layer[i] = i + n_kept >= levels->n_layers ? SET_KEPT
                          : i < n_full                   ? SET_FULL
                          : i < n_full + n_selective     ? SET_SELECTIVE
                                                         : SET_OTHERS;
    levels->sets = sets;
    levels->set_of_layer = set_of_layer;
}

/* By chosen sets: where layers keep but their inputs, so does what is around them. */
static void levels_of_choice(struct recompute_levels *levels, const struct compile_train *options)
{
    bool are_full = levels->n_layers > 0;

    levels->sets = options->sets;
    levels->set_of_layer = options->set_of_layer + levels->first_layer;
    for (int i = 0; i < levels->n_layers; i++)
        are_full &= levels->sets[levels->set_of_layer[i]].full;
    if (are_full)
        levels->kind = RECOMPUTE_KIND_FULL;
}

static void recompute_chunk(struct compiling *c, int chunk)
{
    const struct compile_train *options = c->options;
    const struct chunk_functions *f = &c->functions[chunk];
    int stage = c->chunks[chunk].stage, first = c->first_layer[stage];
    struct recompute_levels levels = { .kind = options->recompute,
                                       .ops = options->recompute_ops,
                                       .first_layer = first,
                                       .n_layers = c->first_layer[stage + 1] - first };

    if (options->set_of_layer)
        levels_of_choice(&levels, options);
    else
        levels_of_counts(&levels, options, stage, count_kept(options, c, stage),
                         &c->program->arena);
    levels.drops_rows = c->is_rerun;
    recompute(c->program, f->forward, f->backward, &levels);
}

static void split_chunk(struct compiling *c, int chunk)
{
    struct chunk_functions *f = &c->functions[chunk];
    enum pipeline_kind kind = c->spec.kind;

    if (kind != PIPELINE_ZB_H1 && kind != PIPELINE_ZB_H2 && kind != PIPELINE_ZB_V)
        return;
    f->weight = compile_function(c, "weight", chunk);
    split_backward(c->program, f->backward, f->weight);
}

/* What is recomputed while the gradient of the chunk's output is under way. */
static void recompute_chunk_early(struct compiling *c, int chunk)
{
    const struct chunk_functions *f = &c->functions[chunk];
    int stage = c->chunks[chunk].stage, end = c->first_layer[stage + 1];
    int n = min_int(c->options->early_layers, end - c->first_layer[stage]);

    if (n > 0 && f->receive_backward >= 0)
        recompute_early(c->program, f->backward, c->gradient[chunk], end - n, n);
}

static void compress_chunk(struct compiling *c, int chunk)
{
    const struct compile_train *o = c->options;

    if (o->row_codec.ratio > 0 && mesh_size(&o->mesh, axes_tensor()) > 1)
        compress_rows(c->program, &c->functions[chunk], &o->row_codec, o->model->n_layers);
}

static void overlap_chunk(struct compiling *c, int chunk)
{
    const struct chunk_functions *f = &c->functions[chunk];
    const struct mesh *mesh = &c->program->mesh;
    struct slice_options options = c->options->overlap;
    bool has_whole = mesh->size[axes_keys()] == 1 && mesh->size[axes_heads()] == 1;

    options.rows = model_rows(&c->builder);
    options.seq_len = has_whole ? c->builder.seq_len : 0;
    /* Functions of all sizes have one order of ops; those of a rerun one of sums. */
    if (c->n_sizes > 1)
        options.kind = OVERLAP_NONE;
    options.experts_alone = compile_has_pages(c->options);
    options.is_rerun = c->is_rerun;
    if (options.kind != OVERLAP_NONE)
        slice(c->program, f->forward, &options);
    if (options.kind == OVERLAP_NONE || !slice(c->program, f->backward, &options))
        overlap_collectives(c->program, f->backward);
    if (f->weight != f->backward)
        overlap_collectives(c->program, f->weight);
}

static void scale_chunk(struct compiling *c, int chunk)
{
    if (c->options->fp8.recipe == FP8_TENSOR)
        fp8_scales(c->program, &c->functions[chunk], c->options->fp8.by_product,
                   !c->options->no_fuse);
}

static void code_chunk(struct compiling *c, int chunk)
{
    if (c->options->fp8.recipe == FP8_BLOCKWISE && !c->options->no_fuse)
        fp8_codes(c->program, &c->functions[chunk]);
}

static void send_gradient(struct compiling *c, int chunk)
{
    if (has_before(c, chunk) && stages_neighbour(c, chunk, -1) < 0)
        c->functions[chunk].send_backward =
            boundary_transfer(c, chunk, SEND_BACKWARD, c->gradient_in[chunk]);
}

bool compile_has_pages(const struct compile_train *o)
{
    bool keeps = o->recompute != RECOMPUTE_KIND_FULL || o->set_of_layer;
    int n = mesh_size(&o->mesh, axes_exchange(&o->mesh, compile_has_whole_experts(o)));

    /* A capacity may leave no more rows than the pages would hold. */
    if (o->capacity_factor > 0 && o->capacity_factor <= o->stash_factor)
        return false;
    return keeps && o->stash_factor > 0 && o->stash_factor * model_balanced_share(o->model, n) < 1;
}

static void page_chunk(struct compiling *c, int chunk)
{
    const struct compile_train *o = c->options;

    if (!c->is_rerun && compile_has_pages(o))
        page_rows(c->program, &c->functions[chunk],
                  &(struct page_options){ .factor = o->stash_factor,
                                          .sets = o->sets,
                                          .set_of_layer = o->set_of_layer });
}

static const struct {
    const char *name;
    void (*run)(struct compiling *c, int chunk);
} chunk_passes[] = {
    { "differentiate", differentiate_chunk },
    { "ring", ring_chunk },
    { "slice_heads", slice_chunk },
    { "fuse", fuse_chunk },
    { "recompute", recompute_chunk },
    { "split_backward", split_chunk },
    { "recompute_early", recompute_chunk_early },
    { "compress_rows", compress_chunk },
    { "page_rows", page_chunk },
    { "overlap_collectives", overlap_chunk },
    { "fp8_scales", scale_chunk },
    { "fp8_codes", code_chunk },
    { "send_gradient", send_gradient },
};

#define N_CHUNK_PASSES (int)(sizeof chunk_passes / sizeof *chunk_passes)

const char *compile_backward_pass(int i)
{
    return i < N_CHUNK_PASSES ? chunk_passes[i].name : NULL;
}

void compile_backwards(struct compiling *c)
{
    for (int chunk = c->n_chunks - 1; chunk >= 0; chunk--)
        for (int i = 0; i < N_CHUNK_PASSES; i++) {
            chunk_passes[i].run(c, chunk);
            compile_after(c, chunk_passes[i].name);
        }
}
