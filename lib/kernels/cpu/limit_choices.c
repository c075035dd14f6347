/*
 * limit_choices.c - choices beyond an expert's capacity are dropped (Lepikhin et al. 2021, section
 * 2.2; by weight: Megatron Core's "probs")
 *
 * A counting sort lists each expert's choices in the order of tokens; then an expert is a tile.
 * Which weights are large enough is found eight bits at a time: a histogram of those that agree so
 * far says in which of 256 the last one to be kept lies. Some tens of thousands of small numbers.
 */
#include <string.h>

#include "kernels/cpu/rows_impl.h"

struct limiting {
    const struct op_shape *op;
    int32_t *ends;  /* [n_experts] of each one's part of the list */
    int32_t *list;  /* choices, t s + i */
    int32_t *n_out; /* [n_experts]: how many are dropped */
};

static int32_t expert_at(const struct tensor *t, int64_t choice)
{
    return ((const int32_t *)t->data)[choice / t->cols * t->stride + choice % t->cols];
}

static int32_t *kept_at(const struct tensor *t, int64_t choice)
{
    return (int32_t *)t->data + choice / t->cols * t->stride + choice % t->cols;
}

/* The larger, the more is the weight; what is no number is the largest. Without weights all are
 * equal. */
static uint32_t key_of(const struct limiting *l, int64_t choice)
{
    const struct tensor *t = &l->op->in[LIMIT_CHOICES_WEIGHT];
    uint32_t bits = 0;

    if (!tensor_given(t))
        return 0;
    float weight = float_row(t, choice / t->cols)[choice % t->cols];
    if (weight != weight)
        return UINT32_MAX;
    weight += 0.0f; /* -0 is 0 */
    memcpy(&bits, &weight, sizeof bits);
    return bits & UINT32_C(1) << 31 ? ~bits : bits | UINT32_C(1) << 31;
}

/* The capacity-th largest key of these; *n_equal: how many that are equal to it are kept. */
static uint32_t least_kept(const struct limiting *l, const int32_t *list, int64_t n,
                           int64_t *n_equal)
{
    uint32_t key = 0, known = 0;
    int64_t left = l->op->attributes.capacity;

    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t counts[256] = { 0 };
        uint32_t digit = 255;

        for (int64_t i = 0; i < n; i++) {
            uint32_t k = key_of(l, list[i]);

            counts[k >> shift & 255] += (k & known) == key;
        }
        for (; left > counts[digit]; digit--)
            left -= counts[digit];
        key |= digit << shift;
        known |= UINT32_C(255) << shift;
    }
    *n_equal = left;
    return key;
}

static void limit_expert(void *context, int64_t expert, int thread)
{
    const struct limiting *l = context;
    const int32_t *list = l->list + (expert ? l->ends[expert - 1] : 0);
    int64_t n = l->list + l->ends[expert] - list, n_equal = l->op->attributes.capacity;
    uint32_t least = 0;

    (void)thread;
    l->n_out[expert] = 0;
    if (n > n_equal && tensor_given(&l->op->in[LIMIT_CHOICES_WEIGHT]))
        least = least_kept(l, list, n, &n_equal);
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = n > l->op->attributes.capacity ? key_of(l, list[i]) : 0;
        bool is_kept = key > least || (key == least && n_equal > 0);

        n_equal -= is_kept && key == least;
        *kept_at(&l->op->out[LIMIT_CHOICES_KEPT], list[i]) = is_kept ? (int32_t)expert : -1;
        l->n_out[expert] += !is_kept;
    }
}

/* From the last choice to the first, each expert's from its end on. */
static void list_choices(const struct limiting *l)
{
    const struct tensor *experts = &l->op->in[LIMIT_CHOICES_EXPERT];
    int32_t m = l->op->attributes.n_experts, *next = l->n_out;

    memset(l->ends, 0, (size_t)m * sizeof *l->ends);
    for (int64_t c = 0; c < tensor_elements(experts); c++) {
        int32_t e = expert_at(experts, c);

        CHECK(e >= 0 && e < m);
        l->ends[e]++;
    }
    for (int32_t e = 1; e < m; e++)
        l->ends[e] += l->ends[e - 1];
    memcpy(next, l->ends, (size_t)m * sizeof *next);
    for (int64_t c = tensor_elements(experts); c-- > 0;)
        l->list[--next[expert_at(experts, c)]] = (int32_t)c;
}

static void limit_choices_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int32_t m = op->attributes.n_experts, *scratch = call->scratch;
    struct limiting l = { op, scratch, scratch + 2 * (int64_t)m, scratch + m };

    list_choices(&l);
    pool_run(kernels->pool, m, limit_expert, &l);
    if (!tensor_given(&op->out[LIMIT_CHOICES_DROPPED]))
        return;
    double *dropped = op->out[LIMIT_CHOICES_DROPPED].data;
    *dropped = first ? 0 : *dropped;
    for (int32_t e = 0; e < m; e++)
        *dropped += l.n_out[e];
}

static size_t limit_choices_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)(2 * op->attributes.n_experts + tensor_elements(&op->in[LIMIT_CHOICES_EXPERT])) *
           sizeof(int32_t);
}

void cpu_register_limit_choices(struct kernels_backend *table)
{
    table->entries[OP_LIMIT_CHOICES] =
        (struct kernel_entry){ .run = limit_choices_run,
                               .scratch_bytes = limit_choices_scratch_bytes };
}
