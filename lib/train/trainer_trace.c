/*
 * trainer_trace.c - steps of which each rank keeps when its ops began and ended
 */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/rng.h"
#include "train/step_trace.h"
#include "train/trainer_impl.h"

enum { N_EXCHANGES = 16 };

/* Of the fault `skew`: what a clock of another machine may be like. */
#define SKEW_NS ((int64_t)3600 * 1000000000)
#define SKEW_DRIFT 150e-6

static bool has(const struct job_counts *list, int64_t value)
{
    for (int i = 0; i < list->n; i++)
        if (list->values[i] == value)
            return true;
    return false;
}

/* Whether the next step is traced, by some rank. A trace's ops are those of ENTRY_STEP. */
static bool is_traced(const struct trainer *t)
{
    if (t->program.ports.codec_total && t->updates < t->program.codec.start)
        return false;
    return has(&t->job->trace.steps, t->step + 1);
}

static bool is_traced_here(const struct trainer *t)
{
    return is_traced(t) && (!t->job->trace.ranks.n || has(&t->job->trace.ranks, t->world_rank));
}

/* ---- clocks ---- */

static int64_t skewed(const struct trainer *t, int64_t ns)
{
    int64_t since = t->trace.skewed_since;

    return since ? ns + SKEW_NS + llround((double)(ns - since) * SKEW_DRIFT) : ns;
}

static int64_t now(const struct trainer *t)
{
    return skewed(t, (int64_t)(clock_seconds() * 1e9));
}

/* Equal for processes whose monotonic clock is one: of one boot of a kernel, in one time namespace.
 * 0: not known. */
static int64_t clock_of_machine(void)
{
    struct stat space = { 0 };
    struct err ignored;
    char *boot = NULL;
    size_t n_bytes;

    if (file_read("/proc/sys/kernel/random/boot_id", 4096, ERR_FAILED, &boot, &n_bytes, &ignored))
        return 0;
    uint64_t id = rng_hash_name(boot);
    free(boot);
    if (!stat("/proc/self/ns/time", &space))
        id ^= (uint64_t)space.st_ino << 20;
    return (int64_t)id;
}

/* Which ranks have rank 0's clock: once for all steps. */
static int find_shared(struct trainer *t, struct err *err)
{
    struct trainer_trace *trace = &t->trace;
    int64_t own = clock_of_machine(), first;

    if (fault_at("trace", t->step + 1) == FAULT_SKEW) {
        trace->skewed_since = (int64_t)(clock_seconds() * 1e9);
        own = t->world_rank + 1;
    }
    first = own;
    if (t->world_size > 1 && trainer_broadcast(t, &first, sizeof first, 0, err) < 0)
        return -1;
    trace->shares_clock = t->world_rank == 0 || (own && own == first);
    int64_t is_other = !trace->shares_clock;
    if (t->world_size > 1 && trainer_agree(t, &is_other, err) < 0)
        return -1;
    trace->all_share = !is_other;
    trace->is_compared = true;
    return 0;
}

/*
 * How rank 0's clock differs, now. All agree on the largest of what each says, which is what rank 0
 * says, its clock. It read that after the exchange before, which this rank had begun by then, and
 * before this rank has the result: the first exchange has none before it.
 */
static int compare_clocks(struct trainer *t, struct clock_offset *offset, struct err *err)
{
    struct clock_exchange exchanges[N_EXCHANGES];
    int64_t before = 0;

    *offset = (struct clock_offset){ .at = now(t) };
    if (t->trace.all_share)
        return 0;
    for (int i = -1; i < N_EXCHANGES; i++) {
        int64_t begin = now(t), first = t->world_rank == 0 ? begin : INT64_MIN;

        if (trainer_agree(t, &first, err) < 0)
            return -1;
        if (i >= 0)
            exchanges[i] = (struct clock_exchange){ before, first, now(t) };
        before = begin;
    }
    if (!t->trace.shares_clock)
        *offset = clock_offset_of(exchanges, N_EXCHANGES);
    return 0;
}

/* ---- a step ---- */

int trainer_begin_trace(struct trainer *t, struct err *err)
{
    if (!is_traced(t))
        return 0;
    if (!t->trace.is_compared && find_shared(t, err) < 0)
        return -1;
    if (compare_clocks(t, &t->trace.begin, err) < 0)
        return -1;
    if (!is_traced_here(t))
        return 0;
    if (!t->trace.run.capacity && run_trace_open(&t->trace.run, t->run, ENTRY_STEP, err) < 0)
        return -1;
    run_set_trace(t->run, &t->trace.run);
    return 0;
}

static void write_trace(struct trainer *t)
{
    const struct run_trace *run = &t->trace.run;
    struct step_trace trace = { .step = t->step + 1,
                                .rank = t->world_rank,
                                .world_size = t->world_size,
                                .n = run->n,
                                .records = run->records,
                                .begin = t->trace.begin,
                                .end = t->trace.end };
    struct err err;

    trace.begin.error += run->error_ns;
    trace.end.error += run->error_ns;
    for (int i = 0; i < run->n && t->trace.skewed_since; i++) {
        run->records[i].begin_ns = skewed(t, run->records[i].begin_ns);
        run->records[i].end_ns = skewed(t, run->records[i].end_ns);
    }
    if (step_trace_write(&trace, t->job->output, &err))
        log_warn("%s: step %lld has no trace of this rank", err.text, (long long)trace.step);
}

int trainer_end_trace(struct trainer *t, struct err *err)
{
    if (!is_traced(t))
        return 0;
    run_set_trace(t->run, NULL);
    if (compare_clocks(t, &t->trace.end, err) < 0)
        return -1;
    if (is_traced_here(t))
        write_trace(t);
    /* The next step's is this one's. */
    if (!has(&t->job->trace.steps, t->step + 2))
        run_trace_close(&t->trace.run);
    return 0;
}

void trainer_close_trace(struct trainer *t)
{
    if (t->run)
        run_set_trace(t->run, NULL);
    run_trace_close(&t->trace.run);
}
