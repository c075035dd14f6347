/*
 * manifest.h - the table of a checkpoint: which bytes of which file are which part of which tensor
 *
 * One form for two uses: rank-00003.json lists the one file and the slices of a rank (a part), and
 * manifest.json, merged from them, lists all and must be complete: every element of every tensor in
 * exactly one slice. It is JSON for people and other tools, and begins with a hash of itself.
 *
 * What is read is believed only after manifest_check: file names are plain names in the folder,
 * numbers in range, slices inside their tensors.
 */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "ckpt/store.h"

#define MANIFEST_MAX_BYTES ((size_t)512 << 20)
#define MANIFEST_FILES_MAX (1 << 20)
#define MANIFEST_SLICES_MAX (1 << 16) /* of one tensor */
#define MANIFEST_NAME_MAX 1000

struct manifest_file {
    const char *name;
    int64_t n_bytes;
    uint64_t hash; /* XXH3-64 of all of it */
};

struct manifest_slice {
    int file;
    int64_t row_begin, row_end, col_begin, col_end;
    uint64_t hash; /* XXH3-64 of its bytes */
};

struct manifest_tensor {
    struct store_slice whole; /* data NULL */
    int n_slices;
    struct manifest_slice *slices; /* in order of row_begin, then col_begin */
};

struct manifest {
    int64_t step;
    int world_size;
    const char *state; /* the text of a JSON object */
    int n_files;
    struct manifest_file *files;
    int n_tensors;
    struct manifest_tensor *tensors; /* in name order */
};

/* Text with its hash in place. tensors need not be in order. */
void manifest_print(const struct manifest *manifest, struct str *out);

/*
 * Read and check what manifest_print made, its hash included, of this version or an older one. All
 * of *manifest lives in the arena. ERR_DATA: it is damaged; or of a format that this lmtrain does
 * not know, and then the message names the version of lmtrain that wrote it.
 */
int manifest_parse(struct manifest *manifest, const char *path, const char *text, size_t n_bytes,
                   struct arena *arena, struct err *err);

/* The same without checking the hash: for fuzzing only. */
int manifest_parse_body(struct manifest *manifest, const char *path, const char *text,
                        size_t n_bytes, struct arena *arena, struct err *err);

/* The format that a manifest says it is of, from its first bytes; -1: it is not a manifest. */
int manifest_version(const char *text, size_t n_bytes);

/* Refuse, with ERR_DATA, a manifest whose slices leave out or give twice any part of a tensor. */
int manifest_check_complete(const struct manifest *manifest, const char *path, struct err *err);

/*
 * Fill *whole with the union of n parts. They must have a file each and agree on dtype and shape
 * where they have a tensor in common. Completeness is not looked at. ERR_DATA if they differ.
 */
int manifest_merge(struct manifest *whole, const struct manifest *parts, int n_parts,
                   struct arena *arena, struct err *err);

/* The name under which a slice stands in its file: the tensor's own if it is all of it. */
const char *manifest_slice_name(const struct store_slice *whole, const struct manifest_slice *slice,
                                struct arena *arena);

/* "manifest.json", "rank-00003.json" and so on: no path, no hidden name. */
int manifest_is_file_name(const char *name);

#endif
