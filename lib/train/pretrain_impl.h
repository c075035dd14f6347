/*
 * pretrain_impl.h - the state of a run under way, shared by pretrain.c (cadence), resume.c (where
 * it begins), pretrain_evaluate.c, pretrain_save.c (what it leaves behind), pretrain_local.c (local
 * checkpoints), pretrain_report.c (what it says), pretrain_status.c (for who watches it) and
 * pretrain_monitor.c (how it fares)
 */
#ifndef TRAIN_PRETRAIN_IMPL_H
#define TRAIN_PRETRAIN_IMPL_H

#include <stdbool.h>

#include "device/gpu_watch.h"
#include "report/metrics.h"
#include "report/terminal.h"
#include "tokenizer/tokenizer.h"
#include "train/best.h"
#include "train/cautions.h"
#include "train/hooks.h"
#include "train/numerics.h"
#include "train/pretrain.h"
#include "train/rank_watch.h"
#include "train/replicas.h"
#include "train/spike.h"
#include "train/trainer.h"
#include "train/upload.h"

#define PATH_BYTES 4096

/* What rank 0 answers to a signal (signals_answer), by what the run is at. */
#define PRETRAIN_ANSWER_STARTING \
    "the run completes its first step, saves it and exits; a second signal terminates it " \
    "immediately, without saving"
#define PRETRAIN_ANSWER_STEP \
    "the run completes this step, saves it and exits; a second signal terminates it immediately, " \
    "without saving"
#define PRETRAIN_ANSWER_EVALUATING \
    "the run stops this evaluation at its next batch, saves and exits; a second signal " \
    "terminates it " \
    "now, " \
    "unsaved"
#define PRETRAIN_ANSWER_SAVED \
    "the run stops this evaluation at its next batch, completes the checkpoint and exits"

/* The losses of the steps since the last line of metrics: those that are finite. All ranks have it,
 * and checkpoints keep it, so that a run that was stopped writes the same means. */
struct loss_window {
    int64_t n;
    double sum;
};

/* On rank 0. */
struct run_account {
    double begun_at;          /* first start of the run, Unix time */
    double useful_s;          /* of all its processes, in steps that count */
    int64_t n_starts;         /* this one included; 0: not opened */
    int64_t n_pauses;         /* of these the ones after a pause, which are no restarts */
    double paused_s;          /* between processes, at pauses */
    double blocked_s;         /* by checkpoints, this process */
    double written_at;        /* the file for Prometheus */
    bool is_unwritten;        /* it could not be */
    double op_times_next;     /* when a line of op times is due */
    struct metrics_step last; /* the last step */
};

struct pretrain {
    const struct pretrain_options *options;
    const struct job *job;
    struct trainer *trainer;
    struct replicas *replicas; /* NULL: each rank is the only one of its kind */
    struct recheck *recheck;   /* NULL: the job has none */
    struct metrics *metrics;   /* rank 0 alone, as the terminal is */
    struct terminal *terminal;
    struct rank_watch *watch; /* NULL: ranks are not compared */
    struct run_account account;
    struct local_tier *local;         /* NULL: the job has no local checkpoints */
    struct upload *upload;            /* rank 0's; NULL: the job has none */
    bool upload_is_last;              /* the run is done: nothing but uploads is left */
    bool upload_is_owed;              /* of whole_step, after its evaluation */
    struct mlflow *mlflow;            /* rank 0's; NULL: the job has none */
    struct hooks *hooks;              /* rank 0's; NULL: the job has none */
    struct run_status_writer *status; /* rank 0's; NULL: none */
    struct gpu_watch *gpu;            /* rank 0's; NULL: it has none */
    struct progress_slot *progress;
    int is_first;      /* rank 0 */
    int is_unwritten;  /* the disk did not take the last line of metrics */
    int lock;          /* fd of the run folder's lock */
    int n_stepped;     /* by this process */
    double peak_flops; /* of all ranks */
    double best_eval;
    int n_worse; /* evaluations since the best */
    struct best_checkpoints best;
    int n_skipped_in_a_row;
    struct learning learning;
    struct loss_window unlogged;
    struct spikes spikes;
    int n_timed;            /* steps, to compare with what was predicted */
    double timed_seconds;   /* of those after warming up */
    int agreed;             /* the failure is known to all ranks */
    int stopped;            /* early: the run is over though steps are left */
    int64_t evaluated_step; /* of the last evaluation, -1 none */
    int owes_evaluation;    /* the checkpoint that was restored does */
    const char *origin;     /* checkpoint of another run that this one began with; NULL: none */
    int64_t origin_step;    /* its step, 0 without */
    int64_t saved_step;     /* of the newest checkpoint, which may be under way, -1 none */
    int64_t whole_step;     /* of the newest that is known to exist, -1 none */
    int64_t local_step;     /* of the local checkpoint under way, -1 none */
    int64_t resumed_local;  /* that the run began with, -1 none */
    int owes_save;          /* one was due while a local one was under way */
    int64_t compared_step;  /* at which replicas were equal, -1 none */
    double looked_at;       /* at the folder, whether it is still there */
    double begin;
    const char *preflight; /* what the check found, in words, on rank 0; NULL: none was made */
    struct arena arena;
    char tokenizer_hash[TOKENIZER_HASH_BYTES]; /* of rank 0; "": there is none */
};

static inline int is_due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* Output folder, slash, name: into path [PATH_BYTES]. ERR_CONFIG if that is too long. */
int pretrain_path(const struct pretrain *pretrain, char *path, const char *name, struct err *err);

/* "OUTPUT/checkpoints/step-00000200". */
int pretrain_checkpoint_path(const struct pretrain *pretrain, char *path, int64_t step,
                             struct err *err);

/*
 * Resume from where the options say: what differs from the checkpoint is appended to *differences.
 * Refuses a run that is finished or stopped early. Collective, and so is its failure: all ranks
 * return it and p->agreed is set.
 */
int pretrain_resume(struct pretrain *pretrain, struct numerics_differences *differences,
                    struct err *err);

/* pretrain_report.c. On ranks but 0 they do nothing. */
/* From now on what is logged is in OUTPUT/log/rank-0.log as well, also after the run. */
void pretrain_log_open(const struct pretrain *pretrain);
int pretrain_report_open(struct pretrain *pretrain, struct err *err);
/* why: NULL of a run that is done. */
void pretrain_report_close(struct pretrain *pretrain, const struct err *why);
/* The same files again, in a folder that was made again. */
int pretrain_report_reopen(struct pretrain *pretrain, struct err *err);
void pretrain_report_step(struct pretrain *pretrain, const struct trainer_result *result,
                          double seconds);
/* Record what ops took (rank_watch.h; of one rank, its own), if that is due: ever less often. And
 * at the end of the steps: collective, 0, or -1 and ERR_PEER. */
void pretrain_report_op_times(struct pretrain *pretrain);
int pretrain_report_last_op_times(struct pretrain *pretrain, struct err *err);
void pretrain_report_eval(struct pretrain *pretrain, const char *set, double loss, int64_t tokens);
void pretrain_report_event(struct pretrain *pretrain, const char *event, const char *text);
/* The same of a step that is not the present one. */
void pretrain_report_event_at(struct pretrain *pretrain, int64_t step, const char *event,
                              const char *text);
/* A device's failure of a run of one process: the GPU's Xid, if there is one, is added to err. */
void pretrain_report_gpu_loss(struct pretrain *pretrain, struct err *err);
/* What differs from the checkpoint of a resume: an event each, and the accepted ones a warning. */
void pretrain_report_changes(struct pretrain *pretrain,
                             const struct numerics_differences *differences);

/*
 * pretrain_monitor.c, on rank 0. Open: metrics are open, and a restart continues the account of
 * earlier processes. step: one was done, in so many seconds, before it is reported. blocked:
 * training waited so long for the beginning of a checkpoint. straggler: a rank_watch_report_fn.
 */
void pretrain_monitor_open(struct pretrain *pretrain);
void pretrain_monitor_step(struct pretrain *pretrain, const struct trainer_result *result,
                           double seconds);
void pretrain_monitor_blocked(struct pretrain *pretrain, double seconds);
/* The run went back to a checkpoint: steps after it count no more. */
void pretrain_monitor_returned(struct pretrain *pretrain);
void pretrain_monitor_straggler(void *pretrain, const struct straggler_finding *finding,
                                const char *host);
/* Seconds since the first start of the run. */
double pretrain_monitor_elapsed(const struct pretrain *pretrain);
/* The line of goodput at the end. */
void pretrain_monitor_say(const struct pretrain *pretrain);

/* Starts of the run but the first one and those after pauses (metrics_history). */
int64_t pretrain_n_restarts(const struct pretrain *pretrain);
/* The file for Prometheus: if it is due; and for the last time. */
void pretrain_monitor_write(struct pretrain *pretrain, const struct metrics_step *step);
void pretrain_monitor_close(struct pretrain *pretrain);

/*
 * pretrain_status.c, on rank 0: the file that `lmtrain watch` reads. open: report and account are.
 * step: one was done, or something else has changed. close: for the last time; why: NULL of a run
 * that is done.
 */
void pretrain_status_open(struct pretrain *pretrain);
/* Its folder again, in a run folder that was made again. */
void pretrain_status_reopen(const struct pretrain *pretrain);
void pretrain_status_step(struct pretrain *pretrain);
void pretrain_status_close(struct pretrain *pretrain, const struct err *why);

/*
 * pretrain_evaluate.c. Whether the evaluation of this step is due and was not done; and do it:
 * returns 0, 1 on all ranks if a signal to any of them ended it early, or -1. Collective.
 */
int pretrain_owes_evaluation(const struct pretrain *pretrain);
int pretrain_evaluate(struct pretrain *pretrain, struct err *err);
/* Batches of all held-out sets, of a rank. */
int64_t pretrain_n_held_out_batches(const struct pretrain *pretrain);

/*
 * pretrain_save.c. All are collective. A save that fails is no end of a run that has a checkpoint:
 * it is said, and the next one is tried at its time; the error comes with the last one. A run
 * without any ends at once.
 */
int pretrain_save(struct pretrain *pretrain, struct err *err);      /* begin one */
int pretrain_saved(struct pretrain *pretrain, struct err *err);     /* after a step: how it went */
int pretrain_save_last(struct pretrain *pretrain, struct err *err); /* to its end */
int pretrain_save_anew(struct pretrain *pretrain, struct err *err); /* begin one; all are gone */

/* A look at the run's folder, however short ago the last one was (pretrain.c). Returns 1 if it was
 * deleted or moved, and is created again, with a save begun in it; 0 if it is there. Collective. */
int pretrain_keep_folder(struct pretrain *pretrain, struct err *err);
int pretrain_end_earlier(struct pretrain *pretrain, struct err *err); /* that of an earlier step */
/* After the last evaluation, without a save under way: the best may be others now. On rank 0. */
void pretrain_clean(struct pretrain *pretrain);

/*
 * pretrain_local.c. Whether a local checkpoint is due after a step, where the job has any; begin
 * one (collective); the save under way, which is local, has ended on all ranks, or failed because
 * of `why`; the run goes on from this local checkpoint, -1: from another; and the end of the
 * process, is_done: of the run on all ranks.
 */
int pretrain_local_is_due(const struct pretrain *pretrain, int64_t step);
int pretrain_local_save(struct pretrain *pretrain, struct err *err);
void pretrain_local_ended(struct pretrain *pretrain, const struct err *why);
void pretrain_local_go_on(struct pretrain *pretrain, int64_t step);
void pretrain_local_close(struct pretrain *pretrain, int is_done);

/*
 * pretrain_upload.c, on rank 0. Begin with the uploads of the job, if it has any; tell log and
 * metrics what became of them so far; and end them, of a run that is done with the job's patience.
 * The checkpoint of whole_step is uploaded at once, or, as an evaluation replaces its manifest,
 * after the evaluation of its step, if that is owed; else (it failed or was left) at the end.
 */
int pretrain_upload_open(struct pretrain *pretrain, struct err *err);
void pretrain_upload_whole(struct pretrain *pretrain);
void pretrain_upload_owed(struct pretrain *pretrain);
void pretrain_upload_report(struct pretrain *pretrain);
void pretrain_upload_close(struct pretrain *pretrain, int is_done);

/*
 * pretrain_hooks.c, on rank 0. line: metrics.jsonl got a line of a step or an evaluation. saved: a
 * checkpoint is whole. close: the run is done (why NULL) or ends.
 */
int pretrain_hooks_open(struct pretrain *pretrain, struct err *err);
void pretrain_hooks_line(struct pretrain *pretrain, enum hook_kind kind);
void pretrain_hooks_saved(struct pretrain *pretrain, const char *folder);
void pretrain_hooks_close(struct pretrain *pretrain, const struct err *why);

/* pretrain_tracking.c, on rank 0. line, close: as of hooks. */
int pretrain_tracking_open(struct pretrain *pretrain, struct err *err);
void pretrain_tracking_line(struct pretrain *pretrain);
void pretrain_tracking_close(struct pretrain *pretrain, const struct err *why);

/*
 * Replicas that differ are the end of this attempt, known to all ranks. Between steps; under zero 1
 * in the steps, by the trainer's gate.
 */
int pretrain_compare(struct pretrain *pretrain, struct err *err);
int pretrain_gate(void *pretrain, struct err *err);

/* After a step: what replicas updated alike, if the step was rechecked; ends as above. */
int pretrain_recheck_update(struct pretrain *pretrain, struct err *err);

/*
 * pretrain_preflight.c. The job's preflight check, before the trainer takes memory. Collective;
 * p->agreed is set where all ranks return the same failure: ERR_PEER after hosts were excluded,
 * ERR_DEVICE for unfit ones that cannot be, ERR_REQUEUE after a signal.
 */
int pretrain_preflight(struct pretrain *pretrain, struct err *err);

/*
 * pretrain_spike.c. Whether the update of a step is refused (trainer_set_refuse); and after a step,
 * what is done about a spike: returns 0, 1 if the run is now at an earlier step, or -1. Collective.
 */
bool pretrain_refuse(void *pretrain, double loss, double grad_norm);
int pretrain_heed_spike(struct pretrain *pretrain, const struct trainer_result *result,
                        struct err *err);
/* A checkpoint of at most this step is kept for that (struct store_kept). */
int64_t pretrain_rewind_bound(const struct pretrain *pretrain);

/* resume.c. What checkpoints keep of a run besides its trainer, from the one that was restored. */
void pretrain_restore_state(struct pretrain *pretrain);

/* What came of reading a checkpoint, on all ranks: 0, or the worst code, which is a failure of
 * every rank then. Collective. */
int64_t pretrain_agree_restored(struct pretrain *pretrain, int status, struct err *err);

/* What must be kept with a checkpoint besides the trainer's state, as JSON. */
void pretrain_describe(const struct pretrain *pretrain, struct str *out);

#endif
