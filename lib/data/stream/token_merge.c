/*
 * token_merge.c - checking what belongs together, then copying it
 */
#include "data/stream/token_merge.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/num.h"
#include "base/str.h"
#include "data/stream/indexed.h"
#include "data/stream/token_part.h"

#define COPY_BYTES ((int64_t)256 << 20) /* between two calls of progress */
#define NAMED_MAX 8                     /* missing parts in a message */

/* ---- the parts that there are ---- */

/* How a file's name continues that of prefix, or NULL. */
static int parse_part(const char *file, const char *base, int *part, int *n_parts)
{
    int used = 0;

    if (!str_starts_with(file, base))
        return 0;
    return sscanf(file + strlen(base), ".part-%6d-of-%6d.json%n", part, n_parts, &used) == 2 &&
           used > 0 && !file[strlen(base) + (size_t)used];
}

/* Numbers of parts for which there is a part; the first two that differ into found. */
static int find_divisions(const char *prefix, int found[2], struct arena *arena, struct err *err)
{
    const char *slash = strrchr(prefix, '/'), *base = slash ? slash + 1 : prefix;
    const char *folder =
        !slash ? "." : arena_strndup(arena, prefix, (size_t)(slash > prefix ? slash - prefix : 1));
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int n = 0, part, n_parts;

    if (!dir)
        return err_set_errno(err, ERR_DATA, "%s", folder);
    while (n < 2 && (entry = readdir(dir)))
        if (parse_part(entry->d_name, base, &part, &n_parts) && (n == 0 || found[0] != n_parts))
            found[n++] = n_parts;
    closedir(dir);
    return n;
}

static int refuse_missing(const char *prefix, const char *const *prefixes, int n_parts,
                          struct arena *arena, struct err *err)
{
    struct str names = { 0 };
    int n = 0, first = 0;

    for (int i = 0; i < n_parts; i++) {
        if (file_exists(arena_printf(arena, "%s.json", prefixes[i])))
            continue;
        first = n ? first : i + 1;
        if (n++ < NAMED_MAX)
            str_printf(&names, n > 1 ? ", %d" : "%d", i + 1);
    }
    if (n > 0)
        err_set(err, ERR_DATA,
                "%s: of its %d parts %d %s missing or not complete: %s%s (hint: lmtrain data "
                "tokenize --part %d/%d --out %s ...)",
                prefix, n_parts, n, n == 1 ? "is" : "are", str_text(&names),
                n > NAMED_MAX ? ", ..." : "", first, n_parts, prefix);
    str_release(&names);
    return n > 0 ? -1 : 0;
}

int token_merge_find_parts(const char *prefix, int n_parts, const char ***prefixes, int *n,
                           struct arena *arena, struct err *err)
{
    int found[2] = { 0 };

    if (!n_parts) {
        int n_divisions = find_divisions(prefix, found, arena, err);

        if (n_divisions < 0)
            return -1;
        if (n_divisions == 0)
            return err_set(err, ERR_DATA,
                           "there is no complete part of %s, such as %s.json (hint: lmtrain data "
                           "tokenize --part 1/4 --out %s ..., or name the token files to merge)",
                           prefix, token_part_prefix(arena, prefix, 1, 4), prefix);
        if (n_divisions > 1)
            return err_set(err, ERR_DATA,
                           "%s has parts of %d and parts of %d (hint: --parts %d, or remove those "
                           "that are not wanted)",
                           prefix, found[0], found[1], found[0]);
        n_parts = found[0];
    }
    if (n_parts < 1 || n_parts > TOKEN_PARTS_MAX)
        return err_set(err, ERR_DATA, "%s has parts of %d, not of 1 to %d", prefix, n_parts,
                       TOKEN_PARTS_MAX);
    *prefixes = arena_array(arena, const char *, n_parts);
    for (int i = 0; i < n_parts; i++)
        (*prefixes)[i] = token_part_prefix(arena, prefix, i + 1, n_parts);
    *n = n_parts;
    return refuse_missing(prefix, *prefixes, n_parts, arena, err);
}

/* ---- what belongs together ---- */

struct token_merge {
    const char *prefix;
    const char *const *prefixes;
    int n;
    enum indexed_type type;
    int64_t token_bytes, n_sequences;
    bool has_meta;
    struct token_meta meta;  /* of the output */
    struct token_part first; /* n_parts 0: they are no parts */
    struct token_merge_report *report;
    void (*progress)(void *context, int64_t done_bytes, int64_t all_bytes);
    void *context;
    struct arena arena;
    struct err *err;
};

static int check_part(struct token_merge *m, int i)
{
    const char *prefix = m->prefixes[i], *what;
    struct token_part part = { 0 };
    int found = token_part_read(prefix, &part, m->err);

    if (found < 0)
        return -1;
    if (i == 0)
        m->first = part;
    if (!part.n_parts != !m->first.n_parts)
        return err_set(m->err, ERR_DATA, "%s is %s, %s is not (hint: merge the parts first)",
                       part.n_parts ? prefix : m->prefixes[0], "a part of a token file",
                       part.n_parts ? m->prefixes[0] : prefix);
    if (!part.n_parts)
        return 0;
    if ((what = token_part_difference(&part, &m->first, &m->arena)))
        return err_set(m->err, ERR_DATA,
                       "%s does not belong to the other parts: it is of %s as %s (hint: tokenize "
                       "it again)",
                       prefix, what, m->prefixes[0]);
    if (part.part != i + 1)
        return err_set(m->err, ERR_DATA,
                       "%s is part %d of %d, but part %d is expected in its place (hint: parts in "
                       "order, or none: lmtrain data merge PREFIX finds them)",
                       prefix, part.part, part.n_parts, i + 1);
    if (i + 1 == m->n && m->n < part.n_parts)
        return err_set(m->err, ERR_DATA, "parts %d to %d of %d are missing", m->n + 1, part.n_parts,
                       part.n_parts);
    return 0;
}

static int check_meta(struct token_merge *m, int i)
{
    const char *prefix = m->prefixes[i];
    struct token_meta meta;
    int found = token_meta_read(prefix, &meta, m->err);

    if (found < 0)
        return -1;
    if (i == 0) {
        m->has_meta = found;
        m->meta = meta;
        return 0;
    }
    if (found != m->has_meta)
        return err_set(m->err, ERR_DATA,
                       "%s.json does not say which tokenizer its tokens are of, but %s.json does",
                       found ? m->prefixes[0] : prefix, found ? prefix : m->prefixes[0]);
    if (found &&
        (strcmp(meta.tokenizer, m->meta.tokenizer) != 0 || meta.end_of_text != m->meta.end_of_text))
        return err_set(m->err, ERR_DATA,
                       "%s was made with another tokenizer or end-of-text token than %s: %s, %d, "
                       "not %s, %d",
                       prefix, m->prefixes[0], meta.tokenizer, meta.end_of_text, m->meta.tokenizer,
                       m->meta.end_of_text);
    return 0;
}

static int check_input(struct token_merge *m, int i)
{
    const char *prefix = m->prefixes[i];
    struct indexed indexed;

    if (!strcmp(prefix, m->prefix))
        return err_set(m->err, ERR_CONFIG, "%s is an input and the output", prefix);
    if (check_part(m, i) < 0 || check_meta(m, i) < 0 || indexed_open(&indexed, prefix, m->err) < 0)
        return -1;
    int64_t all = 34 + indexed.n_sequences * 12 + (indexed.n_documents + 1) * 8;
    int rc = 0;
    if ((int64_t)indexed.idx.n_bytes != all)
        rc = err_set(m->err, ERR_DATA, "%s.idx has modes of sequences, which are not merged",
                     prefix);
    else if (i > 0 && indexed.type != m->type)
        rc = err_set(m->err, ERR_DATA, "%s has tokens of type %s, but %s of %s", prefix,
                     indexed_type_name(indexed.type), m->prefixes[0], indexed_type_name(m->type));
    m->type = indexed.type;
    m->token_bytes = (int64_t)indexed.token_bytes;
    m->n_sequences += indexed.n_sequences;
    m->report->n_documents += indexed.n_documents;
    m->report->n_tokens += indexed.n_tokens;
    m->report->n_bytes += (int64_t)indexed.bin.n_bytes;
    indexed_close(&indexed);
    return rc;
}

/* ---- tokens ---- */

/* Copy n bytes from fd's place on to out's. */
static int copy(int out, int fd, int64_t n)
{
    char buffer[65536];

    while (n > 0) {
        ssize_t got = copy_file_range(fd, NULL, out, NULL, (size_t)n, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) { /* not between these file systems */
            got = read(fd, buffer, (size_t)min_i64(n, sizeof buffer));
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0 || file_write_all(out, buffer, (size_t)got) > 0)
                return -1;
        }
        n -= got;
    }
    return 0;
}

static int copy_tokens(struct token_merge *m, int out, const char *partial)
{
    int64_t done = 0;

    for (int i = 0; i < m->n; i++) {
        const char *path = arena_printf(&m->arena, "%s.bin", m->prefixes[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int64_t left = file_size(path);

        if (fd < 0)
            return err_set_errno(m->err, ERR_DATA, "%s", path);
        while (left > 0) {
            int64_t n = min_i64(left, COPY_BYTES);

            errno = 0;
            if (copy(out, fd, n) < 0) {
                close(fd);
                return err_set_errno(m->err, ERR_FAILED, "%s", partial);
            }
            left -= n;
            done += n;
            if (m->progress)
                m->progress(m->context, done, m->report->n_bytes);
        }
        close(fd);
    }
    return 0;
}

/* ---- the index ---- */

enum index_table { INDEX_LENGTHS, INDEX_OFFSETS, INDEX_DOCUMENTS };

/* What of one input goes into a table. bytes, sequences: before it. */
static void put_table(FILE *out, const struct indexed *in, enum index_table table, int64_t bytes,
                      int64_t sequences)
{
    int64_t value, n = table == INDEX_DOCUMENTS ? in->n_documents : in->n_sequences;
    const unsigned char *from = table == INDEX_DOCUMENTS ? in->documents : in->offsets;

    if (table == INDEX_LENGTHS) {
        fwrite(in->offsets - in->n_sequences * 4, 4, (size_t)in->n_sequences, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        memcpy(&value, from + i * 8, sizeof value);
        value += table == INDEX_DOCUMENTS ? sequences : bytes;
        fwrite(&value, sizeof value, 1, out);
    }
}

static int write_table(struct token_merge *m, FILE *out, enum index_table table)
{
    int64_t bytes = 0, sequences = 0;

    for (int i = 0; i < m->n; i++) {
        struct indexed indexed;

        if (indexed_open(&indexed, m->prefixes[i], m->err) < 0)
            return -1;
        put_table(out, &indexed, table, bytes, sequences);
        bytes += (int64_t)indexed.bin.n_bytes;
        sequences += indexed.n_sequences;
        indexed_close(&indexed);
    }
    return 0;
}

static int write_index(struct token_merge *m, FILE *out, const char *partial)
{
    uint64_t version = INDEXED_VERSION, n_sequences = (uint64_t)m->n_sequences,
             n_starts = (uint64_t)m->report->n_documents + 1;

    fwrite("MMIDIDX\0", 1, 9, out);
    fwrite(&version, 8, 1, out);
    fputc((int)m->type, out);
    fwrite(&n_sequences, 8, 1, out);
    fwrite(&n_starts, 8, 1, out);
    for (enum index_table table = INDEX_LENGTHS; table <= INDEX_DOCUMENTS; table++)
        if (write_table(m, out, table) < 0)
            return -1;
    fwrite(&n_sequences, 8, 1, out);
    return fflush(out) != 0 || ferror(out) ? err_set_errno(m->err, ERR_FAILED, "%s", partial) : 0;
}

/* ---- all of it ---- */

/* Write both files beside their places, and put them there. */
static int write_pair(struct token_merge *m, int bin, FILE *idx, const char *bin_partial,
                      const char *idx_partial)
{
    const char *bin_path = arena_printf(&m->arena, "%s.bin", m->prefix);
    const char *idx_path = arena_printf(&m->arena, "%s.idx", m->prefix);

    if (copy_tokens(m, bin, bin_partial) < 0)
        return -1;
    fault_at("merge:copied", -1);
    if (write_index(m, idx, idx_partial) < 0)
        return -1;
    if (fsync(bin) != 0 || fsync(fileno(idx)) != 0)
        return err_set_errno(m->err, ERR_FAILED, "%s", m->prefix);
    /* Nothing old stands beside new tokens, not even for a moment. */
    token_meta_remove(m->prefix);
    unlink(idx_path);
    if (rename(bin_partial, bin_path) != 0 || rename(idx_partial, idx_path) != 0)
        return err_set_errno(m->err, ERR_FAILED, "%s", m->prefix);
    fault_at("merge:renamed", -1);
    m->meta.n_documents = m->report->n_documents;
    m->meta.n_tokens = m->report->n_tokens;
    return m->has_meta ? token_meta_write(m->prefix, &m->meta, m->err) : 0;
}

static int write_merged(struct token_merge *m)
{
    const char *bin_partial = arena_printf(&m->arena, "%s.bin.partial", m->prefix);
    const char *idx_partial = arena_printf(&m->arena, "%s.idx.partial", m->prefix);
    const char *slash = strrchr(m->prefix, '/');
    int rc = -1;

    if (slash && slash > m->prefix &&
        file_make_folders(arena_strndup(&m->arena, m->prefix, (size_t)(slash - m->prefix)),
                          m->err) < 0)
        return -1;
    int bin = file_open_write(bin_partial, O_WRONLY | O_TRUNC, m->err);
    interrupt_mark(bin_partial);
    int idx_fd = bin < 0 ? -1 : file_open_write(idx_partial, O_WRONLY | O_TRUNC, m->err);
    interrupt_mark(idx_partial);
    FILE *idx = idx_fd < 0 ? NULL : fdopen(idx_fd, "wb");
    if (idx)
        rc = write_pair(m, bin, idx, bin_partial, idx_partial);
    if (idx)
        fclose(idx);
    if (bin >= 0)
        close(bin);
    unlink(bin_partial);
    unlink(idx_partial);
    interrupt_forget(bin_partial);
    interrupt_forget(idx_partial);
    return rc;
}

int token_merge(const char *prefix, const char *const *prefixes, int n,
                void (*progress)(void *context, int64_t done_bytes, int64_t all_bytes),
                void *context, struct token_merge_report *report, struct err *err)
{
    struct token_merge m = { .prefix = prefix,
                             .prefixes = prefixes,
                             .n = n,
                             .report = report,
                             .progress = progress,
                             .context = context,
                             .err = err };
    int rc = 0;

    CHECK(n >= 1);
    *report = (struct token_merge_report){ .n_files = n };
    if (token_meta_check_place(prefix, err) < 0)
        return -1;
    for (int i = 0; i < n && rc == 0; i++)
        rc = check_input(&m, i);
    if (rc == 0)
        rc = write_merged(&m);
    arena_release(&m.arena);
    return rc;
}
