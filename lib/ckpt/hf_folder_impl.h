/*
 * hf_folder_impl.h - an open HF folder, shared by hf_folder.c (what is there) and hf_read.c
 */
#ifndef CKPT_HF_FOLDER_IMPL_H
#define CKPT_HF_FOLDER_IMPL_H

#include <stdbool.h>

#include "ckpt/hf_folder.h"

/* A tensor of some file. */
struct hf_entry {
    const char *name;
    int file;
    const struct safetensors_tensor *tensor;
    int wanted;                   /* by the family's table */
    const struct hf_entry *scale; /* of eight-bit numbers; NULL: 1 */
};

struct hf_folder {
    struct arena arena;
    const char *path, *source; /* source: the file that lists the tensors, for messages */
    struct hf_names names;
    int n_files, n_entries, entry_capacity;
    const char **file_names;
    struct safetensors **files;
    struct hf_entry *entries;       /* in name order */
    const struct hf_entry **theirs; /* of each of the names' tensors */
    const struct hf_entry *tied_head;
    bool is_bare; /* names are without the family's prefix */
    unsigned char *buffer;
    size_t buffer_bytes;
    hf_seen_fn seen; /* may be NULL */
    void *seen_context;
    float *scales; /* of the entry, read when first needed */
    const struct hf_entry *scales_of;
};

/* The grid of a scale over a matrix: how many rows and columns have one factor. */
struct hf_grid {
    int64_t rows, cols;             /* of the grid */
    int64_t block_rows, block_cols; /* of the matrix, for each */
};

/* -1 if the scale's shape fits no grid over a matrix of these extents. */
int hf_folder_grid(const struct safetensors_tensor *scale, int64_t rows, int64_t cols,
                   struct hf_grid *grid);

#endif
