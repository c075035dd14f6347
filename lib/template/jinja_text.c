/*
 * jinja_text.c - texts as Python sees them: code points, white space, case
 */
#include <string.h>

#include "template/jinja_impl.h"

struct text text_of(const char *z)
{
    return (struct text){ z, strlen(z) };
}

bool text_equal(struct text a, struct text b)
{
    return a.n == b.n && (!a.n || !memcmp(a.data, b.data, a.n));
}

bool text_is(struct text a, const char *b)
{
    return text_equal(a, text_of(b));
}

size_t text_step(struct text s, size_t at, uint32_t *code)
{
    static const uint32_t first[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    const unsigned char *p = (const unsigned char *)s.data + at;
    int n = *p < 0x80 ? 1 : str_utf8_length(p, s.n - at);

    if (n < 1 || n > 4) {
        *code = 0xfffd;
        return 1;
    }
    *code = *p & first[n];
    for (int i = 1; i < n; i++)
        *code = *code << 6 | (p[i] & 0x3f);
    return (size_t)n;
}

size_t text_length(struct text s)
{
    size_t n = 0;
    uint32_t code;

    for (size_t at = 0; at < s.n; n++)
        at += text_step(s, at, &code);
    return n;
}

/* str.isspace() of Python. */
bool text_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool is_one_of(struct text s, size_t at, size_t n, uint32_t code, const struct text *chars)
{
    uint32_t other;

    if (!chars)
        return text_is_space(code);
    for (size_t i = 0; i < chars->n;) {
        size_t step = text_step(*chars, i, &other);

        if (step == n && !memcmp(chars->data + i, s.data + at, n))
            return true;
        i += step;
    }
    return false;
}

struct text text_strip(struct text s, const struct text *chars, int sides)
{
    uint32_t code;

    while ((sides & STRIP_LEFT) && s.n) {
        size_t step = text_step(s, 0, &code);

        if (!is_one_of(s, 0, step, code, chars))
            break;
        s.data += step;
        s.n -= step;
    }
    while ((sides & STRIP_RIGHT) && s.n) {
        size_t at = s.n - 1;

        /* Back to where a sequence starts that ends here, else one byte. */
        while (at > 0 && s.n - at < 4 && ((unsigned char)s.data[at] & 0xc0) == 0x80)
            at--;
        if (at + text_step(s, at, &code) != s.n) {
            at = s.n - 1;
            text_step(s, at, &code);
        }
        if (!is_one_of(s, at, s.n - at, code, chars))
            break;
        s.n = at;
    }
    return s;
}

int64_t text_find(struct text s, struct text needle, size_t from)
{
    if (from > s.n)
        return -1;
    if (!needle.n)
        return (int64_t)from;
    const char *found = memmem(s.data + from, s.n - from, needle.data, needle.n);
    return found ? found - s.data : -1;
}

/* Latin-1, Latin Extended-A, Greek, Cyrillic and Armenian, where one letter becomes one letter. */
static uint32_t upper(uint32_t c)
{
    if (c < 0x80)
        return c >= 'a' && c <= 'z' ? c - 32 : c;
    if ((c >= 0xe0 && c <= 0xfe && c != 0xf7) || (c >= 0x3b1 && c <= 0x3c9 && c != 0x3c2) ||
        (c >= 0x430 && c <= 0x44f))
        return c - 32;
    if (c >= 0x450 && c <= 0x45f)
        return c - 80;
    if (c >= 0x561 && c <= 0x586)
        return c - 48;
    if ((c >= 0x100 && c <= 0x137 && c != 0x131) || (c >= 0x14a && c <= 0x177) ||
        (c >= 0x460 && c <= 0x481) || (c >= 0x48a && c <= 0x4bf) || (c >= 0x4d0 && c <= 0x52f))
        return c & ~1u;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e))
        return c % 2 ? c : c - 1;
    return c == 0xff ? 0x178 : c == 0x3c2 ? 0x3a3 : c;
}

static uint32_t lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) ||
        (c >= 0x410 && c <= 0x42f))
        return c + 32;
    if (c >= 0x400 && c <= 0x40f)
        return c + 80;
    if (c >= 0x531 && c <= 0x556)
        return c + 48;
    if ((c >= 0x100 && c <= 0x137 && c != 0x130) || (c >= 0x14a && c <= 0x177) ||
        (c >= 0x460 && c <= 0x481) || (c >= 0x48a && c <= 0x4bf) || (c >= 0x4d0 && c <= 0x52f))
        return c | 1u;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e))
        return c % 2 ? c + 1 : c;
    return c == 0x178 ? 0xff : c;
}

/* All that is changed here is two bytes before and after, or one and one. */
static void add_code(struct str *out, uint32_t c)
{
    if (c < 0x80) {
        str_add_char(out, (char)c);
    } else {
        str_add_char(out, (char)(0xc0 | c >> 6));
        str_add_char(out, (char)(0x80 | (c & 63)));
    }
}

void text_to_case(struct text s, enum text_case to, struct str *out)
{
    int in_word = 0;

    for (size_t at = 0; at < s.n;) {
        uint32_t code, changed;
        size_t step = text_step(s, at, &code);
        bool is_letter = upper(code) != lower(code) || code > 0x7ff;

        if (to == CASE_UPPER)
            changed = upper(code);
        else if (to == CASE_LOWER || (to == CASE_CAPITAL ? at > 0 : in_word))
            changed = lower(code);
        else
            changed = upper(code);
        if (step == 2 || step == 1)
            changed = (changed < 0x80) == (code < 0x80) && changed < 0x800 ? changed : code;
        if (step > 2 || code == 0xfffd)
            str_add_bytes(out, s.data + at, step);
        else
            add_code(out, changed);
        in_word = is_letter;
        at += step;
    }
}
