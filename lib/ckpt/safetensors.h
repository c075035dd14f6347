/*
 * safetensors.h - files of named tensors that hold no code
 *
 * The format (huggingface/safetensors): u64 length of the header, the header as JSON, the tensors'
 * bytes. The reader believes nothing: every length is checked against the file before it is used,
 * and a header over 100 MB, names given twice, holes, overlaps, trailing bytes, short files,
 * unknown dtypes, broken UTF-8 and metadata that is not text are refused with ERR_DATA, file and
 * tensor named. It reads with pread, so that a file cut short under our feet is an error and no
 * signal.
 *
 * The writer's bytes are those of the Python library for the same tensors: dtypes of larger
 * alignment first, then names, the header padded with spaces to a multiple of 8.
 *
 * Neither knows checkpoints or slices: that is store.h.
 */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H

#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"

#define SAFETENSORS_DIMS_MAX 8
#define SAFETENSORS_HEADER_MAX_BYTES ((size_t)100000000)

/* In the order of the format's own library, which its writer sorts by. */
enum safetensors_type {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    N_SAFETENSORS_TYPES
};

struct safetensors_tensor {
    const char *name;
    enum safetensors_type type;
    int n_dims; /* 0 is a scalar */
    int64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t begin, end; /* bytes, counted from the header's end */
    int tag;             /* a writer's own number for it; 0 when read */
};

struct safetensors_meta {
    const char *key, *value;
};

/* What a header says. */
struct safetensors_index {
    int n_tensors;
    struct safetensors_tensor *tensors; /* in name order (strcmp) */
    int n_meta;
    struct safetensors_meta *meta; /* in key order */
};

const char *safetensors_type_name(enum safetensors_type type);
size_t safetensors_type_bytes(enum safetensors_type type);
/* The dtype of a safetensors type, or -1 if lmtrain has none; every dtype has a safetensors
 * type. */
int safetensors_type_dtype(enum safetensors_type type);
enum safetensors_type safetensors_dtype_type(enum dtype dtype);

/*
 * Read a header of n_bytes that describes exactly data_bytes bytes. path is for messages. All of
 * *index lives in the arena. Returns 0, or -1 and ERR_DATA; *index is then untouched.
 */
int safetensors_parse(struct safetensors_index *index, const char *path, const char *header,
                      size_t n_bytes, uint64_t data_bytes, struct arena *arena, struct err *err);

/* NULL if there is none of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors_index *index,
                                                  const char *name);

/* An open file; see index, the rest is the reader's. */
struct safetensors {
    struct safetensors_index index;
    struct arena arena;
    const char *path;
    int fd;
    uint64_t data_offset;
    uint64_t file_bytes;
};

/* Open path, or take over fd (also on failure) whose messages are to say path. -1 and ERR_DATA. */
int safetensors_open(struct safetensors **file, const char *path, struct err *err);
int safetensors_open_fd(struct safetensors **file, int fd, const char *path, struct err *err);
void safetensors_close(struct safetensors *file);

/* n_bytes of the tensor from its byte `offset` on. Asking beyond its end is a bug. ERR_DATA if
 * short. */
int safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                     uint64_t offset, void *out, size_t n_bytes, struct err *err);

/*
 * Put tensors into file order and set begin and end from type and shape. Two of one name, or a
 * total over 2^63 bytes, are bugs.
 */
void safetensors_place(struct safetensors_tensor *tensors, int n_tensors);

struct safetensors_writer;

/*
 * Create the file at path (modes as set by file_share; an existing file is removed, a symbolic link
 * is not followed) and write the header of the tensors in the order of safetensors_place. Returns
 * 0, or -1 and ERR_FAILED.
 */
int safetensors_create(struct safetensors_writer **writer, const char *path,
                       const struct safetensors_tensor *tensors, int n_tensors,
                       const struct safetensors_meta *meta, int n_meta, struct err *err);

/* The next bytes of the data, front to back; data is read before it returns. */
int safetensors_write(struct safetensors_writer *writer, const void *data, size_t n_bytes,
                      struct err *err);

/*
 * All bytes must have been given. fsync, close, free; also on failure. Size and XXH3-64 of the
 * whole file go to n_bytes and hash.
 */
int safetensors_finish(struct safetensors_writer *writer, uint64_t *n_bytes, uint64_t *hash,
                       struct err *err);

/* Close and free without finishing; the file stays as it is. NULL is fine. */
void safetensors_abandon(struct safetensors_writer *writer);

#endif
