/*
 * hf_dataset_impl.h - the steps from arguments to files
 */
#ifndef DATA_ROWS_HF_DATASET_IMPL_H
#define DATA_ROWS_HF_DATASET_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "data/rows/json_value.h"
#include "data/rows/rows.h"

/* A pattern of data_files and the split whose files it names. */
struct hf_pattern {
    const char *split, *pattern;
};

struct hf_dataset {
    const char *source;                         /* the JSON file: for messages */
    const char *path, *name, *split, *data_dir; /* arguments; NULL: not given */
    struct hf_pattern *patterns;                /* of data_files; in arena */
    int n_patterns;
    const char *folder; /* that patterns and splits are of */
    struct arena arena;
    struct err *err;
};

/* hf_arguments.c: read the JSON. 0, or -1. */
int hf_read_arguments(struct hf_dataset *d);
/* Append a pattern. */
void hf_add_pattern(struct hf_dataset *d, const char *split, const char *pattern);

/* hf_config.c: folder, and patterns of README.md if there are. 0, or -1. */
int hf_find_config(struct hf_dataset *d);

/* A file, by its number in a list, of a split. */
struct hf_file {
    int file;
    const char *split;
};

/* hf_splits.c: files (of n, their paths below the folder) by splits, in the order of reading.
 * Returns their number, or -1 if a pattern matches nothing. */
int hf_find_splits(struct hf_dataset *d, const char *const *names, int n, struct hf_file **files);

/* Whether a glob matches a path: * and ? stay within a name, two asterisks go over slashes (before
 * a slash: any folders, or none), [a-z] and [!a-z] are a character. */
bool hf_matches(const char *pattern, const char *path, struct arena *arena);

#endif
