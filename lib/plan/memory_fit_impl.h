/*
 * memory_fit_impl.h - a job that is being fitted (memory_fit.c), what of it the solver is asked
 * (memory_problem.c), and its programs (memory_compile.c)
 */
#ifndef PLAN_MEMORY_FIT_IMPL_H
#define PLAN_MEMORY_FIT_IMPL_H

#include "plan/keep_sets.h"
#include "plan/memory_fit.h"
#include "program/passes.h"

enum { N_ROUNDS_MAX = 10, N_SETS_MAX = 255, N_FEWER_AHEAD = 2 };

/* Cells of a kind are put together to so many groups at most: the solver tries all pairs of
 * counts. What is too much of the last group stays after all. */
enum { N_GROUPS_MAX = 8 };

/* Of what the update takes at a time, and in copies that travel (offload_cut.c). */
#define UPDATE_PIECES 6
#define PIECE_BYTES (INT64_C(16) << 20)
#define PIECE_LEAST (INT64_C(64) << 10)
#define PIECE_PART 64 /* of the limit, where that is less: below 1 GiB */

struct fitting {
    const struct memory_fit_request *request;
    const struct cluster *cluster;
    struct job job; /* with the choice so far */
    struct keep_sets fronts;
    struct keep_set *sets; /* [N_SETS_MAX] */
    int n_sets;
    unsigned char *set_of_layer; /* [n_layers] */
    struct rank_offload *offload;
    struct memory_fit_rank *ranks;
    struct memory_problem *listed; /* of ranks whose lists others may share */
    int n_listed;
    int64_t piece_bytes;
    struct {
        int rank; /* 1 + pp_rank; 0: nothing, or sets have other numbers since */
        struct rank_offload asked, offload; /* before and after what goes to the file */
        unsigned char *set_of_layer;
    } last;          /* that was compiled */
    bool has_levels; /* recompute_layers says what layers keep, and all of that stays */
    struct arena *arena;
};

/* A pipeline rank that is being fitted. */
struct fitting_rank {
    struct fitting *f;
    int pp_rank, n_layers;
    const int *layers; /* [n_layers] of the model, chunk after chunk */
    const int *places; /* [n_layers] of the problem's one chunk: the layer that stands for each */
    struct memory_problem problem;
    struct cell_list {
        size_t *bytes; /* of each, in the order in which they go */
        int n;
        int ends[N_GROUPS_MAX]; /* of the problem's groups: so many cells are in it and before */
    } cells[N_AWAY_KINDS];
    size_t away[N_AWAY_KINDS]; /* of the choice at hand */
};

/* What the solver is asked of a rank; program: where each layer keeps what the first point of its
 * kind says. */
void memory_problem_open(struct fitting_rank *rank, const struct program *program);

/* Give the problem lists of the solver, made once for all budgets and all ranks that are alike. */
void memory_problem_lists(struct fitting_rank *rank);

/* ---- memory_compile.c ---- */

/* Of a rank's segments; 0: none. */
int64_t memory_device_limit(const struct memory_fit_request *request, int pp_rank);
int64_t memory_host_limit(const struct memory_fit_request *request);

/* What of the rank's cells is away, by rank->away. */
void memory_note_cells(struct fitting_rank *rank);

/* The program of the choice so far, and the bytes of its segments in the rank's memory_fit_rank. */
int memory_compile_rank(struct fitting_rank *rank, struct program *program, struct err *err);

/*
 * The bytes of what rank->away, its layers' sets and its rank_offload say; what the host has no
 * room for goes to the job's file. States in a file pass through the device when they are updated,
 * so that it may take more than where they are on the host.
 */
int memory_compile_choice(struct fitting_rank *rank, struct err *err);

/* ---- */

/* memory_fit by the solver's sums alone. */
int memory_fit_solved(struct memory_fit *fit, const struct memory_fit_request *request,
                      struct arena *arena, struct err *err);

/* memory_placements.c: where something leaves, usual placements that fit are simulated beside the
 * solver's, and *fit becomes one of them that is faster. */
void memory_take_fastest(struct memory_fit *fit, const struct memory_fit_request *request,
                         struct arena *arena);

/* Where the solver's does not fit: the fastest usual placement that does. False: none fits. */
bool memory_take_placement(struct memory_fit *fit, const struct memory_fit_request *request,
                           struct arena *arena);

/* Sets and returns simulated_ns, where it can be said. */
int64_t memory_simulate(struct memory_fit *fit, const struct memory_fit_request *request);

/* What cells of each kind are to the solver. */
enum memory_class memory_class_of(enum away_kind kind);

#endif
