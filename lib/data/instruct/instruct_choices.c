/*
 * instruct_choices.c - names of formats, masks and what happens to rows that do not fit
 */
#include "data/instruct/instruct_choices.h"

const struct choice instruct_format_choices[] = { { "auto", INSTRUCT_AUTO },
                                                  { "alpaca", INSTRUCT_ALPACA },
                                                  { "sharegpt", INSTRUCT_SHAREGPT },
                                                  { "messages", INSTRUCT_MESSAGES },
                                                  { "belle", INSTRUCT_BELLE },
                                                  { "moss", INSTRUCT_MOSS },
                                                  { "leetcode", INSTRUCT_LEETCODE },
                                                  { "text", INSTRUCT_TEXT },
                                                  { 0 } };
const struct choice instruct_mask_choices[] = { { "prompt", INSTRUCT_MASK_PROMPT },
                                                { "history", INSTRUCT_MASK_HISTORY },
                                                { "none", INSTRUCT_MASK_NONE },
                                                { 0 } };
const struct choice instruct_too_long_choices[] = { { "cut", INSTRUCT_CUT },
                                                    { "drop", INSTRUCT_DROP },
                                                    { "split", INSTRUCT_SPLIT },
                                                    { "refuse", INSTRUCT_REFUSE },
                                                    { 0 } };
const struct choice instruct_bad_rows_choices[] = { { "refuse", INSTRUCT_BAD_REFUSE },
                                                    { "skip", INSTRUCT_BAD_SKIP },
                                                    { 0 } };
