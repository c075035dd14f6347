/*
 * fp8_layers.c - which products of a job are made of fp8 operands, and what that requires
 *
 * A model's first and last layers, its embedding, head, norms and routers stay as they are, and so
 * do experts where the job does not choose them, too.
 */
#include "config/fp8_layers.h"

#include "base/num.h"
#include "config/parameters.h"
#include "config/read_impl.h"

bool fp8_has_layer(const struct fp8_choice *choice, const struct model_spec *spec, int layer)
{
    return choice->recipe != FP8_NONE && layer >= choice->edge_layers &&
           layer < spec->n_layers - choice->edge_layers;
}

static void check_experts(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->train.fp8_experts != FP8_EXPERTS_FP8)
        return;
    if (job->train.fp8 == FP8_NONE)
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8_experts"),
                        "train.fp8_experts is fp8, but train.fp8 none rounds no product (hint: "
                        "train.fp8: blockwise or tensor, or fp8_experts: bf16)");
    if (job->model.n_experts == 0)
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8_experts"),
                        "train.fp8_experts is fp8, but the model has no experts (hint: leave it "
                        "out)");
}

static void check_gradients(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->train.fp8_gradients != FP8_GRADIENTS_E5M2 || job->train.fp8 == FP8_TENSOR)
        return;
    if (job->train.fp8 == FP8_NONE)
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8_gradients"),
                        "train.fp8_gradients is e5m2, but train.fp8 none rounds no gradient (hint: "
                        "train.fp8: tensor, or leave it out)");
    else
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8_gradients"),
                        "train.fp8_gradients is e5m2 and train.fp8 %s: scales of blocks make its "
                        "range needless (hint: train.fp8: tensor, or fp8_gradients: e4m3)",
                        choice_word(fp8_choices, (int)job->train.fp8));
}

void reader_check_fp8(struct job_reader *r)
{
    const struct job *job = r->job;
    const char *word = choice_word(fp8_choices, (int)job->train.fp8);
    int edge = job->train.fp8_edge_layers, n = job->model.n_layers;

    check_experts(r);
    check_gradients(r);
    if (job->train.fp8 == FP8_NONE)
        return;
    if (job->train.dtype != DTYPE_BF16)
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8"),
                        "train.fp8 is %s and train.dtype %s: what is rounded to 8 bits are values "
                        "of bf16 (hint: train.dtype: bf16, or fp8: none)",
                        word, dtype_name(job->train.dtype));
    if (!r->model_only && 2 * edge >= n)
        diagnostics_add(&r->mistakes, reader_given(r, "train.fp8"),
                        "train.fp8 is %s, but of %d layer%s fp8_edge_layers leaves %d at either "
                        "end in bf16: there is none between (hint: fp8_edge_layers: %d, or fp8: "
                        "none)",
                        word, n, n == 1 ? "" : "s", edge, (n - 1) / 2);
}

/* The rank's part of a layer's matrix, an expert's of experts'. Returns false for those of experts
 * that stay bf16, of routers, and none. */
static bool find_part(const struct job *job, enum module_id module, int layer,
                      struct parameter_spec *part)
{
    struct parameter_id id = parameters_id(&job->model, module, PART_WEIGHT, layer);
    bool is_of_experts = module == MODULE_EXPERTS_GATE_UP || module == MODULE_EXPERTS_DOWN;
    int tp = is_of_experts && job->moe.expert_tp == EXPERT_TP_ONE ? 1 : job->parallel.tp;

    if (!parameters_find(&job->model, id, part) || part->role != PARAMETER_MATRIX ||
        (is_of_experts && job->train.fp8_experts != FP8_EXPERTS_FP8))
        return false;
    if (is_of_experts)
        part->rows /= job->model.n_experts;
    if (part->divided == SPREAD_ROWS)
        part->rows /= tp;
    if (part->divided == SPREAD_COLS)
        part->cols /= tp;
    return true;
}

void fp8_note(struct job *job, struct arena *arena)
{
    int first = job->train.fp8_edge_layers, end = job->model.n_layers - first;

    if (job->train.fp8 == FP8_NONE || first >= end)
        return;
    job_note(job, arena, "train.fp8 = %s: products of layers %d to %d of %d%s",
             choice_word(fp8_choices, (int)job->train.fp8), first, end - 1, job->model.n_layers,
             job->model.n_experts > 0 && job->train.fp8_experts != FP8_EXPERTS_FP8
                 ? "; those of experts stay bf16"
                 : "");
    for (int module = MODULE_QKV; module < MODULE_FINAL_NORM; module++) {
        struct parameter_spec part;

        if (find_part(job, (enum module_id)module, end - 1, &part) &&
            (part.rows % OPS_FP8_MULTIPLE || part.cols % OPS_FP8_MULTIPLE))
            job_note(job, arena,
                     "train.fp8: %s stays bf16 (%lld x %lld on a rank are no multiples of %d)",
                     parameters_module_name((enum module_id)module), (long long)part.rows,
                     (long long)part.cols, OPS_FP8_MULTIPLE);
    }
}
