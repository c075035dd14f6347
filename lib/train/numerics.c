/*
 * numerics.c - the numerics of a job, line by line
 */
#include "train/numerics.h"

#include <inttypes.h>
#include <xxhash.h>

/* Grows when the engine's arithmetic changes, so that old runs are not taken for equal ones. */
#define NUMERICS_VERSION 1

void numerics_describe_model(const struct model_spec *s, struct str *out)
{
    str_printf(out, "model.vocab_size %d\nmodel.hidden_size %d\nmodel.n_layers %d\n", s->vocab_size,
               s->hidden_size, s->n_layers);
    str_printf(out, "model.n_heads %d\nmodel.n_kv_heads %d\nmodel.head_dim %d\nmodel.ffn_size %d\n",
               s->n_heads, s->n_kv_heads, s->head_dim, s->ffn_size);
    str_printf(out, "model.max_seq_len %d\n", s->position == POSITION_LEARNED ? s->max_seq_len : 0);
    str_printf(out, "model.norm %s\nmodel.norm_eps %a\n", s->norm == NORM_RMS ? "rms" : "layer",
               s->norm_eps);
    str_printf(out, "model.position %s\nmodel.rope_theta %a\n",
               s->position == POSITION_ROPE ? "rope" : "learned",
               s->position == POSITION_ROPE ? s->rope_theta : 0);
    str_printf(out, "model.activation %s\nmodel.bias %d\nmodel.tied_embeddings %d\n",
               s->activation == ACTIVATION_SWIGLU ? "swiglu" : "gelu", s->bias, s->tied_embeddings);
    str_printf(out, "model.dropout %a\nmodel.attention_dropout %a\nmodel.init_std %a\n", s->dropout,
               s->attention_dropout, s->init_std);
}

void numerics_describe(const struct job *job, uint64_t data, const char *identity, struct str *out)
{
    int early = job->parallel.gradient_sum == GRADIENT_SUM_EARLY;

    str_printf(out, "version %d\n", NUMERICS_VERSION);
    numerics_describe_model(&job->model, out);
    str_printf(out, "data %016" PRIx64 "\ntrain.seed %" PRIu64 "\n", data, job->train.seed);
    str_printf(out, "data.seq_len %d\ntrain.global_batch %d\ntrain.micro_batch %d\n",
               job->data.seq_len, job->train.global_batch, job->train.micro_batch);
    str_printf(out, "train.dtype %s\ntrain.gradient_dtype %s\n", dtype_name(job->train.dtype),
               dtype_name(job->train.gradient_dtype));
    str_printf(out, "parallel.dp %d\nparallel.tp %d\nparallel.cp %d\nparallel.ep %d\n",
               job->parallel.dp, job->parallel.tp, job->parallel.cp, job->parallel.ep);
    /* With one rank there is no sum over ranks to be early or late. */
    str_printf(out, "parallel.gradient_sum %s\nparallel.reductions fixed\n",
               job->parallel.dp == 1 ? "none"
               : early               ? "early"
                                     : "late");
    str_printf(out, "train.steps %" PRId64 "\n", job->train.steps);
    str_printf(
        out, "optimizer %s lr %a min_lr %a schedule %d warmup %" PRId64 " decay %" PRId64 "\n",
        job->optimizer.name, job->optimizer.lr, job->optimizer.min_lr, (int)job->optimizer.schedule,
        job->optimizer.warmup_steps, job->optimizer.decay_steps);
    str_printf(out, "optimizer beta1 %a beta2 %a eps %a weight_decay %a clip %a\n",
               job->optimizer.beta1, job->optimizer.beta2, job->optimizer.eps,
               job->optimizer.weight_decay, job->optimizer.clip);
    str_printf(out, "kernels %s\n", identity);
}

uint64_t numerics_hash(const struct str *description)
{
    return XXH64(str_text(description), description->length, 0);
}
