/*
 * model_files.h - the files of a run's model beside its weights: tokenizer, chat template,
 * config.json
 *
 * A run writes them once, when it starts, and each checkpoint of it has them (ckpt/carried.h):
 * moved or copied, it is still a model with its tokenizer.
 */
#ifndef WEIGHTS_MODEL_FILES_H
#define WEIGHTS_MODEL_FILES_H

#include "base/arena.h"
#include "config/job.h"

/*
 * Put a tokenizer, a folder or a file as tokenizer_open takes it, into a folder that is there, in
 * the place of any other. Its chat template and generation_config.json go along. ERR_DATA,
 * ERR_FAILED.
 */
int model_files_put_tokenizer(const char *path, const char *folder, struct err *err);

/* The folder with what the first weights came with (config.json, tokenizer, ...), of train.init
 * or, where that is gone, of the newest checkpoint of the run; NULL if there is none. */
const char *model_files_base(const struct job *job, struct arena *arena);

/*
 * Make OUTPUT/checkpoints/.carried of what the first weights came with, the job's tokenizer and its
 * data.template. *folder: in the arena, or NULL if there is nothing to carry. For one process.
 * ERR_CONFIG, ERR_DATA, ERR_FAILED.
 */
int model_files_of_run(const struct job *job, const char **folder, struct arena *arena,
                       struct err *err);

#endif
