/*
 * token_meta.h - PREFIX.json beside a token file: which tokenizer its tokens are of
 *
 * Ids say nothing of the tokenizer they came from: a model that is trained or measured on another
 * one's gives no error, only bad numbers. So `data tokenize` records the tokenizer, and readers of
 * token files compare it. Files that other programs wrote (Megatron's) have no such file.
 */
#ifndef DATA_STREAM_TOKEN_META_H
#define DATA_STREAM_TOKEN_META_H

#include <stdint.h>

#include "base/err.h"
#include "tokenizer/tokenizer.h"

struct token_meta {
    char tokenizer[TOKENIZER_HASH_BYTES]; /* as tokenizer_hash_text */
    int vocab_size;                       /* of the tokenizer */
    int end_of_text;                      /* the token behind each document, -1: none */
    int64_t n_documents, n_tokens;
};

/* Whether PREFIX.json can be written: 0, or -1 and ERR_CONFIG if there is another program's. */
int token_meta_check_place(const char *prefix, struct err *err);

/* Write PREFIX.json, whole or not at all. ERR_FAILED. */
int token_meta_write(const char *prefix, const struct token_meta *meta, struct err *err);

/* Before the token file is replaced. */
void token_meta_remove(const char *prefix);

/*
 * 1, or 0 if there is none that says anything of this token file: no PREFIX.json, or one that is
 * not of this format, or of other tokens than PREFIX.bin has (a warning says so). -1 and ERR_DATA
 * if it is damaged.
 */
int token_meta_read(const char *prefix, struct token_meta *meta, struct err *err);

/*
 * Compare the token file's tokenizer with the one of this hash, which errors call `whose` ("the
 * model's", "data.tokenizer data/t"). Returns 0 if they are one, or if nothing is known of either
 * (hash NULL or ""); -1 and ERR_DATA if they differ, with hint as the way out. Other added tokens
 * alone are a warning: a model that was finetuned with some is measured on older files, too.
 */
int token_meta_compare(const char *prefix, const char *hash, const char *whose, const char *hint,
                       struct err *err);

#endif
