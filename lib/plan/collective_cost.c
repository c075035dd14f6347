/*
 * collective_cost.c - see the header
 *
 * Constants without a source beside them are the defaults that a table of `lmtrain bench cluster`
 * replaces.
 */
#include "plan/collective_cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "plan/island_units.h"

/* Each step of a collective in a domain adds this share of its latency. */
#define STEP_LATENCY 0.12

/* Sums by NVLink's switches. */
#define NVLS_NS 25e3
#define NVLS_BUS 1.3

/*
 * A ring over nodes of 8 devices with a NIC each reaches .97 line * B / (B + 15 MB * n_nodes), from
 * 2 to 128 nodes and 16 MB to 16 GB within 8 %: each hop takes as long as its NIC for 15 MB / 64.
 */
#define RING_HOP_BYTES (15e6 / 64)
#define RING_LINE 0.97

#define TREE_BUS 0.92 /* NCCL's tuning: of a ring's bandwidth */

/* Of the line, and of the fast bus, that one message reaches. */
#define TRANSFER_NIC 0.9
#define TRANSFER_BUS 0.8

/* ---- what links carry ---- */

/* The slowest of the islands that a group touches. */
struct link_rates {
    double fast_latency, fast_bus; /* ns; bytes a second of a rank's fast link */
    double host;                   /* of a rank's link to the host */
    double nic;                    /* of a rank's share of the node's NICs, the line's rate */
    double net;                    /* of this what a step reaches */
};

static struct link_rates rates_of_island(const struct cluster *cluster, int i, int n_sharing)
{
    const struct cluster_island *island = &cluster->islands[i];
    double nics = (double)island->n_nics / max_int(1, n_sharing);
    double host = cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth
                                                    : island->device->host_link;
    double bus = cluster->links.fast_bus > 0 ? cluster->links.fast_bus : island->device->fast_bus;
    int64_t latency = cluster->links.fast_latency > 0 ? cluster->links.fast_latency
                                                      : island->device->fast_latency;

    bus = bus > 0 ? bus : host;
    host = (host > 0 ? host : bus) / max_int(1, cluster->links.host_shared_by);
    return (struct link_rates){ .fast_latency = (double)latency,
                                .fast_bus = bus,
                                .host = host,
                                .nic = island->nic * (nics < 1 ? nics : 1),
                                .net =
                                    island->nic * island->nic_efficiency * (nics < 1 ? nics : 1) };
}

static struct link_rates rates_of_group(const struct cluster *cluster,
                                        const struct group_shape *group)
{
    struct link_rates rates = rates_of_island(cluster, group->island, group->n_sharing);

    for (int i = group->island + 1; i <= group->last_island; i++) {
        struct link_rates other = rates_of_island(cluster, i, group->n_sharing);

        rates.fast_latency = fmax(rates.fast_latency, other.fast_latency);
        rates.fast_bus = fmin(rates.fast_bus, other.fast_bus);
        rates.host = fmin(rates.host, other.host);
        rates.nic = fmin(rates.nic, other.nic);
        rates.net = fmin(rates.net, other.net);
    }
    return rates;
}

/* Nodes, or domains where these span nodes: what NICs join; and the group's ranks in one. */
static int n_units(const struct group_shape *group)
{
    return min_int(group->n_nodes, group->n_domains);
}

static int ranks_of_unit(const struct group_shape *group)
{
    return max_int(group->per_node, group->per_domain);
}

bool collective_uses_nic(const struct group_shape *group)
{
    return n_units(group) > 1;
}

double collective_slowdown(const struct cluster *cluster, bool uses_nic)
{
    return uses_nic ? cluster->software.overlap_nic : cluster->software.overlap_fast;
}

/*
 * Bytes a second that a group's ranks of one unit send to others together, without the fast bus.
 * Most neighbours of a ring or a tree are under one leaf switch: links to the spine are short only
 * where they are fewer than one in as many as the group has nodes under a leaf.
 */
static double net_rate(const struct cluster *cluster, const struct group_shape *group,
                       const struct link_rates *rates)
{
    double ranks = ranks_of_unit(group);
    double rate = ranks * rates->net;
    double nodes_of_leaf = (double)group->n_nodes / group->n_leaves;

    if (group->n_leaves > group->n_islands && cluster->links.oversubscription > nodes_of_leaf)
        rate *= nodes_of_leaf / cluster->links.oversubscription;
    if (group->n_islands > 1 && cluster->links.islands_bandwidth > 0)
        rate = fmin(rate, cluster->links.islands_bandwidth * ranks / group->n_sharing);
    return rate;
}

/* Of a ring, at each of its hops. */
static double ring_rate(const struct cluster *cluster, const struct group_shape *group,
                        const struct link_rates *rates)
{
    double rate = rates->fast_bus;

    if (group->n_domains > group->n_nodes)
        rate = fmin(rate, group->per_domain * rates->host);
    if (collective_uses_nic(group))
        rate = fmin(rate, net_rate(cluster, group, rates));
    return rate;
}

/* What a path adds that crosses each leaf, and each island, n_leaf and n_island times. */
static double crossing_ns(const struct cluster *cluster, double n_leaf, double n_island)
{
    return n_leaf * (double)cluster->links.spine_latency +
           n_island * (double)cluster->links.islands_latency;
}

static double transmit_ns(double n_bytes, double rate)
{
    CHECK(rate > 0);
    return 1e9 * n_bytes / rate;
}

/* ---- forms of collectives ---- */

struct collective_query {
    const struct cluster *cluster;
    const struct group_shape *group;
    struct link_rates rates;
    double n_bytes;
    int n_passes; /* round a ring: 2 for a sum that all get */
};

static double fast_alpha(const struct collective_query *q, int n_steps)
{
    return q->rates.fast_latency * (1 + STEP_LATENCY * n_steps);
}

static double ring_ns(const struct collective_query *q)
{
    const struct group_shape *g = q->group;
    double part = (double)(g->n - 1) / g->n, rate = ring_rate(q->cluster, g, &q->rates);
    double moved = q->n_passes * transmit_ns(part * q->n_bytes, rate);

    if (!collective_uses_nic(g))
        return fast_alpha(q, q->n_passes * (g->n - 1)) + moved;
    double hop = fmax(transmit_ns(RING_HOP_BYTES, RING_LINE * q->rates.nic),
                      (double)q->cluster->links.rail_latency);
    double crossings =
        crossing_ns(q->cluster, g->n_leaves - g->n_islands, g->n_islands > 1 ? g->n_islands : 0);
    return q->n_passes * ((g->n - 1) * hop + crossings) + moved;
}

static double switches_ns(const struct collective_query *q)
{
    double part = (double)(q->group->n - 1) / q->group->n;

    return NVLS_NS + 2 * transmit_ns(part * q->n_bytes, NVLS_BUS * q->rates.fast_bus);
}

static double net_alpha(const struct collective_query *q)
{
    const struct group_shape *g = q->group;
    double levels = log2(n_units(g)), leaf_levels = log2((double)g->n_leaves / g->n_islands);

    return (double)q->cluster->links.rail_latency * (1 + levels) +
           crossing_ns(q->cluster, leaf_levels, log2(g->n_islands));
}

static double tree_ns(const struct collective_query *q)
{
    double rate = TREE_BUS * ring_rate(q->cluster, q->group, &q->rates);
    int n_inner = 2 * (ranks_of_unit(q->group) - 1);

    return (n_inner ? fast_alpha(q, n_inner) : 0) + net_alpha(q) +
           transmit_ns(2 * q->n_bytes, rate);
}

/* A part for each rank of the unit, summed across, each over its share of the NICs. */
static double two_level_ns(const struct collective_query *q)
{
    double r = ranks_of_unit(q->group), n = n_units(q->group);
    double inner_bus = q->group->n_domains > q->group->n_nodes
                           ? fmin(q->rates.fast_bus, q->group->per_domain * q->rates.host)
                           : q->rates.fast_bus;
    double inner =
        2 * (fast_alpha(q, (int)r - 1) + transmit_ns((r - 1) / r * q->n_bytes, inner_bus));
    double net = net_rate(q->cluster, q->group, &q->rates);

    return inner + net_alpha(q) + transmit_ns(2 * (n - 1) / n * q->n_bytes, net);
}

static double all_reduce_ns(struct collective_query *q)
{
    const struct cluster_island *island = &q->cluster->islands[q->group->island];
    double best;

    q->n_passes = 2;
    best = ring_ns(q);
    if (collective_uses_nic(q->group)) {
        best = fmin(best, tree_ns(q));
        return ranks_of_unit(q->group) > 1 ? fmin(best, two_level_ns(q)) : best;
    }
    return island->device->has_nvls && q->group->n_domains == 1 ? fmin(best, switches_ns(q)) : best;
}

static struct collective_query query_of(const struct cluster *cluster,
                                        const struct group_shape *group, int64_t n_bytes)
{
    return (struct collective_query){ .cluster = cluster,
                                      .group = group,
                                      .rates = rates_of_group(cluster, group),
                                      .n_bytes = (double)n_bytes,
                                      .n_passes = 1 };
}

int64_t collective_ns(const struct cluster *cluster, const struct group_shape *group,
                      enum op_kind kind, int64_t n_bytes)
{
    struct collective_query q = query_of(cluster, group, n_bytes);

    CHECK(op_is_collective(kind));
    if (group->n < 2 || n_bytes < 1)
        return 0;
    if (kind == OP_ALL_REDUCE)
        return llround(all_reduce_ns(&q));
    if (kind == OP_ALL_REDUCE_SCALAR)
        q.n_bytes *= group->n;
    return llround(ring_ns(&q));
}

/*
 * A rank's messages go out one after the other. Those to other units use its share of the NICs; of
 * those the ones to other leaves meet too few links where the spine is oversubscribed.
 */
int64_t all_to_all_ns(const struct cluster *cluster, const struct group_shape *group,
                      int64_t n_bytes)
{
    struct collective_query q = query_of(cluster, group, n_bytes);
    double n = group->n, r = ranks_of_unit(group), each = q.n_bytes / n;

    if (group->n < 2 || n_bytes < 1)
        return 0;
    double inner = fast_alpha(&q, group->n - 1);
    if (!collective_uses_nic(group))
        return llround(inner + transmit_ns((n - 1) * each, ring_rate(cluster, group, &q.rates)));
    double rate = fmin(q.rates.net, q.rates.fast_bus);
    double beyond_leaf = 1 - 1.0 / group->n_leaves;
    double spine = beyond_leaf * cluster->links.oversubscription;
    if (group->n_leaves > group->n_islands && spine > 1)
        rate /= spine;
    if (group->n_islands > 1 && cluster->links.islands_bandwidth > 0)
        rate = fmin(rate, cluster->links.islands_bandwidth / group->n_sharing);
    double alpha = (double)cluster->links.rail_latency * (1 + STEP_LATENCY * (n - r)) +
                   crossing_ns(cluster, group->n_leaves > group->n_islands, group->n_islands > 1);
    double within = transmit_ns((r - 1) * each, q.rates.fast_bus);
    return llround(fmax(inner, alpha) + fmax(within, transmit_ns((n - r) * each, rate)));
}

/* Of the group: neighbours that go by node, and one of each such. */
static struct group_shape on_node(const struct group_shape *group)
{
    struct group_shape node = *group;

    node.n = group->members;
    node.per_node = min_int(group->per_node, node.n);
    node.per_domain = min_int(group->per_domain, node.n);
    node.n_nodes = (int)ceil_div(node.n, node.per_node);
    node.n_domains = (int)ceil_div(node.n, node.per_domain);
    node.n_leaves = (int)ceil_div((int64_t)group->n_leaves * node.n_nodes, group->n_nodes);
    node.n_islands = (int)ceil_div((int64_t)group->n_islands * node.n_nodes, group->n_nodes);
    return node;
}

static struct group_shape across_nodes(const struct group_shape *group)
{
    struct group_shape across = *group;

    across.n = group->n / group->members;
    across.per_node = max_int(1, group->per_node / group->members);
    across.per_domain = max_int(1, group->per_domain / group->members);
    across.n_nodes = min_int(group->n_nodes, across.n);
    across.n_domains = min_int(group->n_domains, across.n);
    across.n_leaves = min_int(group->n_leaves, across.n);
    across.n_islands = min_int(group->n_islands, across.n);
    return across;
}

int64_t sum_by_node_ns(const struct cluster *cluster, const struct group_shape *group,
                       int64_t n_bytes, int64_t wide_bytes)
{
    struct group_shape node = on_node(group), across = across_nodes(group);

    return all_to_all_ns(cluster, &node, n_bytes) +
           all_to_all_ns(cluster, &across, wide_bytes / node.n);
}

int64_t gather_by_node_ns(const struct cluster *cluster, const struct group_shape *group,
                          int64_t n_bytes)
{
    struct group_shape node = on_node(group), across = across_nodes(group);

    return collective_ns(cluster, &across, OP_ALL_GATHER, n_bytes / node.n) +
           collective_ns(cluster, &node, OP_ALL_GATHER, n_bytes);
}

/* Of the ranks of one unit one sends to the next unit: so many fewer share the NICs. */
static double rotate_across_ns(const struct cluster *cluster, const struct group_shape *group,
                               double n_bytes)
{
    struct group_shape ends = *group;

    ends.n_sharing = max_int(1, group->n_sharing / ranks_of_unit(group));
    struct link_rates rates = rates_of_group(cluster, &ends);
    double rate = TRANSFER_NIC * rates.nic;
    double nodes_of_leaf = (double)group->n_nodes / group->n_leaves;
    bool is_beyond_leaf = group->n_leaves > group->n_islands;

    if (is_beyond_leaf && cluster->links.oversubscription > nodes_of_leaf)
        rate *= nodes_of_leaf / cluster->links.oversubscription;
    if (group->n_islands > 1 && cluster->links.islands_bandwidth > 0)
        rate = fmin(rate, cluster->links.islands_bandwidth / ends.n_sharing);
    return (double)cluster->links.rail_latency +
           crossing_ns(cluster, is_beyond_leaf, group->n_islands > 1) + transmit_ns(n_bytes, rate);
}

int64_t rotate_ns(const struct cluster *cluster, const struct group_shape *group, int64_t n_bytes)
{
    struct link_rates rates = rates_of_group(cluster, group);
    double within = TRANSFER_BUS * rates.fast_bus, bytes = (double)n_bytes, ns = 0;

    if (group->n < 2 || n_bytes < 1)
        return 0;
    if (group->n_domains > group->n_nodes)
        within = TRANSFER_NIC * rates.host;
    if (ranks_of_unit(group) > 1)
        ns = rates.fast_latency + transmit_ns(bytes, within);
    if (collective_uses_nic(group))
        ns = fmax(ns, rotate_across_ns(cluster, group, bytes));
    return llround(ns);
}

/* ---- transfers ---- */

/* A device's place. */
struct device_place {
    int island;
    int64_t node, domain, leaf; /* of the island */
};

static struct device_place place_of(const struct cluster *cluster, int64_t rank)
{
    int i = 0;

    while (i < cluster->n_islands && rank >= island_devices(&cluster->islands[i]))
        rank -= island_devices(&cluster->islands[i++]);
    CHECK(i < cluster->n_islands);
    const struct cluster_island *island = &cluster->islands[i];
    return (struct device_place){ i, rank / island->per_node, rank / island_domain(island),
                                  rank / island_leaf(cluster, island) };
}

enum link_level transfer_level(const struct cluster *cluster, int from, int to)
{
    struct device_place a = place_of(cluster, from), b = place_of(cluster, to);

    if (from == to)
        return LEVEL_SAME;
    if (a.island != b.island)
        return LEVEL_ISLANDS;
    if (a.domain == b.domain)
        return LEVEL_FAST;
    if (a.node == b.node)
        return LEVEL_HOST;
    return a.leaf == b.leaf ? LEVEL_RAIL : LEVEL_SPINE;
}

/* Where stages are as far apart as d nodes, d nodes of a leaf send beyond it at once. */
static double spine_share(const struct cluster *cluster, int from, int to)
{
    int64_t distance = place_of(cluster, from).node - place_of(cluster, to).node;
    double crossing = (double)min_i64(cluster->links.nodes_per_leaf, llabs(distance));
    double links = cluster->links.nodes_per_leaf / fmax(1, cluster->links.oversubscription);

    return fmin(1, links / crossing);
}

static double net_transfer_ns(const struct cluster *cluster, int from, int to, double n_bytes,
                              int n_sharing)
{
    enum link_level level = transfer_level(cluster, from, to);
    struct link_rates a = rates_of_island(cluster, place_of(cluster, from).island, n_sharing);
    struct link_rates b = rates_of_island(cluster, place_of(cluster, to).island, n_sharing);
    double rate = TRANSFER_NIC * fmin(a.nic, b.nic);
    double alpha = (double)cluster->links.rail_latency +
                   crossing_ns(cluster, level == LEVEL_SPINE, level == LEVEL_ISLANDS);

    if (level == LEVEL_SPINE)
        rate *= spine_share(cluster, from, to);
    if (level == LEVEL_ISLANDS && cluster->links.islands_bandwidth > 0)
        rate = fmin(rate, cluster->links.islands_bandwidth / max_int(1, n_sharing));
    return alpha + transmit_ns(n_bytes, rate);
}

int64_t transfer_ns(const struct cluster *cluster, int from, int to, int64_t n_bytes, int n_sharing)
{
    struct link_rates rates = rates_of_island(cluster, place_of(cluster, from).island, n_sharing);
    double bytes = (double)n_bytes;

    switch (transfer_level(cluster, from, to)) {
    case LEVEL_SAME:
        return 0;
    case LEVEL_FAST:
        return llround(rates.fast_latency + transmit_ns(bytes, TRANSFER_BUS * rates.fast_bus));
    case LEVEL_HOST:
        return llround(rates.fast_latency + transmit_ns(bytes, TRANSFER_NIC * rates.host));
    default:
        return llround(net_transfer_ns(cluster, from, to, bytes, n_sharing));
    }
}
