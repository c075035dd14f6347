/*
 * save.c - a trainer into a checkpoint
 *
 * A save reads the cells while the next step's forward and backward run. trainer_save_gate stands
 * before that step's update: it waits for a save that is about to end. What another one has not
 * written yet is copied to host memory, if there is room for it, and training goes on while a slow
 * file system takes its time; the gates of later steps look again. A checkpoint is committed once
 * all ranks have written, by a thread of rank 0, for the same reason; a local one, of which each
 * rank has its own, by a thread of each.
 *
 * All ranks agree at each gate whether a save is still under way, and so know the same of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/thread.h"
#include "ckpt/carried.h"
#include "ckpt/store.h"
#include "train/available_memory.h"
#include "train/trainer_impl.h"
#include "weights/cells.h"
#include "weights/slices.h"

/* What gates wait for a save, all together; and no gate waits for one that takes longer. */
static const double patience_seconds = 2;

/* Between agreements of the end of a run on whether all ranks are done. */
static const double round_seconds = 1;

/* What a save may take beyond twice the one before, until that is said. */
static const double late_seconds = 5;

/* Agreed on above all codes of errors: a rank, this one + its number, is not done. */
enum { PENDING = 1 << 20 };

/* ---- the commit, in a thread of rank 0; of local checkpoints, of each rank ---- */

struct trainer_commit {
    pthread_t thread;
    bool has_thread;
    atomic_int ended;
    const struct trainer *trainer;
    const char *from; /* the files that go along */
    int status;
    struct err err;
};

/* Their removal is no reason to lose what was learned. */
static int carry(const struct trainer *t, const char *from, struct err *err)
{
    struct arena arena = { 0 };
    int status = 0;

    if (from && file_is_folder(from))
        status = carried_link(
            from, arena_printf(&arena, "%s/" STORE_CARRIED, store_partial(t->save_folder, &arena)),
            err);
    else if (from)
        log_warn("%s is missing: step %" PRId64
                 " is saved without tokenizer (hint: restart the job, which creates it)",
                 from, t->save_step);
    arena_release(&arena);
    return status;
}

static void *commit_main(void *context)
{
    struct trainer_commit *c = context;
    const struct trainer *t = c->trainer;

    c->status = carry(t, c->from, &c->err);
    if (!c->status)
        c->status = store_commit(t->save_folder, t->save_is_local ? 1 : t->world_size, t->save_step,
                                 str_text(&t->save_state), &c->err);
    atomic_store(&c->ended, 1);
    return NULL;
}

/* Without memory for a thread, at once. */
static int start_commit(struct trainer *t, struct err *err)
{
    struct trainer_commit *c = calloc(1, sizeof *c);

    if (!c)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", t->save_folder);
    c->trainer = t;
    c->from = t->save_is_local ? NULL : t->carried.folder;
    c->has_thread = thread_start(&c->thread, NULL, commit_main, c) == 0;
    if (!c->has_thread)
        commit_main(c);
    t->commit = c;
    return 0;
}

/* Wait for it and free it. */
static int end_commit(struct trainer *t, struct err *err)
{
    struct trainer_commit *c = t->commit;

    t->commit = NULL;
    if (!c)
        return 0;
    if (c->has_thread)
        CHECK(pthread_join(c->thread, NULL) == 0);
    int status = c->status;
    if (status < 0)
        *err = c->err;
    free(c);
    return status;
}

/* ---- waiting ---- */

static double seconds_so_far(const struct trainer *t)
{
    return clock_seconds() - t->save_begin;
}

/* Until the writing ends, by how it went so far; very long if nothing is written yet. */
static double seconds_left(const struct trainer *t)
{
    int64_t n_written, n_bytes;

    store_save_amount(t->save, &n_written, &n_bytes);
    if (n_written == n_bytes)
        return 0;
    return n_written ? seconds_so_far(t) * (double)(n_bytes - n_written) / (double)n_written
                     : 2 * seconds_so_far(t);
}

/* On rank 0, when a save takes longer than others, and again when that has doubled. `rank` is one
 * that is not done; -1: what is left is rank 0's. */
static void say_late(struct trainer *t, int rank, const char *consequence)
{
    char took[32], before[64] = "", who[32] = "", last[32];
    double seconds = seconds_so_far(t);

    if (t->world_rank != 0 || seconds < t->save_late)
        return;
    t->save_late = 2 * seconds;
    t->save_is_late = true;
    if (t->save_took[t->save_is_local] >= 0)
        snprintf(before, sizeof before, " (the last took %s)",
                 str_duration(last, sizeof last, t->save_took[t->save_is_local]));
    if (rank > 0)
        snprintf(who, sizeof who, ", rank %d is not done", rank);
    log_warn("writing a checkpoint to %s takes %s so far%s%s%s", t->save_folder,
             str_duration(took, sizeof took, seconds), before, who, consequence);
}

/* Whether this rank's part of the save is over: its file, or the commit. */
static bool part_has_ended(const struct trainer *t)
{
    if (t->is_committing)
        return !t->commit || atomic_load(&t->commit->ended);
    return !t->save || store_save_ended(t->save);
}

/* Once in a row of rounds: a beat means that something has changed. */
static void show_part(struct trainer *t)
{
    if (!t->save_is_shown)
        progress_phase_path(t->options.progress,
                            t->is_committing ? "committing a checkpoint to"
                                             : "writing a checkpoint to",
                            t->save_folder);
    t->save_is_shown = true;
}

/* Wait for this rank's part of the save, while `must` says so. The progress page shows where, and
 * a beat for each time that more is written: a file system that stands still is a hang. */
static void wait_for_part(struct trainer *t, bool (*must)(const struct trainer *t, double begin))
{
    const struct timespec pause = { 0, 2000000 };
    struct progress_slot *slot = t->options.progress;
    double begin = clock_seconds();
    int64_t n_seen = 0, n_written, n_bytes;

    if (part_has_ended(t))
        return;
    show_part(t);
    if (t->save)
        store_save_amount(t->save, &n_seen, &n_bytes);
    while (!part_has_ended(t) && must(t, begin)) {
        nanosleep(&pause, NULL);
        if (!t->save)
            continue;
        store_save_amount(t->save, &n_written, &n_bytes);
        if (n_written != n_seen)
            progress_beat(slot);
        n_seen = n_written;
        say_late(t, -1, "");
    }
}

static bool for_a_while(const struct trainer *t, double begin)
{
    (void)t;
    return clock_seconds() - begin < round_seconds;
}

static bool until_cells_are_read(const struct trainer *t, double begin)
{
    (void)begin;
    return t->save && store_save_busy(t->save);
}

static bool while_patient(const struct trainer *t, double begin)
{
    return clock_seconds() - begin < patience_seconds - t->save_waited &&
           (!t->save || seconds_left(t) < patience_seconds);
}

/* ---- the save ---- */

static void list_slices(const struct trainer *t, struct slices *list)
{
    enum slices_of of = trainer_saved_parameters(t);

    if (!t->save_is_local) {
        slices_to_save(list, t->run, &t->program, &t->place, of);
        slices_of_errors(list, t->run, &t->program, &t->place, true);
        slices_of_factors(list, t->run, &t->program, &t->place, true);
        return;
    }
    slices_to_read(list, t->run, &t->program, &t->place, of);
    slices_of_errors(list, t->run, &t->program, &t->place, false);
    slices_of_factors(list, t->run, &t->program, &t->place, false);
    slices_make_whole(list);
    slices_keep_once(list);
}

static int save(struct trainer *t, const char *folder, bool is_local, const char *extra,
                struct err *err)
{
    struct slices list = { 0 };

    if (trainer_save_finish(t, err) < 0)
        return -1;
    CHECK(strlen(folder) < sizeof t->save_folder);
    snprintf(t->save_folder, sizeof t->save_folder, "%s", folder);
    progress_phase_path(t->options.progress, "starting a checkpoint in", folder);
    t->save_is_local = is_local;
    t->save_step = t->step;
    t->save_begin = clock_seconds();
    t->save_late = late_seconds + 2 * (t->save_took[is_local] > 0 ? t->save_took[is_local] : 0);
    trainer_describe_state(t, extra, &t->save_state);
    list_slices(t, &list);
    t->save_is_late = false;
    t->save_waited = 0;
    t->save_err.code = ERR_NONE;
    fault_at("save:begin", t->step);
    if (cells_reader_create(&t->save_reader, t->run, &t->save_err) < 0 ||
        store_save_start_from(&t->save, folder, is_local ? 0 : t->world_rank, list.slices, list.n,
                              cells_load, t->save_reader, &t->save_err) < 0)
        t->save = NULL;
    t->save_started = 1;
    slices_release(&list);
    return 0;
}

int trainer_save(struct trainer *t, const char *folder, const char *extra, struct err *err)
{
    return save(t, folder, false, extra, err);
}

int trainer_save_local(struct trainer *t, const char *folder, const char *extra, struct err *err)
{
    return save(t, folder, true, extra, err);
}

void trainer_save_describe(struct trainer *t, const char *extra)
{
    if (t->save_started && t->save_step == t->step)
        trainer_describe_state(t, extra, &t->save_state);
}

int trainer_save_pending(const struct trainer *t)
{
    return t->save_started;
}

double trainer_save_seconds(const struct trainer *t)
{
    return t->save_took[0];
}

/* How far all ranks are: 0, or 1 if some rank is not done (on rank 0 that is said), or -1 where one
 * has failed. own is this rank's: 0, PENDING + its number, or the code of *why; `other` says what
 * another's failure is. */
static int agree_on(struct trainer *t, bool is_gate, int64_t own, const struct err *why,
                    const char *other, struct err *err)
{
    int64_t worst = own;
    int status = is_gate
                     ? trainer_agree(t, &worst, err)
                     : trainer_agree_in_rounds(t, &worst, own < PENDING && !t->save_has_met, err);

    if (status < 0)
        return -1;
    t->save_has_met = !is_gate && own < PENDING && worst >= PENDING;
    if (worst >= PENDING) {
        say_late(t, (int)(worst - PENDING), is_gate ? "; training goes on" : "");
        return 1;
    }
    if (!worst)
        return 0;
    if (own)
        *err = *why;
    else
        err_set(err, (enum err_code)worst, "%s %s", other, t->save_folder);
    return -1;
}

/* All ranks have written? Then the commit begins. */
static int advance_file(struct trainer *t, bool is_gate, struct err *err)
{
    if (t->save && store_save_ended(t->save)) {
        if (store_save_wait(t->save, &t->save_err) < 0)
            CHECK(t->save_err.code);
        t->save = NULL;
    }
    if (!t->save) {
        cells_reader_destroy(t->save_reader);
        t->save_reader = NULL;
    }
    int status = agree_on(t, is_gate, t->save ? PENDING + t->world_rank : (int64_t)t->save_err.code,
                          &t->save_err, "another rank could not save", err);
    if (status)
        return status;
    t->is_committing = true;
    t->save_is_shown = false;
    if (t->world_rank == 0 || t->save_is_local)
        start_commit(t, &t->save_err);
    return 0;
}

/* The others go on only when it is known to exist. */
static int advance_commit(struct trainer *t, bool is_gate, struct err *err)
{
    int64_t own = PENDING + t->world_rank;

    if (part_has_ended(t)) {
        end_commit(t, &t->save_err);
        own = t->save_err.code;
    }
    return agree_on(t, is_gate, own, &t->save_err,
                    t->save_is_local ? "another rank could not commit" : "rank 0 could not commit",
                    err);
}

/* What this rank may copy, in bytes. */
static int64_t copy_limit(const struct trainer *t)
{
    int64_t room = available_memory();

    if (t->job->checkpoint.copy_mb >= 0)
        return (int64_t)t->job->checkpoint.copy_mb << 20;
    return room < 0 ? 0 : room / 2 / max_int(1, t->options.n_local);
}

/* The update is about to change the cells: what the save has not read of them is copied. If that
 * is too much it waits. */
static void release_cells(struct trainer *t)
{
    struct cells_reader *reader = NULL;
    struct err ignored;

    if (!t->save || !store_save_busy(t->save))
        return;
    progress_phase_path(t->options.progress, "copying what is left for", t->save_folder);
    if (cells_reader_create(&reader, t->run, &ignored) == 0)
        store_save_copy(t->save, copy_limit(t), cells_load, reader, &ignored);
    cells_reader_destroy(reader);
    wait_for_part(t, until_cells_are_read);
}

/* Wait for the save: at a gate as long as its end is near, else for a round. Returns 0 if it is
 * committed, or there is none; 1 if it goes on; -1 if it failed. Collective. */
static int advance(struct trainer *t, bool is_gate, struct err *err)
{
    bool (*must)(const struct trainer *t, double begin) = is_gate ? while_patient : for_a_while;
    double begin = clock_seconds();
    char took[32];
    int status = 0;

    if (!t->save_started)
        return 0;
    if (is_gate)
        t->save_is_shown = false;
    if (!t->is_committing) {
        wait_for_part(t, must);
        if (is_gate)
            release_cells(t);
        status = advance_file(t, is_gate, err);
    }
    if (!status) {
        wait_for_part(t, must);
        status = advance_commit(t, is_gate, err);
    }
    t->save_waited += clock_seconds() - begin;
    if (status > 0)
        return 1;
    t->save_started = 0;
    t->is_committing = false;
    if (status < 0)
        return -1;
    t->save_took[t->save_is_local] = seconds_so_far(t);
    if (t->save_is_late)
        log_info("%s is written after %s", t->save_folder,
                 str_duration(took, sizeof took, t->save_took[t->save_is_local]));
    fault_at("save:committed", t->save_step);
    return 0;
}

int trainer_save_finish(struct trainer *t, struct err *err)
{
    int status = 1;

    t->save_is_shown = false;
    while (status > 0)
        status = advance(t, false, err);
    return status;
}

/* ---- the gate ---- */

int trainer_save_gate(void *context, struct err *err)
{
    struct trainer *t = context;

    if (advance(t, true, err) < 0) {
        if (err->code == ERR_PEER)
            return -1;
        t->save_lost = *err;
    }
    return t->gate ? t->gate(t->gate_context, err) : 0;
}

void trainer_set_gate(struct trainer *t, trainer_gate_fn gate, void *context)
{
    t->gate = gate;
    t->gate_context = context;
}

int trainer_save_failed(struct trainer *t, struct err *why)
{
    int failed = t->save_lost.code != ERR_NONE;

    if (failed)
        *why = t->save_lost;
    t->save_lost.code = ERR_NONE;
    return failed;
}

void trainer_drop_save(struct trainer *t)
{
    struct err ignored;

    if (t->save)
        store_save_wait(t->save, &ignored);
    end_commit(t, &ignored);
    cells_reader_destroy(t->save_reader);
}
