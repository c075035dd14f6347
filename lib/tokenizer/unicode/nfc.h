/*
 * nfc.h - canonical composition (Unicode's NFC), as HF tokenizers' normalizer does it
 */
#ifndef TOKENIZER_UNICODE_NFC_H
#define TOKENIZER_UNICODE_NFC_H

#include <stddef.h>

#include "base/str.h"

/* How much at the start of text (valid UTF-8) NFC surely leaves as it is; n_bytes for nearly all
 * text. */
size_t nfc_length(const char *text, size_t n_bytes);

/* Append the NFC of text. */
void nfc_append(struct str *out, const char *text, size_t n_bytes);

#endif
