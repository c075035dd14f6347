/*
 * gradient_staging.c - zero 2: memory for the unreduced buckets that are in flight at one time
 *
 * A bucket of one micro-batch's sums lives from the first op that writes it to the end of its
 * reduce_scatter. Buckets whose lives do not overlap share a staging cell. A bucket that is
 * complete is in flight while the next one is computed, so neighbours never share; two or three
 * cells are usual.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/shard_impl.h"

/* Memory that buckets use one after the other. */
struct staging {
    int64_t n_elements;
    enum dtype dtype;
    struct completion_point busy; /* until its newest is complete */
    int newest;                   /* the number of the newest bucket's reduction */
};

static bool is_free(const struct staging *staging, const struct bucket_reduction *r,
                    enum dtype dtype, int number)
{
    if (staging->dtype != dtype)
        return false;
    /* The previous bucket is in flight while this one is computed. */
    if (staging->newest == number - 1)
        return false;
    return staging->busy.turn != r->at.turn || staging->busy.part != r->at.part ||
           staging->busy.done < r->at.begun;
}

/*
 * Each reduction, in order, takes the free staging buffer that fits best: the smallest that is
 * large enough, else the largest, which grows. Buckets that are not sharded have cells of their
 * own, which add up all micro-batches. All buckets that a function begins are complete at
 * its end, so all functions share the buffers. Buffers become cells: a write to a cell that is
 * still in flight waits for its reduction, by the rules of order.h.
 */
static void share(struct program *p, const struct bucket_member *members,
                  struct bucket_reduction *list, int n)
{
    struct staging *buffers = arena_array(&p->arena, struct staging, n);
    int *buffer_of = arena_array(&p->arena, int, n), *cells = arena_array(&p->arena, int, n);
    int n_buffers = 0, n_shared = 0;

    for (int i = 0; i < n; i++) {
        if (program_n_shards(p, list[i].bucket) == 1)
            continue;
        int64_t wanted = p->buckets[list[i].bucket].n_elements;
        enum dtype dtype = buckets_dtype(p, members, list[i].bucket);
        int best = -1;

        for (int l = 0; l < n_buffers; l++) {
            if (!is_free(&buffers[l], &list[i], dtype, n_shared))
                continue;
            int64_t have = buffers[l].n_elements,
                    best_have = best < 0 ? 0 : buffers[best].n_elements;
            if (best < 0 ||
                (best_have < wanted ? have > best_have : have >= wanted && have < best_have))
                best = l;
        }
        if (best < 0)
            best = n_buffers++;
        buffers[best] = (struct staging){ max_i64(buffers[best].n_elements, wanted), dtype,
                                          list[i].at, n_shared++ };
        buffer_of[i] = best;
    }
    for (int l = 0; l < n_buffers; l++)
        cells[l] = program_cell(p, ROLE_GRADIENT, arena_printf(&p->arena, "gradient_staging.%d", l),
                                1, buffers[l].n_elements, buffers[l].dtype);
    for (int i = 0; i < n; i++)
        if (program_n_shards(p, list[i].bucket) > 1)
            list[i].staging = cells[buffer_of[i]];
}

/*
 * A bucket for thousands of ranks ends with a gap of up to a norm block a rank, and a constant of
 * as many zeros would take gigabytes. The constant has at most 4 MB.
 */
#define ZEROS_MAX ((int64_t)1 << 20)

/* The gap after the last member of a bucket is its largest; the others are shorter than a block. */
static int64_t largest_gap(const struct program *p, const struct bucket_member *list, int n)
{
    int64_t gap = OPS_NORM_BLOCK;

    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[list[i].parameter];
        int is_last = 1;

        for (int k = i + 1; k < n && is_last; k++)
            is_last = list[k].bucket != list[i].bucket;
        if (is_last)
            gap = max_i64(gap, p->buckets[list[i].bucket].n_elements - list[i].offset -
                                   q->rows * q->cols);
    }
    return gap;
}

/*
 * Write zeros between the members of a bucket, where other buckets of the staging cell have
 * written, because the norm reads them. After the first op, which copies the constant, each op
 * copies the zeros that are there already, so that the number of ops is logarithmic in the gap.
 */
static void clear(const struct sharding *s, int cell, int64_t begin, int64_t end, int function,
                  int index)
{
    struct program *p = s->program;
    int constant = s->zeros[p->values[cell].dtype != DTYPE_F32];

    for (int64_t n, n_clear = 0; begin + n_clear < end; n_clear += n) {
        n = min_i64(max_i64(s->n_zeros, n_clear), end - begin - n_clear);
        int gap = program_view(p, cell, begin + n_clear, 1, n, n);
        int zeros =
            n_clear ? program_view(p, cell, begin, 1, n, n) : program_view(p, constant, 0, 1, n, n);

        memcpy(p->values[zeros].spread, p->values[gap].spread, sizeof p->values[gap].spread);
        program_insert(p, function, index++,
                       &(struct op){ .kind = OP_ADD,
                                     .in = { [ADD_A] = zeros, [ADD_B] = zeros },
                                     .out = { [ADD_Y] = gap },
                                     .phase = PHASE_W,
                                     .layer = -1 });
    }
}

void staging_clear_gaps(const struct sharding *s, const struct bucket_member *list, int n,
                        const struct bucket_reduction *r, int function)
{
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int64_t end = b->n_elements;

    for (int i = n - 1; i >= 0; i--) {
        const struct parameter *q = &p->parameters[list[i].parameter];

        if (list[i].bucket != r->bucket)
            continue;
        clear(s, b->gradients[r->use], list[i].offset + q->rows * q->cols, end, function,
              r->at.done + 1);
        end = list[i].offset;
    }
}

void staging_share(struct sharding *s, const struct bucket_member *members,
                   struct bucket_reduction *list, int n_members, int n)
{
    struct program *p = s->program;

    s->n_zeros = min_i64(largest_gap(p, members, n_members), ZEROS_MAX);
    s->zeros[0] = program_cell(p, ROLE_CONSTANT, "zeros", 1, s->n_zeros, DTYPE_F32);
    if (p->gradient_dtype != DTYPE_F32)
        s->zeros[1] =
            program_cell(p, ROLE_CONSTANT, "zeros.bf16", 1, s->n_zeros, p->gradient_dtype);
    share(p, members, list, n);
}
