/*
 * base64.h - bytes spelled in base64, as files of tokenizers have them
 */
#ifndef TOKENIZER_BASE64_H
#define TOKENIZER_BASE64_H

#include <stddef.h>

/* How many bytes n characters stand for at most. */
#define BASE64_BYTES(n) ((n) / 4 * 3)

/* Decode n characters, padded to a multiple of four, into out (BASE64_BYTES(n)). Returns how many
 * bytes, or -1 if they are no base64. */
long long base64_decode(const char *text, size_t n, unsigned char *out);

#endif
