/*
 * stage.c - layers divided into stages, by dynamic programming
 *
 * Two tables, filled from the back: for the best division of the layers from `from` on into `n`
 * stages, the cost of the largest stage, and then, with no stage above that, the sum of squares.
 * Every other stage gets at least one layer. The division is read off from the front.
 */
#include "layout/stage.h"

#include "base/num.h"
#include "base/str.h"

struct split {
    int n_layers, n_stages;
    int64_t *before; /* [n_layers + 1] cost of the layers before */
    int64_t embedding, head;
    int64_t *largest; /* [n_stages + 1][n_layers + 1]; none: -1 */
    double *squares;  /* the same, with none above the least largest */
};

static int64_t index_of(const struct split *split, int n, int from)
{
    return (int64_t)n * (split->n_layers + 1) + from;
}

/* Cost of layers from..to-1 as a stage. */
static int64_t cost_of(const struct split *split, int from, int to)
{
    return split->before[to] - split->before[from] + (from == 0 ? split->embedding : 0) +
           (to == split->n_layers ? split->head : 0);
}

static void fill_largest(struct split *split)
{
    int n_layers = split->n_layers;

    for (int64_t i = 0; i <= index_of(split, split->n_stages, n_layers); i++)
        split->largest[i] = -1;
    split->largest[index_of(split, 0, n_layers)] = 0;
    for (int n = 1; n <= split->n_stages; n++)
        for (int from = split->n_stages - n; from <= n_layers - n; from++)
            for (int to = from + 1; to <= n_layers - n + 1; to++) {
                int64_t rest = split->largest[index_of(split, n - 1, to)];
                int64_t *best = &split->largest[index_of(split, n, from)];
                int64_t cost = max_i64(cost_of(split, from, to), rest);

                if (rest >= 0 && (*best < 0 || cost < *best))
                    *best = cost;
            }
}

/* Of a stage of these layers and what is best behind it; -1 if there is no such cut. */
static double squares_of(const struct split *split, int n, int from, int to, int64_t most)
{
    int64_t cost = cost_of(split, from, to);
    double rest = split->squares[index_of(split, n - 1, to)];

    return cost > most || rest < 0 ? -1 : (double)cost * (double)cost + rest;
}

static void fill_squares(struct split *split, int64_t most)
{
    int n_layers = split->n_layers;

    for (int64_t i = 0; i <= index_of(split, split->n_stages, n_layers); i++)
        split->squares[i] = -1;
    split->squares[index_of(split, 0, n_layers)] = 0;
    for (int n = 1; n <= split->n_stages; n++)
        for (int from = split->n_stages - n; from <= n_layers - n; from++)
            for (int to = from + 1; to <= n_layers - n + 1; to++) {
                double squares = squares_of(split, n, from, to, most);
                double *best = &split->squares[index_of(split, n, from)];

                if (squares >= 0 && (*best < 0 || squares < *best))
                    *best = squares;
            }
}

/* The shortest first stage that keeps the best, and so on. */
static void read_off(int *counts, const struct split *split, int64_t most)
{
    int from = 0;

    for (int n = split->n_stages; n > 0; n--) {
        double best = split->squares[index_of(split, n, from)];
        int to = from + 1;

        while (squares_of(split, n, from, to, most) != best) {
            to++;
            CHECK(to <= split->n_layers);
        }
        counts[split->n_stages - n] = to - from;
        from = to;
    }
    CHECK(from == split->n_layers);
}

static int check_n_stages(int n_stages, int n_layers, struct err *err)
{
    if (n_stages >= 1 && n_stages <= n_layers)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "%d pipeline stage%s for %d layer%s, but a stage has at least one layer (hint: %d "
        "stage%s)",
        n_stages, str_s(n_stages), n_layers, str_s(n_layers), n_stages < 1 ? 1 : n_layers,
        str_s(n_stages < 1 ? 1 : n_layers));
}

int stage_split(int *counts, int n_stages, const struct stage_costs *costs, struct arena *scratch,
                struct err *err)
{
    int n_layers = costs->n_layers;
    struct split split = { .n_layers = n_layers,
                           .n_stages = n_stages,
                           .embedding = costs->embedding,
                           .head = costs->head };
    int64_t most;

    if (check_n_stages(n_stages, n_layers, err))
        return -1;
    split.before = arena_array(scratch, int64_t, n_layers + 1);
    split.largest = arena_array(scratch, int64_t, index_of(&split, n_stages + 1, 0));
    split.squares = arena_array(scratch, double, index_of(&split, n_stages + 1, 0));
    for (int layer = 0; layer < n_layers; layer++) {
        CHECK(costs->layers[layer] >= 0);
        split.before[layer + 1] = split.before[layer] + costs->layers[layer];
    }
    fill_largest(&split);
    most = split.largest[index_of(&split, n_stages, 0)];
    fill_squares(&split, most);
    read_off(counts, &split, most);
    return 0;
}

int stage_check(const int *counts, int n_counts, int n_stages, int n_layers, struct err *err)
{
    int64_t sum = 0;

    if (check_n_stages(n_stages, n_layers, err))
        return -1;
    if (n_counts != n_stages)
        return err_set(
            err, ERR_CONFIG,
            "layers are given for %d stage%s, but the pipeline has %d (hint: %d number%s)",
            n_counts, str_s(n_counts), n_stages, n_stages, str_s(n_stages));
    for (int stage = 0; stage < n_stages; stage++) {
        if (counts[stage] < 1)
            return err_set(
                err, ERR_CONFIG,
                "stage %d has %d layers, but must have 1 or more (hint: 1, or fewer stages)", stage,
                counts[stage]);
        sum += counts[stage];
    }
    if (sum != n_layers) {
        int64_t last = counts[n_stages - 1] + n_layers - sum;

        if (last >= 1)
            return err_set(err, ERR_CONFIG,
                           "the stages have %lld layer%s, but the model has %d (hint: %lld in the "
                           "last stage, or "
                           "auto)",
                           (long long)sum, str_s(sum), n_layers, (long long)last);
        return err_set(err, ERR_CONFIG,
                       "the stages have %lld layer%s, but the model has %d (hint: auto)",
                       (long long)sum, str_s(sum), n_layers);
    }
    return 0;
}

int64_t stage_cost(const int *counts, int n_stages, int stage, const struct stage_costs *costs)
{
    int64_t cost = stage == 0 ? costs->embedding : 0;
    int from = 0;

    for (int before = 0; before < stage; before++)
        from += counts[before];
    for (int layer = from; layer < from + counts[stage]; layer++)
        cost += costs->layers[layer];
    return cost + (stage == n_stages - 1 ? costs->head : 0);
}
