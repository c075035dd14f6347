/*
 * hf_folder_impl.h - an open HF folder, shared by hf_folder.c (what is there) and hf_read.c
 */
#ifndef CKPT_HF_FOLDER_IMPL_H
#define CKPT_HF_FOLDER_IMPL_H

#include "ckpt/hf_folder.h"

/* A tensor of some file. */
struct hf_entry {
    const char *name;
    int file;
    const struct safetensors_tensor *tensor;
    int wanted; /* by the family's table */
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
    int is_bare; /* names are without the family's prefix */
    unsigned char *buffer;
    size_t buffer_bytes;
};

struct hf_entry *hf_folder_entry(const struct hf_folder *folder, const char *name);

#endif
