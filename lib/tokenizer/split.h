/*
 * split.h - GPT-2's split of text into words, within which byte pairs are merged
 *
 * By hand what this expression matches, alternatives in order and each as long as it can be:
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 */
#ifndef TOKENIZER_SPLIT_H
#define TOKENIZER_SPLIT_H

#include <stddef.h>

/* Length of the word at the start of text (valid UTF-8, n_bytes of it, at least one). Every byte is
 * in a word. */
size_t split_word(const char *text, size_t n_bytes);

#endif
