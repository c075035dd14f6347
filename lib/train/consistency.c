/*
 * consistency.c - compare hashes; only where they differ, texts
 */
#include "train/consistency.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/trainer_impl.h"

enum { INDENT = 2, DEPTH_MAX = 8, HOST_BYTES = 64, SHOWN_BYTES = 300 };

/* ---- the first line that differs ---- */

static size_t line_length(const char *text)
{
    return strcspn(text, "\n");
}

static int depth_of(const char *line)
{
    int depth = (int)strspn(line, " ") / INDENT;

    return depth < DEPTH_MAX ? depth : DEPTH_MAX - 1;
}

/* The line at `at`, behind the keys of those above it that are indented less. */
static void name_line(const char *text, const char *at, struct str *out)
{
    const char *above[DEPTH_MAX] = { 0 };
    size_t n = line_length(at);

    str_clear(out);
    for (const char *line = text; line < at; line += line_length(line) + 1)
        above[depth_of(line)] = line;
    for (int depth = 0; depth < depth_of(at); depth++)
        if (above[depth]) {
            const char *key = above[depth] + strspn(above[depth], " ");
            str_add_bytes(out, key, strcspn(key, ":\n"));
            str_add_char(out, '.');
        }
    size_t spaces = strspn(at, " ");
    n = n > spaces ? n - spaces : 0;
    str_add_bytes(out, at + spaces, n < SHOWN_BYTES ? n : SHOWN_BYTES);
}

void consistency_first_difference(const char *a, const char *b, struct str *in_a, struct str *in_b)
{
    const char *at_a = a, *at_b = b;

    while (*at_a && *at_b) {
        size_t n = line_length(at_a);

        if (line_length(at_b) != n || strncmp(at_a, at_b, n) != 0)
            break;
        at_a += n + (at_a[n] == '\n');
        at_b += n + (at_b[n] == '\n');
    }
    name_line(a, at_a, in_a);
    name_line(b, at_b, in_b);
}

/* ---- exchanging ---- */

struct possession {
    char host[HOST_BYTES];
    uint64_t n_bytes; /* of the text, with its end */
    char *text;
};

/* What rank root holds, to all. */
static int learn(struct trainer *t, int root, const char *text, struct possession *out,
                 struct err *err)
{
    *out = (struct possession){ .n_bytes = strlen(text) + 1 };
    gethostname(out->host, sizeof out->host - 1);
    if (trainer_broadcast(t, out, sizeof *out, root, err) < 0)
        return -1;
    out->text = calloc(1, out->n_bytes);
    CHECK(out->text);
    if (t->world_rank == root)
        memcpy(out->text, text, out->n_bytes);
    if (trainer_broadcast(t, out->text, out->n_bytes, root, err) == 0)
        return 0;
    free(out->text);
    return -1;
}

static int explain(struct trainer *t, const char *what, const char *text, const char *hint,
                   int other, int n_others, struct err *err)
{
    struct possession first, second;
    struct str in_first = { 0 }, in_second = { 0 };

    if (learn(t, 0, text, &first, err) < 0)
        return -1;
    if (learn(t, other, text, &second, err) < 0) {
        free(first.text);
        return -1;
    }
    consistency_first_difference(first.text, second.text, &in_first, &in_second);
    err_set(err, ERR_CONFIG,
            "%s differs between ranks: '%s' on rank 0 (%s), '%s' on rank %d (%s); %d of %d ranks "
            "differ from rank 0 (hint: %s)",
            what, str_text(&in_first), first.host, str_text(&in_second), other, second.host,
            n_others, t->world_size, hint);
    str_release(&in_first);
    str_release(&in_second);
    free(first.text);
    free(second.text);
    return -1;
}

int consistency_text(struct trainer *t, const char *what, const char *text, const char *hint,
                     struct err *err)
{
    uint64_t own = XXH3_64bits(text, strlen(text));
    uint64_t *all = calloc((size_t)t->world_size, sizeof *all);
    int other = 0, n_others = 0;

    CHECK(all);
    int status = trainer_gather(t, &own, all, sizeof own, err);
    for (int i = t->world_size - 1; !status && i > 0; i--)
        if (all[i] != all[0]) {
            other = i;
            n_others++;
        }
    free(all);
    if (status < 0 || !n_others)
        return status;
    return explain(t, what, text, hint, other, n_others, err);
}
