/*
 * trainer.h - a model under training on this rank: steps, evaluations, saves; no cadence, no output
 *
 * It compiles the job's program, runs it, feeds it with micro-batches and keeps what a checkpoint
 * must hold. When to log, evaluate and save is pretrain.c's business. All functions that say
 * "collective" are called by every rank of the job in the same order.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "config/job.h"
#include "model/compile.h"
#include "run/run.h"

/* The hardware and the neighbours, made by the caller (engine.h, or a test). */
struct trainer_options {
    const struct job *job; /* resolved; outlives the trainer */
    struct pool *pool;
    struct kernels *kernels;
    struct comm *comm;
    struct worker *worker;          /* the thread that uses comm; NULL: the caller's own */
    struct progress_slot *progress; /* may be NULL */
    size_t available_bytes;         /* a plan over this is refused; 0: never */
    int n_sharing;                  /* ranks that take of the device's memory; 0: this one alone */
    const char *build;              /* version of the binary, equal on all ranks; NULL: none */
};

struct trainer;

/* Collective. Returns 0, or -1: ERR_DEVICE, ERR_DATA (datasets), ERR_PEER, ERR_CONFIG (ranks
 * differ). */
int trainer_create(struct trainer **trainer, const struct trainer_options *options,
                   struct err *err);
void trainer_destroy(struct trainer *trainer);

/* What checkpoints have besides the trainer's state; of rank 0. */
struct trainer_carried {
    const char *folder;    /* whose files are their hf/; NULL: none */
    const char *hashes;    /* of them, as carried_describe */
    const char *tokenizer; /* hash of the one that the data was made with; NULL: not known */
};

/* From now on; the texts are borrowed. */
void trainer_set_carried(struct trainer *trainer, const struct trainer_carried *carried);

struct trainer_result {
    int64_t step;     /* steps done, this one included */
    double loss;      /* mean nats a learned token, over the global batch, before the update */
    double grad_norm; /* before clipping */
    double lr;
    int64_t tokens;    /* learned, of the global batch */
    int64_t read;      /* all of its tokens, padding left out */
    int skipped;       /* the gradient was not finite; nothing was updated */
    double loss_scale; /* of fp16, by which gradients were too large in this step; else 0 */
    int scale_fell;    /* skipped, and the next step has a lower scale, which may mend it */
    /*
     * Of experts, 0 where there are none. balance: the balance loss without its coefficient, mean
     * over layers and micro-batches, 1 where all are used alike; it is not in `loss`, also where
     * it is trained on. The tokens of the most and the least used expert of any layer, over what
     * they would be if all were used alike.
     */
    double balance, most_used, least_used;
};

/*
 * Make the weights whole and current on every rank. Under zero 1 and 2 a step leaves each rank with
 * its own part of them alone, and the next step and an evaluation begin with this; who reads them
 * between steps by himself calls it first. Collective; nothing is done where nothing is sharded, nor
 * under zero 3, where no rank has them whole between steps (unless they are held for a step).
 */
int trainer_gather_weights(struct trainer *trainer, struct err *err);

/*
 * Asked on all ranks in each step, when all gradients are summed and before anything is updated:
 * what it returns, with err, is the step's failure.
 */
typedef int (*trainer_gate_fn)(void *context, struct err *err);
void trainer_set_gate(struct trainer *trainer, trainer_gate_fn gate, void *context);

/* One step. Collective. */
int trainer_step(struct trainer *trainer, struct trainer_result *result, struct err *err);

/* What an evaluation calls; either function may be NULL, and must then be so on all ranks. */
struct trainer_evaluation {
    void (*on_batch)(void *context, int64_t done, int64_t total); /* after each batch */
    /*
     * Whether this rank has to leave. All ranks ask at the same batches, some times a second
     * (slower only where a batch is), and agree: if one has to, all leave there.
     */
    int (*must_leave)(void *context);
    void *context;
};

/*
 * Mean loss over the held-out data, at most max_batches global batches of it (0: all). Collective.
 * *tokens 0 if the job holds out none. evaluation may be NULL. Without packing each micro-batch is
 * padded to the least of the lengths that training has, so that the result equals that of seq_len to
 * rounding. Returns 0; 1 on all ranks if the evaluation was left, with no result; or -1.
 */
int trainer_evaluate(struct trainer *trainer, int64_t max_batches,
                     const struct trainer_evaluation *evaluation, double *loss, int64_t *tokens,
                     struct err *err);
int trainer_has_held_out(const struct trainer *trainer);

/* How many batches a rank computes in such an evaluation. */
int64_t trainer_n_held_out_batches(const struct trainer *trainer, int64_t max_batches);

/*
 * Start saving into folder (a checkpoint's final path); extra is a JSON object's text that is kept
 * with it under "run". The next step's update waits for its end by itself, and goes on if it
 * failed: trainer_save_failed tells. Collective.
 */
int trainer_save(struct trainer *trainer, const char *folder, const char *extra, struct err *err);

/*
 * Keep another extra with the save that was begun at this step and is not committed yet; nothing is
 * done if there is none.
 */
void trainer_save_describe(struct trainer *trainer, const char *extra);

/*
 * The same for folder, a committed checkpoint of this step: on the rank that calls it, which is one
 * alone. The checkpoint is whole at any moment.
 */
int trainer_redescribe(struct trainer *trainer, const char *folder, const char *extra,
                       struct err *err);

/*
 * Wait until a save under way is committed. Collective, and so is its failure but for ERR_PEER.
 */
int trainer_save_finish(struct trainer *trainer, struct err *err);

/* Whether the save that the last step waited for failed, on all ranks; *why then. Asked once. */
int trainer_save_failed(struct trainer *trainer, struct err *why);

/*
 * Where a run begins: take the weights that the job's train.init names, if it names any, instead of
 * random ones. ERR_CONFIG where they are of another model. Each rank reads its own parts.
 */
int trainer_begin(struct trainer *trainer, struct err *err);

/*
 * Load a checkpoint: parameters, moments, counters. A changed model, seed or data is ERR_CONFIG and
 * names the key. What else changed (lr, steps, layout, ...) is listed in *notes, one a line, for
 * the log. Collective.
 */
int trainer_restore(struct trainer *trainer, const char *folder, struct str *notes,
                    struct err *err);

/* The extra text of the checkpoint that was restored; NULL if none was. */
const char *trainer_restored_extra(const struct trainer *trainer);

int64_t trainer_step_number(const struct trainer *trainer); /* steps done */
int64_t trainer_tokens(const struct trainer *trainer);      /* learned so far */
int64_t trainer_n_skipped(const struct trainer *trainer);
uint64_t trainer_numerics(const struct trainer *trainer); /* hash (design.md §5) */
const struct program *trainer_program(const struct trainer *trainer);
struct run *trainer_run(const struct trainer *trainer);

/* Did any rank raise its hand? *value becomes the largest of all ranks'. Collective. */
int trainer_agree(struct trainer *trainer, int64_t *value, struct err *err);

#endif
