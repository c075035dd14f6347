/*
 * hf_dataset.h - the files that datasets.load_dataset would read of a local folder
 *
 * FILE is JSON with arguments of Hugging Face's load_dataset, as ModelLink's and MindSpeed's
 * --hf-datasets-params have it: {"path": FOLDER, "name": CONFIG, "split": "train[:1%]",
 * "streaming": true}. As that library does it, without its code and without a network:
 *
 *   - configs of the YAML in FOLDER/README.md (config_name, data_files, data_dir, default);
 *   - else the files of FOLDER, or of the folder `name` or data/`name` in it, and of `data_dir`;
 *   - data_files: a pattern, a list, or a map of splits to these; path may then be json, csv or
 *     parquet;
 *   - splits by names: data/SPLIT-00000-of-00001.parquet, folders train, validation, test and what
 *     else these are called, then such words in file names; else all is train;
 *   - split: a name, all, "a+b", and rows [a:b] or percents [a%:b%] of it, rounded as by `datasets`.
 *
 * What has no effect here (streaming, num_proc, cache_dir, ...) is logged; unknown arguments and a
 * name on the hub are refused.
 */
#ifndef DATA_ROWS_HF_DATASET_H
#define DATA_ROWS_HF_DATASET_H

#include "base/err.h"
#include "data/rows/rows.h"

/* Fill *files, in the order in which datasets reads them, with ranges where rows are sliced.
 * Returns 0, or -1: ERR_CONFIG if the arguments are wrong, ERR_DATA if files are missing or
 * broken. */
int hf_dataset_find(struct row_files *files, const char *path, struct err *err);

#endif
