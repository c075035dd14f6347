/*
 * base64.c - four characters to three bytes
 */
#include "tokenizer/base64.h"

#include <stdint.h>

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

long long base64_decode(const char *text, size_t n, unsigned char *out)
{
    size_t padding = 0, n_out = 0;

    if (n % 4 != 0)
        return -1;
    while (padding < 2 && padding < n && text[n - 1 - padding] == '=')
        padding++;
    for (size_t at = 0; at < n; at += 4) {
        uint32_t bits = 0;

        for (size_t i = at; i < at + 4; i++) {
            int value = i >= n - padding ? 0 : value_of(text[i]);

            if (value < 0)
                return -1;
            bits = bits << 6 | (uint32_t)value;
        }
        out[n_out++] = (unsigned char)(bits >> 16);
        out[n_out++] = (unsigned char)(bits >> 8);
        out[n_out++] = (unsigned char)bits;
    }
    return (long long)(n_out - padding);
}
