/*
 * compile_job.c - the options of compile_train that a job determines
 */
#include "model/compile_job.h"

#include <math.h>
#include <stdbool.h>

bool compile_recomputes_as_said(const struct job *job)
{
    bool is_said = job->recompute_layers.full.n || job->recompute_layers.selective.n ||
                   (job->recompute != RECOMPUTE_NONE && job->recompute != RECOMPUTE_AUTO);

    return is_said && !job->keep_sets.set_of_layer && !job->offload &&
           job->memory.offload == OFFLOAD_NONE && !job->memory.device_bytes;
}

int compile_early_layers(const struct job *job)
{
    return job->memory.recompute_early > 0 ? job->memory.recompute_early : 0;
}

static struct slice_options overlap_of(const struct job *job)
{
    static const enum overlap_kind kinds[] = {
        [JOB_OVERLAP_AUTO] = OVERLAP_AUTO,
        [JOB_OVERLAP_NONE] = OVERLAP_NONE,
        [JOB_OVERLAP_SLICES] = OVERLAP_SLICES,
        [JOB_OVERLAP_HALVES] = OVERLAP_HALVES,
    };

    /* A library adds only what is dense. */
    if (job->parallel.reductions == REDUCTIONS_FAST)
        return (struct slice_options){ .kind = OVERLAP_NONE };
    return (struct slice_options){ .kind = kinds[job->parallel.overlap],
                                   .n_slices = job->parallel.overlap_slices };
}

/* The constants that the optimizer has, and zeros for others. */
static struct update_options update_options_of(const struct job *job)
{
    return (struct update_options){ .optimizer = job->optimizer.name,
                                    .clip = job->optimizer.clip,
                                    .beta1 = fmax(0, job->optimizer.beta1),
                                    .beta2 = fmax(0, job->optimizer.beta2),
                                    .momentum = fmax(0, job->optimizer.momentum),
                                    .nesterov = job->optimizer.nesterov,
                                    .eps = fmax(0, job->optimizer.eps),
                                    .weight_decay = job->optimizer.weight_decay,
                                    .muon = { .momentum = fmax(0, job->optimizer.momentum),
                                              .nesterov = job->optimizer.muon_nesterov,
                                              .coefficients = job->optimizer.muon_coefficients,
                                              .steps = job->optimizer.muon_steps,
                                              .scale = job->optimizer.muon_scale },
                                    .groups = job->optimizer.groups,
                                    .ema = job->train.ema,
                                    .states = job->optimizer.states,
                                    .seed = job->train.seed,
                                    .half_away =
                                        job->optimizer.weight_rounding == WEIGHT_ROUNDING_HALF_AWAY,
                                    .split = job->optimizer.masters == MASTERS_SPLIT };
}

static int n_ahead_of(const struct job *job)
{
    return job->parallel.prefetch < 0 ? PREFETCH_MOST : job->parallel.prefetch;
}

struct compile_train compile_job(const struct job *job, int pp_rank)
{
    static const enum recompute_kind kinds[] = {
        [RECOMPUTE_NONE] = RECOMPUTE_KIND_NONE, [RECOMPUTE_SELECTIVE] = RECOMPUTE_KIND_SELECTIVE,
        [RECOMPUTE_FULL] = RECOMPUTE_KIND_FULL, [RECOMPUTE_AUTO] = RECOMPUTE_KIND_NONE,
        [RECOMPUTE_LIST] = RECOMPUTE_KIND_LIST,
    };
    static const enum zero3_gather gathers[] = {
        [HOLD_OP] = ZERO3_GATHER_OP,
        [HOLD_PASS] = ZERO3_GATHER_PASS,
        [HOLD_RUN] = ZERO3_GATHER_RUN,
        [HOLD_STEP] = ZERO3_GATHER_STEP,
    };

    return (struct compile_train){
        .model = &job->model,
        .mesh = job_mesh(job),
        .dtype = job->train.dtype,
        .residual = job->train.residual,
        .fp8 = { job->train.fp8, job->train.fp8_edge_layers, (int)job->train.fp8_dw,
                 (int)job->train.fp8_weights, job->train.fp8_experts == FP8_EXPERTS_FP8,
                 job->train.fp8_gradients == FP8_GRADIENTS_E5M2 },
        .gradient_dtype = job->train.gradient_dtype,
        .micro_batch = job->train.micro_batch,
        .seq_len = job->data.seq_len,
        .gathers_windows = job->parallel.cp_kind == CP_GATHER,
        .n_micro_batches = job->n_micro_batches,
        .global_batch = job->parallel.replica_micro_batches.n ? job->train.global_batch : 0,
        .micro_batches = job->parallel.micro_batches.values,
        .sequence_parallel = job->parallel.sequence_parallel,
        .whole_experts = job->moe.expert_tp == EXPERT_TP_ONE,
        .has_ring = job->parallel.cp_kind == CP_RING,
        .z_loss = job->train.z_loss,
        .capacity_factor = job->moe.capacity_factor,
        .drops_by_weight = job->moe.drop == MOE_DROP_PROBABILITY,
        .key_slices = job->parallel.cp_slices,
        .overlap = overlap_of(job),
        .row_codec = { job->parallel.compress_activations, job->parallel.compress_bits },
        .fastseq = job->parallel.cp_kind == CP_FASTSEQ,
        .tuning = job->tuning,
        .decides_late = job->train.on_spike == SPIKE_SKIPPED,
        .has_recheck = job->train.recheck_every > 0,
        .is_packed = job->samples.train && job->data.packing,
        .seed = job->train.seed,
        .recompute = kinds[job->recompute],
        .recompute_ops = job->recompute_ops,
        .full_layers = job->recompute_layers.full.values,
        .selective_layers = job->recompute_layers.selective.values,
        .early_layers = compile_early_layers(job),
        .sets = job->keep_sets.sets,
        .set_of_layer = job->keep_sets.set_of_layer,
        .offload = job->offload ? &job->offload[pp_rank] : NULL,
        .pipeline = { .kind = job->parallel.schedule,
                      .n_chunks = job->parallel.chunks,
                      .stage_layers = job->parallel.stages.values,
                      .rank = pp_rank },
        .stash_factor = job->moe.stash_factor,
        .gradients = { .zero = job->parallel.zero,
                       .codec = job_codec(job),
                       .early = job->parallel.gradient_sum == GRADIENT_SUM_EARLY,
                       .matrices_apart = job->optimizer.name == RULE_MUON,
                       .bucket_bytes = (size_t)job->parallel.bucket_mb << 20,
                       .zero3 = gathers[job->parallel.hold],
                       .n_ahead = n_ahead_of(job) },
        .ahead = { .n_ahead = job->parallel.prefetch },
        .update = update_options_of(job),
    };
}
