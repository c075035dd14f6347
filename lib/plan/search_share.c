/*
 * search_share.c - micro-batches of data-parallel ranks on devices of several kinds
 *
 * A rank that takes t ns for a micro-batch does floor(T / t) of them in T: the least T in which all
 * ranks together do all of them is found by halving.
 */
#include "base/num.h"
#include "plan/islands.h"
#include "plan/search_impl.h"

/* A micro-batch on one data-parallel rank's devices; 0: not possible. */
static int64_t micro_batch_ns(struct search *search, const struct layout *l, int dp_rank)
{
    const struct search_request *r = search->request;
    int island = islands_slowest(r->cluster, dp_rank * l->tp, l->tp, r->job->train.dtype);
    const struct layer_costs *costs = search_base_costs(search, l, island);
    struct layer_cost sum = { 0 };

    if (!costs->is_possible)
        return 0;
    for (int i = 0; i < r->job->model.n_layers; i++)
        search_add_cost(&sum, costs->layers[i]);
    search_add_cost(&sum, &costs->ends);
    return max_i64(1, sum.f + sum.i + sum.w);
}

/* In that time, of each rank at least one. */
static int64_t count_in(int64_t ns, const int64_t *of_rank, int n, int *counts)
{
    int64_t all = 0;

    for (int i = 0; i < n; i++) {
        counts[i] = (int)min_i64(INT32_MAX / 2, max_i64(1, ns / of_rank[i]));
        all += counts[i];
    }
    return all;
}

/* There may be room for more than there are: the slowest ranks give those back. */
static void give_back(int64_t n, const int64_t *of_rank, int n_ranks, int *counts)
{
    for (; n > 0; n--) {
        int slowest = 0;

        for (int i = 1; i < n_ranks; i++)
            if (counts[i] * of_rank[i] > counts[slowest] * of_rank[slowest])
                slowest = i;
        counts[slowest]--;
    }
}

const int *search_share(struct search *search, const struct layout *l, int64_t n_all)
{
    struct arena scratch = { 0 };
    int64_t *of_rank = arena_array(&scratch, int64_t, l->dp), low = 0, high = 0, n = 0;
    int *counts = arena_array(search->arena, int, l->dp);
    bool is_possible = n_all >= l->dp, differ = false;

    for (int i = 0; i < l->dp && is_possible; i++) {
        of_rank[i] = micro_batch_ns(search, l, i);
        is_possible = of_rank[i] > 0;
        high = max_i64(high, of_rank[i] * n_all);
    }
    while (is_possible && high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        *(count_in(middle, of_rank, l->dp, counts) >= n_all ? &high : &low) = middle;
    }
    if (is_possible) {
        n = count_in(high, of_rank, l->dp, counts);
        give_back(n - n_all, of_rank, l->dp, counts);
    }
    for (int i = 1; i < l->dp; i++)
        differ |= counts[i] != counts[0];
    arena_release(&scratch);
    return is_possible && n >= n_all && differ ? counts : NULL;
}

int64_t search_shared_ns(struct search *search, const struct layout *l)
{
    int64_t most = 0;

    for (int i = 0; i < l->dp; i++)
        most = max_i64(most, l->counts.values[i] * micro_batch_ns(search, l, i));
    return most;
}
