/*
 * value_print.c - the value of a field as YAML, as it is read again by value.c
 */
#include "config/fields_impl.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

void field_print_float(struct str *out, double value)
{
    char text[40];
    int digits = 1;

    for (; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value)
            break;
    }
    snprintf(text, sizeof text, "%.*e", max_int(digits - 1, 1), value);
    char *exponent = strchr(text, 'e');
    CHECK(exponent);
    int power = (int)strtol(exponent + 1, NULL, 10);
    if (power >= -4 && power < 15) {
        str_printf(out, "%.*f", max_int(digits - 1 - power, 1), value);
        return;
    }
    /* "3.0e-5": with its dot it is a number to YAML 1.1 readers as well. */
    *exponent = '\0';
    str_printf(out, "%se%d", text, power);
}

/* Plain only where no YAML reader could take it for anything else than this text. */
static int is_plain_text(const char *text)
{
    static const char *const words[] = {
        "true", "false", "null", "yes", "no", "on", "off", "y", "n"
    };
    int has_letter = 0;

    for (const char *p = text; *p; p++) {
        int letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '/' || *p == '_';

        if (!letter && !strchr("0123456789-.", *p))
            return 0;
        has_letter |= letter && *p != '_';
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(text, words[i]))
            return 0;
    double number;
    return has_letter && text[0] != '-' && text[0] != '.' && str_to_f64(text, &number) != 0 &&
           !(text[0] >= '0' && text[0] <= '9');
}

/* Where YAML sees a line's end or allows nothing of the kind: its code, else 0; its bytes in *n. */
static unsigned odd_character(const char *text, int *n)
{
    unsigned c = (unsigned char)text[0], next = c < 0xc2 ? 0 : (unsigned char)text[1];

    *n = 1;
    if (c < 0x20 || c == 0x7f)
        return c;
    *n = 2;
    if (c == 0xc2)
        return next < 0xa0 ? next : 0; /* controls of Latin 1: next line, and others */
    *n = 3;
    if (c == 0xe2 && next == 0x80 && (text[2] & 0xfe) == 0xa8)
        return 0x2028 | (text[2] & 1); /* line and paragraph separator */
    if (c == 0xef && next == 0xbb && (unsigned char)text[2] == 0xbf)
        return 0xfeff; /* byte order mark */
    if (c == 0xef && next == 0xbf && ((unsigned char)text[2] & 0xfe) == 0xbe)
        return 0xfffe | (text[2] & 1); /* no characters */
    return 0;
}

int field_print_escaped(struct str *out, const char *text)
{
    int n;
    unsigned code = odd_character(text, &n);

    if (code) {
        str_printf(out, "\\u%04x", code);
        return n;
    }
    if (*text == '"' || *text == '\\')
        str_add_char(out, '\\');
    str_add_char(out, *text);
    return 1;
}

void field_print_text(struct str *out, const char *text)
{
    if (is_plain_text(text)) {
        str_add(out, text);
        return;
    }
    str_add_char(out, '"');
    for (const char *p = text; *p;) {
        if (p[0] == '$' && p[1] == '{')
            str_add_char(out, '$');
        p += field_print_escaped(out, p);
    }
    str_add_char(out, '"');
}

int field_has_list(const struct field *f, const struct job *job)
{
    const char *at = (const char *)job + f->offset;

    return f->type == FIELD_KINDS && *(const int *)(const void *)at == f->word_value;
}

void field_print_kinds(const struct field *f, const struct job *job, const char *quote,
                       struct str *out)
{
    const char *at = (const char *)job + f->items_offset;
    const struct bitset *set = (const struct bitset *)(const void *)at;
    struct choice items[FIELD_ITEMS_MAX + 1];
    int n = 0;

    f->list_items(items);
    str_add_char(out, '[');
    for (const struct choice *c = items; c->word; c++)
        if (bitset_has(set, c->value))
            str_printf(out, "%s%s%s%s", n++ ? ", " : "", quote, c->word, quote);
    str_add_char(out, ']');
}

static void print_sizes(const struct field *f, const struct job *job, struct str *out)
{
    const char *at = (const char *)job + f->items_offset;
    const struct cp_sizes *sizes = (const struct cp_sizes *)(const void *)at;
    const char *word =
        choice_word(f->choices, *(const int *)(const void *)((const char *)job + f->offset));

    if (!sizes->ulysses)
        str_add(out, word);
    else
        str_printf(out, "{\"%s\": %d, \"%s\": %d}", f->word, sizes->ulysses, word, sizes->keys);
}

static void print_counts(const struct field *f, const struct job *job, struct str *out)
{
    const struct job_counts *counts =
        (const struct job_counts *)(const void *)((const char *)job + f->offset);

    if (!counts->n) {
        bool is_auto = f->auto_offset && *(const int *)((const char *)job + f->auto_offset);

        str_add(out, is_auto ? "auto" : f->word);
        return;
    }
    for (int i = 0; i < counts->n; i++)
        str_printf(out, i ? ", %d" : "[%d", counts->values[i]);
    str_add_char(out, ']');
}

/* In a way that is YAML and JSON. */
static void print_pairs(const struct field *f, const struct job *job, struct str *out)
{
    const struct job_texts *texts =
        (const struct job_texts *)(const void *)((const char *)job + f->offset);
    struct str key = { 0 };

    if (!texts->n)
        str_add(out, f->word);
    for (int i = 0; i < texts->n; i++) {
        const char *text = texts->values[i], *value = strchr(text, '=');

        str_clear(&key);
        str_add_bytes(&key, text, (size_t)(value - text));
        str_add(out, i ? ", " : "{");
        field_print_json_text(out, str_text(&key));
        str_add(out, ": ");
        field_print_json_text(out, value + 1);
    }
    if (texts->n)
        str_add_char(out, '}');
    str_release(&key);
}

static void print_texts(const struct field *f, const struct job *job, struct str *out)
{
    const struct job_texts *texts =
        (const struct job_texts *)(const void *)((const char *)job + f->offset);

    if (!texts->n) {
        str_add(out, *f->word ? f->word : "null");
        return;
    }
    for (int i = 0; i < texts->n; i++) {
        str_add(out, i ? ", " : "[");
        field_print_json_text(out, texts->values[i]);
    }
    str_add_char(out, ']');
}

static void print_datasets(const struct job *job, struct str *out)
{
    str_add_char(out, '[');
    for (int i = 0; i < job->data.n_train; i++) {
        str_add(out, i ? ", {path: " : "{path: ");
        field_print_text(out, job->data.train[i].path);
        str_add(out, ", weight: ");
        field_print_float(out, job->data.train[i].weight);
        str_add_char(out, '}');
    }
    str_add_char(out, ']');
}

static int64_t load_whole(const struct field *f, const struct job *job)
{
    const char *at = (const char *)job + f->offset;

    if (f->type == FIELD_I64)
        return *(const int64_t *)at;
    if (f->type == FIELD_U64)
        return (int64_t) * (const uint64_t *)at;
    return *(const int *)at;
}

static void print_quantity(const struct field *f, const struct job *job, struct str *out)
{
    const void *at = (const char *)job + f->offset;
    double value = f->type == FIELD_RATE ? *(const double *)at : (double)*(const int64_t *)at;

    if (f->word && value == f->word_value)
        str_add(out, f->word);
    else
        quantity_print(value, field_quantity(f), out);
}

static void print_choice(const struct field *f, const struct job *job, struct str *out)
{
    int value = *(const int *)((const char *)job + f->offset);

    if (f->given_offset && !*(const int *)((const char *)job + f->given_offset)) {
        str_add(out, "auto");
        return;
    }
    str_add(out, choice_word(f->choices, value));
}

void field_print(const struct field *f, const struct job *job, struct str *out)
{
    const char *at = (const char *)job + f->offset;
    const char *text;

    switch (f->type) {
    case FIELD_INT:
    case FIELD_I64:
    case FIELD_U64:
        if (f->word && load_whole(f, job) == f->word_value)
            str_add(out, f->word);
        else
            str_printf(out, "%lld", (long long)load_whole(f, job));
        return;
    case FIELD_FLOAT:
        if (f->word && *(const double *)at == f->word_value)
            str_add(out, f->word);
        else
            field_print_float(out, *(const double *)at);
        return;
    case FIELD_BYTES:
    case FIELD_RATE:
        print_quantity(f, job, out);
        return;
    case FIELD_BOOL:
        str_add(out, *(const int *)at ? "true" : "false");
        return;
    case FIELD_CHOICE:
        print_choice(f, job, out);
        return;
    case FIELD_KINDS:
        if (field_has_list(f, job))
            field_print_kinds(f, job, "", out);
        else
            print_choice(f, job, out);
        return;
    case FIELD_SIZES:
        print_sizes(f, job, out);
        return;
    case FIELD_TEXT:
        text = *(const char *const *)at;
        if (text)
            field_print_text(out, text);
        else
            str_add(out, "null");
        return;
    case FIELD_NAME:
        field_print_text(out, at);
        return;
    case FIELD_COUNTS:
        print_counts(f, job, out);
        return;
    case FIELD_TEXTS:
        print_texts(f, job, out);
        return;
    case FIELD_PAIRS:
        print_pairs(f, job, out);
        return;
    case FIELD_GROUPS:
        field_print_groups(f, job, out);
        return;
    case FIELD_SPACE:
        field_print_space(f, job, out);
        return;
    case FIELD_DATASETS:
        print_datasets(job, out);
        return;
    }
}
