/*
 * price_collective.c - collectives as run executes them, and transfers
 *
 * Where the order of a sum is fixed, a library only moves data: each rank gets all terms of its
 * part (all-to-all), adds them, and, where all are to have the sum, the parts are gathered; little
 * is gathered at once and summed by every rank (run/collective.c). Sums may go by node, and gathers
 * (run/collective_nodes.c).
 */
#include <math.h>

#include "base/num.h"
#include "plan/price_impl.h"
#include "run/collective.h"

static int64_t tensor_bytes(const struct tensor *t)
{
    return tensor_elements(t) * (int64_t)dtype_bytes(t->dtype);
}

/* Tails of chunks, along the ranks and back. */
static bool is_of_windows(enum op_kind kind)
{
    return kind == OP_GATHER_WINDOW || kind == OP_SCATTER_WINDOW;
}

/* From each rank to a neighbour. */
static bool is_rotated(enum op_kind kind)
{
    return kind == OP_ROTATE || is_of_windows(kind);
}

/* To the ranks that have their experts, and back. */
static bool is_of_experts(enum op_kind kind)
{
    return kind == OP_SEND_ROWS || kind == OP_RETURN_ROWS;
}

/* Of the whole: what is gathered, or what each of n ranks sums; of what windows see, one way's; of
 * rows of experts, what is expected (uniform routing) to go to all ranks, this one too. */
static int64_t whole_bytes(const struct op_shape *op, int n)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *in = &op->in[OPS_FIRST], *out = &op->out[OPS_FIRST];

    switch (op->kind) {
    case OP_ALL_GATHER:
    case OP_GATHER_CODES:
    case OP_GATHER_SEQUENCE:
    case OP_ROWS_TO_HEADS:
        return tensor_bytes(out);
    case OP_GATHER_HEADS:
    case OP_GATHER_HEADS_GRAD:
        /* A rank's columns of k and of v, of every rank that shares the head. */
        return in->rows * 2 * a->head_dim * (int64_t)dtype_bytes(in->dtype);
    case OP_GATHER_WINDOW:
    case OP_SCATTER_WINDOW:
        return (int64_t)collective_window_sent_bytes(op) / 2;
    case OP_SEND_ROWS:
    case OP_RETURN_ROWS:
        return (int64_t)collective_rows_moved_bytes(op, n);
    default:
        return tensor_bytes(in);
    }
}

/* What is measured moves the same bytes: a sum begins with an exchange. */
static enum op_kind measured_as(enum op_kind kind)
{
    switch (kind) {
    case OP_GATHER_SEQUENCE:
    case OP_GATHER_CODES:
        return OP_ALL_GATHER;
    case OP_ROWS_TO_HEADS:
    case OP_HEADS_TO_ROWS:
    case OP_SCATTER_SEQUENCE:
    case OP_EXCHANGE_CODES:
    case OP_SEND_ROWS:
    case OP_RETURN_ROWS:
        return OP_REDUCE_SCATTER;
    default:
        return kind;
    }
}

/* Terms are read, the sum written. */
static double adding_ns(const struct prices *prices, double n_bytes)
{
    return price_memory_ns(prices, n_bytes, MEMORY_REACH);
}

static bool is_on_cpu(const struct prices *prices)
{
    return prices->cluster->islands[prices->island].device->is_cpu;
}

struct group_shape price_group(const struct prices *prices, const struct mesh *mesh, int world_rank,
                               enum mesh_axis axis)
{
    struct group_shape group = collective_group(prices->cluster, mesh, world_rank, axis);

    group.members = mesh_node_members(mesh, axis, prices->node_ranks);
    return group;
}

static bool goes_by_node(const struct prices *prices, const struct group_shape *group,
                         const struct op_shape *op)
{
    return !prices->fast_reductions &&
           collective_goes_by_node(op, group->n, group->members, !is_on_cpu(prices));
}

/* As fixed_sum_ns, and of a gather. */
static double by_node_ns(const struct prices *prices, const struct group_shape *group,
                         const struct op_shape *op, int64_t n_bytes)
{
    int64_t wide =
        n_bytes / (int64_t)dtype_bytes(op->out[OPS_FIRST].dtype) * (int64_t)sizeof(float);
    double moved = 0;

    if (op->kind != OP_ALL_GATHER)
        moved += (double)sum_by_node_ns(prices->cluster, group, n_bytes, wide) +
                 adding_ns(prices, (double)(n_bytes + 3 * wide / group->members));
    if (op->kind != OP_REDUCE_SCATTER)
        moved += (double)gather_by_node_ns(prices->cluster, group, n_bytes);
    return moved;
}

static double fixed_sum_ns(const struct prices *prices, const struct group_shape *group,
                           const struct op_shape *op, int64_t n_bytes)
{
    double bytes = (double)n_bytes, n = group->n;
    double moved = (double)all_to_all_ns(prices->cluster, group, n_bytes);

    if (op->kind == OP_ALL_REDUCE && collective_is_gathered(&op->in[OPS_FIRST], group->n))
        return (double)collective_ns(prices->cluster, group, OP_ALL_GATHER, group->n * n_bytes) +
               adding_ns(prices, (n + 1) * bytes);
    moved += adding_ns(prices, bytes + bytes / n);
    if (op->kind == OP_ALL_REDUCE)
        moved += (double)collective_ns(prices->cluster, group, OP_ALL_GATHER, n_bytes);
    return moved;
}

/* Each rank has another part for each, and there is nothing to add, or little: a few kv heads. */
static double exchange_ns(const struct prices *prices, const struct group_shape *group,
                          const struct op_shape *op, int64_t n_bytes)
{
    double sums = op_flops(op) * (double)dtype_bytes(op->in[OPS_FIRST].dtype);

    return (double)all_to_all_ns(prices->cluster, group, n_bytes) + adding_ns(prices, sums);
}

/* What is packed and unpacked is read and written. */
static double copying_ns(const struct prices *prices, const struct op_shape *op, int n)
{
    return price_memory_ns(prices, 2 * (double)collective_copied_bytes(op, n), MEMORY_REACH);
}

static bool has_fixed_sum(const struct prices *prices, const struct op_shape *op)
{
    if (op->kind == OP_GATHER_HEADS_GRAD || op->kind == OP_SCATTER_SEQUENCE)
        return true;
    return (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE) &&
           !(prices->fast_reductions && collective_may_be_fast(op));
}

static bool is_of_heads(enum op_kind kind)
{
    return kind == OP_GATHER_HEADS || kind == OP_GATHER_HEADS_GRAD;
}

/* The ranks that exchange anything: of heads those that share one, which are neighbours. */
static struct group_shape partners_of(const struct group_shape *group, const struct op_shape *op)
{
    struct group_shape of = *group;

    if (!is_of_heads(op->kind) || op->attributes.group >= group->n)
        return of;
    of.n = op->attributes.group;
    of.members = 0;
    of.per_node = min_int(of.per_node, of.n);
    of.per_domain = min_int(of.per_domain, of.n);
    of.n_nodes = min_int(of.n_nodes, (of.n + of.per_node - 1) / of.per_node);
    of.n_domains = min_int(of.n_domains, (of.n + of.per_domain - 1) / of.per_domain);
    of.n_leaves = min_int(of.n_leaves, of.n_nodes);
    of.n_islands = min_int(of.n_islands, of.n_nodes);
    return of;
}

int64_t price_link_bytes(const struct op_shape *op, int n)
{
    if (op->kind == OP_SEND || op->kind == OP_RECEIVE)
        return tensor_bytes(op->kind == OP_SEND ? &op->in[OPS_FIRST] : &op->out[OPS_FIRST]);
    if (op->kind == OP_ROTATE)
        return n > 1 ? tensor_bytes(&op->in[ROTATE_X]) : 0;
    if (is_of_windows(op->kind))
        return n > 1 ? (int64_t)collective_window_sent_bytes(op) : 0;
    if (is_of_heads(op->kind))
        n = min_int(n, op->attributes.group);
    return whole_bytes(op, n) * (n - 1) / n * (op->kind == OP_ALL_REDUCE ? 2 : 1);
}

/* Of the thread that posts it: on a CPU that is nothing beside the moves. */
static int64_t issue_ns(const struct prices *prices)
{
    return is_on_cpu(prices) ? 0 : prices->cluster->software.nccl_op;
}

static double by_faster_links(const struct prices *prices, double ns)
{
    double faster = prices->cluster->faster.links;

    return ns < 0 || !(faster > 0) ? ns : ns / faster;
}

/* As one message, though there is one each way at once: links have both directions. */
static double measured_rotate_ns(const struct prices *prices, const struct group_shape *group,
                                 int64_t n_bytes, enum price_source *source)
{
    if (group->n_islands > 1)
        return -1;
    return by_faster_links(
        prices,
        price_table_transfer(prices->cluster->table, collective_uses_nic(group), n_bytes, source));
}

/* Of a group with as many ranks on each node, as run executes it; -1: there is no price in the
 * cluster's table. */
static double measured_ns(const struct prices *prices, const struct group_shape *group,
                          const struct op_shape *op, int64_t n_bytes, enum price_source *source)
{
    struct price_span span = { group->per_node, group->n_nodes };

    *source = PRICE_FORMULA;
    if (prices->cluster->table && is_rotated(op->kind))
        return measured_rotate_ns(prices, group, n_bytes, source);
    if (!prices->cluster->table || span.per_node * span.n_nodes != group->n)
        return -1;
    return by_faster_links(prices,
                           price_table_collective(prices->cluster->table, measured_as(op->kind),
                                                  span, n_bytes, source));
}

int64_t price_lateness(const struct prices *prices, int64_t apart_ns)
{
    double late = prices->cluster->table ? prices->cluster->table->late_ns : 0;

    return llround(by_faster_links(prices, late) *
                   fmin(1, (double)apart_ns / (double)PRICE_APART_NS));
}

int64_t price_beside(const struct prices *prices)
{
    return prices->cluster->table ? llround(prices->cluster->table->beside_ns) : 0;
}

/* By formula. */
static double moving_at_once_ns(const struct prices *prices, const struct group_shape *group,
                                const struct op_shape *op, int64_t n_bytes)
{
    if (is_rotated(op->kind))
        return (double)rotate_ns(prices->cluster, group, n_bytes);
    if (op->kind == OP_ROWS_TO_HEADS || op->kind == OP_HEADS_TO_ROWS ||
        op->kind == OP_EXCHANGE_CODES || is_of_experts(op->kind))
        return exchange_ns(prices, group, op, n_bytes);
    if (has_fixed_sum(prices, op))
        return fixed_sum_ns(prices, group, op, n_bytes);
    return (double)collective_ns(prices->cluster, group, op->kind, n_bytes);
}

/* What was measured goes between any two ranks: what goes by node takes the same share of it as by
 * formula. */
static double moving_ns(const struct prices *prices, const struct group_shape *group,
                        const struct op_shape *op, int64_t n_bytes, double measured)
{
    if (!goes_by_node(prices, group, op))
        return measured >= 0 ? measured : moving_at_once_ns(prices, group, op, n_bytes);
    double by_node = by_node_ns(prices, group, op, n_bytes);
    double at_once = moving_at_once_ns(prices, group, op, n_bytes);

    return measured >= 0 && at_once > 0 ? measured * by_node / at_once : by_node;
}

struct price price_collective(const struct prices *prices, const struct group_shape *group,
                              const struct op_shape *op)
{
    const struct group_shape partners = partners_of(group, op);
    struct price price = { .issue_ns = issue_ns(prices), .bound = BOUND_LINK };
    int64_t n_bytes = whole_bytes(op, group->n);

    group = &partners;
    CHECK(op_is_collective(op->kind));
    if (group->n < 2)
        return price;
    double measured = measured_ns(prices, group, op, n_bytes, &price.source);
    double moving = moving_ns(prices, group, op, n_bytes, measured);

    if (is_of_windows(op->kind))
        moving *= 2;
    price.ns = llround(moving + copying_ns(prices, op, group->n));
    return price;
}

/* One message, as measured; others of the node that share its NICs, by formula. */
static double measured_transfer_ns(const struct prices *prices, int from, int to, int64_t n_bytes,
                                   int n_sharing, enum price_source *source)
{
    const struct cluster *cluster = prices->cluster;
    enum link_level level = transfer_level(cluster, from, to);

    *source = PRICE_FORMULA;
    if (!cluster->table || level == LEVEL_ISLANDS)
        return -1;
    double ns = by_faster_links(
        prices, price_table_transfer(cluster->table, level >= LEVEL_RAIL, n_bytes, source));
    if (ns < 0 || level < LEVEL_RAIL)
        return ns;
    return ns + (double)(transfer_ns(cluster, from, to, n_bytes, n_sharing) -
                         transfer_ns(cluster, from, to, n_bytes, 1));
}

struct price price_transfer(const struct prices *prices, int from, int to, int64_t n_bytes,
                            int n_sharing)
{
    struct price price = { .issue_ns = issue_ns(prices), .bound = BOUND_LINK };

    if (transfer_level(prices->cluster, from, to) == LEVEL_SAME)
        return price;
    double measured = measured_transfer_ns(prices, from, to, n_bytes, n_sharing, &price.source);
    price.ns = measured >= 0 ? llround(measured)
                             : transfer_ns(prices->cluster, from, to, n_bytes, n_sharing);
    return price;
}
