/*
 * pages.c - what is kept of experts' rows lies in pages, as many as there are rows for
 *
 * A value with a row for each choice that may reach this rank is planned for the most there can be:
 * on ep ranks, ep times as many as there are on average, or more. In scratch that is needed once; a
 * stash would need it for each layer and micro-batch under way. So the function that writes such a
 * value puts its rows into pages of a pool, keeps the list of their numbers in the value's place,
 * and each function that reads it gets the rows back into scratch first; the last one frees the
 * pages.
 *
 *     F  %8 = dispatch %5, %7                           F  %8 = dispatch %5, %7
 *                                                       F  %90 = page_out %8, ends, ~pages, ~free
 *                                              ->
 *     W  gate_up.weight.grad += expert_linear_dw        B  %91 = page_in %90, ends, pages, ~free
 *            %40, %8, ends                              W  gate_up.weight.grad += ... %40, %91, ends
 *
 * The pool has `factor` times the pages of balanced rows, in as many slots as the stash has. A step
 * with more rows than that gets gradients of NaN, skips its update on all ranks, and is run again
 * as ENTRY_RERUN, which keeps no such values and recomputes them: the same bits.
 */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "program/passes.h"

enum { PAGES_A_VALUE = 64, PAGE_MIN = 256, PAGE_MAX = 1 << 19 /* elements */ };

struct row_paging {
    struct program *program;
    const struct page_options *options;
    int *ends;         /* by value: the operand that bounds its rows, 0: none does */
    int64_t *expected; /* by value: of its rows; 0: all */
    int *writer;       /* by value: 1 + the function that writes it */
    char *has_view;
};

static bool is_rowwise(const struct op_info *info, const struct op_operand *operand)
{
    return operand->rows == info->routed_rows && operand->type == TYPE_ACT;
}

static void note_rows(struct row_paging *p, const struct op *op, int v)
{
    p->ends[v] = op->in[op_info(op->kind)->ends_input - 1];
    if (op->attributes.n_rows)
        p->expected[v] = op->attributes.n_rows;
}

/* The op's operands that have as many rows as the last of its ends says. */
static void note_ends(struct row_paging *p, const struct op *op)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < info->n_inputs && info->ends_input; k++)
        if (is_rowwise(info, &info->inputs[k]))
            note_rows(p, op, op->in[k]);
    for (int k = 0; k < info->n_outputs && info->ends_input; k++)
        if (is_rowwise(info, &info->outputs[k]))
            note_rows(p, op, op->out[k]);
}

/* The chunk's functions that compute, in the order in which a micro-batch runs them. */
static int functions_of(const struct chunk_functions *chunk, int *functions)
{
    functions[0] = chunk->forward;
    functions[1] = chunk->backward;
    functions[2] = chunk->weight;
    return chunk->weight == chunk->backward ? 2 : 3;
}

static void find_values(struct row_paging *p, const int *functions, int n)
{
    for (int i = 0; i < n; i++) {
        const struct function *f = &p->program->functions[functions[i]];

        for (int k = 0; k < f->n_ops; k++) {
            note_ends(p, &f->ops[k]);
            for (int o = 0; o < OPS_MAX_OUTPUTS; o++)
                p->writer[f->ops[k].out[o]] = 1 + functions[i];
        }
    }
    for (int v = 1; v < p->program->n_values; v++)
        p->has_view[p->program->values[v].base] = 1;
}

static bool reads(const struct op *op, int v)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] == v)
            return true;
    return false;
}

/* The first op of the function that reads v; -1: none does. */
static int first_reader(const struct program *p, int function, int v)
{
    const struct function *f = &p->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        if (reads(&f->ops[i], v))
            return i;
    return -1;
}

static int writing_op(const struct program *p, int function, int v)
{
    const struct function *f = &p->functions[function];
    int i = f->n_ops - 1;

    for (; i >= 0; i--)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] == v)
                return i;
    return i;
}

/* Elements that are planned for: of the expected rows, with the factor. */
static int64_t planned_elements(const struct row_paging *p, int v)
{
    const struct value *value = &p->program->values[v];
    double rows = ceil(p->options->factor * (double)p->expected[v]);

    return p->expected[v] ? min_i64((int64_t)rows, value->rows) * value->cols
                          : value->rows * value->cols;
}

/* What the job's keep-sets send to other memory is there whole. */
static bool is_away(const struct row_paging *p, const struct op *op, int v)
{
    const struct page_options *o = p->options;
    int k = 0;

    if (!o->set_of_layer || op->layer < 0)
        return false;
    while (op->out[k] != v)
        k++;
    enum op_kind kind = recompute_kind_of(op, k);
    return kind != N_OP_KINDS && bitset_has(&o->sets[o->set_of_layer[op->layer]].away, (int)kind);
}

static bool is_paged(const struct row_paging *p, const int *functions, int n, int v)
{
    const struct value *value = &p->program->values[v];
    bool is_read = false;

    if (!p->ends[v] || !p->writer[v] || p->has_view[v] || value->role != ROLE_NONE || value->base ||
        planned_elements(p, v) >= value->rows * value->cols)
        return false;
    for (int i = 0; i < n; i++)
        is_read |=
            functions[i] != p->writer[v] - 1 && first_reader(p->program, functions[i], v) >= 0;
    int writer = p->writer[v] - 1;
    return is_read &&
           !is_away(p, &p->program->functions[writer].ops[writing_op(p->program, writer, v)], v);
}

/* A power of two, such that the smallest value has some tens of pages. */
static int64_t page_length(int64_t smallest)
{
    int64_t length = PAGE_MIN;

    while (length < PAGE_MAX && 2 * length * PAGES_A_VALUE <= smallest)
        length *= 2;
    return length;
}

static void make_pool(const struct row_paging *p, const int *list, int n)
{
    struct program *program = p->program;
    int64_t smallest = INT64_MAX;

    for (int i = 0; i < n; i++)
        smallest = min_i64(smallest, planned_elements(p, list[i]));
    program->pages.pool = program_cell(program, ROLE_PAGES, "pages", 1, page_length(smallest),
                                       program->values[list[0]].dtype);
    program->pages.free = program_cell(program, ROLE_PAGES, "free_pages", 1, 3, DTYPE_I32);
}

/* The rows again, as a value of this function, in front of its first reader. */
static void page_in(const struct row_paging *p, int function, int v, int table, int frees)
{
    struct program *program = p->program;
    int at = first_reader(program, function, v), rows;
    struct value value = program->values[v];

    rows = program_value(program, value.rows, value.cols, value.dtype);
    const struct op reader = program->functions[function].ops[at];
    program_insert(program, function, at,
                   &(struct op){ .kind = OP_PAGE_IN,
                                 .attributes = { .frees = frees, .n_rows = p->expected[v] },
                                 .in = { [PAGE_IN_TABLE] = table,
                                         [PAGE_IN_ENDS] = p->ends[v],
                                         [PAGE_IN_PAGES] = program->pages.pool,
                                         [PAGE_IN_FREE] = program->pages.free },
                                 .out = { [PAGE_IN_X] = rows },
                                 .phase = reader.phase,
                                 .layer = reader.layer });
    for (int i = at + 1; i < program->functions[function].n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (program->functions[function].ops[i].in[k] == v)
                program->functions[function].ops[i].in[k] = rows;
}

static void put_into_pages(const struct row_paging *p, const int *functions, int n, int v)
{
    struct program *program = p->program;
    int writer = p->writer[v] - 1, at = writing_op(program, writer, v), last = -1;
    int64_t page = program->values[program->pages.pool].cols;
    struct value value = program->values[v];
    int table = program_value(program, 1, ceil_div(value.rows * value.cols, page), DTYPE_I32);
    const struct op op = program->functions[writer].ops[at];

    program_insert(program, writer, at + 1,
                   &(struct op){ .kind = OP_PAGE_OUT,
                                 .attributes.n_rows = p->expected[v],
                                 .in = { [PAGE_OUT_X] = v,
                                         [PAGE_OUT_ENDS] = p->ends[v],
                                         [PAGE_OUT_PAGES] = program->pages.pool,
                                         [PAGE_OUT_FREE] = program->pages.free },
                                 .out = { [PAGE_OUT_TABLE] = table },
                                 .phase = op.phase,
                                 .layer = op.layer });
    for (int i = 0; i < n; i++)
        if (functions[i] != writer && first_reader(program, functions[i], v) >= 0)
            last = i;
    for (int i = 0; i <= last; i++)
        if (functions[i] != writer && first_reader(program, functions[i], v) >= 0)
            page_in(p, functions[i], v, table, i == last);
    struct paged *new = arena_new(&program->arena, struct paged);
    *new = (struct paged){ table, ceil_div(planned_elements(p, v), page), program->pages.tables };
    program->pages.tables = new;
}

void page_rows(struct program *program, const struct chunk_functions *chunk,
               const struct page_options *options)
{
    struct arena arena = { 0 };
    size_t n_values = (size_t)program->n_values;
    struct row_paging p = { .program = program, .options = options };
    int functions[3], n = functions_of(chunk, functions), n_paged = 0;
    int *list = arena_array(&arena, int, n_values);

    p.ends = arena_array(&arena, int, n_values);
    p.expected = arena_array(&arena, int64_t, n_values);
    p.writer = arena_array(&arena, int, n_values);
    p.has_view = arena_array(&arena, char, n_values);
    find_values(&p, functions, n);
    for (int v = 1; v < (int)n_values; v++)
        if (is_paged(&p, functions, n, v))
            list[n_paged++] = v;
    if (n_paged && !program->pages.pool)
        make_pool(&p, list, n_paged);
    for (int i = 0; i < n_paged; i++)
        put_into_pages(&p, functions, n, list[i]);
    arena_release(&arena);
}

/* ---- entries ---- */

void page_step(struct program *p)
{
    struct entry *e = &p->entries[ENTRY_STEP];
    struct action *actions = arena_array(&p->arena, struct action, e->n_actions + 1);
    int start = program_function(p, "free all pages", 0);

    program_emit(p, start,
                 &(struct op){ .kind = OP_PAGE_START,
                               .in = { [PAGE_START_FREE] = p->pages.free },
                               .phase = PHASE_F,
                               .layer = -1 });
    actions[0] =
        (struct action){ .kind = ACTION_RUN, .function = (int16_t)start, .micro_batch = -1 };
    memcpy(actions + 1, e->actions, (size_t)e->n_actions * sizeof *actions);
    e->actions = actions;
    e->n_actions++;
}

/* The same function of the rerun's, for one of a chunk's. */
static void pair(int *other, const struct chunk_functions *ours,
                 const struct chunk_functions *theirs)
{
    const int pairs[][2] = { { ours->forward, theirs->forward },
                             { ours->backward, theirs->backward },
                             { ours->weight, theirs->weight },
                             { ours->last, theirs->last },
                             { ours->receive_forward, theirs->receive_forward },
                             { ours->send_forward, theirs->send_forward },
                             { ours->receive_backward, theirs->receive_backward },
                             { ours->send_backward, theirs->send_backward } };

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] >= 0)
            other[pairs[i][0]] = pairs[i][1];
}

void rerun_step(struct program *p, const struct chunk_functions *chunks,
                const struct chunk_functions *rerun, int n)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    struct entry *e = &p->entries[ENTRY_RERUN];
    int *other = arena_array(&p->arena, int, p->n_functions);

    for (int f = 0; f < p->n_functions; f++)
        other[f] = f;
    for (int i = 0; i < n; i++)
        pair(other, &chunks[i], &rerun[i]);
    e->actions = arena_array(&p->arena, struct action, step->n_actions);
    e->n_actions = step->n_actions;
    for (int i = 0; i < step->n_actions; i++) {
        e->actions[i] = step->actions[i];
        if (step->actions[i].kind == ACTION_RUN)
            e->actions[i].function = (int16_t)other[step->actions[i].function];
    }
}

/* ---- sizes ---- */

/* The slots of a stash; and of one that shares slots, counted with the first that does. */
static int64_t pages_of_stash(const struct program *p, int stash)
{
    int64_t n = 0;

    for (const struct paged *t = p->pages.tables; t; t = t->next)
        n += p->values[t->table].stash == stash ? t->n_pages : 0;
    return n * p->stashes[stash].n_slots;
}

void page_size_pool(struct program *p)
{
    int64_t n = 0;

    if (!p->pages.pool)
        return;
    for (int i = 0; i < p->n_stashes; i++) {
        int64_t most = pages_of_stash(p, i);
        bool is_first = true;

        for (int k = 0; k < p->n_stashes && p->stashes[i].shared; k++)
            if (p->stashes[k].shared == p->stashes[i].shared) {
                is_first &= k >= i;
                most = max_i64(most, pages_of_stash(p, k));
            }
        n += is_first ? most : 0;
    }
    p->values[p->pages.pool].rows = n;
    p->values[p->pages.free].cols = p->values[p->pages.free].stride = 2 + n;
}
