/*
 * search_impl.h - what the search shares with its list of layouts and its model of cost
 */
#ifndef PLAN_SEARCH_IMPL_H
#define PLAN_SEARCH_IMPL_H

#include "plan/layer_cost.h"
#include "plan/levels.h"
#include "plan/search.h"

struct search {
    const struct search_request *request;
    struct arena *arena;
    struct layer_cost_cache costs;
    const int **cuts; /* by n_stages: the first layer of each stage, and the end */
    bool are_alike;   /* all devices */
    size_t available; /* bytes of the first island's devices */
};

/* The pipeline ranks that need most, the largest first. */
enum { N_LARGEST = 2 };
struct largest_ranks {
    int ranks[N_LARGEST], n;
    size_t bytes[N_LARGEST];
};

/* A layout with what bounds and estimates are made of it. */
struct layout_candidate {
    struct layout layout;
    int n_micro_batches;
    int weight; /* as search_row */
    int64_t bound_ns, estimate_ns;
    size_t bound_bytes, estimate_bytes;
    struct largest_ranks largest; /* by the costs of layers */
    bool is_estimated, is_misfit; /* as compiled whole */
    bool is_measured;             /* estimate_bytes is of compiled programs */
    /* Of a layout whose levels are chosen with its estimate: those of its layout [stages]. */
    int *full, *selective;
    int64_t sums_off_bytes; /* what programs need beyond the sums of costs, as far as known */
    bool are_levels_kept;   /* from now on */
    bool is_plain;          /* all layers are alike: another layout is that */
};

struct candidates {
    struct layout_candidate *items;
    int n, capacity;
};

/* ---- search_share.c ---- */

/*
 * How many micro-batches each data-parallel rank of a layout gets that has n_micro_batches for each
 * of them, so that the slowest is ready as early as possible [dp]; NULL: as many each, or not
 * possible.
 */
const int *search_share(struct search *search, const struct layout_candidate *candidate);

/* ---- search_memory.c ---- */

/* What the devices of a pipeline rank have for it. */
size_t search_available(const struct search *search, const struct mesh *mesh, int rank);

/* Bytes of a pipeline rank, as if its devices had as much memory as the first island's. */
size_t search_scale_bytes(const struct search *search, const struct mesh *mesh, int rank,
                          size_t n_bytes);

/* Bytes of a rank by the costs of its stages, without what a layout has whatever its layers are. */
size_t search_bytes_of_rank(const struct pipeline *pipeline, const struct layer_cost *stages,
                            int64_t boundary_bytes, int rank);

void search_note_largest(struct largest_ranks *largest, int rank, size_t n_bytes);

/*
 * Compile the largest ranks of an estimated layout: estimate_bytes becomes what they need, if it is
 * not more than there is; else of the first that needs more. Returns 0, or -1 where the layout
 * cannot be compiled.
 */
int search_measure_bytes(const struct search *search, struct layout_candidate *candidate,
                         struct err *err);

/* ---- search_cut.c ---- */

void search_add_cost(struct layer_cost *sum, const struct layer_cost *cost);

/* Bytes of cells with what ZeRO leaves of them. */
size_t search_least_cells(const struct layout *layout, const struct layer_cost *cost);

/* First layers of the stages [n + 1], by base costs of each stage; NULL: not possible. The arena's
 * if the layout has its cut, else the search's. */
const int *search_cut(struct search *search, const struct layout *layout,
                      const struct pipeline_spec *spec, const struct layer_costs *const *base,
                      struct arena *arena);

/* Give the layout its cut into n stages, if it is not what compiling a job does by itself. */
void search_keep_cut(struct search *search, struct layout *layout, const int *first, int n);

/* ---- search_costs.c ---- */

/* Which costs: those that no data parallel adds to, all, or all of programs whose backward is
 * split. */
enum cost_kind { COSTS_BASE, COSTS_WHOLE, COSTS_SPLIT };

/* Costs of each stage's layers at each level of recomputation; where a layout's layers are alike,
 * at the level of its recompute. */
struct level_costs {
    const struct layer_costs **of[N_RECOMPUTE_LEVELS]; /* [stages] */
};

/* Whether layers of the layout are recomputed differently, and how those of a stage are. */
bool search_is_mixed(const struct layout *layout);
struct level_counts search_levels_of(const struct layout *layout, int stage);

bool search_has_split_backward(enum pipeline_kind kind);

/* Fill the costs, in the arena; of the devices that replica says (below). Returns whether the
 * layout is possible. */
bool search_list_costs(struct level_costs *costs, struct search *search,
                       const struct layout *layout, const struct pipeline_spec *spec, int replica,
                       enum cost_kind kind, struct arena *arena);

/* What embedding and head add to a stage. */
struct layer_cost search_ends_of_stage(const struct search *search, const struct level_costs *costs,
                                       const struct pipeline_spec *spec, int stage);

/* The sums over the layers of each stage, in the arena. */
struct layer_cost *search_list_stages(const struct search *search, const struct level_costs *costs,
                                      const struct layout *layout, const int *first,
                                      const struct pipeline_spec *spec, struct arena *arena);

/* Where the layout's ranks lie. */
struct mesh search_mesh(const struct search *search, const struct layout *layout);

/* Whether one of these data-parallel ranks has devices of the same kinds as the other, and as many
 * micro-batches. */
bool search_is_like(const struct search *search, const struct layout *layout, int replica,
                    int other);

struct pipeline_spec search_spec(const struct layout_candidate *candidate);

/* Costs of each stage without data parallel on the slowest devices of all data-parallel ranks, or
 * of one; in the arena. NULL: not possible. */
enum { ALL_REPLICAS = -1 };
struct layer_cost *search_base_stages(struct search *search, const struct layout *layout,
                                      const struct pipeline_spec *spec, int replica,
                                      struct arena *arena);

/* ---- search_levels.c ---- */

/* What the choice of levels goes by. */
struct levels_request {
    const struct pipeline *pipeline;
    const struct mesh *mesh;
    const struct level_costs *whole, *split; /* split: NULL where backwards are not */
    const int *first;
    int64_t fixed_bytes, boundary_bytes;
};

/* Fill the candidate's levels by sums of costs: the fastest that fit; all full where none do. */
void search_choose_levels(struct search *search, struct layout_candidate *candidate,
                          const struct levels_request *request);

/* Whether one level is that of all layers. */
bool search_are_levels_plain(const struct layout_candidate *candidate, const struct search *search);

/* search_measure_bytes of a candidate with levels, which are chosen again by what it says. */
int search_measure_levels(struct search *search, struct layout_candidate *candidate,
                          struct err *err);

/* ---- search_moves.c ---- */

/* Move layers between the stages of an estimated pipeline while its estimate is shorter, if by
 * more than times that count as equal; counts [stages] is room for the layout's cut then. */
void search_move_layers(struct search *search, struct layout_candidate *candidate, int *counts);

/* ---- search_space.c, search_bound.c, search_estimate.c ---- */

/* All layouts that are possible, in lexicographic order. */
void search_list(struct search *search, struct candidates *candidates);

/* Compile on all threads what these candidates' bounds, or estimates, need. */
void search_prepare(struct search *search, const struct layout_candidate *candidates, int n,
                    bool for_bounds);

/* Fill a candidate's bounds. Returns whether it is possible. */
bool search_bound(struct search *search, struct layout_candidate *candidate);

/* Fill its estimates, which are at least its bounds. Returns whether it is possible. */
bool search_estimate(struct search *search, struct layout_candidate *candidate);

#endif
