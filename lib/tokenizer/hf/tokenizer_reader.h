/*
 * tokenizer_reader.h - what the readers of a tokenizer's files share
 */
#ifndef TOKENIZER_HF_TOKENIZER_READER_H
#define TOKENIZER_HF_TOKENIZER_READER_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

struct tokenizer_reader {
    const char *name; /* of the file, for errors */
    struct err *err;
    struct tokenizer *tokenizer;
};

#define REFUSE(r, ...) err_set((r)->err, ERR_DATA, __VA_ARGS__)

static inline const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static inline bool is_absent(const cJSON *item)
{
    return !item || cJSON_IsNull(item);
}

static inline bool is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

/* An empty tokenizer in r->tokenizer. ERR_DEVICE. */
int tokenizer_reader_create(struct tokenizer_reader *r);
/* Hand it out if rc is 0, else close it; returns rc. It may be NULL if rc is not 0. */
int tokenizer_reader_finish(struct tokenizer_reader *r, int rc, struct tokenizer **out);

/* The object that the text is, and nothing but white space behind it; NULL and ERR_DATA. Yours to
 * delete. */
cJSON *tokenizer_parse_object(const char *name, const char *json, size_t n_bytes, struct err *err);

/* A member that is an integer in 0..limit-1, or -1. */
int tokenizer_json_id(const cJSON *item, int limit);

/* All that a tokenizer.json has, whole. ERR_DATA. */
int tokenizer_read_root(struct tokenizer_reader *r, const cJSON *root);
/* A list as added_tokens is, once the vocabulary is in; may be NULL. ERR_DATA. */
int tokenizer_read_added(struct tokenizer_reader *r, const cJSON *list);
/* A model of type Unigram. ERR_DATA. */
int tokenizer_read_unigram(struct tokenizer_reader *r, const cJSON *model);

#endif
