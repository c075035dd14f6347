/*
 * tokenizer_impl.h - what reading a tokenizer and using it share
 */
#ifndef TOKENIZER_TOKENIZER_IMPL_H
#define TOKENIZER_TOKENIZER_IMPL_H

#include "base/arena.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

struct tokenizer {
    struct arena arena; /* holds all that follows */
    struct bpe bpe;
    struct added_token *added; /* all, of both passes */
    int n_added;
    struct added_tokens passes[2]; /* the plain ones, then the normalized */
    const struct added_token *
        *added_by_id; /* [vocab_size], NULL where the id is no added token's */
    int vocab_size;
    int end_of_text;
    int add_prefix_space;
};

#define TOKENIZER_JSON_BYTES_MAX ((size_t)64 << 20)
#define TOKENIZER_IDS_MAX (1 << 22)

/* Make a tokenizer of the text of a tokenizer.json (terminated); name is for errors. ERR_DATA. */
int tokenizer_parse(struct tokenizer **tokenizer, const char *name, const char *json,
                    size_t n_bytes, struct err *err);

/* Take the end of text from the text of a tokenizer_config.json. ERR_DATA. */
int tokenizer_parse_config(struct tokenizer *tokenizer, const char *name, const char *json,
                           size_t n_bytes, struct err *err);

/* Where text (n_bytes) stops being UTF-8, or n_bytes. */
size_t tokenizer_utf8_end(const char *text, size_t n_bytes);

#endif
