/*
 * trainer.h - training state of this rank: steps, evaluations, saves; no intervals, no output
 *
 * It compiles the job's program, runs it, loads micro-batches and keeps the state of
 * checkpoints. pretrain.c decides when to log, evaluate and save. All functions that say
 * "collective" are called by every rank of the job in the same order.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdbool.h>

#include "config/job.h"
#include "model/compile.h"
#include "run/run.h"
#include "train/numerics.h"

/* Hardware and communication, created by the caller (engine.h, or a test). */
struct trainer_options {
    const struct job *job; /* resolved; outlives the trainer */
    struct pool *pool;
    struct kernels *kernels;
    struct comm *comm;
    struct worker *worker;          /* the thread that uses comm; NULL: the caller's own */
    struct progress_slot *progress; /* may be NULL */
    size_t available_bytes;         /* a plan that needs more is refused; 0: no limit */
    int n_sharing;       /* number of ranks that share the device's memory; 0: only this rank */
    const char *build;   /* version of the binary, equal on all ranks; NULL: none */
    int n_local;         /* ranks of this node, which share its memory; 0: only this rank */
    int accept_numerics; /* restore checkpoints of other arithmetic (trainer_restore) */
};

struct trainer;

/* Collective. Returns 0, or -1: ERR_DEVICE, ERR_DATA (datasets), ERR_PEER, ERR_CONFIG (ranks
 * differ). */
int trainer_create(struct trainer **trainer, const struct trainer_options *options,
                   struct err *err);
void trainer_destroy(struct trainer *trainer);

/* Further content of checkpoints, used by rank 0. */
struct trainer_carried {
    const char *folder;    /* its files are copied to hf/ of checkpoints; NULL: none */
    const char *hashes;    /* hashes of these files, as printed by carried_describe */
    const char *tokenizer; /* hash of the tokenizer of the data; NULL: unknown */
};

/* For all further saves; the strings are borrowed. */
void trainer_set_carried(struct trainer *trainer, const struct trainer_carried *carried);

struct trainer_result {
    int64_t step;     /* steps done, this one included */
    double loss;      /* mean nats per token with loss, over the global batch, before the update */
    double grad_norm; /* before clipping */
    double lr;
    int64_t tokens;    /* tokens with loss in the global batch */
    int64_t read;      /* all tokens of the global batch without padding */
    int skipped;       /* gradients were not finite, or refused; no parameter was updated */
    int refused;       /* by trainer_set_refuse's function */
    int rerun;         /* rows of experts found no memory, and were recomputed (program/pages.c) */
    double loss_scale; /* fp16: the loss scale of this step; else 0 */
    /* Gradients were compressed between ranks: what was lost of them, to be made up for by later
     * steps, relative to what was to be sent; Euclidean norms over all ranks and parameters. */
    bool is_compressed;
    double compress_error;
    double z_loss;  /* train.z_loss times the mean of log(Z)^2, never part of `loss`; 0: none */
    int scale_fell; /* skipped, and the loss scale was lowered */
    /*
     * MoE models only, else 0. balance: load-balancing loss without its coefficient, mean
     * over layers and micro-batches (1: uniform); never part of `loss`. most_used, least_used:
     * tokens of the most and the least used expert of any layer, relative to a
     * uniform distribution.
     */
    double balance, most_used, least_used;
    /* Of each layer with experts its balance, then the load of each expert, likewise relative: the
     * trainer's, until the next step. */
    int n_expert_layers;
    const double *expert_layers;
    /* Choices that were dropped, of each such layer; NULL: experts have no capacity. */
    const double *dropped;
};

/*
 * All-gather the updated weights on every rank. Under zero 1 and 2 only the local shard is current
 * after a step; the next step and an evaluation gather first, and other readers of weights between
 * steps must call this. Collective; a no-op without sharding and under zero 3, where weights stay
 * sharded between steps (except with hold step).
 */
int trainer_gather_weights(struct trainer *trainer, struct err *err);

/*
 * Called on all ranks in each step, after all gradients are reduced and before the update:
 * -1 and err make the step fail.
 */
typedef int (*trainer_gate_fn)(void *context, struct err *err);
void trainer_set_gate(struct trainer *trainer, trainer_gate_fn gate, void *context);

/*
 * Called on all ranks in each step of a job with train.on_spike skip, when the loss and the norm of
 * the step are known (as in its result) and before the update: whether it is not done. Returns the
 * same on all ranks.
 */
typedef bool (*trainer_refuse_fn)(void *context, double loss, double grad_norm);
void trainer_set_refuse(struct trainer *trainer, trainer_refuse_fn refuse, void *context);

/* One step. Collective. */
int trainer_step(struct trainer *trainer, struct trainer_result *result, struct err *err);

/*
 * A rank's own time, for comparing ranks: what steps take it without waiting for other ranks.
 * Measured from trainer_measure(trainer, true) until false, between steps; taken as the sum of what
 * was measured since it was taken last. On a GPU `waiting` is not known and 0. Only steps that were
 * measured as a whole count, which is the same on ranks with equal programs.
 */
struct trainer_times {
    int n_steps;
    double compute, waiting, input; /* seconds (train/stragglers.h) */
    int n_all_steps;                /* measured or not */
    double exposed;                 /* seconds that all of these waited for collectives */
};
int trainer_measure(struct trainer *trainer, bool is_measured, struct err *err);
struct trainer_times trainer_take_times(struct trainer *trainer);

/* How long the last step's gate waited for a save or compared replicas, in seconds. */
double trainer_gate_seconds(const struct trainer *trainer);

/* A fault, for tests: steps compute, or read, longer by 30 % from now on, or no longer so. */
enum trainer_slowness { TRAINER_SLOW_COMPUTE, TRAINER_SLOW_INPUT, N_TRAINER_SLOW };
void trainer_slow(struct trainer *trainer, enum trainer_slowness what);

/* Callbacks of an evaluation; each may be NULL, on all ranks alike. */
struct trainer_evaluation {
    void (*on_batch)(void *context, int64_t done, int64_t total); /* after each batch */
    /*
     * Whether this rank must stop the evaluation. All ranks call it at the same batches, several
     * times per second (if batches are that fast), and agree: if one rank must stop, all stop.
     */
    bool (*must_leave)(void *context);
    void *context;
};

/* Held-out sets of the job: eval.data or eval.split, then those of eval.sets. */
int trainer_n_held_out_sets(const struct trainer *trainer);

/* The functions below are about this set from now on, at first the first. Returns its name, "" of
 * eval.data and eval.split. */
const char *trainer_choose_held_out_set(struct trainer *trainer, int set);

/*
 * Mean loss over the held-out data, at most max_batches global batches of it (0: all). Collective.
 * *tokens is 0 if the job has no held-out data. evaluation may be NULL. Without packing each
 * micro-batch is padded to the smallest sufficient length of data.lengths; the result equals that
 * of seq_len to rounding. Returns 0; 1 on all ranks if the evaluation was stopped, without a
 * result; or -1.
 */
int trainer_evaluate(struct trainer *trainer, int64_t max_batches,
                     const struct trainer_evaluation *evaluation, double *loss, int64_t *tokens,
                     struct err *err);
int trainer_has_held_out(const struct trainer *trainer);

/* Number of batches that a rank computes in such an evaluation. */
int64_t trainer_n_held_out_batches(const struct trainer *trainer, int64_t max_batches);

/*
 * Start saving into folder (a checkpoint's final path); extra is a JSON object's text that is kept
 * with it under "run". A save that is still under way is waited for. The next step's update waits
 * until the save is about to end or what it has not read is copied to host memory, and continues
 * if it failed (trainer_save_failed). Collective.
 */
int trainer_save(struct trainer *trainer, const char *folder, const char *extra, struct err *err);

/*
 * The same, into a folder of this rank on its node, for trainer_restore_local: a checkpoint by
 * itself, of all that this rank reads at a resume.
 */
int trainer_save_local(struct trainer *trainer, const char *folder, const char *extra,
                       struct err *err);

/* Whether a save is under way, equal on all ranks; the seconds that the last one took that is not
 * local, -1: none yet. */
int trainer_save_pending(const struct trainer *trainer);
double trainer_save_seconds(const struct trainer *trainer);

/*
 * Replace extra of the save that was started at this step and is not committed yet; a no-op
 * if there is none.
 */
void trainer_save_describe(struct trainer *trainer, const char *extra);

/*
 * The same for folder, a committed checkpoint of this step; called by one rank
 * only. The checkpoint is complete at any moment.
 */
int trainer_redescribe(struct trainer *trainer, const char *folder, const char *extra,
                       struct err *err);

/*
 * Wait until a save in flight is committed. Collective; failures, except ERR_PEER, are equal on all
 * ranks.
 */
int trainer_save_finish(struct trainer *trainer, struct err *err);

/* Whether the save that the last step waited for failed (equal on all ranks), and why. Returns 1
 * once per failure. */
int trainer_save_failed(struct trainer *trainer, struct err *why);

/*
 * Initialise a new run: read the weights of the job's train.init, if given, instead of
 * random ones. ERR_CONFIG if they belong to another model. Each rank reads its own shards.
 */
int trainer_begin(struct trainer *trainer, struct err *err);

/*
 * Load a checkpoint: parameters, moments, counters. Another model, seed or data is ERR_CONFIG, and
 * so is other arithmetic without options.accept_numerics (numerics_compare). What else differs is
 * appended to *differences, and becomes a part of the checkpoints that follow. Collective.
 */
int trainer_restore(struct trainer *trainer, const char *folder,
                    struct numerics_differences *differences, struct err *err);

/*
 * The same from what trainer_save_local made of this rank. And what a resume must know before: 0 if
 * it can be restored, with the text of its state, yours to free, in *state; or -1 and ERR_DATA if
 * it is damaged, or of another layout or other numerics. Not collective.
 */
int trainer_restore_local(struct trainer *trainer, const char *folder,
                          struct numerics_differences *differences, struct err *err);
int trainer_examine_local(const struct trainer *trainer, const char *folder, char **state,
                          struct err *err);

/*
 * Load a checkpoint of this very run; without a folder begin again at step 0, with the bits of
 * trainer_begin in a new trainer. What is left out so far (trainer_leave_out) remains so.
 * Collective.
 */
int trainer_return_to(struct trainer *trainer, const char *folder, struct err *err);

/*
 * From now on leave out n batches of the training data, from that of step `first` (counted from 0,
 * at least trainer_step_number) on, besides those that are left out so far, which is a part of
 * checkpoints; at most TRAINER_MAX_GAPS times. The same on all ranks.
 */
#define TRAINER_MAX_GAPS 65
void trainer_leave_out(struct trainer *trainer, int64_t first, int64_t n);
int trainer_n_gaps(const struct trainer *trainer);

/* The extra text of the checkpoint that was restored; NULL if none was. */
const char *trainer_restored_extra(const struct trainer *trainer);

int64_t trainer_step_number(const struct trainer *trainer); /* steps done */
int64_t trainer_tokens(const struct trainer *trainer);      /* with loss, so far */
int64_t trainer_n_skipped(const struct trainer *trainer);
int64_t trainer_n_reruns(const struct trainer *trainer);
uint64_t trainer_numerics(const struct trainer *trainer); /* hash (design.md §5) */
const struct program *trainer_program(const struct trainer *trainer);
struct run *trainer_run(const struct trainer *trainer);

/* Agree on a value: *value becomes the maximum over all ranks. Collective. */
int trainer_agree(struct trainer *trainer, int64_t *value, struct err *err);

#endif
