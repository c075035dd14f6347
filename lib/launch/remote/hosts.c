/*
 * hosts.c - lists of hosts, and how ranks are dealt out over them
 *
 * A host's name ends up on ssh's command line and in the patterns of ssh's configuration, so it may
 * hold only what names and addresses are made of, and may not look like an option.
 */
#include "launch/remote/hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

enum { SLOTS_MAX = 1000000, NAME_MAX_BYTES = 320, FILE_MAX_BYTES = 1 << 20 };

struct hosts_reader {
    struct host *hosts;
    int *line_of; /* where each stood first; 0 in a list */
    int *n_times; /* how often it stood */
    int n, capacity, lines_capacity, times_capacity;
    const char *path; /* NULL: a list */
    struct arena *arena;
};

/* "FILE:LINE" or "--hosts". */
static const char *place(const struct hosts_reader *r, int line)
{
    return r->path ? arena_printf(r->arena, "%s:%d", r->path, line) : "--hosts";
}

/* ---- an entry ---- */

static int read_slots(const char *text, const char *name, const char *where, int *n_slots,
                      struct err *err)
{
    int64_t n;

    if (str_to_i64(text, &n) || n < 1 || n > SLOTS_MAX)
        return err_set(err, ERR_CONFIG, "%s: host %s: '%s' ranks, not a number in 1..%d", where,
                       name, text, SLOTS_MAX);
    *n_slots = (int)n;
    return 0;
}

static int check_name(const char *name, const char *where, struct err *err)
{
    const char *at = strrchr(name, '@');
    const char *host = at ? at + 1 : name;

    if (!*host || at == name)
        return err_set(err, ERR_CONFIG,
                       "%s: '%s' has no host name (hint: HOST, USER@HOST, HOST:RANKS)", where,
                       name);
    if (strlen(name) > NAME_MAX_BYTES)
        return err_set(err, ERR_CONFIG, "%s: a host name of %zu bytes, at most %d are allowed",
                       where, strlen(name), NAME_MAX_BYTES);
    if (*name == '-' || *host == '-')
        return err_set(err, ERR_CONFIG, "%s: host '%s' begins with a dash", where, name);
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-@:%+", *c))
            return err_set(
                err, ERR_CONFIG,
                "%s: host '%s' contains '%c'; only letters, digits and . _ - @ : %% + are "
                "allowed",
                where, name, isprint((unsigned char)*c) ? *c : '?');
    return 0;
}

/*
 * Split "name:4" or "[fe80::1]:4" in place; the brackets go, with a "user@" in front moved up to
 * the address. *slots is NULL where no count stands.
 */
static int split_entry(char *entry, char **slots, const char *where, struct err *err)
{
    char *open = strchr(entry, '['), *close = strchr(entry, ']');
    char *colon = strchr(entry, ':');

    *slots = NULL;
    if (open || close) {
        if (!open || !close || close < open || (close[1] && close[1] != ':') ||
            (open != entry && open[-1] != '@'))
            return err_set(err, ERR_CONFIG, "%s: '%s' (hint: [ADDRESS]:RANKS)", where, entry);
        *slots = close[1] ? close + 2 : NULL;
        *close = '\0';
        memmove(open, open + 1, strlen(open + 1) + 1);
        return 0;
    }
    if (!colon)
        return 0;
    if (strchr(colon + 1, ':'))
        return err_set(err, ERR_CONFIG,
                       "%s: '%s' has several colons (hint: an IPv6 address goes into brackets: "
                       "[fd00::1]:4)",
                       where, entry);
    *colon = '\0';
    *slots = colon + 1;
    return 0;
}

/* ---- the list ---- */

static int find(const struct hosts_reader *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->hosts[i].name, name))
            return i;
    return -1;
}

/* A host that stands there again gets a rank for each time, as in the node files of PBS. */
static int repeat(struct hosts_reader *r, int i, int n_slots, int line, struct err *err)
{
    if (n_slots || r->hosts[i].n_slots)
        return err_set(err, ERR_CONFIG,
                       "%s: host %s is listed twice%s (hint: list it once, with HOST:RANKS)",
                       place(r, line), r->hosts[i].name,
                       r->path ? arena_printf(r->arena, ", first in line %d", r->line_of[i]) : "");
    r->n_times[i]++;
    return 0;
}

static int add_host(struct hosts_reader *r, const char *name, int n_slots, int line,
                    struct err *err)
{
    int i = find(r, name);

    if (i >= 0)
        return repeat(r, i, n_slots, line, err);
    if (r->n == HOSTS_MAX)
        return err_set(err, ERR_CONFIG, "%s: more than %d hosts", place(r, line), HOSTS_MAX);
    r->hosts = arena_grow(r->arena, r->hosts, sizeof *r->hosts, &r->capacity, r->n + 1);
    r->line_of = arena_grow(r->arena, r->line_of, sizeof *r->line_of, &r->lines_capacity, r->n + 1);
    r->n_times = arena_grow(r->arena, r->n_times, sizeof *r->n_times, &r->times_capacity, r->n + 1);
    r->hosts[r->n] = (struct host){ arena_strdup(r->arena, name), n_slots };
    r->line_of[r->n] = line;
    r->n_times[r->n++] = 1;
    return 0;
}

/* The words behind a host in a file: slots=N, and max_slots=N, which has no effect. */
static int read_words(char *words, const char *name, const char *where, int *n_slots,
                      struct err *err)
{
    char *save = NULL;

    for (char *word = strtok_r(words, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        int ignored, *to = str_starts_with(word, "slots=") ? n_slots : &ignored;

        if (to == &ignored && !str_starts_with(word, "max_slots=") &&
            !str_starts_with(word, "max-slots="))
            return err_set(err, ERR_CONFIG, "%s: '%s' after host %s (hint: slots=N)", where, word,
                           name);
        if (to == n_slots && *n_slots)
            return err_set(err, ERR_CONFIG, "%s: host %s has two numbers of ranks", where, name);
        if (read_slots(strchr(word, '=') + 1, name, where, to, err))
            return -1;
    }
    return 0;
}

static int read_entry(struct hosts_reader *r, char *entry, char *words, int line, struct err *err)
{
    const char *where = place(r, line);
    char *slots;
    int n_slots = 0;

    if (split_entry(entry, &slots, where, err) || check_name(entry, where, err))
        return -1;
    if (slots && read_slots(slots, entry, where, &n_slots, err))
        return -1;
    if (words && read_words(words, entry, where, &n_slots, err))
        return -1;
    return add_host(r, entry, n_slots, line, err);
}

static int read_file(struct hosts_reader *r, char *text, struct err *err)
{
    int line = 0;

    for (char *next, *at = text; at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        line++;
        at[strcspn(at, "#")] = '\0';
        for (char *c = at; *c; c++)
            if (*c == '\r')
                *c = ' ';
        at += strspn(at, " \t");
        if (!*at)
            continue;
        char *words = at + strcspn(at, " \t");
        if (*words)
            *words++ = '\0';
        if (read_entry(r, at, words, line, err))
            return -1;
    }
    return 0;
}

static int read_list(struct hosts_reader *r, char *text, struct err *err)
{
    for (char *next, *at = text; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        at += strspn(at, " \t");
        size_t length = strlen(at);
        while (length && strchr(" \t", at[length - 1]))
            at[--length] = '\0';
        if (read_entry(r, at, NULL, 0, err))
            return -1;
    }
    return 0;
}

static void count_repeats(struct hosts_reader *r)
{
    int some = 0;

    for (int i = 0; i < r->n; i++)
        some |= r->n_times[i] > 1;
    for (int i = 0; i < r->n && some; i++)
        if (!r->hosts[i].n_slots)
            r->hosts[i].n_slots = r->n_times[i];
}

int hosts_read(struct host_list *list, const char *text, struct arena *arena, struct err *err)
{
    struct hosts_reader r = { .arena = arena };
    int status;

    if (strchr(text, '/') || (file_exists(text) && !file_is_folder(text))) {
        char *data;
        size_t n_bytes;

        r.path = text;
        if (file_read(text, FILE_MAX_BYTES, ERR_CONFIG, &data, &n_bytes, err))
            return -1;
        status = strlen(data) == n_bytes
                     ? read_file(&r, data, err)
                     : err_set(err, ERR_CONFIG, "%s: a zero byte: not a list of hosts", text);
        free(data);
    } else {
        status = read_list(&r, arena_strdup(arena, text), err);
    }
    if (!status && !r.n)
        status = err_set(err, ERR_CONFIG, "%s: has no hosts (hint: one host per line)", text);
    if (status)
        return -1;
    count_repeats(&r);
    *list = (struct host_list){ r.n, r.hosts, NULL };
    return 0;
}

/* ---- dealing ---- */

int hosts_deal(const struct host_list *list, int n_ranks, int *n_ranks_of, struct err *err)
{
    int64_t n_slots = 0;
    int n_open = 0, left = n_ranks;

    CHECK(n_ranks > 0);
    for (int i = 0; i < list->n_hosts; i++) {
        n_slots += list->hosts[i].n_slots;
        n_open += !list->hosts[i].n_slots;
    }
    if (!n_open && n_slots < n_ranks)
        return err_set(err, ERR_CONFIG,
                       "%d ranks, but %d host%s with room for %lld (hint: fewer ranks, or larger "
                       "numbers in HOST:RANKS)",
                       n_ranks, list->n_hosts, list->n_hosts == 1 ? "" : "s", (long long)n_slots);

    /* Those with a count are filled in their order; the others share what is left. */
    for (int i = 0; i < list->n_hosts; i++) {
        int n = list->hosts[i].n_slots;

        n_ranks_of[i] = n < left ? n : left;
        left -= n_ranks_of[i];
    }
    for (int i = 0, k = 0; i < list->n_hosts && n_open; i++)
        if (!list->hosts[i].n_slots) {
            n_ranks_of[i] = left / n_open + (k < left % n_open);
            k++;
        }
    return 0;
}
