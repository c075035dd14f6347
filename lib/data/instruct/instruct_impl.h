/*
 * instruct_impl.h - one row's way to samples, for instruct.c and its tests
 */
#ifndef DATA_INSTRUCT_INSTRUCT_IMPL_H
#define DATA_INSTRUCT_INSTRUCT_IMPL_H

#include <stdbool.h>

#include "data/instruct/conversation.h"
#include "data/instruct/instruct.h"
#include "data/rows/rows.h"
#include "template/chat.h"

/* What a thread has to make samples with. */
struct instruct_maker {
    const struct instruct_options *options; /* borrowed */
    struct conversation_options rows;
    const struct tokenizer *tokenizer; /* borrowed */
    struct tokenizer_cache *cache;
    struct chat_template *chat; /* NULL: only plain text can be made */
    bool has_tools;             /* the template renders tools */
    struct chat_parts parts;
    struct token_sections sections;
    struct arena arena; /* of the row at hand */
};

/* Samples one behind the other. */
struct instruct_samples {
    struct token_list ids;
    uint8_t *learned; /* [ids.n] heap */
    int64_t n_learned_bytes;
    int64_t *ends; /* in ids, heap */
    int n, capacity;
};

int instruct_maker_open(struct instruct_maker *maker, const struct instruct_options *options,
                        const struct tokenizer *tokenizer, struct err *err);
void instruct_maker_close(struct instruct_maker *maker);

/*
 * Append the samples of a row, and count what became of it. Returns 0, or -1 and ERR_DATA with what
 * is wrong with it; nothing is then appended.
 */
int instruct_make(struct instruct_maker *maker, const struct row *row,
                  struct instruct_samples *samples, struct instruct_report *report,
                  struct err *err);
void instruct_samples_clear(struct instruct_samples *samples);
void instruct_samples_release(struct instruct_samples *samples);

#endif
