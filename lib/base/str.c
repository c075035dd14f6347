/*
 * str.c - growing text; nearest names; numbers from text
 */
#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/num.h"

#define NAME_MAX_LENGTH 63

void str_release(struct str *str)
{
    free(str->data);
    *str = (struct str){ 0 };
}

void str_clear(struct str *str)
{
    str->length = 0;
    if (str->data)
        str->data[0] = '\0';
}

static void str_reserve(struct str *str, size_t extra)
{
    CHECK(extra < SIZE_MAX / 4);
    CHECK(str->length < SIZE_MAX / 4);
    size_t needed = str->length + extra + 1;
    if (needed <= str->capacity)
        return;
    size_t capacity = str->capacity ? str->capacity : 64;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(str->data, capacity);
    if (!data) {
        fprintf(stderr, "lmtrain: out of host memory (%zu bytes)\n", capacity);
        exit(ERR_DEVICE);
    }
    str->data = data;
    str->capacity = capacity;
}

void str_add_bytes(struct str *str, const void *bytes, size_t n_bytes)
{
    str_reserve(str, n_bytes);
    if (n_bytes)
        memcpy(str->data + str->length, bytes, n_bytes);
    str->length += n_bytes;
    str->data[str->length] = '\0';
}

void str_add(struct str *str, const char *text)
{
    str_add_bytes(str, text, strlen(text));
}

void str_add_char(struct str *str, char c)
{
    str_add_bytes(str, &c, 1);
}

void str_printf(struct str *str, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0);
    str_reserve(str, (size_t)length);
    vsnprintf(str->data + str->length, (size_t)length + 1, format, again);
    va_end(again);
    str->length += (size_t)length;
}

const char *str_text(const struct str *str)
{
    return str->data ? str->data : "";
}

const char *str_bytes(char *buffer, size_t size, uint64_t n_bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    double value = (double)n_bytes;
    int unit = 0;

    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, size, unit && value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

const char *str_duration(char *buffer, size_t size, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(buffer, size, "-");
        return buffer;
    }
    long whole = lround(seconds);
    if (seconds < 60)
        snprintf(buffer, size, "%.1f s", seconds);
    else if (whole < 3600)
        snprintf(buffer, size, "%ld:%02ld", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(buffer, size, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(buffer, size, "%ldd %02ld:%02ld", whole / 86400, whole / 3600 % 24,
                 whole / 60 % 60);
    return buffer;
}

const char *str_count(char *buffer, size_t size, int64_t n)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    size_t used = 0;

    CHECK(size >= 32);
    for (int i = 0; i < length; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0)
            buffer[used++] = ',';
        buffer[used++] = digits[i];
    }
    buffer[used] = '\0';
    return buffer;
}

int str_starts_with(const char *text, const char *prefix)
{
    return !strncmp(text, prefix, strlen(prefix));
}

int str_ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);

    return n >= m && !memcmp(text + n - m, suffix, m);
}

int str_distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_LENGTH + 2];
    int n = min_int((int)strlen(a), NAME_MAX_LENGTH), m = min_int((int)strlen(b), NAME_MAX_LENGTH);

    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];

        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = min_int(up[j] + 1, row[j - 1] + 1);

            best = min_int(best, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min_int(best, up2[j - 2] + 1);
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *str_nearest(const char *wrong, const char *const *names, int n)
{
    const char *best = NULL;
    int best_distance = 1 << 30;
    int length = min_int((int)strnlen(wrong, NAME_MAX_LENGTH), NAME_MAX_LENGTH);

    for (int i = 0; i < n; i++) {
        int other = min_int((int)strlen(names[i]), NAME_MAX_LENGTH);
        int limit = max_int(1, max_int(length, other) / 3);
        int at_least = abs(length - other);
        int prefix = length >= 3 && (str_starts_with(names[i], wrong) ||
                                     (other >= 3 && str_starts_with(wrong, names[i])));

        /* The lengths alone rule most names out. */
        if (at_least >= best_distance || (at_least > limit && !prefix))
            continue;
        int distance = str_distance(wrong, names[i]);
        if ((distance <= limit || prefix) && distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}

int str_to_i64(const char *text, int64_t *out)
{
    char digits[40];
    size_t n = 0;

    for (const char *p = text; *p; p++) {
        bool between_digits =
            p > text && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' && p[1] <= '9';

        if (*p == '_' && between_digits)
            continue;
        int sign = p == text && (*p == '-' || *p == '+');
        if ((!sign && (*p < '0' || *p > '9')) || n >= sizeof digits - 1)
            return -1;
        digits[n++] = *p;
    }
    digits[n] = '\0';
    if (n == 0 || (n == 1 && (digits[0] < '0' || digits[0] > '9')))
        return -1;
    errno = 0;
    long long value = strtoll(digits, NULL, 10);
    if (errno)
        return -1;
    *out = value;
    return 0;
}

int str_to_f64(const char *text, double *out)
{
    char *end;

    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text))
        return -1;
    errno = 0;
    double value = strtod(text, &end);
    if (*end || !isfinite(value) || (errno == ERANGE && fabs(value) > 1))
        return -1;
    *out = value;
    return 0;
}

int str_utf8_length(const unsigned char *s, size_t n)
{
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] < 0xe0)
        return n >= 2 && (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if ((s[0] & 0xf0) == 0xe0) {
        if (n < 3 || (s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80)
            return 0;
        int wrong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0);
        return wrong ? 0 : 3;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        if (n < 4 || (s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80 || (s[3] & 0xc0) != 0x80)
            return 0;
        int wrong = (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90);
        return wrong ? 0 : 4;
    }
    return 0;
}

/* Of what is no valid sequence: the bytes that a valid one could begin with, at least one. */
static size_t broken_length(const unsigned char *s, size_t n)
{
    size_t whole = s[0] >= 0xc2 && s[0] < 0xe0   ? 2
                   : (s[0] & 0xf0) == 0xe0       ? 3
                   : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                 : 1;
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    size_t length = 1;

    while (length < whole && length < n && s[length] >= low && s[length] <= high) {
        length++;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

void str_add_utf8(struct str *str, const void *bytes, size_t n_bytes)
{
    const unsigned char *s = bytes;
    size_t done = 0, at = 0;

    while (at < n_bytes) {
        int length = str_utf8_length(s + at, n_bytes - at);

        if (length > 0) {
            at += (size_t)length;
            continue;
        }
        str_add_bytes(str, s + done, at - done);
        str_add(str, "\xef\xbf\xbd");
        at += broken_length(s + at, n_bytes - at);
        done = at;
    }
    str_add_bytes(str, s + done, n_bytes - done);
}

void str_make_printable(char *text)
{
    size_t n = strlen(text);

    for (size_t at = 0; at < n;) {
        unsigned char *c = (unsigned char *)text + at;
        int length = str_utf8_length(c, n - at);
        bool is_control = (*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f ||
                          (length == 2 && c[0] == 0xc2 && c[1] < 0xa0);

        /* A sequence that was cut off at the end of a buffer is not valid UTF-8 either. */
        if (!length || is_control)
            memset(c, '?', (size_t)max_int(1, length));
        at += (size_t)max_int(1, length);
    }
}

bool str_has_json_nul(const char *json, size_t n_bytes)
{
    static const char escape[] = "u0000";

    for (size_t i = 0; i + 1 < n_bytes; i++) {
        if (json[i] != '\\')
            continue;
        i++; /* behind an escaped backslash nothing is escaped */
        if (n_bytes - i >= strlen(escape) && !memcmp(json + i, escape, strlen(escape)))
            return true;
    }
    return false;
}
