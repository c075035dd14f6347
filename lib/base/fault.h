/*
 * fault.h - faults on demand, for tests and experiments
 *
 * LMTRAIN_FAULT is a comma-separated list of RULEs: [attemptN:]rankR:PLACE[:N][:ACTION]. A rule
 * fires once, in the given attempt of a job that restarts (0 when left out).
 *
 * PLACE, whose N is a step and may be left out for "the first time"; "stepN" stands for "step:N":
 *     start                before the rank joins the others
 *     joined               when it has
 *     preflight            before the rank's first product of the preflight check
 *     preflight:repeat:N   in its repetition N of the product, from 0
 *     preflight:memory     between writing and reading its first pattern of memory
 *     data                 before it opens its training data
 *     step:N               before step N
 *     load:N               before the first micro-batch of step N is read
 *     evaluate:N           in an evaluation after step N, after its first batch
 *     gradients:N          before the last micro-batch of step N, whose gradients come and go
 *     rerun:N              before step N is run again, since rows of experts found no memory
 *     trace:N              before step N, the first that is traced
 *     op:TEXT:N            before the op that the hang report calls TEXT ("attention layers.1")
 *     save:begin:N         before the rank writes its file of the checkpoint of step N
 *     save:writing:N       in the midst of it
 *     save:before_rename:N its file is on disk, its part of the manifest is not
 *     save:renamed:N       its part of the checkpoint is whole, under the checkpoint's partial name
 *     save:before_manifest:N   rank 0: the parts of all ranks are there and merged
 *     save:before_commit:N     rank 0: the manifest is there, the checkpoint has its partial name
 *     save:committed:N     the checkpoint exists (rank 0), or is known to (others)
 *     convert:begun        lmtrain convert (rank 0) has its folder and has written nothing
 *     convert:writing:N    in the midst of its file N
 *     convert:file:N       its file N is whole
 *     convert:carried      so are all, and what goes along
 *     convert:sealed       only --verify and the rename are left
 *     tokenize:writing     lmtrain data tokenize (rank 0) has written its first batch of documents
 *     tokenize:renamed     .bin and .idx are in place, .json is not
 *     merge:copied         lmtrain data merge (rank 0) has copied the tokens, and has no index
 *     merge:renamed        .bin and .idx are in place, .json is not
 *
 * ACTION: sigkill (when left out), sigterm, segv, abort, exit (status 1, without leaving), stop
 * (SIGSTOP), stall (sleeps forever), sleepN (for N seconds); and those that the place's owner
 * performs: nan (at gradients: what the rank adds to the gradients from there is NaN), spike
 * (likewise, but a thousand times as large), flip (at step and gradients: a bit of one of the
 * rank's parameters is flipped; at preflight: of an operand, a result, memory; at op: a bit of
 * what the op wrote, a collective's only on the comm thread), flips (at op: the same each time
 * from step N on, also where a micro-batch is computed again), slow (at preflight: the rank's
 * device takes ten times as long; at step and load: from step N on the rank computes, or reads
 * its data, for 30 % of a step longer; a second rule ends it) and skew (at trace: the rank's clock
 * is another, as if it were on a machine of its own). Under zero 1 a flip stays only at gradients,
 * of a rank with several micro-batches: the forward of the first one gathers the other ranks'
 * parts again.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdint.h>

#include "base/err.h"

/* What the caller must do itself. */
enum fault { FAULT_NONE, FAULT_NAN, FAULT_FLIP, FAULT_SKEW, FAULT_SLOW, FAULT_SPIKE };

/*
 * Read LMTRAIN_FAULT for this rank and attempt; ERR_CONFIG for a rule that cannot be read, listing
 * what can be, whichever rank it is for. Without the variable nothing ever fires and fault_at costs
 * one load. May be called again, while no other thread runs.
 */
int fault_init(int world_rank, int attempt, struct err *err);

/* At place, number index (-1 where there is none): do what the rules say. Safe from any thread. */
enum fault fault_at(const char *place, int64_t index);

/*
 * The same at the place "op:TEXT"; is_recheck: where a micro-batch is computed again, in which only
 * what lasts (flips) happens. fault_watches_ops: whether a rule of this rank has such a place.
 */
enum fault fault_at_op(const char *text, int64_t step, int is_recheck);
int fault_watches_ops(void);

#endif
