/*
 * compile.c - the order of the passes
 *
 * program/passes.h states what each pass promises; the passes of a chunk's backward are listed in
 * backward.c.
 */
#include "model/compile.h"

#include "layout/axes.h"
#include "model/compile_impl.h"

void compile_after(const struct compiling *c, const char *pass)
{
    const struct compile_watch *watch = c->options->watch;

    if (watch)
        watch->after(watch->context, pass, c->program);
}

static void declare(struct compiling *c)
{
    model_declare(&c->builder, c->chunks, c->n_chunks);
    stages_tie(c);
    if (c->options->tuning && c->n_stages > 1)
        stages_find_trained(c);
    model_declare_loss(&c->builder);
    compile_after(c, "declare");
}

/* Forwards and backwards of each size of micro-batches. */
static void emit_sizes(struct compiling *c, int variant)
{
    const struct model_builder whole = c->builder;
    const struct ports ports = c->program->ports;

    for (int i = 0; i < c->n_sizes; i++) {
        c->functions = c->of_sizes + (variant * c->n_sizes + i) * c->n_chunks;
        if (variant || i)
            program_repeat_uses(c->program);
        model_resize(&c->builder, c->sizes[i]);
        compile_forwards(c, MODEL_TRAIN, "forward");
        compile_after(c, "forward");
        compile_backwards(c);
        c->builder = whole;
        c->program->ports = ports;
    }
}

/* Those of the step; and, if it keeps rows of experts in pages, of which there may be too few,
 * those of its rerun. */
static void emit_variants(struct compiling *c)
{
    emit_sizes(c, 0);
    if (!c->program->pages.pool)
        return;
    c->is_rerun = true;
    emit_sizes(c, c->n_variants++);
}

static void shard(struct compiling *c)
{
    struct shard_options options = c->options->gradients;

    c->update = program_function(c->program, "update", 0);
    update_find_groups(c->program, &c->options->update);
    options.n_sizes = c->n_sizes * c->n_variants;
    options.n_variants = c->n_variants;
    options.last_size = c->size_of[c->options->n_micro_batches - 1];
    shard_gradients(c->program, c->of_sizes, c->n_chunks, c->update, &options);
}

/* From zero 1 on: put weights into buckets, and make the function that gathers all of them once a
 * step. */
static void gather(struct compiling *c)
{
    const struct shard_options *o = &c->options->gradients;
    struct program *p = c->program;

    c->gather = -1;
    if (!o->zero || mesh_size(&p->mesh, axes_shard(&p->mesh, PARAMETER_DENSE)) == 1)
        return;
    c->has_zero3 = o->zero == 3 && !zero3_gathers_once(o->zero3, c->n_chunks);
    if (c->has_zero3) {
        if (c->options->tuning)
            zero3_shard_frozen(p, c->functions, c->n_chunks, o);
        zero3_shard_weights(p);
        return;
    }
    c->gather = program_function(p, "gather", 0);
    gather_parameters(p, c->functions, c->n_chunks, c->gather);
    compile_action(p, ENTRY_GATHER, c->gather);
    p->entries[ENTRY_GATHER].actions[0].micro_batch = -1;
}

/* After the step's last use of them: the biases of this rank's layers, by what routers have counted
 * on all ranks in all micro-batches. */
static void balance_biases(const struct compiling *c)
{
    const struct model_spec *s = c->options->model;
    struct program *p = c->program;
    struct parameter_spec q;

    for (int layer = 0; layer < s->n_layers && s->router_bias_rate > 0; layer++) {
        struct parameter_id id = parameters_id(s, MODULE_ROUTER, PART_BIAS, layer);
        int at = model_parameter(&c->builder, id), m = s->n_experts;
        int64_t first = model_spec_n_expert_layers(s, layer) * (1 + (int64_t)m) + 1;

        if (at < 0 || !parameters_find(s, id, &q) || !tuning_balances(c->options->tuning, &q))
            continue;
        program_emit(p, c->update,
                     &(struct op){ .kind = OP_BALANCE_BIAS,
                                   .attributes.rate = s->router_bias_rate,
                                   .in = { [BALANCE_BIAS_COUNTS] = program_view(
                                               p, p->ports.router_stats_total, first, 1, m, m),
                                           [BALANCE_BIAS_SKIP_UPDATE] = p->ports.skip_update,
                                           [BALANCE_BIAS_BIAS] = p->parameters[at].weight },
                                   .phase = PHASE_U,
                                   .layer = -1 });
    }
}

/* Of what the host alone reads. */
static void sum_for_host(struct compiling *c)
{
    struct program *p = c->program;

    p->ports.loss_total = compile_sum(p, c->update, p->ports.loss, "loss_total");
    if (p->ports.squares)
        p->ports.squares_total = compile_sum(p, c->update, p->ports.squares, "squares_total");
    if (p->ports.router_stats)
        p->ports.router_stats_total =
            compile_sum(p, c->update, p->ports.router_stats, "router_stats_total");
    if (p->ports.dropped)
        p->ports.dropped_total = compile_sum(p, c->update, p->ports.dropped, "dropped_total");
    compress_sum(p, c->update);
}

static void update(struct compiling *c)
{
    struct update_options options = c->options->update;
    struct program *p = c->program;
    const struct mesh *mesh = &p->mesh;

    if (axes_size(mesh, SPLITS_LAYERS, PARAMETER_EXPERT) > 1 ||
        axes_size(mesh, SPLITS_MODEL, PARAMETER_EXPERT) > 1 || c->builder.fastseq)
        stages_norm_parts(c, &options);
    int first = p->functions[c->update].n_ops;
    sum_for_host(c);
    int n_sums = p->functions[c->update].n_ops - first;
    build_update(p, c->update, &options);
    update_move_behind_norm(p, c->update, first, n_sums, c->options->decides_late);
    compress_keep(p, c->update);
    balance_biases(c);
}

static void schedule(struct compiling *c)
{
    schedule_step(c->program, &c->pipeline, c->options->pipeline.rank, c->of_sizes, c->size_of,
                  c->gather, c->update);
    if (c->options->decides_late)
        split_optimizer(c->program, c->update);
    if (c->program->pages.pool)
        page_step(c->program);
    /* On all stages alike, whether they keep such rows or not. */
    if (compile_has_pages(c->options))
        rerun_step(c->program, c->of_sizes,
                   c->of_sizes + (c->n_variants - 1) * c->n_sizes * c->n_chunks,
                   c->n_sizes * c->n_chunks);
    uncompressed_step(c->program, c->of_sizes, c->n_sizes * c->n_chunks);
    if (c->options->has_recheck)
        recheck_step(c->program);
}

static void evaluate(struct compiling *c)
{
    compile_evaluation(c);
}

static void round_weights(struct compiling *c)
{
    c->round = -1;
    if (c->options->fp8.recipe != FP8_NONE && !c->options->fp8.by_product)
        c->round = fp8_weights(c->program, c->gather);
}

static void gather_before_step(struct compiling *c)
{
    if (c->gather >= 0 && c->options->ahead.n_ahead)
        zero_gather_ahead(c->program, c->round >= 0 ? c->round : c->gather, &c->options->ahead);
}

static void zero3(struct compiling *c)
{
    if (c->has_zero3)
        zero3_gather_weights(c->program, c->options->gradients.zero3,
                             c->options->gradients.n_ahead);
}

static void offload_values(struct compiling *c)
{
    const struct compile_train *o = c->options;

    if (o->offload)
        offload(c->program, &(struct offload_options){ .rank = *o->offload,
                                                       .sets = o->sets,
                                                       .set_of_layer = o->set_of_layer,
                                                       .n_micro_batches = o->n_micro_batches,
                                                       .times = o->copy_times });
}

static void in_place(struct compiling *c)
{
    work_in_place(c->program);
}

static void lay_out(struct compiling *c)
{
    if (c->options->scratch)
        program_size_scratch(c->program, c->options->scratch, c->options->scratch_context);
    place(c->program);
}

static const struct pass {
    const char *name;
    void (*run)(struct compiling *c);
} train_passes[] = {
    { "shard_gradients", shard }, { "gather", gather },     { "update", update },
    { "schedule", schedule },     { "evaluate", evaluate }, { "fp8_weights", round_weights },
    { "gather_ahead", gather_before_step }, { "zero3", zero3 }, { "offload", offload_values },
},
  last_passes[] = {
      { "in_place", in_place },
      { "place", lay_out },
  };

#define N_TRAIN_PASSES (int)(sizeof train_passes / sizeof *train_passes)
#define N_LAST_PASSES (int)(sizeof last_passes / sizeof *last_passes)

static void run_passes(struct compiling *c, const struct pass *passes, int n)
{
    for (int i = 0; i < n; i++) {
        passes[i].run(c);
        compile_after(c, passes[i].name);
    }
}

int compile_finish(struct compiling *c, struct err *err)
{
    run_passes(c, last_passes, N_LAST_PASSES);
    return c->options && c->options->unverified ? 0 : verify(c->program, err);
}

const char *compile_pass_name(int i)
{
    static const char *const first[] = { "declare", "forward" };
    int n_first = (int)(sizeof first / sizeof *first), n_backward = 0;

    while (compile_backward_pass(n_backward))
        n_backward++;
    if (i < n_first)
        return first[i];
    i -= n_first;
    if (i < n_backward)
        return compile_backward_pass(i);
    i -= n_backward;
    if (i < N_TRAIN_PASSES)
        return train_passes[i].name;
    i -= N_TRAIN_PASSES;
    return i < N_LAST_PASSES ? last_passes[i].name : NULL;
}

/* Sequences of a step on all data-parallel ranks. */
static int64_t global_batch(const struct compile_train *o)
{
    int64_t n = 0;

    if (o->global_batch)
        return o->global_batch;
    for (int m = 0; m < o->n_micro_batches; m++)
        n += o->micro_batches ? o->micro_batches[m] : o->micro_batch;
    return n * mesh_data_size(&o->mesh);
}

/* seq_len of the job's shortest program. */
static int shortest(const struct compile_train *o)
{
    return o->shortest ? o->shortest : o->seq_len;
}

bool compile_has_whole_experts(const struct compile_train *o)
{
    return o->whole_experts && o->sequence_parallel && o->mesh.size[axes_tensor()] > 1;
}

int compile_train(struct program *program, const struct compile_train *options, struct err *err)
{
    struct compiling c = { .options = options,
                           .program = program,
                           .builder = {
                               .program = program,
                               .spec = options->model,
                               .dtype = options->dtype,
                               .residual = options->residual,
                               .fp8 = options->fp8,
                               .n_sequences = options->micro_batch,
                               .seq_len = options->seq_len,
                               .shortest = shortest(options),
                               .gathers_windows = options->gathers_windows,
                               .z_loss = options->z_loss,
                               .capacity_factor = options->capacity_factor,
                               .drops_by_weight = options->drops_by_weight,
                               .dropout = 1,
                               .sequence_parallel = options->sequence_parallel &&
                                                    options->mesh.size[axes_tensor()] > 1,
                               .whole_experts = compile_has_whole_experts(options),
                               .has_ring = options->has_ring && options->mesh.size[axes_keys()] > 1,
                               .fastseq = options->fastseq && options->mesh.size[axes_heads()] > 1,
                               .max_positions = stages_longest(options),
                               .seed = options->seed,
                               .tuning = options->tuning,
                               .is_packed = options->is_packed,
                               .head_logits = options->head_logits,
                               .global_batch = global_batch(options) } };

    program_init(program, &options->mesh);
    program->gradient_dtype = options->gradient_dtype;
    if (stages_plan(&c, err) ||
        (options->tuning && tuning_check(options->tuning, options->model, err)))
        return -1;
    declare(&c);
    emit_variants(&c);
    run_passes(&c, train_passes, N_TRAIN_PASSES);
    return compile_finish(&c, err);
}
