/*
 * instruct_choices.h - what can be chosen for rows of instruction data, and the names of the
 * choices
 *
 * Jobs (data.format and others) and options of lmtrain data preview have the names; instruct.h has
 * what they do.
 */
#ifndef DATA_INSTRUCT_INSTRUCT_CHOICES_H
#define DATA_INSTRUCT_INSTRUCT_CHOICES_H

#include "base/choice.h"

enum instruct_format {
    INSTRUCT_AUTO,     /* by the columns of the first row */
    INSTRUCT_ALPACA,   /* instruction, input, output, system, history */
    INSTRUCT_SHAREGPT, /* conversations: from, value; system */
    INSTRUCT_MESSAGES, /* messages: role, content (OpenAI) */
    INSTRUCT_BELLE,    /* instruction with "Human:" and "Assistant:" turns in one text, output */
    INSTRUCT_MOSS,     /* chat: turn_1 ... with Human, MOSS; meta_instruction */
    INSTRUCT_LEETCODE, /* code_with_problem, explanation_only, ... */
    INSTRUCT_TEXT,     /* text: all tokens have loss */
};

enum instruct_mask {
    INSTRUCT_MASK_PROMPT,  /* loss on every answer */
    INSTRUCT_MASK_HISTORY, /* loss on the last answer only */
    INSTRUCT_MASK_NONE,    /* loss on all tokens, prompts included */
};

enum instruct_too_long { INSTRUCT_CUT, INSTRUCT_DROP, INSTRUCT_SPLIT, INSTRUCT_REFUSE };
enum instruct_bad_rows { INSTRUCT_BAD_REFUSE, INSTRUCT_BAD_SKIP };

extern const struct choice instruct_format_choices[];
extern const struct choice instruct_mask_choices[];
extern const struct choice instruct_too_long_choices[];
extern const struct choice instruct_bad_rows_choices[];

#endif
