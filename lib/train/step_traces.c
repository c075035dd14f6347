/*
 * step_traces.c - the folder trace of a run
 */
#include "train/step_traces.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"

/* ---- what is chosen ---- */

static int compare_numbers(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;

    return (a > b) - (a < b);
}

/* "8" or "0-7". */
static int parse_range(char *word, int64_t *first, int64_t *last)
{
    char *dash = strchr(word, '-');

    if (dash)
        *dash = '\0';
    if (str_to_i64(word, first) || (dash && str_to_i64(dash + 1, last)))
        return -1;
    if (!dash)
        *last = *first;
    return *first < 0 || *last < *first ? -1 : 0;
}

int step_traces_parse(const char *option, const char *text, int n_max, int64_t **list,
                      struct arena *arena, struct err *err)
{
    char *rest = arena_printf(arena, "%s", text), *word;
    int n = 0, n_once = 0;
    int64_t first = 0, last = 0;

    *list = arena_array(arena, int64_t, n_max);
    while ((word = strsep(&rest, ","))) {
        if (parse_range(word, &first, &last))
            return err_set(err, ERR_CONFIG, "%s is '%s', not numbers such as 8, 0,2,5 or 0-7,16",
                           option, text);
        for (int64_t i = first; i <= last; i++) {
            if (n == n_max)
                return err_set(err, ERR_CONFIG,
                               "%s is '%s', more than %d (hint: make several files)", option, text,
                               n_max);
            (*list)[n++] = i;
        }
    }
    qsort(*list, (size_t)n, sizeof **list, compare_numbers);
    for (int i = 0; i < n; i++)
        if (!i || (*list)[i] != (*list)[i - 1])
            (*list)[n_once++] = (*list)[i];
    return n_once;
}

static bool is_in(int64_t value, const int64_t *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* ---- files ---- */

struct found {
    int64_t step;
    int rank;
    const char *path;
};

static int compare_found(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;

    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* ".../step-00000010.rank-3" */
static bool parse_name(const char *path, struct found *found)
{
    const char *name = strrchr(path, '/');
    long long step;

    if (!name || sscanf(name, "/step-%lld.rank-%d", &step, &found->rank) != 2)
        return false;
    found->step = step;
    found->path = path;
    return true;
}

/* All of the run, by step and rank; paths in the arena. */
static int list_files(const char *run, struct found **list, struct arena *arena)
{
    glob_t files = { 0 };
    int n = 0;

    if (glob(arena_printf(arena, "%s/trace/step-*.rank-*", run), 0, NULL, &files) != 0)
        files.gl_pathc = 0;
    *list = arena_alloc_array(arena, sizeof **list, files.gl_pathc + 1);
    for (size_t i = 0; i < files.gl_pathc; i++)
        n += parse_name(arena_printf(arena, "%s", files.gl_pathv[i]), &(*list)[n]);
    globfree(&files);
    if (n)
        qsort(*list, (size_t)n, sizeof **list, compare_found);
    return n;
}

static bool has(const struct found *list, int n, int64_t step, int64_t rank)
{
    for (int i = 0; i < n; i++)
        if (list[i].step == step && (rank < 0 || list[i].rank == rank))
            return true;
    return false;
}

/* What is chosen and not there. */
static int check_choice(const char *run, const struct step_traces_choice *c,
                        const struct found *list, int n, struct err *err)
{
    for (int i = 0; i < c->n_steps; i++) {
        if (!has(list, n, c->steps[i], -1))
            return err_set(err, ERR_DATA,
                           "%s has no trace of step %lld (hint: trace.steps: [%lld] in the job)",
                           run, (long long)c->steps[i], (long long)c->steps[i]);
        for (int k = 0; k < c->n_ranks; k++)
            if (!has(list, n, c->steps[i], c->ranks[k]))
                return err_set(err, ERR_DATA,
                               "%s has no trace of rank %lld at step %lld (hint: trace.ranks of "
                               "the job, if it is given, has to list the rank)",
                               run, (long long)c->ranks[k], (long long)c->steps[i]);
    }
    return 0;
}

static int read_chosen(struct step_traces *traces, const struct step_traces_choice *c,
                       const struct found *list, int n, struct arena *arena, struct err *err)
{
    int n_of_step = 0;

    for (int i = 0; i < n; i++) {
        if (!is_in(list[i].step, c->steps, c->n_steps) ||
            (c->n_ranks && !is_in(list[i].rank, c->ranks, c->n_ranks)))
            continue;
        n_of_step = traces->n && traces->items[traces->n - 1].step == list[i].step ? n_of_step : 0;
        if (++n_of_step > c->n_ranks_max) {
            traces->n_left_out = max_int(traces->n_left_out, n_of_step - c->n_ranks_max);
            continue;
        }
        struct step_trace *trace = &traces->items[traces->n];
        if (step_trace_read(trace, list[i].path, arena, err))
            return -1;
        traces->world_size = trace->world_size;
        traces->n++;
    }
    return 0;
}

int step_traces_read(struct step_traces *traces, const char *run,
                     const struct step_traces_choice *choice, struct arena *arena, struct err *err)
{
    struct step_traces_choice c = *choice;
    struct found *list;
    int n = list_files(run, &list, arena);

    *traces = (struct step_traces){ .n = 0 };
    if (!n)
        return err_set(err, ERR_DATA,
                       "%s has no traced steps (hint: trace.steps: [10, 11] in the job)", run);
    if (!c.n_steps) {
        c.steps = &list[n - 1].step;
        c.n_steps = 1;
    }
    if (check_choice(run, &c, list, n, err))
        return -1;
    traces->items = arena_array(arena, struct step_trace, n);
    return read_chosen(traces, &c, list, n, arena, err);
}
