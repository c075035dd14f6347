/*
 * carried.h - the files that belong to a model beside its weights
 *
 * In a Hugging Face folder they lie beside the weights; a checkpoint has them in its folder hf/
 * (STORE_CARRIED), so that it works alone wherever it is copied to. A run writes them once, in
 * checkpoints/.carried, and its checkpoints have hard links to those files.
 */
#ifndef CKPT_CARRIED_H
#define CKPT_CARRIED_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

/* In a run's checkpoints/. */
#define CARRIED_OF_RUN ".carried"

enum carried_kind {
    CARRIED_TOKENIZER, /* tokenizer, chat templates, what generation begins with */
    CARRIED_MODEL,     /* and licences, and the code of families that transformers lacks */
    CARRIED_CONFIG     /* and config.json */
};

/*
 * Copy the files of that kind from one folder to another, which is there; those of the same names
 * are replaced. Weights never are among them. ERR_DATA, ERR_FAILED.
 */
int carried_copy(const char *from, const char *to, enum carried_kind kind, struct err *err);

/* Remove the chat templates of a folder that are files of their own. */
int carried_remove_templates(const char *folder, struct err *err);

/* Remove a folder's tokenizer and chat templates, so that another one can be put there. */
int carried_remove_tokenizer(const char *folder, struct err *err);

/* Whether a folder has the files of a tokenizer, by their names. */
bool carried_has_tokenizer(const char *folder);

/*
 * Append a JSON object with a hash of each file that is in a folder, by name and in its order
 * (those of further templates are left out). ERR_FAILED.
 */
int carried_describe(const char *folder, struct str *out, struct err *err);

struct cJSON;

/* The first of the files in such an object that is no longer in a folder as it was, in the arena;
 * NULL if all are. */
const char *carried_changed(const char *folder, const struct cJSON *hashes, struct arena *arena);

/*
 * Create the folder `to` (replacing an existing one) with hard links to all files of `from` and to
 * its further templates, or copies where hard links are not possible; and sync it. ERR_FAILED.
 */
int carried_link(const char *from, const char *to, struct err *err);

#endif
