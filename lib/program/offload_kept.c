/*
 * offload_kept.c - which of the values that a forward keeps for its backward go
 *
 * Keep-sets say which kinds may; of these as many bytes go as the options want, those first whose
 * next use is farthest and whose copies have time (gaps.h): in a forward and its backward, what the
 * first layers keep.
 */
#include <string.h>

#include "base/num.h"
#include "program/gaps.h"
#include "program/offload_impl.h"

/* By base value: 1 + the function that writes it, where another reads it; else 0. */
static int *find_kept(const struct offload *o)
{
    const struct program *p = o->program;
    int *writer = arena_array(o->arena, int, p->n_values);
    bool *is_read = arena_array(o->arena, bool, p->n_values);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
                writer[program_base(p, op->out[k])] = 1 + f;
            for (int k = 0; k < OPS_MAX_INPUTS; k++) {
                int v = program_base(p, op->in[k]);

                is_read[v] |= writer[v] && writer[v] != 1 + f;
            }
        }
    for (int v = 0; v < p->n_values; v++)
        if (!is_read[v] || p->values[v].role != ROLE_NONE || p->values[v].space != SPACE_DEVICE)
            writer[v] = 0;
    return writer;
}

/* The keep-set of a layer; NULL: nothing goes. */
static const struct keep_set *set_of(const struct offload *o, int layer)
{
    const struct offload_options *options = o->options;

    return layer < 0 || !options->set_of_layer ? NULL
                                               : &options->sets[options->set_of_layer[layer]];
}

/* A value that may go, of the forward at hand. */
struct kept_value {
    int id;
    int last_use;  /* op of the forward */
    int first_use; /* op of the function that reads it */
};

struct kept_list {
    struct kept_value *list;
    int n;
    int reader; /* the function that reads them; -1: there are none */
    int64_t n_bytes;
};

static bool may_go(const struct offload *o, const int *kept, int f, const struct op *op, int k)
{
    const struct program *p = o->program;
    const struct keep_set *set = set_of(o, op->layer);
    int v = program_base(p, op->out[k]);
    enum op_kind kind = recompute_kind_of(op, k);

    return set && op->phase == PHASE_F && v && kept[v] == 1 + f && !p->values[v].home &&
           kind != N_OP_KINDS && bitset_has(&set->away, (int)kind);
}

/* at[v]: 1 + the value's place in the list. */
static void note_uses(const struct program *p, const struct function *f, const int *at,
                      struct kept_list *kept, bool is_reader)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
            const struct op *op = &f->ops[i];
            int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
            int place = at[program_base(p, id)] - 1;

            if (place < 0)
                continue;
            struct kept_value *v = &kept->list[place];
            if (!is_reader)
                v->last_use = i;
            else if (v->first_use < 0)
                v->first_use = i;
        }
}

/* The first other function that reads one of them. */
static int find_reader(const struct program *p, const int *at, int writer)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; f != writer && i < p->functions[f].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                if (at[program_base(p, p->functions[f].ops[i].in[k])])
                    return f;
    return -1;
}

static struct kept_list list_kept(const struct offload *o, const int *kept, int f)
{
    const struct program *p = o->program;
    int *at = arena_array(o->arena, int, p->n_values);
    struct kept_list found = { .list = arena_array(o->arena, struct kept_value, p->n_values),
                               .reader = -1 };

    for (int i = 0; i < p->functions[f].n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            const struct op *op = &p->functions[f].ops[i];
            int v = program_base(p, op->out[k]);

            if (!may_go(o, kept, f, op, k) || at[v])
                continue;
            found.list[found.n++] = (struct kept_value){ .id = v, .first_use = -1 };
            found.n_bytes += (int64_t)program_value_bytes(p, v);
            at[v] = found.n;
        }
    if (!found.n)
        return found;
    found.reader = find_reader(p, at, f);
    note_uses(p, &p->functions[f], at, &found, false);
    note_uses(p, &p->functions[found.reader], at, &found, true);
    return found;
}

/* Their gaps from the forward to the backward, of a period of both, once. NULL: all go. */
static const bool *choose(const struct offload *o, int f, const struct kept_list *kept,
                          int64_t wanted)
{
    const struct program *p = o->program;
    const struct copy_times *times = &o->options->times;
    int n_forward = p->functions[f].n_ops, n = n_forward + p->functions[kept->reader].n_ops;
    int64_t *ns = arena_array(o->arena, int64_t, n);
    int64_t *resident = arena_array(o->arena, int64_t, n);
    bool *drains = arena_array(o->arena, bool, n);
    struct gap *gaps = arena_array(o->arena, struct gap, kept->n);
    struct gap_problem problem = { .n_ops = n,
                                   .ns = ns,
                                   .resident = resident,
                                   .drains = drains,
                                   .n_gaps = kept->n,
                                   .gaps = gaps,
                                   .capacity = kept->n_bytes - wanted,
                                   .out_rate = times->out_rate,
                                   .in_rate = times->in_rate,
                                   .latency_ns = times->latency_ns };
    struct gap_schedule schedule;
    struct err ignored;

    offload_list_times(o, &p->functions[f], ns);
    offload_list_times(o, &p->functions[kept->reader], ns + n_forward);
    drains[n_forward - 1] = drains[n - 1] = true;
    for (int i = 0; i < kept->n; i++) {
        const struct kept_value *v = &kept->list[i];

        if (v->first_use < 0)
            return NULL; /* another function reads it first: a size or schedule of its own */
        gaps[i] = (struct gap){ .n_bytes = (int64_t)program_value_bytes(p, v->id),
                                .from = v->last_use,
                                .to = n_forward + v->first_use };
        for (int k = gaps[i].from; k <= gaps[i].to; k++)
            resident[k] += gaps[i].n_bytes;
    }
    if (gaps_choose(&schedule, &problem, o->arena, &ignored) < 0)
        return NULL;
    return schedule.away;
}

/* What chunks keep, each by its largest function: micro-batches of several sizes have their own. */
static int64_t count_all(const struct offload *o, const struct kept_list *lists)
{
    const struct program *p = o->program;
    int64_t all = 0;

    for (int f = 0; f < p->n_functions; f++) {
        bool is_largest = lists[f].n > 0;

        for (int g = 0; g < p->n_functions && is_largest; g++)
            is_largest = g == f || p->functions[g].chunk != p->functions[f].chunk ||
                         lists[g].n_bytes < lists[f].n_bytes ||
                         (lists[g].n_bytes == lists[f].n_bytes && g > f);
        all += is_largest ? lists[f].n_bytes : 0;
    }
    return all;
}

void offload_send_kept(const struct offload *o)
{
    const struct program *p = o->program;
    enum space space = o->options->rank.files_activations ? SPACE_FILE : SPACE_HOST;
    struct kept_list *lists = arena_array(o->arena, struct kept_list, p->n_functions);
    int64_t wanted = (int64_t)o->options->rank.activation_bytes;
    int *kept = find_kept(o);

    for (int f = 0; f < p->n_functions; f++)
        lists[f] = list_kept(o, kept, f);
    int64_t all = count_all(o, lists);
    for (int f = 0; f < p->n_functions; f++) {
        const bool *goes = NULL;

        if (!lists[f].n)
            continue;
        /* Programs of several lengths have the same values away: there no time is known. */
        if (wanted && wanted < all && o->options->times.op_ns)
            goes = choose(o, f, &lists[f],
                          (int64_t)((double)lists[f].n_bytes * (double)wanted / (double)all));
        for (int i = 0; i < lists[f].n; i++)
            if (!goes || goes[i])
                offload_send(o, lists[f].list[i].id, space);
    }
}
