/*
 * metrics.h - what a run says of its steps: metrics.jsonl and TensorBoard events
 */
#ifndef REPORT_METRICS_H
#define REPORT_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "report/events.h"

/* How rank 0's GPU was lately (within seconds); numbers are -1 where it does not say. */
struct metrics_gpu {
    int64_t memory_bytes; /* in use, by whomever */
    int sm_mhz, power_watts, temperature_celsius;
    const char *throttle; /* why clocks are held down, in words; "": they are not */
};

/* What each layer with experts has done. */
struct metrics_experts {
    int n_layers, n_experts;
    const int *layers; /* their numbers */
    const double
        *stats; /* [n_layers][1 + n_experts]: balance, then each expert's load (trainer.h) */
};

/* What nothing hid of communication, in a run of several ranks. */
struct metrics_exposed {
    int n; /* kinds of collectives, each over its axes: */
    const struct metrics_exposed_kind {
        char name[40]; /* "reduce_scatter dp" */
        double seconds;
    } * kinds;
    int most_rank; /* that waited longest; -1: not known */
    double most_seconds;
};

struct metrics_step {
    int64_t step;
    double loss, grad_norm, lr;
    double loss_mean; /* of the steps since the line before; nan: none had a finite one */
    int64_t tokens;   /* learned since the run began */
    double tokens_per_s, step_s, mfu;      /* mfu: 0.41 is 41 % */
    double learned_per_s;                  /* where not all tokens are learned; else 0 */
    uint64_t memory_bytes;                 /* of this rank, as planned */
    int64_t skipped;                       /* steps skipped so far */
    int64_t reruns;                        /* steps run again so far, for want of memory */
    double useful_s;                       /* of all processes of the run, in steps that count */
    double elapsed_s;                      /* since the first start of the run */
    double loss_scale;                     /* of fp16; else 0 */
    double z_loss;                         /* of the head (trainer.h); else 0 */
    bool is_compressed;                    /* gradients, between ranks */
    double compress_error;                 /* then: what that lost, relative (trainer.h) */
    uint64_t numerics;                     /* hash (design.md §5) */
    double balance, most_used, least_used; /* of experts (trainer.h); balance 0: there are none */
    struct metrics_experts experts;        /* n_layers 0: there are none */
    const double *dropped;                 /* [experts.n_layers], or NULL (trainer.h) */
    const struct metrics_exposed *exposed; /* NULL: there is one rank */
    const struct metrics_gpu *gpu;         /* NULL: none, or not known */
};

struct metrics;

/*
 * Open folder/metrics.jsonl and a new events file in it; the folder is made. first_step is the
 * first step that will be written: lines of it and of later steps, which an interrupted run left,
 * are dropped, and TensorBoard forgets such steps. Events about the machines ("diverged", "save
 * failed", "preflight", "straggler", "died", ...) pauses and starts of processes ("started",
 * "paused", "resumed") stay. Lines
 * that are no objects with a step, such as one that a kill tore, are dropped with a warning that
 * counts them.
 *
 * The three below return -1 if the disk does not take it. A line is then kept, and written ahead of
 * the next one; so are up to 4 MiB of them, some ten thousand steps, after which new ones are lost.
 * Scalars for TensorBoard are not kept: its curves have a gap there.
 */
int metrics_open(struct metrics **metrics, const char *folder, int64_t first_step, struct err *err);

/*
 * What the lines that metrics_open kept say of earlier processes of the run. A pause ("paused") is
 * an end that was planned, as a sweep's at a rung; the start after it ("resumed") is no restart.
 */
struct metrics_history {
    int64_t n_starts;   /* those after pauses included */
    int64_t n_pauses;   /* that were over at a later start */
    double paused_s;    /* of all these */
    double begun_at;    /* of the first start, in seconds of Unix time; 0: there was none */
    double paused_at;   /* likewise of the pause that is not over; 0: there is none */
    int64_t pause_step; /* after which it began */
    double useful_s;    /* up to the first step that will be written */
};
struct metrics_history metrics_history(const struct metrics *metrics);

/*
 * Before metrics_open: drop folder's lines of the evaluation at this step, which will be done
 * again. A file that is not there is fine.
 */
int metrics_drop_eval(const char *folder, int64_t step, struct err *err);

/*
 * One object a line (design.md §10), loss_hex and grad_norm_hex as %a; flushed. What is not finite
 * is null, its hex text "nan", "inf" or "-inf". time is in seconds of Unix time, elapsed_s to the
 * millisecond, numerics is 16 hex digits. With experts also
 * balance, most_used, least_used, and expert_layers, of each its layer, balance, and load, and
 * dropped, a list, where they have a capacity; of several ranks exposed_s, an object: what the
 * step waited on rank 0 for each kind of collective over each axis, in seconds; and exposed_max,
 * which rank's steps waited most for all of them when the ranks' times were compared last, and how
 * many seconds a step: {"seconds":..., "rank":...}; where not all tokens are learned
 * learned_per_s, of fp16 loss_scale, with a z-loss z_loss, of compressed gradients compress_error;
 * of a GPU gpu_memory_bytes, gpu_sm_mhz, gpu_power_w, gpu_temperature_c as far as they are known,
 * and gpu_throttle. Scalars to TensorBoard.
 */
int metrics_step(struct metrics *metrics, const struct metrics_step *step, struct err *err);

/* An evaluation on held-out tokens. */
struct metrics_evaluation {
    int64_t step;
    const char *set; /* its name among several; NULL or "": the one without a name */
    double loss;     /* nats a token */
    int64_t tokens;
    double elapsed_s; /* since the first start of the run */
};

/* {"step":…, "eval_loss":…, "eval_loss_hex":…, "eval_tokens":…, "perplexity":…, "eval_set":…,
 * "time":…, "elapsed_s":…}, eval_set of a set with a name; eval/loss, or eval/SET/loss, there. */
int metrics_eval(struct metrics *metrics, const struct metrics_evaluation *evaluation,
                 struct err *err);

/* {"step":…, "event":…, "text":…, "time":…}: a skipped step, a changed key, a checkpoint. time is
 * in seconds of Unix time. */
int metrics_event(struct metrics *metrics, int64_t step, const char *event, const char *text,
                  struct err *err);

/*
 * {"step":…, "ops_s":{"linear":…}, "rank_steps":…, "time":…}: seconds that compute ops of each kind
 * took a step of a rank, the mean of so many steps of ranks up to this one; the longest first.
 */
struct metrics_op {
    const char *name;
    double seconds;
};
int metrics_op_times(struct metrics *metrics, int64_t step, int64_t n_rank_steps,
                     const struct metrics_op *ops, int n, struct err *err);

/* What the run is made of, for TensorBoard: the job's fields as hparams, its text as job. */
int metrics_job(struct metrics *metrics, const struct events_hparam *fields, int n,
                const char *text, struct err *err);

/* That the process ends, well or not, for TensorBoard's hparams. */
int metrics_end(struct metrics *metrics, bool is_success, struct err *err);

/* The scalars of the last line of a step or an evaluation, as TensorBoard got them; until the next
 * line. */
const struct events_scalar *metrics_scalars(const struct metrics *metrics, int *n);

/* The last line that was made, with its end, even if the disk did not take it; until the next. */
const char *metrics_line(const struct metrics *metrics);

/*
 * Add an event to the metrics.jsonl of a folder, if there is one, from another process than the
 * run's: the death of its ranks, once they have ended. at: seconds of Unix time.
 */
int metrics_note(const char *folder, int64_t step, const char *event, double at, const char *text,
                 struct err *err);

void metrics_close(struct metrics *metrics);

#endif
