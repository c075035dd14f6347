/*
 * print.c - a job as YAML or JSON that reads back to the same job
 */
#include <string.h>

#include "config/fields_impl.h"
#include "config/job_layout.h"

/* Names that two keys share from the front: groups that need not be opened again. */
static int shared_groups(const char *a, const char *b)
{
    int shared = 0;

    for (; *a && *a == *b; a++, b++)
        shared += *a == '.';
    return shared;
}

static void print_field(const struct field *field, const char *previous, const struct job *job,
                        struct str *out)
{
    int open = shared_groups(previous, field->key), depth = 0;

    for (const char *name = field->key; *name; depth++) {
        size_t length = strcspn(name, ".");

        if (depth >= open) {
            for (int i = 0; i < depth; i++)
                str_add(out, "  ");
            str_add_bytes(out, name, length);
            str_add(out, name[length] ? ":\n" : ": ");
        }
        name += length + (name[length] == '.');
    }
    field_print(field, job, out);
    str_add_char(out, '\n');
}

void job_print(const struct job *job, struct str *out)
{
    const char *previous = "";

    for (int i = 0; i < n_job_fields; i++) {
        if (layout_is_unset(job, job_fields[i].key))
            continue;
        print_field(&job_fields[i], previous, job, out);
        previous = job_fields[i].key;
    }
}

int job_list_values(const struct job *job, struct job_value **values, struct arena *arena)
{
    struct str text = { 0 };
    int n = 0;

    *values = arena_array(arena, struct job_value, n_job_fields);
    for (int i = 0; i < n_job_fields; i++) {
        if (layout_is_unset(job, job_fields[i].key))
            continue;
        str_clear(&text);
        field_print(&job_fields[i], job, &text);
        bool is_quoted =
            text.length > 1 && text.data[0] == '"' && text.data[text.length - 1] == '"';
        (*values)[n++] =
            (struct job_value){ job_fields[i].key, arena_strndup(arena, str_text(&text) + is_quoted,
                                                                 text.length - 2 * is_quoted) };
    }
    str_release(&text);
    return n;
}

void job_print_model(const struct job *job, struct str *out)
{
    const char *previous = "";

    for (int i = 0; i < n_job_fields && str_starts_with(job_fields[i].key, "model."); i++) {
        print_field(&job_fields[i], previous, job, out);
        previous = job_fields[i].key;
    }
}

void job_print_value(const struct job *job, const char *key, struct str *out)
{
    const struct field *field = field_find(key);

    CHECK(field);
    field_print(field, job, out);
}

void field_print_json_text(struct str *out, const char *text)
{
    str_add_char(out, '"');
    for (const char *p = text; *p;)
        p += field_print_escaped(out, p);
    str_add_char(out, '"');
}

/* "${" would be read as a variable. */
static void print_json_value(struct str *out, const char *text)
{
    struct str escaped = { 0 };

    for (const char *p = text; *p; p++) {
        if (p[0] == '$' && p[1] == '{')
            str_add_char(&escaped, '$');
        str_add_char(&escaped, *p);
    }
    field_print_json_text(out, str_text(&escaped));
    str_release(&escaped);
}

static void print_json_field(const struct field *field, const struct job *job, struct str *out)
{
    const char *at = (const char *)job + field->offset, *text;
    struct str word = { 0 };

    switch (field->type) {
    case FIELD_TEXT:
        text = *(const char *const *)at;
        if (text)
            print_json_value(out, text);
        else
            str_add(out, "null");
        return;
    case FIELD_NAME:
        print_json_value(out, at);
        return;
    case FIELD_DATASETS:
        for (int i = 0; i < job->data.n_train; i++) {
            str_add(out, i ? ", {\"path\": " : "[{\"path\": ");
            print_json_value(out, job->data.train[i].path);
            str_add(out, ", \"weight\": ");
            field_print_float(out, job->data.train[i].weight);
            str_add_char(out, '}');
        }
        str_add_char(out, ']');
        return;
    default:
        if (field_has_list(field, job)) {
            field_print_kinds(field, job, "\"", out);
            return;
        }
        field_print(field, job, &word);
        text = str_text(&word);
        if (field->type == FIELD_CHOICE || field->type == FIELD_KINDS ||
            (field->type == FIELD_SIZES && text[0] != '{') || field->type == FIELD_RATE ||
            (field->type == FIELD_BYTES && strchr(text, ' ')) ||
            (field->type == FIELD_COUNTS && text[0] != '[') ||
            (field->word && !strcmp(text, field->word)))
            print_json_value(out, text);
        else
            str_add(out, text);
        str_release(&word);
    }
}

void job_print_json(const struct job *job, struct str *out)
{
    const char *previous = "";
    int depth = 0;

    str_add_char(out, '{');
    for (int i = 0; i < n_job_fields; i++) {
        const char *key = job_fields[i].key, *name = key;
        int shared = shared_groups(previous, key);

        if (layout_is_unset(job, job_fields[i].key))
            continue;

        for (; depth > shared; depth--)
            str_add_char(out, '}');
        str_add(out, i ? ",\n" : "\n");
        for (int skip = shared; skip > 0; skip--)
            name = strchr(name, '.') + 1;
        for (const char *dot; (dot = strchr(name, '.')); name = dot + 1, depth++) {
            str_printf(out, "\"%.*s\": {", (int)(dot - name), name);
        }
        str_printf(out, "\"%s\": ", name);
        print_json_field(&job_fields[i], job, out);
        previous = key;
    }
    for (; depth > 0; depth--)
        str_add_char(out, '}');
    str_add(out, "\n}\n");
}
