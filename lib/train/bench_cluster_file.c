/*
 * bench_cluster_file.c - what was measured as a cluster's file
 */
#include <math.h>

#include "base/num.h"
#include "plan/price_impl.h"
#include "train/bench_cluster.h"

/* Compute beside exchanges, where none was measured. */
#define OVERLAP 0.5

#define JITTER_MAX 0.25 /* more is the doing of others on the machine */

static long long nanoseconds(double seconds)
{
    return max_i64(1, llround(1e9 * seconds));
}

static void print_device(const struct bench_cluster *c, const struct engine *engine,
                         enum dtype dtype, struct str *out)
{
    const char *format = device_format_name(price_format(dtype));
    double bus = c->fast.bytes_per_second > 0 ? c->fast.bytes_per_second : c->peak.bytes_per_second;

    str_add(out, "    device:\n");
    if (device_is_host(engine->device))
        str_add(out, "      cpu: true\n");
    str_printf(out, "      memory: %lld MiB\n      hbm: %.3f GB/s\n",
               (long long)(c->memory_bytes >> 20), c->peak.bytes_per_second / 1e9);
    if (dtype == DTYPE_F32)
        str_printf(out,
                   "      peak: {fp32: %.6f TFLOP/s}\n      kernel_reach: {fp32: 1}\n"
                   "      step_reach: {fp32: 1}\n",
                   c->peak.f32_flops / 1e12);
    else
        str_printf(out,
                   "      peak: {fp32: %.6f TFLOP/s, %s: %.6f TFLOP/s}\n"
                   "      kernel_reach: {fp32: 1, %s: 1}\n      step_reach: {fp32: 1, %s: 1}\n",
                   c->peak.f32_flops / 1e12, format, c->peak.flops / 1e12, format, format);
    str_printf(out, "      fast: {bus: %.3f GB/s, link: %.3f GB/s, latency: %lld ns, domain: %d}\n",
               bus / 1e9, bus / 1e9, nanoseconds(c->fast.latency_seconds), c->nodes.per_node);
}

/* What NICs carry of a gather over all ranks, beside what messages alone reach. */
static void print_links(const struct bench_cluster *c, struct str *out)
{
    const struct bench_links *l = &c->links;
    double efficiency = c->net.bytes_per_second / c->exchanges.nic_bytes_per_second;

    str_printf(out, "links:\n  host: {bandwidth: %.3f GB/s}\n", l->host_bytes_per_second / 1e9);
    if (l->read_bytes_per_second > 0 && l->write_bytes_per_second > 0)
        str_printf(out, "  storage: {read: %.4f GB/s, write: %.4f GB/s}\n",
                   l->read_bytes_per_second / 1e9, l->write_bytes_per_second / 1e9);
    if (c->nodes.n > 1)
        str_printf(out, "  rail: {latency: %lld ns, efficiency: %.3f}\n",
                   nanoseconds(c->net.latency_seconds), fmin(1, fmax(0.01, efficiency)));
}

static double overlap_of(double measured)
{
    return measured < 0 ? OVERLAP : fmax(0.001, measured);
}

void bench_cluster_print(const struct bench_cluster *c, const struct engine *engine,
                         enum dtype dtype, const char *tables, struct str *out)
{
    int n = engine->rank.world_size;
    const struct bench_exchanges *x = &c->exchanges;

    str_printf(out, "# %s; %d rank%s of %d thread%s, measured by lmtrain bench cluster\n",
               c->table.machine, n, str_s(n), c->n_threads, str_s(c->n_threads));
    str_printf(out, "islands:\n  - nodes: %d\n    per_node: %d\n", c->nodes.n, c->nodes.per_node);
    if (c->nodes.n > 1)
        str_printf(out, "    nics: 1\n    nic: %.3f GB/s\n", x->nic_bytes_per_second / 1e9);
    print_device(c, engine, dtype, out);
    print_links(c, out);
    str_printf(out, "software: {host_op: %lld ns, constant: %lld ns, jitter: %.4f, ",
               nanoseconds(c->host.op_seconds), nanoseconds(c->host.step_seconds),
               fmin(JITTER_MAX, fmax(1e-4, c->jitter)));
    str_printf(out, "overlap: {fast: %.3f, nic: %.3f}}\n", overlap_of(x->overlap),
               overlap_of(c->nodes.n > 1 ? x->overlap_nic : x->overlap));
    str_printf(out, "tables: %s\n", tables);
}
