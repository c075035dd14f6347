/*
 * print.c - a job as YAML that reads back to the same job
 */
#include <string.h>

#include "config/fields_impl.h"

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
        print_field(&job_fields[i], previous, job, out);
        previous = job_fields[i].key;
    }
}
