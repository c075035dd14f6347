/*
 * man_fields.c - the table of fields as text for people and as a JSON Schema for editors
 */
#include <string.h>

#include "base/completion.h"
#include "config/deprecated_impl.h"
#include "config/embedded.h"
#include "config/fields_impl.h"
#include "config/man_fields.h"

int field_print_not_built(const struct field *f, struct str *out)
{
    if (f->built_max)
        str_printf(out, "above %d", f->built_max);
    else if (f->not_built)
        str_add(out, f->not_built);
    return f->built_max || f->not_built;
}

static void print_number_range(const struct field *f, struct str *out)
{
    const char *what = f->type == FIELD_FLOAT ? "a number" : "a whole number";

    str_add(out, what);
    if (f->type == FIELD_U64) {
        str_add(out, " from 0 to 9223372036854775807");
    } else if (f->type == FIELD_FLOAT) {
        str_add(out, f->above_min ? " above " : " from ");
        str_printf(out, f->above_min ? "%.15g and up to %.15g" : "%.15g to %.15g", f->min, f->max);
    } else {
        str_printf(out, " from %.0f to %.0f", f->min, f->max);
    }
    if (f->word)
        str_printf(out, " or %s", f->word);
}

static void print_quantity_range(const struct field *f, struct str *out)
{
    enum quantity quantity = field_quantity(f);

    str_add(out, quantity == BYTES ? "bytes from " : "a rate from ");
    quantity_print(f->min, quantity, out);
    str_add(out, " to ");
    quantity_print(f->max, quantity, out);
    str_printf(out, " such as %s (units: ", quantity == BYTES ? "20 GiB" : "12 GB/s");
    quantity_list_units(quantity, ", ", out);
    str_add(out, quantity == BYTES ? "; without: bytes)" : ")");
    if (f->word)
        str_printf(out, " or %s", f->word);
}

static void print_items(const struct field *f, struct str *out)
{
    struct choice items[FIELD_ITEMS_MAX + 1];
    int n = f->list_items(items);

    str_add(out, "or a list of");
    for (int i = 0; i < n; i++)
        str_printf(out, i ? ", %s" : " %s", items[i].word);
}

static void print_values(const struct field *f, struct str *out)
{
    switch (f->type) {
    case FIELD_INT:
    case FIELD_I64:
    case FIELD_U64:
    case FIELD_FLOAT:
        print_number_range(f, out);
        return;
    case FIELD_BYTES:
    case FIELD_RATE:
        print_quantity_range(f, out);
        return;
    case FIELD_BOOL:
        str_add(out, "true or false");
        return;
    case FIELD_TEXT:
    case FIELD_NAME:
        str_add(out, "a non-empty string");
        return;
    case FIELD_CHOICE:
        str_add(out, "one of ");
        for (const struct choice *c = f->choices; c->word; c++)
            str_printf(out, c == f->choices ? "%s" : ", %s", c->word);
        return;
    case FIELD_KINDS:
        str_add(out, "one of ");
        for (const struct choice *c = f->choices; c->word; c++)
            str_printf(out, "%s, ", c->word);
        print_items(f, out);
        return;
    case FIELD_SIZES:
        str_add(out, "one of ");
        for (const struct choice *c = f->choices; c->word; c++)
            str_printf(out, "%s, ", c->word);
        str_printf(out, "or a map such as {%s: 2, %s: 2}", f->word,
                   f->choices[f->word_value + 1].word);
        return;
    case FIELD_COUNTS:
        str_printf(out, "a list of whole numbers from %.0f to %.0f, %sor %s", f->min, f->max,
                   f->auto_offset ? "auto " : "", f->word);
        return;
    case FIELD_TEXTS:
        str_printf(out,
                   *f->word ? "a list of non-empty strings, or %s" : "a list of non-empty strings",
                   f->word);
        return;
    case FIELD_PAIRS:
        str_printf(out, "a map of non-empty strings, or %s", f->word);
        return;
    case FIELD_GROUPS:
        str_printf(out, "a list of maps {match, lr_scale, weight_decay}, or %s", f->word);
        return;
    case FIELD_SPACE:
        str_printf(out,
                   "a map of job keys to lists of values, {uniform: [LOW, HIGH]} or "
                   "{log: [LOW, HIGH]}, both with points: N for a grid; or a list of maps of job "
                   "keys to values; or %s",
                   f->word);
        return;
    case FIELD_DATASETS:
        str_add(out, "a prefix, or a list of prefixes and {path, weight}");
        return;
    }
}

void field_print_range(const struct field *f, struct str *out)
{
    struct str gaps = { 0 };

    print_values(f, out);
    if (field_print_not_built(f, &gaps))
        str_printf(out, " (not built yet: %s)", str_text(&gaps));
    str_release(&gaps);
}

static int is_below(const char *key, const char *group)
{
    size_t length = strlen(group);

    return length == 0 || !strcmp(key, group) ||
           (!strncmp(key, group, length) && key[length] == '.');
}

static void explain_field(const struct field *f, struct str *out)
{
    str_printf(out, "%s\n    %s.\n    ", f->key, f->help);
    field_print_range(f, out);
    if (f->unit)
        str_printf(out, ", in %s", f->unit);
    if (!f->initial)
        str_add(out, "; required\n");
    else if (*f->initial)
        str_printf(out, "; default %s\n", f->initial);
    else
        str_add(out, "; default none\n");
    if (f->numerics.change)
        str_printf(out, "    %s\n", numerics_change_text(f->numerics.change));
}

int job_explain(const char *key, struct str *out, struct err *err)
{
    int n = 0;

    for (int i = 0; i < n_job_fields; i++) {
        if (!is_below(job_fields[i].key, key))
            continue;
        if (n++)
            str_add_char(out, '\n');
        explain_field(&job_fields[i], out);
    }
    if (n > 0)
        return 0;
    const struct deprecated_key *old = deprecated_find(&job_deprecated_keys, key);
    if (old) {
        deprecated_describe(old, out);
        str_add_char(out, '\n');
        return 0;
    }
    const char *near = field_suggest(key);
    return err_set(err, ERR_CONFIG, "no field %.128s (hint: %s)", key,
                   near ? near : "lmtrain config --explain all");
}

/* A value may also come from the environment, whatever its type. */
#define VARIABLE "{\"type\": \"string\", \"pattern\": \"\\\\$\\\\{\"}"
#define FRACTION "{\"anyOf\": [{\"type\": \"number\", \"minimum\": 0}, " VARIABLE "]}"
#define GROUP \
    "{\"type\": \"object\", \"properties\": {\"match\": {\"type\": \"string\"}, " \
    "\"lr_scale\": " FRACTION ", \"weight_decay\": " FRACTION "}, \"required\": " \
    "[\"match\"], \"additionalProperties\": false}"
#define DATASET \
    "{\"type\": \"string\"}, {\"type\": \"object\", \"properties\": {\"path\": {\"type\": " \
    "\"string\"}, \"weight\": {\"anyOf\": [{\"type\": \"number\", \"exclusiveMinimum\": " \
    "0}, " VARIABLE "]}}, \"required\": [\"path\"], \"additionalProperties\": false}"

static void schema_number(const struct field *f, struct str *out)
{
    str_printf(out, "{\"type\": \"%s\", \"%s\": %.17g, \"maximum\": ",
               f->type == FIELD_FLOAT ? "number" : "integer",
               f->above_min ? "exclusiveMinimum" : "minimum", f->min);
    if (f->type == FIELD_U64)
        str_add(out, "9223372036854775807");
    else
        str_printf(out, "%.17g", f->max);
    str_add_char(out, '}');
    if (f->word)
        str_printf(out, ", {\"const\": \"%s\"}", f->word);
}

static void schema_quantity(const struct field *f, struct str *out)
{
    if (f->type == FIELD_BYTES)
        str_printf(out, "{\"type\": \"integer\", \"minimum\": %.0f, \"maximum\": %.0f}, ", f->min,
                   f->max);
    str_add(out, "{\"type\": \"string\", \"pattern\": \"^[0-9.]+([eE][-+]?[0-9]+)? *(");
    quantity_list_units(field_quantity(f), "|", out);
    str_add(out, ")$\"}");
    if (f->word)
        str_printf(out, ", {\"const\": \"%s\"}", f->word);
}

static void schema_words(const struct choice *choices, struct str *out)
{
    str_add(out, "{\"enum\": [");
    for (const struct choice *c = choices; c->word; c++)
        str_printf(out, c == choices ? "\"%s\"" : ", \"%s\"", c->word);
    str_add(out, "]}");
}

static void schema_groups(const struct field *f, struct str *out)
{
    str_printf(out,
               "{\"const\": \"%s\"}, {\"type\": \"array\", \"minItems\": 1, \"maxItems\": %d, "
               "\"items\": " GROUP "}",
               f->word, UPDATE_GROUPS_MAX);
}

static void schema_space(const struct field *f, struct str *out)
{
    str_printf(out,
               "{\"const\": \"%s\"}, {\"type\": \"object\", \"minProperties\": 1, "
               "\"additionalProperties\": {\"type\": [\"array\", \"object\"]}}, {\"type\": "
               "\"array\", \"minItems\": 1, \"items\": {\"type\": \"object\", "
               "\"minProperties\": 1}}",
               f->word);
}

static void schema_type(const struct field *f, struct str *out)
{
    struct choice items[FIELD_ITEMS_MAX + 1];

    switch (f->type) {
    case FIELD_INT:
    case FIELD_I64:
    case FIELD_U64:
    case FIELD_FLOAT:
        schema_number(f, out);
        return;
    case FIELD_BYTES:
    case FIELD_RATE:
        schema_quantity(f, out);
        return;
    case FIELD_BOOL:
        str_add(out, "{\"type\": \"boolean\"}");
        return;
    case FIELD_NAME:
    case FIELD_TEXT:
        str_printf(out, "{\"type\": %s}",
                   f->initial && !*f->initial ? "[\"string\", \"null\"]" : "\"string\"");
        return;
    case FIELD_CHOICE:
        schema_words(f->choices, out);
        for (const struct choice *s = f->synonyms; s && s->word; s++)
            if (field_word(f, s->word) != s->word)
                str_printf(out, ", {\"const\": \"%s\"}", s->word);
        return;
    case FIELD_KINDS:
        schema_words(f->choices, out);
        str_add(out, ", {\"type\": \"array\", \"minItems\": 1, \"items\": {\"anyOf\": [");
        f->list_items(items);
        schema_words(items, out);
        str_add(out, ", " VARIABLE "]}}");
        return;
    case FIELD_SIZES:
        schema_words(f->choices, out);
        str_add(out, ", {\"type\": \"object\", \"minProperties\": 2, \"maxProperties\": 2, "
                     "\"additionalProperties\": {\"type\": \"integer\", \"minimum\": 1}}");
        return;
    case FIELD_COUNTS:
        str_printf(out,
                   "{\"anyOf\": [{\"const\": \"%s\"}, %s{\"type\": \"array\", \"minItems\": 1, "
                   "\"items\": {\"type\": \"integer\", \"minimum\": %.0f, \"maximum\": %.0f}}]}",
                   f->word, f->auto_offset ? "{\"const\": \"auto\"}, " : "", f->min, f->max);
        return;
    case FIELD_TEXTS:
        str_add(out, "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\", "
                     "\"minItems\": 1, \"items\": {\"type\": \"string\"}}]}");
        return;
    case FIELD_PAIRS:
        str_printf(out,
                   "{\"anyOf\": [{\"const\": \"%s\"}, {\"type\": \"object\", "
                   "\"additionalProperties\": {\"type\": \"string\"}}]}",
                   f->word);
        return;
    case FIELD_GROUPS:
        schema_groups(f, out);
        return;
    case FIELD_SPACE:
        schema_space(f, out);
        return;
    case FIELD_DATASETS:
        str_add(out, DATASET
                ", {\"type\": \"array\", \"minItems\": 1, \"items\": {\"anyOf\": [" DATASET "]}}");
        return;
    }
}

static void schema_field(const struct field *f, struct str *out)
{
    const char *leaf = strrchr(f->key, '.');
    struct str help = { 0 }, gaps = { 0 };

    str_printf(&help, f->unit ? "%s; in %s" : "%s", f->help, f->unit);
    if (field_print_not_built(f, &gaps))
        str_printf(&help, "; not built yet: %s", str_text(&gaps));
    str_printf(out, "\"%s\": {\"description\": ", leaf ? leaf + 1 : f->key);
    field_print_json_text(out, str_text(&help));
    str_add(out, ", \"anyOf\": [");
    schema_type(f, out);
    str_add(out, ", " VARIABLE "]}");
    str_release(&help);
    str_release(&gaps);
}

/* What a deprecated key is called in the object of a group: its last name; of a group that no field
 * has, the group's, at the top level. Its length, 0 if it is not in this object. */
static size_t deprecated_name(const struct deprecated_key *key, const char *group)
{
    size_t prefix = *group ? strlen(group) + 1 : 0;
    char first[64];

    if (!is_below(key->old, group) || strlen(key->old) <= prefix)
        return 0;
    size_t length = strcspn(key->old + prefix, ".");
    if (!key->old[prefix + length])
        return length;
    CHECK(length < sizeof first);
    memcpy(first, key->old, length);
    first[length] = '\0';
    return !*group && !field_is_group(first) ? length : 0;
}

/* Such a key may have any value here: it is checked when it is read. */
static void schema_deprecated(const char *group, const struct deprecated_keys *keys,
                              struct str *out)
{
    size_t prefix = *group ? strlen(group) + 1 : 0;
    struct str text = { 0 };

    for (int i = 0; i < keys->n; i++) {
        const struct deprecated_key *key = &keys->items[i];
        size_t length = deprecated_name(key, group);

        if (!length)
            continue;
        str_clear(&text);
        deprecated_describe(key, &text);
        str_printf(out, ",\n\"%.*s\": {\"deprecated\": true, \"description\": ", (int)length,
                   key->old + prefix);
        field_print_json_text(out, str_text(&text));
        str_add_char(out, '}');
    }
    str_release(&text);
}

/*
 * The properties of one group, from its first field on; *next is left behind its last. The table
 * has the fields of a group together, so one pass does, and depth is the number of dots of our own
 * keys.
 */
static void schema_group(const char *group, int *next, const struct deprecated_keys *deprecated,
                         struct str *out)
{
    size_t prefix = *group ? strlen(group) + 1 : 0;
    int is_model = !strcmp(group, "model"), n = 0;

    str_add(out, "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {\n");
    if (is_model) {
        str_add(out,
                "\"from\": {\"description\": \"the model whose fields these change\", \"type\": "
                "\"string\"}");
        n++;
    }
    while (*next < n_job_fields && is_below(job_fields[*next].key, group)) {
        const struct field *f = &job_fields[*next];
        size_t length = strcspn(f->key + prefix, ".");
        char name[64];

        str_add(out, n++ ? ",\n" : "");
        if (!f->key[prefix + length]) {
            schema_field(f, out);
            (*next)++;
            continue;
        }
        CHECK(prefix + length < sizeof name);
        memcpy(name, f->key, prefix + length);
        name[prefix + length] = '\0';
        str_printf(out, "\"%s\": {\"anyOf\": [", name + prefix);
        if (!strcmp(name, "model"))
            str_add(out, "{\"type\": \"string\"}, ");
        if (!strcmp(name, "parallel"))
            str_add(out, "{\"const\": \"auto\"}, ");
        schema_group(name, next, deprecated, out);
        str_add(out, ", {\"type\": \"null\"}]}");
    }
    schema_deprecated(group, deprecated, out);
    str_add(out, "}}");
}

void job_schema_with(const struct deprecated_keys *deprecated, struct str *out)
{
    int next = 0;

    str_add(out, "{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
                 "\"title\": \"a job of lmtrain\",\n"
                 "\"required\": [\"model\", \"data\", \"train\"],\n\"allOf\": [");
    schema_group("", &next, deprecated, out);
    str_add(out, "]}\n");
}

void job_schema(struct str *out)
{
    job_schema_with(&job_deprecated_keys, out);
}

static void add_roff(struct str *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\\' || *p == '-')
            str_add_char(out, '\\');
        str_add_char(out, *p);
    }
}

void job_manual(struct str *out)
{
    struct str line = { 0 };
    const char *group = "";

    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];
        size_t length = strchr(f->key, '.') ? strcspn(f->key, ".") : 0;

        if (strncmp(group, f->key, length) != 0 || strcspn(group, ".") != length)
            if (length || strchr(group, '.'))
                str_printf(out, length ? ".SS %.*s\n" : ".SS top level%.*s\n", (int)length, f->key);
        group = length ? f->key : "";
        str_add(out, ".TP\n.B ");
        add_roff(out, f->key);
        str_clear(&line);
        str_printf(&line, "\n%s.\nValue: ", f->help);
        if (line.data[1] >= 'a' && line.data[1] <= 'z')
            line.data[1] = (char)(line.data[1] - 'a' + 'A');
        field_print_range(f, &line);
        if (f->unit)
            str_printf(&line, ", in %s", f->unit);
        str_printf(&line,
                   f->initial ? *f->initial ? "; default %s.\n" : "; default none%s.\n"
                              : "; required%s.\n",
                   f->initial ? f->initial : "");
        if (f->numerics.change)
            str_printf(&line, "%s\n", numerics_change_text(f->numerics.change));
        add_roff(out, str_text(&line));
    }
    str_release(&line);
    deprecated_manual(&job_deprecated_keys, out);
}

/* The names of configs/models. */
static void add_models(struct str *words)
{
    static const char folder[] = "configs/models/";

    for (int i = 0; i < n_embedded_files; i++) {
        const char *name = embedded_files[i].path + sizeof folder - 1;

        if (str_starts_with(embedded_files[i].path, folder))
            str_printf(words, words->length ? " %.*s" : "%.*s", (int)strcspn(name, "."), name);
    }
}

void job_completion(const struct completion_shell *shell, struct str *out)
{
    struct str words = { 0 };

    add_models(&words);
    shell->key("model", str_text(&words), out);
    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];

        str_clear(&words);
        if (f->type == FIELD_BOOL)
            str_add(&words, "true false");
        if (f->word)
            str_add(&words, f->word);
        for (const struct choice *c = f->choices; c && c->word; c++)
            if (!f->not_built || strcmp(c->word, f->not_built) != 0)
                str_printf(&words, words.length ? " %s" : "%s", c->word);
        shell->key(f->key, str_text(&words), out);
    }
    str_release(&words);
}
