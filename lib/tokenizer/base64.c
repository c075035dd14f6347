/*
 * base64.c - four characters to three bytes, by libsodium
 */
#include "tokenizer/base64.h"

#include <sodium.h>

long long base64_decode(const char *text, size_t n, unsigned char *out)
{
    size_t n_bytes;

    if (n % 4 != 0 || sodium_base642bin(out, BASE64_BYTES(n), text, n, NULL, &n_bytes, NULL,
                                        sodium_base64_VARIANT_ORIGINAL) != 0)
        return -1;
    return (long long)n_bytes;
}
