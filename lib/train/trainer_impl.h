/*
 * trainer_impl.h - the trainer's state, shared by trainer.c (making it), trainer_data.c,
 * trainer_step.c, evaluate.c, agree.c (all ranks), save.c and state.c (checkpoints)
 */
#ifndef TRAIN_TRAINER_IMPL_H
#define TRAIN_TRAINER_IMPL_H

#include "ckpt/store.h"
#include "data/stream/loader.h"
#include "run/run_trace.h"
#include "train/clock_offset.h"
#include "train/trainer.h"
#include "weights/cells.h"
#include "weights/slices.h"

/* Steps of which each rank keeps when its ops began and ended. */
struct trainer_trace {
    struct run_trace run; /* of the step at hand, if it is traced here; no capacity: not open */
    /* How rank 0's clock differs, at the step's begin and end. */
    struct clock_offset begin, end;
    bool is_compared;  /* whose clock this is: both below are known */
    bool shares_clock; /* with rank 0 */
    bool all_share;
    int64_t skewed_since; /* 0: it is as it is */
};

/* Batches that are left out, by their numbers as if none were. */
struct data_gap {
    int64_t first, n;
};

/* trainer_times.c */
struct trainer_timing {
    bool is_on;
    double input, input_idle;       /* of the step at hand: all, and without a core */
    double step_begin, step_waited; /* likewise: when, and run_wait_seconds then */
    double gate;                    /* in its gate */
    double total_input, total_idle; /* of measured steps since they were taken */
    int n_all_steps;                /* measured or not, since then */
    double total_exposed;           /* that these waited for collectives */
    bool is_slow[N_TRAINER_SLOW];   /* by faults */
    double slowed, own;             /* seconds added to this step; own time of the last one */
};

/* 1 but for fp16. */
static inline double trainer_initial_loss_scale(const struct job *job)
{
    return job->train.dtype == DTYPE_F16 ? job->train.loss_scale.initial : 1;
}

struct trainer {
    struct trainer_options options;
    struct trainer_carried carried;
    const struct job *job;
    struct job chosen; /* the job with memory_fit.h's choice, where it leaves one open */
    struct program program;
    /* Without packing: programs for micro-batches of shorter sequences, by lengths, the last of
     * which is program's. */
    struct program *shorter;
    int n_shorter;
    const int *lengths;
    struct arena arena; /* of these */
    double *dropped; /* of each layer with experts in the last step; NULL: they have no capacity */
    double *expert_stats; /* router statistics of the last step; NULL: no experts */
    struct run *run;
    struct comm_group *world; /* all ranks, for agreements */
    int world_rank, world_size;
    struct mesh_place place;         /* of world_rank */
    struct loader_dataset *datasets; /* of train; NULL: not listed yet */
    struct loader *train;
    struct held_out_set {
        const char *name; /* "": the one of eval.data or eval.split */
        struct loader *loader;
        int64_t n_batches;
    } * held_out_sets;
    int n_held_out_sets;
    struct loader *held_out; /* of the set that was chosen last */
    int64_t n_held_out_batches;
    int64_t held_out_batch; /* the one that an evaluation is at */

    bool is_gathered; /* weights are whole where a step begins with such (ahead_options) */
    int64_t step;     /* done */
    int64_t updates;  /* done, skipped steps not counted */
    int64_t tokens, n_skipped, n_reruns;
    double loss_scale;      /* of the next step; 1 but for fp16 */
    int64_t n_clean;        /* fp16: steps since the scale changed */
    struct str description; /* of the numerics */
    uint64_t numerics;
    char *numerics_changes; /* since the run began, a JSON array; NULL: none */
    char *restored_extra;

    struct store_save *save;          /* of this rank's file; NULL: written, or there is none */
    struct cells_reader *save_reader; /* its */
    struct trainer_commit *commit;    /* on ranks that commit, under way; or NULL */
    int save_started;                 /* on every rank, also one whose start failed */
    bool is_committing;               /* all ranks have written; equal on all */
    bool save_is_local;               /* each rank has a checkpoint of its own */
    double save_begin;                /* when it was started */
    double save_took[2]; /* seconds of the last one, and of the last local one; -1 none */
    double save_late;    /* when to say that it takes long, in seconds so far */
    double save_waited;  /* by gates, in seconds */
    bool save_is_late;   /* that was said */
    bool save_is_shown, save_has_met; /* in a row of rounds: what is published once */
    trainer_gate_fn gate;             /* may be NULL */
    void *gate_context;

    struct recheck *recheck; /* recheck.h; NULL: never */

    struct data_gap gaps[TRAINER_MAX_GAPS]; /* in increasing order */
    int n_gaps;
    int64_t data_step;        /* at which the loader of the training data is */
    trainer_refuse_fn refuse; /* may be NULL */
    void *refuse_context;
    int is_refused; /* the update of the step at hand */
    struct trainer_trace trace;
    struct trainer_timing timing;

    struct err save_err;  /* of this rank's part of it */
    struct err save_lost; /* of the save that a step waited for; no code if it is whole */
    char save_folder[4096];
    int64_t save_step;
    struct str save_state;
};

/* trainer_data.c: (re)open the training data at t->step; open the held-out data, if the job has
 * any. */
int trainer_open_data(struct trainer *trainer, struct err *err);
int trainer_open_held_out(struct trainer *trainer, struct err *err);
/* The number of the batch of the step at hand; and the loader there, if a gap lies before it. */
int64_t trainer_data_step(const struct trainer *trainer);
int trainer_seek_data(struct trainer *trainer, struct err *err);
/* The training data from t->step on, as another data-parallel rank sees them: the caller closes. */
int trainer_open_data_of(struct trainer *trainer, int dp_rank, struct loader **loader,
                         struct err *err);

/* trainer_step.c: which program a batch of the held-out data runs: 0, or 1 + that of a shorter
 * length. */
int trainer_choose_held_out(void *trainer, int micro_batch);
/* The same for a micro-batch of the step at hand. */
int trainer_choose(void *trainer, int micro_batch);

/* save.c: before the update of each step. Collective; only ERR_PEER is a failure of the step. */
int trainer_save_gate(void *context, struct err *err);
/* Wait for this rank's part of a save, and forget it. */
void trainer_drop_save(struct trainer *trainer);

/* state.c: the state of a checkpoint as JSON; which parameters are in it. */
void trainer_describe_state(const struct trainer *trainer, const char *extra, struct str *out);
enum slices_of trainer_saved_parameters(const struct trainer *trainer);

/* trainer_trace.c: before and after a step, nothing unless the job traces it. Collective: 0, or -1
 * and ERR_PEER or ERR_DEVICE. Close: what is left, before the run is destroyed. */
int trainer_begin_trace(struct trainer *trainer, struct err *err);
int trainer_end_trace(struct trainer *trainer, struct err *err);
void trainer_close_trace(struct trainer *trainer);

/* trainer_times.c: before and after a step's entry; around reading a micro-batch, and before it
 * what a fault adds. */
void trainer_time_step(struct trainer *trainer);
void trainer_time_stepped(struct trainer *trainer);
int trainer_time_input(struct trainer *trainer, struct micro_batch *batch, struct err *err);

/* agree.c, collective over all ranks, from the trainer's thread. First the group is made; 0, or -1
 * and ERR_DEVICE (host memory) or ERR_PEER. */
int trainer_join(struct trainer *trainer, struct err *err);

/* trainer_agree in rounds until all ranks are ready, as one agreement of the progress page: it is
 * published where this rank `meets` the others, in the first round in which it is ready. */
int trainer_agree_in_rounds(struct trainer *trainer, int64_t *value, bool meets, struct err *err);

/* What one rank cannot do must not leave the others waiting: status and err are its own, and a
 * failure of any is returned on all, on the others as "another rank could not start". */
int trainer_settle(struct trainer *trainer, int status, struct err *err);

/* comm's calls over them. */
int trainer_gather(struct trainer *trainer, const void *send, void *receive, size_t n_bytes,
                   struct err *err);
int trainer_shift(struct trainer *trainer, const void *send, int to, void *receive, int from,
                  size_t n_bytes, struct err *err);
int trainer_broadcast(struct trainer *trainer, void *buffer, size_t n_bytes, int root,
                      struct err *err);

#endif
