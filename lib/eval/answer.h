/*
 * answer.h - answers found in texts that models wrote, as the references of evaluations find them
 *
 * Patterns mean what Python's re makes of them as far as such patterns go (PCRE2 with Unicode
 * classes; Perl's syntax is nearly the same), and are bounded in what they may try.
 */
#ifndef EVAL_ANSWER_H
#define EVAL_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

struct answer_pattern;

/* ERR_CONFIG says where the pattern is wrong. */
int answer_pattern_create(struct answer_pattern **pattern, const char *text, struct err *err);
void answer_pattern_destroy(struct answer_pattern *pattern);

/*
 * Append match number `which` of re.findall (from the end where it is negative: -1 is the last):
 * the whole match, or of a pattern with groups the first group that isn't empty. Returns 1, or 0
 * where there is no such match, all its groups are empty, or the text exceeds what a pattern may
 * try.
 */
int answer_pattern_find(const struct answer_pattern *pattern, const char *text, size_t n_bytes,
                        int which, struct str *out);

/* re.sub(pattern, "", text) */
void answer_pattern_remove(const struct answer_pattern *pattern, struct str *text);

/* Cut text at the first occurrence of any stop string; NULL ends the list. Returns whether one was
 * there. */
int answer_cut(struct str *text, const char *const *stops);

/* text.strip(), of Unicode's white space. */
void answer_strip(struct str *text);

/*
 * Whether two answers to a mathematical question are the same but for how they are written:
 * AGIEval's parse_math_answer (the last \boxed, else between dollar signs, else behind the last
 * "=", else the last number) and the normal form of Hendrycks et al. 2021, "MATH", is_equiv.
 */
bool answer_math_equal(const char *a, const char *b);

#endif
