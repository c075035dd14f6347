/*
 * store.h - a checkpoint: tensors under their global names, written atomically
 *
 * A checkpoint is a folder step-00000200/ in a run's checkpoints/. It holds one safetensors file
 * per rank with that rank's slices ("layers.0.qkv.weight[0:320,0:256]" where it is a slice),
 * rank-N.json with the file's hash and table of slices, and manifest.json, written last by rank 0:
 * the step, the numerics, the training state as JSON, and for each tensor its dtype, shape and
 * slices with their files. It is written to a temporary folder and renamed at the end, so that a
 * kill at any moment leaves the last checkpoint complete. Any layout can read any checkpoint:
 * slices are read by range.
 *
 * The store does not communicate: its caller synchronises all ranks between store_save and
 * store_commit.
 */
#ifndef CKPT_STORE_H
#define CKPT_STORE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"

/* The format of checkpoints that is written. It and all before it are read (formats in
 * manifest.c). */
#define STORE_VERSION 1

/* A rectangle of a logical tensor in memory, row-major. A 1-D tensor has cols = 1. */
struct store_slice {
    const char *name; /* of the whole tensor */
    enum dtype dtype;
    int n_dims;                 /* 1 or 2 */
    int64_t rows, cols;         /* of the whole tensor */
    int64_t row_begin, row_end; /* of this slice */
    int64_t col_begin, col_end;
    void *data;
    int64_t stride; /* elements from row to row of data; 0: dense */
    void *low;      /* of fp32 that lies in two words (base/halves.h), upper ones in data: the lower
                     * ones, in the same places; or NULL. Only what loads or reads by a callback */
};

/*
 * A save in flight on this rank. It reads the slices' memory in the background (its own thread)
 * until store_save_wait returns, so that memory must not change until then. folder is the
 * checkpoint's final path; the files are written to a folder next to it. slices are copied (names
 * too), data is not.
 */
struct store_save;
int store_save_start(struct store_save **save, const char *folder, int world_rank,
                     const struct store_slice *slices, int n_slices, struct err *err);

/*
 * Callback that loads the data of a slice piece by piece: it gets the remaining rows of a slice,
 * with data (or NULL) of the first of them; it may lower row_end to the rows that it loads, and
 * sets data (and stride), which must stay valid until the piece after the next is requested. It is
 * called by another thread, while the previous piece is written.
 */
typedef int (*store_load_fn)(void *context, struct store_slice *slice, struct err *err);

/* store_save_start with a load callback (may be NULL). */
int store_save_start_from(struct store_save **save, const char *folder, int world_rank,
                          const struct store_slice *slices, int n_slices, store_load_fn load,
                          void *context, struct err *err);

/* Whether the save still reads the slices' memory. */
int store_save_busy(const struct store_save *save);
/* Whether store_save_wait returns at once; and how much of the slices is written, in bytes. */
int store_save_ended(const struct store_save *save);
void store_save_amount(const struct store_save *save, int64_t *n_written, int64_t *n_bytes);

/*
 * Copy what a save with a load callback has not loaded yet into memory of its own, from which it
 * goes on: then it no longer reads the slices' memory, however long the writing takes. load and
 * context are like those of the save, whose own context another thread uses. Returns 1; 0 where
 * more than limit bytes are left, or memory is short, and the save goes on as it was; or -1 and
 * load's error, likewise.
 */
int store_save_copy(struct store_save *save, int64_t limit, store_load_fn load, void *context,
                    struct err *err);

/* Wait for the end (files and hash are on disk), free. Returns 0, or -1 and the writer's error. */
int store_save_wait(struct store_save *save, struct err *err);

/* The same, synchronous: slices are loaded piece by piece, each from its first row to its last. */
int store_write(const char *folder, int world_rank, const struct store_slice *slices, int n_slices,
                store_load_fn load, void *context, struct err *err);

/*
 * Whether store_write (or a save) of this rank completed and its file is unchanged:
 * 1, with its size in *n_bytes; else 0. Reads the whole file. tick, if not NULL, is
 * called with the bytes read.
 */
int store_written(const char *folder, int world_rank, int64_t *n_bytes,
                  void (*tick)(void *context, int64_t n_bytes), void *context);

/* Where the files of a checkpoint are until it is committed: folder.partial, in the arena. */
char *store_partial(const char *folder, struct arena *arena);

/* A folder in a checkpoint for what came with the model: config.json, tokenizer files. */
#define STORE_CARRIED "hf"

/*
 * A file that the writer of a checkpoint keeps in its partial folder and removes before the commit.
 */
#define STORE_NOTES "convert.notes"

/*
 * On rank 0, when every rank's store_save_wait has returned 0: merge rank-*.json of world_size
 * ranks into the manifest with `state` (a JSON object's text), check that the slices cover each
 * tensor exactly once, fsync, rename to folder. Then the checkpoint exists; an existing one of that
 * name is replaced.
 */
int store_commit(const char *folder, int world_size, int64_t step, const char *state,
                 struct err *err);

/* The same in two steps: complete the partial folder, which can then be opened as a checkpoint; and
 * rename it. */
int store_seal(const char *folder, int world_size, int64_t step, const char *state,
               struct err *err);
int store_publish(const char *folder, struct err *err);

/*
 * Replace the state (see store_commit) of a committed checkpoint of that step, by an atomic
 * exchange of its manifest: a kill at any moment leaves the old or the new one. ERR_DATA if it is
 * of another step.
 */
int store_restate(const char *folder, int64_t step, const char *state, struct err *err);

/*
 * Remove the remains of interrupted saves in checkpoints/, and all checkpoints older than the
 * newest `keep` complete ones (0: keep all). Must not run during a save. The folder need not exist.
 * Checkpoints that cannot be removed (a file that is open elsewhere, on NFS) remain until the next
 * call, and the others are removed: then returns -1 and the first error.
 */
int store_clean(const char *checkpoints, int keep, struct err *err);

/*
 * Which checkpoints stay. Old ones: the newest of at most old_step, which grows from call to call,
 * and the oldest after it, so that there is one again when old_step has passed that.
 */
#define STORE_NO_OLD INT64_MIN
struct store_kept {
    int n_newest;        /* so many complete ones; 0: all */
    int64_t old_step;    /* may be negative; STORE_NO_OLD: no old ones */
    const int64_t *held; /* and those of these steps */
    int n_held;
};

/* The same, for more than the newest. */
int store_clean_but(const char *checkpoints, const struct store_kept *kept, struct err *err);

struct store;

/*
 * Open a checkpoint folder: reads and checks the manifest (bounded, every length before it is used)
 * and maps no data yet. Returns 0, or -1 and ERR_DATA naming the file.
 */
int store_open(struct store **store, const char *folder, struct err *err);
void store_close(struct store *store);

/* The format that a checkpoint says it is of, also one that cannot be opened; -1: it says none. */
int store_version(const char *folder);

int64_t store_step(const struct store *store);
const char *store_state(const struct store *store); /* the JSON text given at the commit */
int store_n_tensors(const struct store *store);
/* The i-th tensor in name order, as a slice of all its rows and columns (data NULL), or NULL. */
const struct store_slice *store_tensor(const struct store *store, int i);
const struct store_slice *store_find(const struct store *store, const char *name);

/* The path of the file that holds an element of a tensor that is there, in the arena. */
const char *store_file_of(const struct store *store, const char *name, int64_t row, int64_t col,
                          struct arena *arena);

/*
 * Fill slice->data with its range of the tensor of that name, from the files that have it,
 * converted to slice->dtype where that differs (fp32, bf16, fp16 among each other). ERR_DATA if it
 * is missing, has another shape, or a file is short, or damaged where a slice is read whole.
 * Not thread-safe.
 */
int store_read(struct store *store, const struct store_slice *slice, struct err *err);

/* Check that every file exists with its size (cheap). ERR_DATA names the first that does not. */
int store_check_sizes(struct store *store, struct err *err);

/* Check every file's hash against the manifest; progress, if not NULL, gets the fraction done. */
int store_verify(struct store *store, void (*progress)(void *context, double share), void *context,
                 struct err *err);

/*
 * The newest complete checkpoint in folder (a run's checkpoints/, a run, or a checkpoint itself),
 * as a path in the arena; NULL with err ERR_DATA if there is none. Complete: the manifest is valid
 * and all files have their sizes. Newer incomplete ones are skipped with a warning; one of a format
 * that only a newer lmtrain reads is an error, for it is complete to that.
 */
const char *store_newest(const char *folder, struct arena *arena, struct err *err);

/* The newest complete checkpoint before a step, if that of the step is damaged. */
const char *store_newest_before(const char *folder, int64_t step, struct arena *arena,
                                struct err *err);

/*
 * Rename the checkpoints of later steps, which are damaged, for a run that resumes from this step:
 * step-N becomes step-N.damaged (or .damaged2, ...), which is never read, replaced or removed. Each
 * is logged. ERR_FAILED if one cannot be renamed.
 */
int store_set_aside(const char *checkpoints, int64_t step, struct err *err);

/* Remove the checkpoints of later steps. The folder need not exist. ERR_FAILED for the first that
 * cannot be removed; the others are. Not during a save. */
int store_remove_later(const char *checkpoints, int64_t step, struct err *err);

/* How many checkpoints are in checkpoints/, damaged ones included; or -1. 0 if it is not there. */
int store_count(const char *checkpoints, struct err *err);

#endif
