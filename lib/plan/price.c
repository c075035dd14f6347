/*
 * price.c - see the header
 */
#include "plan/price.h"

#include <math.h>

#include "base/num.h"
#include "ops/op_info.h"
#include "plan/price_impl.h"

enum price_class price_class_of(enum op_kind kind)
{
    if (!op_has_kernel(kind))
        return PRICE_EXCHANGE;
    if (price_is_product(kind))
        return PRICE_PRODUCT;
    if (price_is_attention(kind))
        return PRICE_ATTENTION;
    return op_info(kind)->family == FAMILY_OPTIMIZER ? PRICE_UPDATE : PRICE_MEMORY;
}

const char *price_bound_name(enum price_bound bound)
{
    static const char *const names[N_PRICE_BOUNDS] = { "flops", "bytes", "issue", "link" };

    return names[bound];
}

const char *price_source_name(enum price_source source)
{
    static const char *const names[N_PRICE_SOURCES] = {
        [PRICE_FORMULA] = "formula",
        [PRICE_INTERPOLATED] = "interpolated",
        [PRICE_MEASURED] = "measured",
    };

    return names[source];
}

struct prices prices_of_job(const struct job *job, const struct cluster *cluster)
{
    return (struct prices){ .cluster = cluster,
                            .n_computing = min_int(job->world_size, cluster->islands[0].per_node),
                            .has_graphs = true,
                            .node_ranks = job_node_ranks(job),
                            .fast_reductions = job->parallel.reductions == REDUCTIONS_FAST,
                            .link_rate = job->memory.link_rate,
                            .file_rate = job->memory.file_rate };
}

struct formula price_longer(double flop_ns, double byte_ns)
{
    return (struct formula){ fmax(flop_ns, byte_ns), 1,
                             flop_ns > byte_ns ? BOUND_FLOPS : BOUND_BYTES };
}

/* Bytes; and the operations, where these are not the usual few an element. */
static struct formula memory_formula(const struct prices *prices, const struct op_shape *op)
{
    double reach, peak = price_peak(prices, FORMAT_F32, &reach);
    double flop_ns = 1e9 * op_flops(op) / (peak * reach);

    return price_longer(flop_ns, price_memory_ns(prices, op_bytes(op), MEMORY_REACH));
}

/* Over the link to the host; on a CPU from memory to memory, no faster than the job says. */
static struct formula copy_formula(const struct prices *prices, const struct op_shape *op)
{
    const struct cluster *cluster = prices->cluster;
    const struct cluster_island *island = &cluster->islands[prices->island];
    double rate = cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth
                                                    : island->device->host_link;

    if (island->device->is_cpu && prices->link_rate > 0)
        rate = prices->link_rate;
    else
        rate /= max_int(1, cluster->links.host_shared_by);
    if (!(rate > 0))
        return price_longer(0, price_memory_ns(prices, op_bytes(op), MEMORY_REACH));
    return (struct formula){ 1e9 * op_bytes(op) / 2 / rate, 1, BOUND_LINK };
}

/* By its operands' format, as one measured step has it. */
static struct formula calibrate(const struct prices *prices, const struct op_shape *op,
                                struct formula formula)
{
    double factor = prices->cluster->calibration[price_format(op->in[OPS_FIRST].dtype)];

    formula.ns *= factor > 0 ? factor : 1;
    return formula;
}

static struct formula formula_of(const struct prices *prices, const struct op_shape *op)
{
    if (op_info(op->kind)->traits & TRAIT_COPY)
        return copy_formula(prices, op);
    switch (price_class_of(op->kind)) {
    case PRICE_PRODUCT:
        return calibrate(prices, op, price_products(prices, op));
    case PRICE_ATTENTION:
        return calibrate(prices, op, price_attention(prices, op));
    default:
        return memory_formula(prices, op);
    }
}

/* What the host does for an op of n_kernels: by itself on a CPU, meanwhile on a GPU. */
static void add_issue(const struct prices *prices, int n_kernels, struct price *price)
{
    const struct cluster *cluster = prices->cluster;
    int64_t host_op = cluster->software.host_op;

    if (cluster->islands[prices->island].device->is_cpu)
        price->ns += host_op;
    else
        price->issue_ns = n_kernels * (prices->has_graphs ? cluster->software.graph_op : host_op);
}

/* Of what is issued, and launches so long, whichever way it was priced. */
static enum price_bound bound_of(const struct prices *prices, const struct formula *formula,
                                 int64_t launch_ns, const struct price *price)
{
    bool is_cpu = prices->cluster->islands[prices->island].device->is_cpu;
    double issue_ns = is_cpu ? (double)prices->cluster->software.host_op
                             : fmax((double)price->issue_ns, (double)launch_ns);

    return 2 * issue_ns > (double)price->ns && issue_ns > formula->ns ? BOUND_ISSUE
                                                                      : formula->bound;
}

/*
 * Ranks of a node share memory, clocks and, where there are more of them than cores, cores: as if
 * the node could serve `served` of them at full speed. Of the others each computes with the
 * probability that it is busy, which says how many do at a time; with all of them it is what was
 * measured.
 */
static double contention_of(const struct prices *prices, double of_all)
{
    int per_node = prices->cluster->islands[prices->island].per_node;
    int others = min_int(prices->n_computing, per_node) - 1;
    double busy = prices->busy > 0 ? fmin(prices->busy, 1) : 1;
    double served = per_node / of_all, sum = 0, weight = 1;

    if (others < 1 || !(of_all > 1))
        return 1;
    if (busy >= 1)
        return fmax(1, (others + 1) / served);
    /* Binomial weights of k others, from none on. */
    for (int i = 0; i < others; i++)
        weight *= 1 - busy;
    for (int k = 0; k <= others; k++) {
        sum += weight * fmax(1, (k + 1) / served);
        weight *= busy / (1 - busy) * (others - k) / (k + 1);
    }
    return sum;
}

/* -1: there is no price in the cluster's table. */
static double measured_ns(const struct prices *prices, const struct op_shape *op,
                          enum price_source *source)
{
    *source = PRICE_FORMULA;
    if (!prices->cluster->table || op->kind == OP_AWAIT || (op_info(op->kind)->traits & TRAIT_COPY))
        return -1;
    double ns = price_table_op(prices->cluster->table, op, source);
    enum price_class class = price_class_of(op->kind);
    double faster = class == PRICE_PRODUCT || class == PRICE_ATTENTION
                        ? prices->cluster->faster.products
                        : prices->cluster->faster.memory;
    return ns < 0 ? -1
                  : ns * contention_of(prices, prices->cluster->table->contention) /
                        (faster > 0 ? faster : 1);
}

struct price price_op(const struct prices *prices, const struct op_shape *op)
{
    int64_t launch = prices->cluster->islands[prices->island].device->launch;
    const struct op_shape expected = op_expected(op);
    struct price price = { 0 };

    CHECK(!op_is_collective(op->kind));
    struct formula formula =
        op->kind == OP_AWAIT ? (struct formula){ 0, 1, BOUND_LINK } : formula_of(prices, &expected);
    double measured = measured_ns(prices, &expected, &price.source);
    if (measured >= 0)
        price.ns = llround(measured);
    else if (op->kind != OP_AWAIT)
        price.ns = llround(formula.ns) + formula.n_kernels * launch;
    add_issue(prices, formula.n_kernels, &price);
    price.bound = bound_of(prices, &formula, formula.n_kernels * launch, &price);
    return price;
}

struct price price_file_copy(const struct prices *prices, const struct op_shape *op, bool is_out)
{
    const struct cluster *cluster = prices->cluster;
    double storage = is_out ? cluster->links.storage_write : cluster->links.storage_read;
    double rate = prices->file_rate > 0 ? prices->file_rate : storage;
    struct price price = price_op(prices, op);

    if (rate > 0)
        price.ns = max_i64(price.ns, llround(1e9 * op_bytes(op) / 2 / rate));
    return price;
}

struct price price_host_op(const struct prices *prices, const struct op_shape *op)
{
    const struct cluster *cluster = prices->cluster;

    if (cluster->islands[prices->island].device->is_cpu)
        return price_op(prices, op);
    return (struct price){ .ns = llround(1e9 * op_bytes(op) / cluster->links.host_memory) +
                                 cluster->software.host_op,
                           .source = PRICE_FORMULA,
                           .bound = BOUND_BYTES };
}

int64_t price_op_cpu(const struct prices *prices, const struct op_shape *op)
{
    const struct price_table *table = prices->cluster->table;
    bool may_be_measured =
        table && op->kind != OP_AWAIT && !(op_info(op->kind)->traits & TRAIT_COPY);
    const struct op_shape expected = op_expected(op);
    double ns = may_be_measured ? price_table_op_cpu(table, &expected) : -1;

    if (ns < 0)
        return price_op(prices, op).ns;
    return llround(ns * contention_of(prices, table->cpu_contention)) +
           prices->cluster->software.host_op;
}
