/*
 * price_table.c - curves by name, points by size
 */
#include "plan/price_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/num.h"
#include "ops/op_info.h"
#include "plan/price_impl.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define BEYOND 8.0 /* a curve's ends reach so far */

/* ---- names ---- */

static const struct op_operand *operand_of(enum op_kind kind, int i)
{
    const struct op_info *info = op_info(kind);

    return i < OPS_MAX_INPUTS ? &info->inputs[i] : &info->outputs[i - OPS_MAX_INPUTS];
}

static const struct tensor *tensor_of(const struct op_shape *op, int i)
{
    return i < OPS_MAX_INPUTS ? &op->in[i] : &op->out[i - OPS_MAX_INPUTS];
}

enum { N_OPERANDS = OPS_MAX_INPUTS + OPS_MAX_OUTPUTS };

/* The dimension that a curve is over: tokens; where an op has none, the first operand's rows, or
 * columns if it has one row. */
static enum dim dim_of_size(const struct op_shape *op)
{
    for (int i = 0; i < N_OPERANDS; i++)
        if (tensor_of(op, i)->rows && operand_of(op->kind, i)->rows == DIM_T)
            return DIM_T;
    return op->in[OPS_FIRST].rows > 1 ? operand_of(op->kind, OPS_FIRST)->rows
                                      : operand_of(op->kind, OPS_FIRST)->cols;
}

static int64_t size_of(const struct op_shape *op)
{
    const struct tensor *first = &op->in[OPS_FIRST];

    if (price_class_of(op->kind) == PRICE_UPDATE)
        return tensor_elements(first);
    for (int i = 0; i < N_OPERANDS; i++)
        if (tensor_of(op, i)->rows && operand_of(op->kind, i)->rows == DIM_T)
            return tensor_of(op, i)->rows;
    return first->rows > 1 ? first->rows : first->cols;
}

/* In training there are as many rows of keys as tokens. */
static bool is_size(const struct op_shape *op, enum dim dim, int64_t n, enum dim of_size)
{
    return dim == of_size || (dim == DIM_U && of_size == DIM_T && n == size_of(op));
}

static void add_dim(int64_t n, bool is_curve, struct str *name)
{
    if (is_curve)
        str_add(name, "T");
    else
        str_printf(name, "%lld", (long long)n);
}

/* "linear bf16[T x 64] bf16[192 x 64] -> bf16[T x 192]" */
static void name_op(const struct op_shape *op, struct str *name)
{
    bool has_dims = price_class_of(op->kind) != PRICE_UPDATE;
    const struct op_attributes *a = &op->attributes;
    enum dim of_size = dim_of_size(op);

    str_add(name, op_name(op->kind));
    for (int i = 0; i < N_OPERANDS; i++) {
        const struct tensor *t = tensor_of(op, i);

        str_add(name, i == OPS_MAX_INPUTS ? " ->" : "");
        if (!t->rows)
            continue;
        str_printf(name, " %s", dtype_name(t->dtype));
        if (!has_dims)
            continue;
        str_add(name, "[");
        add_dim(t->rows, is_size(op, operand_of(op->kind, i)->rows, t->rows, of_size), name);
        str_add(name, " x ");
        add_dim(t->cols, is_size(op, operand_of(op->kind, i)->cols, t->cols, of_size), name);
        str_add(name, "]");
    }
    if (price_class_of(op->kind) == PRICE_ATTENTION)
        str_printf(name, ", %d heads of %d, %d of keys, %d positions, window %d", a->n_heads,
                   a->head_dim, a->n_kv_heads, a->seq_len, a->window);
    if (a->fp8 == FP8_TENSOR)
        str_add(name, ", one scale");
}

/* "all_gather of 2"; "all_gather of 8 on 2 nodes" */
static void name_collective(enum op_kind kind, struct price_span span, struct str *name)
{
    str_printf(name, "%s of %d", op_name(kind), span.per_node * span.n_nodes);
    if (span.n_nodes > 1)
        str_printf(name, " on %d nodes", span.n_nodes);
}

static const char *name_transfer(bool is_across)
{
    return is_across ? "across nodes" : "in a node";
}

/* ---- curves ---- */

/* FNV-1a */
static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325U;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3U;
    return hash;
}

static struct price_curve *find_curve(const struct price_curves *curves, const char *name)
{
    uint64_t hash = hash_of(name);

    for (int i = 0; i < curves->n; i++)
        if (curves->items[i].hash == hash && !strcmp(curves->items[i].name, name))
            return &curves->items[i];
    return NULL;
}

static void add_point(struct price_table *table, struct price_curves *curves, const char *name,
                      struct price_point point)
{
    struct price_curve *curve = find_curve(curves, name);
    int at = 0;

    if (!curve) {
        curves->items = arena_grow(table->arena, curves->items, sizeof *curves->items,
                                   &curves->capacity, curves->n + 1);
        curve = &curves->items[curves->n++];
        *curve =
            (struct price_curve){ .name = arena_strdup(table->arena, name), .hash = hash_of(name) };
    }
    while (at < curve->n && curve->points[at].size < point.size)
        at++;
    if (at < curve->n && curve->points[at].size == point.size) {
        struct price_point *p = &curve->points[at];

        p->ns = (p->ns * p->n_samples + point.ns) / (p->n_samples + 1);
        p->cpu_ns = (p->cpu_ns * p->n_samples + point.cpu_ns) / (p->n_samples + 1);
        p->n_samples++;
        return;
    }
    curve->points = arena_grow(table->arena, curve->points, sizeof *curve->points, &curve->capacity,
                               curve->n + 1);
    memmove(&curve->points[at + 1], &curve->points[at],
            sizeof *curve->points * (size_t)(curve->n - at));
    point.n_samples = 1;
    curve->points[at] = point;
    curve->n++;
}

/* What is looked up. */
struct look {
    int64_t size;
    bool is_exchange, is_cpu;
};

static double number_of(const struct price_point *point, const struct look *look)
{
    return look->is_cpu ? point->cpu_ns : point->ns;
}

/* Beyond a curve's end: in proportion; but little that is exchanged takes no less than the least
 * that was. */
static double look_beyond(const struct price_point *end, const struct look *look,
                          enum price_source *source)
{
    double ratio = (double)look->size / (double)end->size;
    bool is_latency = look->is_exchange && ratio < 1;

    if (!is_latency && (ratio > BEYOND || ratio < 1 / BEYOND))
        return -1;
    *source = PRICE_INTERPOLATED;
    return number_of(end, look) * (is_latency ? 1 : ratio);
}

static double look_up(const struct price_curve *curve, const struct look *look,
                      enum price_source *source)
{
    const struct price_point *p = curve ? curve->points : NULL;
    int n = curve ? curve->n : 0, at = 0;
    int64_t size = look->size;

    *source = PRICE_FORMULA;
    if (!n || size < 1)
        return -1;
    while (at < n && p[at].size < size)
        at++;
    if (at < n && p[at].size == size) {
        *source = PRICE_MEASURED;
        return number_of(&p[at], look);
    }
    if (at == 0 || at == n)
        return look_beyond(at == 0 ? &p[0] : &p[n - 1], look, source);
    *source = PRICE_INTERPOLATED;
    double a = number_of(&p[at - 1], look), b = number_of(&p[at], look);
    double share = log((double)size / (double)p[at - 1].size) /
                   log((double)p[at].size / (double)p[at - 1].size);
    return a > 0 && b > 0 ? a * pow(b / a, share) : -1;
}

/* ---- the table ---- */

void price_table_add_op(struct price_table *table, const struct op_shape *op, double ns,
                        double cpu_ns)
{
    struct str name = { 0 };

    name_op(op, &name);
    add_point(table, &table->ops, str_text(&name),
              (struct price_point){ .size = size_of(op), .ns = ns, .cpu_ns = cpu_ns });
    str_release(&name);
}

void price_table_add_collective(struct price_table *table, enum op_kind kind,
                                struct price_span span, int64_t n_bytes, double ns)
{
    struct str name = { 0 };

    name_collective(kind, span, &name);
    add_point(table, &table->collectives, str_text(&name),
              (struct price_point){ .size = n_bytes, .ns = ns });
    str_release(&name);
}

void price_table_add_transfer(struct price_table *table, bool is_across, int64_t n_bytes, double ns)
{
    add_point(table, &table->transfers, name_transfer(is_across),
              (struct price_point){ .size = n_bytes, .ns = ns });
}

static double look_up_op(const struct price_table *table, const struct op_shape *op, bool is_cpu,
                         enum price_source *source)
{
    const struct look look = { size_of(op), false, is_cpu };
    struct str name = { 0 };

    name_op(op, &name);
    double ns = look_up(find_curve(&table->ops, str_text(&name)), &look, source);
    str_release(&name);
    return ns;
}

double price_table_op(const struct price_table *table, const struct op_shape *op,
                      enum price_source *source)
{
    return look_up_op(table, op, false, source);
}

double price_table_op_cpu(const struct price_table *table, const struct op_shape *op)
{
    enum price_source ignored;
    double ns = look_up_op(table, op, true, &ignored);

    return ns > 0 ? ns : -1;
}

double price_table_collective(const struct price_table *table, enum op_kind kind,
                              struct price_span span, int64_t n_bytes, enum price_source *source)
{
    const struct look look = { n_bytes, true, false };
    struct str name = { 0 };

    name_collective(kind, span, &name);
    double ns = look_up(find_curve(&table->collectives, str_text(&name)), &look, source);
    str_release(&name);
    return ns;
}

double price_table_transfer(const struct price_table *table, bool is_across, int64_t n_bytes,
                            enum price_source *source)
{
    const struct look look = { n_bytes, true, false };

    return look_up(find_curve(&table->transfers, name_transfer(is_across)), &look, source);
}

/* ---- its file ---- */

/* [size, ns], or [size, ns, cpu_ns] */
static void print_point(const struct price_point *point, bool is_first, struct str *out)
{
    str_printf(out, "%s[%lld, %.0f", is_first ? "" : ", ", (long long)point->size, point->ns);
    if (point->cpu_ns > 0)
        str_printf(out, ", %.0f", point->cpu_ns);
    str_add(out, "]");
}

static void print_curves(const struct price_curves *curves, struct str *out)
{
    for (int i = 0; i < curves->n; i++) {
        const struct price_curve *c = &curves->items[i];

        str_add(out, i ? ",\n  " : "\n  ");
        json_add_string(out, c->name);
        str_add(out, ": [");
        for (int k = 0; k < c->n; k++)
            print_point(&c->points[k], k == 0, out);
        str_add(out, "]");
    }
}

void price_table_print(const struct price_table *table, struct str *out)
{
    str_add(out, "{\"machine\": ");
    json_add_string(out, table->machine ? table->machine : "");
    str_add(out, ",\n\"build\": ");
    json_add_string(out, table->build ? table->build : "");
    str_printf(out, ",\n\"contention\": %.4f,\n\"cpu_contention\": %.4f", table->contention,
               table->cpu_contention);
    str_printf(out, ",\n\"late_ns\": %.0f,\n\"beside_ns\": %.0f,\n\"ops\": {", table->late_ns,
               table->beside_ns);
    print_curves(&table->ops, out);
    str_add(out, "},\n\"collectives\": {");
    print_curves(&table->collectives, out);
    str_add(out, "},\n\"transfers\": {");
    print_curves(&table->transfers, out);
    str_add(out, "}}\n");
}

static double read_number(struct json_reader *r)
{
    struct json_span span = json_scalar(r);
    char text[64];

    if (span.n_bytes >= sizeof text)
        return 0;
    memcpy(text, span.text, span.n_bytes);
    text[span.n_bytes] = 0;
    return strtod(text, NULL);
}

/* [size, ns], or [size, ns, cpu_ns] */
static bool read_point(struct price_point *point, struct json_reader *r)
{
    json_open(r, '[');
    point->size = json_next(r, ']') ? json_count(r, INT64_MAX) : 0;
    point->ns = json_next(r, ']') ? read_number(r) : 0;
    if (point->size < 1 || !(point->ns > 0))
        return false;
    if (!json_next(r, ']'))
        return true;
    point->cpu_ns = read_number(r);
    return point->cpu_ns > 0 && !json_next(r, ']');
}

static void read_curves(struct price_table *table, struct price_curves *curves,
                        struct json_reader *r)
{
    json_open(r, '{');
    while (json_next(r, '}')) {
        const char *name = json_key(r);

        json_open(r, '[');
        while (json_next(r, ']')) {
            struct price_point point = { 0 };
            if (read_point(&point, r))
                add_point(table, curves, name, point);
            else
                json_fail(r, "not [size, nanoseconds]");
        }
    }
}

int price_table_read(struct price_table *table, const char *path, struct arena *arena,
                     struct err *err)
{
    struct json_reader r;
    char *text;
    size_t n;

    *table = (struct price_table){ .arena = arena };
    if (file_read(path, FILE_BYTES_MAX, ERR_CONFIG, &text, &n, err))
        return -1;
    json_reader_init(&r, text, n, arena);
    json_open(&r, '{');
    while (json_next(&r, '}')) {
        const char *key = json_key(&r);

        if (!strcmp(key, "machine"))
            table->machine = json_string(&r);
        else if (!strcmp(key, "build"))
            table->build = json_string(&r);
        else if (!strcmp(key, "contention"))
            table->contention = read_number(&r);
        else if (!strcmp(key, "cpu_contention"))
            table->cpu_contention = read_number(&r);
        else if (!strcmp(key, "late_ns"))
            table->late_ns = read_number(&r);
        else if (!strcmp(key, "beside_ns"))
            table->beside_ns = read_number(&r);
        else if (!strcmp(key, "ops"))
            read_curves(table, &table->ops, &r);
        else if (!strcmp(key, "collectives"))
            read_curves(table, &table->collectives, &r);
        else if (!strcmp(key, "transfers"))
            read_curves(table, &table->transfers, &r);
        else
            json_skip(&r);
    }
    int status = json_end(&r);
    if (status)
        err_set(err, ERR_CONFIG, "%s: not a table of prices: %s at byte %zu", path, r.problem,
                r.problem_at);
    free(text);
    return status;
}
