/*
 * search_away.c - what leaves the device of an estimated rank that does not fit otherwise
 *
 * Counted in bytes over the link alone: of activations as much leaves as the forward hides, then
 * the optimizer's states, gradients, weights and other activations, each as far as the job lets
 * it. What a best layout's program sends away, and when, memory_fit.h says.
 */
#include "base/num.h"
#include "plan/search_impl.h"

static bool may_leave(const struct job *job, enum offload_kind kind)
{
    return job->memory.offload == OFFLOAD_AUTO ||
           (job->memory.offload == OFFLOAD_LIST &&
            bitset_has(&job->memory.offload_kinds, (int)kind));
}

/* Of a rank, all its chunks together. */
struct rank_sums {
    int64_t f, b, once; /* ns of a micro-batch; of a step */
    int64_t slot_bytes; /* of a micro-batch */
    int64_t bytes[N_OFFLOAD_KINDS];
};

static struct rank_sums sum_rank(const struct away_request *q)
{
    struct rank_sums sums = { .f = 0 };

    for (int c = 0; c < q->n_chunks; c++) {
        const struct layer_cost *s = q->stages[c];

        sums.f += s->f;
        sums.b += s->i + s->w;
        sums.once += s->once;
        sums.slot_bytes += s->slot_bytes;
        sums.bytes[OFFLOAD_OPTIMIZER] += s->state_bytes;
        sums.bytes[OFFLOAD_GRADIENTS] += s->gradient_bytes;
        sums.bytes[OFFLOAD_WEIGHTS] += s->weight_bytes;
    }
    /* Slots of all micro-batches that are alive. */
    sums.bytes[OFFLOAD_ACTIVATIONS] = q->n_slots * sums.slot_bytes / max_int(1, q->n_chunks);
    return sums;
}

/* Take so many bytes of a kind, in the chunks' order; of slots of each an equal part. */
static void take_bytes(const struct away_request *q, const struct rank_sums *sums,
                       enum offload_kind kind, int64_t n_bytes)
{
    double part = (double)n_bytes / (double)max_i64(1, sums->bytes[kind]);

    for (int c = 0; c < q->n_chunks; c++) {
        struct layer_cost *s = q->stages[c];
        int64_t *bytes = kind == OFFLOAD_ACTIVATIONS ? &s->slot_bytes
                         : kind == OFFLOAD_OPTIMIZER ? &s->state_bytes
                         : kind == OFFLOAD_GRADIENTS ? &s->gradient_bytes
                                                     : &s->weight_bytes;

        *bytes -= (int64_t)(part * (double)*bytes);
    }
}

/* What the rank waits for copies of a kind, of a micro-batch in its forward and its backward, of a
 * step in its update. */
static void add_waits(const struct away_request *q, const struct rank_sums *sums,
                      enum offload_kind kind, int64_t n_bytes)
{
    struct layer_cost *first = q->stages[0];
    int64_t ns = (int64_t)((double)n_bytes * q->link_ns);

    if (kind == OFFLOAD_ACTIVATIONS) {
        ns = ns / max_int(1, q->n_slots) * q->n_chunks;
        first->f += max_i64(0, ns - sums->f);
        first->i += max_i64(0, ns - sums->b);
    } else if (kind == OFFLOAD_OPTIMIZER) {
        first->once += max_i64(0, ns - sums->once);
    } else if (kind == OFFLOAD_GRADIENTS) {
        first->i += max_i64(0, ns - sums->b);
        first->once += ns;
    } else {
        first->f += max_i64(0, ns - sums->f);
        first->i += max_i64(0, ns - sums->b);
        first->once += ns;
    }
}

int64_t search_send_away(const struct away_request *q, int64_t wanted)
{
    static const enum offload_kind order[] = { OFFLOAD_OPTIMIZER, OFFLOAD_GRADIENTS,
                                               OFFLOAD_WEIGHTS };
    const struct rank_sums sums = sum_rank(q);
    int64_t left = wanted, n_slots = 0, hidden = 0;

    if (may_leave(q->job, OFFLOAD_ACTIVATIONS))
        n_slots = sums.bytes[OFFLOAD_ACTIVATIONS];
    if (q->link_ns > 0)
        hidden = min_i64(n_slots, (int64_t)((double)min_i64(sums.f, sums.b) / q->link_ns) *
                                      q->n_slots / max_int(1, q->n_chunks));
    int64_t sent = min_i64(left, hidden);
    left -= sent;
    for (size_t i = 0; i < sizeof order / sizeof *order && left > 0; i++) {
        int64_t n_bytes = may_leave(q->job, order[i]) ? min_i64(left, sums.bytes[order[i]]) : 0;

        take_bytes(q, &sums, order[i], n_bytes);
        add_waits(q, &sums, order[i], n_bytes);
        left -= n_bytes;
    }
    int64_t more = min_i64(left, n_slots - sent);
    take_bytes(q, &sums, OFFLOAD_ACTIVATIONS, sent + more);
    add_waits(q, &sums, OFFLOAD_ACTIVATIONS, sent + more);
    return left - more;
}
