/*
 * numerics.c - the description of a run's numerics: composed, and held against a checkpoint's
 */
#include "train/numerics.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/numerics_lines.h"

void numerics_describe(const struct job *job, uint64_t data, const char *identity,
                       const char *choices, struct str *out)
{
    str_printf(out, "version %d\n", NUMERICS_VERSION);
    numerics_lines(job, data, out);
    str_printf(out, "kernels %s\n", identity);
    if (*choices)
        str_printf(out, "kernels.choices %016" PRIx64 "\n", XXH64(choices, strlen(choices), 0));
}

uint64_t numerics_hash(const struct str *description)
{
    return XXH64(str_text(description), description->length, 0);
}

/* ---- weights of another model ---- */

/* The line of a text that begins here, or nothing behind its end. */
static size_t line_length(const char *line)
{
    return strcspn(line, "\n");
}

/* Only RoPE's frequencies: no weight is another. */
static bool scales_positions(const struct job *job)
{
    return job->model.position == POSITION_ROPE && job->model.rope_scaling.type != ROPE_PLAIN;
}

/* An adapter is loaded with its model, which would not have the scaling of the job. */
static bool is_adapted(const struct job *job, const char *line)
{
    return scales_positions(job) && job->lora.rank && str_starts_with(line, "model.rope_scaling.");
}

/* Lines of both descriptions go side by side: those that only one may have are the last. */
int numerics_check_weights(const struct job *job, const struct model_spec *theirs, const char *path,
                           struct err *err)
{
    const struct model_spec *ours = &job->model;
    struct model_spec other = *theirs;
    struct str a = { 0 }, b = { 0 };
    int status = 0;

    if (scales_positions(job) && !job->lora.rank) {
        other.rope_scaling = ours->rope_scaling;
        other.max_seq_len = ours->max_seq_len;
    }
    other.dropout = ours->dropout;
    other.embedding_dropout = ours->embedding_dropout;
    other.attention_dropout = ours->attention_dropout;
    other.init_std = ours->init_std;
    other.router_balance = ours->router_balance;
    other.router_balance_kind = ours->router_balance_kind;
    other.router_z = ours->router_z;
    other.router_bias_rate = ours->router_bias_rate;
    numerics_model_lines(ours, &a);
    numerics_model_lines(&other, &b);
    for (const char *x = str_text(&a), *y = str_text(&b); (*x || *y) && !status;) {
        size_t n = line_length(x), m = line_length(y);

        if (n != m || memcmp(x, y, n) != 0)
            status = err_set(err, ERR_CONFIG, "the job has %.*s, but %s has %.*s (hint: %s%s)",
                             n ? (int)n : 4, n ? x : "none", path, m ? (int)m : 4, m ? y : "none",
                             is_adapted(job, x)
                                 ? "rope_scaling in its config.json: an adapter is used with it"
                                 : "model: ",
                             is_adapted(job, x) ? "" : path);
        x += n + (x[n] == '\n');
        y += m + (y[m] == '\n');
    }
    str_release(&a);
    str_release(&b);
    return status;
}

/* ---- a checkpoint's description ---- */

/* A line of a description; value NULL: it does not have one with this key. */
struct numerics_line {
    const char *key, *value;
};

struct numerics_lines {
    struct numerics_line *items;
    int n;
};

/* What differs, in the order of our lines; lines that only the checkpoint has are the last. */
struct difference {
    const char *key, *here, *there; /* "unset" where there is no line */
    enum numerics_change change;
};

static struct numerics_lines parse_lines(const char *text, struct arena *arena)
{
    char *rest = arena_strdup(arena, text), *line;
    struct numerics_lines lines = { 0 };
    int capacity = 0;

    while ((line = strsep(&rest, "\n"))) {
        char *space = strchr(line, ' ');

        if (!space)
            continue;
        *space = '\0';
        lines.items = arena_grow(arena, lines.items, sizeof *lines.items, &capacity, lines.n + 1);
        lines.items[lines.n++] = (struct numerics_line){ line, space + 1 };
    }
    return lines;
}

static const char *value_of(const struct numerics_lines *lines, const char *key)
{
    for (int i = 0; i < lines->n; i++)
        if (!strcmp(lines->items[i].key, key))
            return lines->items[i].value;
    return NULL;
}

/* Lines that are no field's. What only another lmtrain knows was arithmetic to it. */
static enum numerics_change change_of(const char *key)
{
    enum numerics_change change = numerics_change_of(key);

    if (change != NUMERICS_NONE)
        return change;
    return str_starts_with(key, "model.") ? NUMERICS_RUN : NUMERICS_ARITHMETIC;
}

/* What was changed in the engine's arithmetic, by the version that has it first. */
static const struct {
    int version;
    const char *change;
} versions[] = {
    { 2, "the gradient norm is the sum of its parameters' sums" },
};

static const char *explain_version(const struct difference *d, struct arena *arena)
{
    const char *text = "the arithmetic of lmtrain itself";
    int64_t here, there;

    if (str_to_i64(d->here, &here) || str_to_i64(d->there, &there))
        return text;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (versions[i].version > there && versions[i].version <= here)
            text = arena_printf(arena, "%s; new in %d: %s", text, versions[i].version,
                                versions[i].change);
    return there > here ? arena_printf(arena, "%s; the checkpoint is of a newer one", text) : text;
}

static const char *explain(const struct difference *d, struct arena *arena)
{
    if (!strcmp(d->key, "version"))
        return explain_version(d, arena);
    if (!strcmp(d->key, "kernels"))
        return "backend, instruction set or kind of GPU, and versions of libraries";
    if (!strcmp(d->key, "kernels.choices"))
        return "algorithms that the GPU libraries chose: kernels.txt of the run is missing or "
               "another one";
    const char *meaning = numerics_meaning_of(d->key, arena);
    return meaning ? meaning : "a setting that this lmtrain does not have";
}

static int find_differences(const struct numerics_lines *ours, const struct numerics_lines *theirs,
                            struct difference *out)
{
    int n = 0;

    for (int i = 0; i < ours->n; i++) {
        const struct numerics_line *line = &ours->items[i];
        const char *there = value_of(theirs, line->key);

        if (!there || strcmp(there, line->value) != 0)
            out[n++] = (struct difference){ line->key, line->value, there ? there : "unset",
                                            change_of(line->key) };
    }
    for (int i = 0; i < theirs->n; i++) {
        const struct numerics_line *line = &theirs->items[i];

        if (!value_of(ours, line->key))
            out[n++] = (struct difference){ line->key, "unset", line->value, change_of(line->key) };
    }
    return n;
}

/* Products of other shapes have other algorithms: with another layout this is no news. */
static void excuse_choices(struct difference *list, int n)
{
    int has_layout = 0;

    for (int i = 0; i < n; i++)
        has_layout |= list[i].change == NUMERICS_LAYOUT;
    for (int i = 0; i < n && has_layout; i++)
        if (!strcmp(list[i].key, "kernels.choices"))
            list[i].change = NUMERICS_LAYOUT;
}

/* Another model, other data, another seed. Of data the least can be said, so it comes last. */
static int refuse_other_run(const struct difference *list, int n, struct err *err)
{
    int has_data = 0;

    for (int i = 0; i < n; i++) {
        const struct difference *d = &list[i];

        if (d->change != NUMERICS_RUN)
            continue;
        has_data |= !strcmp(d->key, "data");
        if (strcmp(d->key, "data") != 0)
            return err_set(err, ERR_CONFIG,
                           "%s is %s, but the run was started with %s (hint: set it back, or %s)",
                           d->key, d->here, d->there,
                           str_starts_with(d->key, "optimizer.")
                               ? "begin with new states: train.init: the checkpoint's folder, and "
                                 "a different output folder"
                               : "use a different output folder");
    }
    if (has_data)
        return err_set(
            err, ERR_CONFIG,
            "data.train: the datasets, their weights or eval.split differ from those that the run "
            "was started with (hint: set them back, or use a different output folder)");
    return 0;
}

static int refuse_arithmetic(const struct difference *list, int n, struct arena *arena,
                             struct err *err)
{
    struct str text = { 0 };

    for (int i = 0; i < n; i++)
        if (list[i].change == NUMERICS_ARITHMETIC)
            str_printf(&text, "\n    %s: there %s, here %s (%s)", list[i].key, list[i].there,
                       list[i].here, explain(&list[i], arena));
    int status =
        text.length
            ? err_set(err, ERR_CONFIG,
                      "the numerics of the checkpoint differ from those of the job:%s\n(hint: set "
                      "back what was changed, or --accept-numerics to continue with other bits)",
                      str_text(&text))
            : 0;
    str_release(&text);
    return status;
}

int numerics_compare(const char *ours, const char *theirs, int accept,
                     struct numerics_differences *out, struct err *err)
{
    struct arena arena = { 0 };
    struct numerics_lines here = parse_lines(ours, &arena), there = parse_lines(theirs, &arena);
    struct difference *list = arena_array(&arena, struct difference, here.n + there.n);
    int n = find_differences(&here, &there, list);

    excuse_choices(list, n);
    int status = refuse_other_run(list, n, err);
    if (!status && !accept)
        status = refuse_arithmetic(list, n, &arena, err);
    for (int i = 0; i < n && !status; i++)
        str_printf(list[i].change == NUMERICS_ARITHMETIC ? &out->accepted : &out->logged,
                   "%s is now %s, was %s\n", list[i].key, list[i].here, list[i].there);
    arena_release(&arena);
    return status;
}

void numerics_differences_release(struct numerics_differences *differences)
{
    str_release(&differences->logged);
    str_release(&differences->accepted);
}
