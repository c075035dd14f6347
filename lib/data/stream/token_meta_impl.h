/*
 * token_meta_impl.h - PREFIX.json as an object, for those who keep more in it
 */
#ifndef DATA_STREAM_TOKEN_META_IMPL_H
#define DATA_STREAM_TOKEN_META_IMPL_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "data/stream/token_meta.h"

/* Append the object but for its closing bracket; the last line has no comma. */
void token_meta_print(struct str *out, const struct token_meta *meta);

/* The object of PREFIX.json, to be deleted by the caller; NULL: there is none, or none of ours. */
cJSON *token_meta_load(const char *path);

/* 1, or -1 and ERR_DATA if members are damaged. */
int token_meta_parse(struct token_meta *meta, const cJSON *root, const char *path, struct err *err);

/* A count of at most `most`, or -1. */
int64_t token_meta_count(const cJSON *root, const char *key, double most);

#endif
