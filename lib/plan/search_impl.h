/*
 * search_impl.h - what the search shares with its list of layouts and its model of cost
 */
#ifndef PLAN_SEARCH_IMPL_H
#define PLAN_SEARCH_IMPL_H

#include "plan/keep_mix.h"
#include "plan/keep_sets.h"
#include "plan/layer_cost.h"
#include "plan/memory_fit.h"
#include "plan/search.h"

/* Fronts that were found (search_fronts.c). */
struct front_list {
    struct search_front **items;
    int n, capacity;
};

/* What memory_fit.h chose for a layout (search_fit.c); zeros: nothing yet. */
struct search_choice {
    struct arena arena;
    bool is_kept; /* by the largest ranks, at least */
    struct layer_keep_sets keep_sets;
    const struct rank_offload *offload; /* NULL: nothing leaves */
    int64_t recompute_ns, moved_bytes;  /* of a step, of the pipeline rank with most */
};

struct choice_list {
    struct search_choice **items;
    int n, capacity;
};

struct search {
    const struct search_request *request;
    struct arena *arena;
    struct layer_cost_cache costs;
    struct front_list fronts;
    struct choice_list choices; /* of all candidates */
    const int **cuts;           /* by n_stages: the first layer of each stage, and the end */
    bool are_alike;             /* all devices */
    size_t available;           /* bytes of the first island's devices */
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
    struct search_choice *choice; /* of a layout that was fitted; NULL: none */
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

/* The resolved job of a candidate with few micro-batches for each pipeline rank, where its memory
 * is that of the whole. */
int search_short_job(const struct search *search, const struct layout_candidate *candidate,
                     struct job *job, struct arena *arena, struct err *err);

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

/* Whose devices a pipeline rank's ranks compute on, those of one replica or of all (below). */
int search_island(const struct search *search, const struct mesh *mesh, int pp_rank, int replica);

bool search_has_split_backward(enum pipeline_kind kind);

/* Costs of each stage's layers [stages], in the arena; of the devices that replica says (below).
 * With free recomputation nothing is computed again. NULL: the layout is not possible. */
const struct layer_costs **search_list_costs(struct search *search, const struct layout *layout,
                                             const struct pipeline_spec *spec, int replica,
                                             enum cost_kind kind, struct arena *arena);

/* What embedding and head add to a stage. */
struct layer_cost search_ends_of_stage(const struct search *search,
                                       const struct layer_costs *const *costs,
                                       const struct pipeline_spec *spec, int stage);

/* The sums over the layers of each stage, in the arena. */
struct layer_cost *search_list_stages(const struct search *search,
                                      const struct layer_costs *const *costs, const int *first,
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

/* ---- search_fronts.c ---- */

/* Kinds of layers with few points of their fronts. */
struct search_kinds {
    const struct mix_kind *items;
    int n;
    const int *of_layer;
};

/* Find the fronts that these candidates' layers need, on all threads. */
void search_prepare_fronts(struct search *search, const struct layout_candidate *candidates, int n);
void search_release_fronts(struct search *search);

/* Whether the layout's fronts were found, if it needs some; else it is not possible. */
bool search_has_fronts(const struct search *search, const struct layout *layout);
/* Of a layout with free recomputation. */
struct search_kinds search_kinds(const struct search *search, const struct layout *layout,
                                 int island);

/* With all points. */
const struct keep_sets *search_fronts(const struct search *search, const struct layout *layout,
                                      int island);

/* ---- search_keep.c ---- */

/* Whether what layers compute again is chosen with the estimate. */
bool search_is_free(const struct layout *layout);

/* What the choice goes by. */
struct keep_request {
    const struct pipeline *pipeline;
    const struct mesh *mesh;
    int replica;
    const int *first;
    int64_t fixed_bytes, scratch_bytes; /* of each rank; the second is a part of the first */
    int64_t boundary_bytes;
};

/* Change the costs of a layout's stages to what its layers keep and compute again, and what leaves
 * the device, so that its ranks fit; scratch_bytes [pp]: that its ranks have then. */
void search_keep(const struct search *search, const struct layout *layout,
                 const struct keep_request *request, struct layer_cost *stages,
                 int64_t *scratch_bytes, struct arena *arena);

/* Change them to the fewest bytes that there may be. */
void search_keep_least(const struct search *search, const struct layout *layout,
                       const struct pipeline_spec *spec, const int *first,
                       struct layer_cost *stages);

/* ---- search_away.c ---- */

/* A rank of which something is to leave the device. */
struct away_request {
    const struct job *job;
    struct layer_cost *const *stages; /* [n_chunks] of its chunks: bytes that leave are taken from
                                         them, and waits for copies are added */
    int n_chunks, n_slots;
    double link_ns; /* of a byte */
};

/* Let so many bytes leave. Returns how many of them cannot. */
int64_t search_send_away(const struct away_request *request, int64_t wanted);

/* ---- search_fit.c ---- */

/* Whether the best layouts are fitted before they are predicted. */
bool search_is_fitted(const struct search *search, const struct layout *layout);

/* Room for a choice, the candidate's from now on. */
void search_open_choice(struct search *search, struct layout_candidate *candidate);
void search_release_choices(struct search *search);

/*
 * Fill the candidate's choice; estimate_bytes becomes what its largest rank needs with it, which is
 * more than there is where nothing fits. may_keep: all may be kept, if the largest ranks fit so.
 * Returns 0, or -1 where it cannot be compiled, or the host has no room.
 */
int search_fit(const struct search *search, struct layout_candidate *candidate, bool may_keep,
               struct err *err);

/* Give a job that has the candidate's layout its choice, which leaves none open. */
void search_give_choice(const struct layout_candidate *candidate, struct job *job);

/* ---- search_moves.c ---- */

/* Move layers between the stages of an estimated pipeline while its estimate is shorter, if by
 * more than times that count as equal; counts [stages] is room for the layout's cut then. */
void search_move_layers(struct search *search, struct layout_candidate *candidate, int *counts);

/* ---- search.c ---- */

/* Tiles 0 .. n - 1 on the request's threads. */
void search_run_each(const struct search *search, int n, void (*tile)(void *, int64_t, int),
                     void *context);

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
