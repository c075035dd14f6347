/*
 * memory_test.c - under every memory.device_bytes from the floor to all that a job would take, the
 * bits are the same
 *
 * By the job's keys: what is kept, computed again and away is chosen by the plan, so a case is
 * whatever comes of a budget. The floor is asked of the plan; what is refused there is tested, too.
 * Elsewhere (offload_test.c, host_update_test.c) all of a kind is away whatever it helps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/memory_fit.h"
#include "support/law_rig.h"
#include "support/pairs.h"
#include "support/test_device.h"

/* ---- the plan ---- */

/* Of the fullest rank. */
struct taken {
    int64_t device, host; /* 0: refused */
};

/* Under these limits (0: none). */
static struct taken ask(const struct law_case *c, int64_t device_limit, int64_t host_limit,
                        struct err *err)
{
    struct kernels *kernels = test_device_open(c->n_threads);
    struct arena arena = { 0 };
    struct taken most = { 0 };
    struct memory_fit fit;
    struct job job;

    law_job(&job, c, &arena);
    struct memory_fit_request request = {
        .job = &job, .kernels = kernels, .device_bytes = device_limit, .host_bytes = host_limit
    };
    int status = memory_fit(&fit, &request, &arena, err);
    if (getenv("SAY"))
        fprintf(stderr, "ask %lld %lld: %d %s\n", (long long)device_limit, (long long)host_limit,
                status, status ? err->text : "");
    if (status < 0)
        assert_int_equal(err->code, ERR_DEVICE);
    for (int r = 0; r < job.parallel.pp && !status; r++) {
        assert_true(!device_limit || fit.ranks[r].device_bytes <= device_limit);
        assert_true(!host_limit || fit.ranks[r].host_bytes <= host_limit);
        most.device = max_i64(most.device, fit.ranks[r].device_bytes);
        most.host = max_i64(most.host, fit.ranks[r].host_bytes);
    }
    arena_release(&arena);
    test_device_close(kernels);
    return most;
}

struct range {
    int64_t floor, all;
};

/* "681 KiB" and the like, rounded up. */
static int64_t bytes_in(const char *text)
{
    static const char *const units[] = { "KiB", "MiB", "GiB" };
    char *end;
    double number = strtod(text, &end) * 1.025;

    for (int i = 0; i < 3; i++)
        if (!strncmp(end + 1, units[i], 3))
            return (int64_t)(number * (double)(INT64_C(1024) << 10 * i));
    fail_msg("\"%s\" is no number of bytes", text);
    return 0;
}

/* From a limit up the first that is not refused, by what refusals say is needed: of one rank after
 * the other. */
static int64_t find_floor(const struct law_case *c, int64_t limit, int64_t host_limit)
{
    static const char needs[] = "needs at least ";
    struct err err;

    while (!ask(c, limit, host_limit, &err).device) {
        const char *at = strstr(err.text, needs);

        if (!at)
            fail_msg("it does not say what is needed: %s", err.text);
        limit = max_i64(bytes_in(at + strlen(needs)), limit + limit / 32);
    }
    return limit;
}

static struct range find_range(const struct law_case *c)
{
    struct err err;
    struct range range = { .floor = find_floor(c, 1, 0),
                           .all = ask(c, INT64_MAX / 8, 0, &err).device };

    assert_true(range.all > 0);
    return range;
}

/* ---- cases ---- */

#define LENGTHS "data.packing=false|data.lengths=[8, 14]"
#define PACKS "data.packing=true"
#define LORA "lora.rank=3|lora.dropout=0.1"
#define FROZEN "train.only=[layers.1.*, final_norm.weight]"
#define STATES "optimizer.states=bf16"
#define SPLIT "optimizer.weight_rounding=half_away|optimizer.masters=split"
#define SKIPS \
    "train.loss_scale.initial=8388608|train.loss_scale.growth_every=2|" \
    "train.loss_scale.max=8388608"

struct memory_case {
    const char *model, *dtype;
    int dp, tp, pp;
    const char *schedule;
    int zero, group;
    const char *hold, *sum, *tuning;
    int cp;
    const char *cp_kind, *sizes; /* of micro-batches; NULL: 1 each */
    int global_batch, has_samples, no_sequence_parallel, chunks;
};

static const struct memory_case cases[] = {
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-untied", "fp32", 1, 1, 1, "1f1b", 0, 0, NULL, "early", NULL, .cp = 1 },
    { "gpt2", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "normed", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "alibi", "fp32", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "mixture", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "pooled", "fp32", 2, 1, 1, "1f1b", 1, 0, NULL, "early", NULL, .cp = 1 },
    { "llama", "fp16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", SKIPS, .cp = 1 },
    { "llama", "fp16", 2, 1, 1, "1f1b", 2, 0, NULL, "late", SKIPS, .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", STATES, .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", SPLIT, .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", "train.gradient_dtype=bf16", .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", LORA, .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", FROZEN, .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", "train.residual=bf16", .cp = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", "train.micro_batch=16", .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 1, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-untied", "bf16", 2, 1, 1, "1f1b", 2, 0, NULL, "early", NULL, .cp = 1 },
    { "gpt2", "fp32", 2, 1, 1, "1f1b", 3, 0, "op", "early", NULL, .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "pass", "late", STATES, .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "run", "late", SPLIT, .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "step", "early", NULL, .cp = 1 },
    { "llama", "bf16", 4, 1, 1, "1f1b", 1, 2, NULL, "late", NULL, .cp = 1 },
    { "llama", "bf16", 4, 1, 1, "1f1b", 3, 2, "pass", "early", NULL, .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "pass", "late", LORA, .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 2, 0, NULL, "early", FROZEN, .cp = 1 },
    { "mixture", "bf16", 2, 1, 1, "1f1b", 3, 0, "pass", "late", NULL, .cp = 1 },
    { "llama", "bf16", 1, 2, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "gpt2", "bf16", 1, 2, 1, "1f1b", 0, 0, NULL, "late", STATES, .no_sequence_parallel = 1 },
    { "llama", "bf16", 2, 2, 1, "1f1b", 3, 0, "op", "early", NULL, .cp = 1 },
    { "llama", "bf16", 2, 2, 1, "1f1b", 1, 0, NULL, "late", LORA, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "interleaved", 0, 0, NULL, "early", STATES, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "zb-h1", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "zb-h2", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "zb-v", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "gpipe", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "breadth-first", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 2, 1, 2, "interleaved", 3, 0, "run", "early", NULL, .chunks = 2 },
    { "llama-deep", "bf16", 2, 1, 2, "zb-v", 2, 0, NULL, "early", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 2, 2, "zb-h1", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "mixture", "bf16", 1, 1, 2, "1f1b", 0, 0, NULL, "late", NULL, .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 1, "dynamic", 0, 0, NULL, "late", NULL,
      .sizes = "[1, 2, 4, 4, 2, 1]", .global_batch = 14 },
    { "llama-deep", "bf16", 1, 1, 2, "dynamic", 0, 0, NULL, "late", NULL,
      .sizes = "[3, 1, 3, 1, 2]", .global_batch = 10 },
    { "llama", "bf16", 2, 1, 1, "dynamic", 3, 0, "pass", "late", NULL, .sizes = "[3, 1, 3, 1, 2]",
      .global_batch = 20 },
    { "llama-deep", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", LENGTHS, .has_samples = 1 },
    { "llama-deep", "bf16", 2, 1, 2, "1f1b", 1, 0, NULL, "late", LENGTHS "|" LORA,
      .has_samples = 1 },
    { "llama-deep", "fp32", 2, 1, 1, "1f1b", 3, 0, NULL, "late", LENGTHS, .has_samples = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "zb-h1", 0, 0, NULL, "late", LENGTHS, .has_samples = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", PACKS, .has_samples = 1 },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 2, .cp_kind = "ulysses" },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "early", NULL, .cp = 2, .cp_kind = "gather" },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 2, .cp_kind = "ring" },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 2, .cp_kind = "fastseq" },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "op", "late", NULL, .cp = 2, .cp_kind = "gather" },
    { "llama", "bf16", 1, 1, 2, "interleaved", 0, 0, NULL, "late", NULL, .cp = 2,
      .cp_kind = "ring" },
    { "mixture", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late", NULL, .cp = 2, .cp_kind = "ulysses" },
    { "llama", "bf16", 1, 2, 1, "1f1b", 0, 0, NULL, "late", LORA, .cp = 2, .cp_kind = "gather" },
    { "llama", "bf16", 1, 1, 1, "1f1b", 0, 0, NULL, "late",
      "train.recheck_every=2|train.on_spike=skip", .cp = 1 },
    { "llama", "bf16", 2, 1, 1, "1f1b", 3, 0, "pass", "late",
      "train.recheck_every=1|train.on_spike=skip", .cp = 1 },
    { "llama-deep", "bf16", 1, 1, 2, "zb-v", 0, 0, NULL, "late",
      "train.recheck_every=1|train.on_spike=skip", .cp = 1 },
};

static struct law_case case_of(const struct memory_case *m)
{
    struct law_case c = law_base(m->model, m->dtype);

    c.n_ranks = m->dp * m->tp * m->pp * max_int(1, m->cp);
    c.tp = m->tp;
    c.pp = m->pp;
    c.schedule = m->schedule;
    c.zero = m->zero;
    c.zero_group = m->group;
    c.hold = m->hold;
    c.gradient_sum = m->sum;
    c.tuning = m->tuning;
    c.cp = m->cp;
    c.cp_kind = m->cp_kind;
    c.micro_batches = m->sizes;
    c.global_batch = m->global_batch;
    c.samples = m->has_samples ? law_samples() : NULL;
    c.no_sequence_parallel = m->no_sequence_parallel;
    c.chunks = m->chunks;
    return c;
}

static const char *const offloads[] = {
    "auto",
    "[activations]",
    "[optimizer]",
    "[gradients]",
    "[weights]",
    "[optimizer, gradients]",
    "[activations, optimizer, gradients, weights]",
};
static const char *const updates[] = { "auto", "device", "host" };
static const char *const modes[] = { "auto", "none" };

enum tier { ON_HOST, HALF_IN_FILE, IN_FILE, N_TIERS };

enum { N_OFFLOADS = sizeof offloads / sizeof *offloads, N_BUDGETS = 5, LEAST_BYTES = 1024 };

/* What differs between the cases of a layout. */
struct way {
    const char *offload, *update;
    int mode, budget;
    enum tier tier;
};

/* Budget 0 is the floor, the last one none. */
static int64_t budget_of(const struct range *range, int number)
{
    return number == N_BUDGETS - 1
               ? 0
               : range->floor + (range->all - range->floor) * number * number / 10;
}

struct text {
    char text[2000];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *to, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    to->n += (size_t)vsnprintf(to->text + to->n, sizeof to->text - to->n, format, list);
    va_end(list);
    assert_true(to->n < sizeof to->text);
}

static struct text without_limits(const struct law_case *c, const struct way *way)
{
    struct text text = { 0 };

    add(&text, "memory.offload=%s", way->offload);
    if (!strcmp(way->offload, "auto") || strstr(way->offload, "optimizer"))
        add(&text, "|memory.update=%s", way->update);
    if (way->tier != ON_HOST)
        add(&text, "|memory.file=%s", c->folder);
    if (c->tuning)
        add(&text, "|%s", c->tuning);
    return text;
}

/* What of it the host has a place for. */
static int64_t host_limit(const struct law_case *c, enum tier tier, int64_t device_limit)
{
    struct err err;

    if (tier == HALF_IN_FILE)
        return max_i64(LEAST_BYTES, ask(c, device_limit, 0, &err).host / 2);
    return tier == IN_FILE ? LEAST_BYTES : 0;
}

/* The job's keys for the way; what of its states is in a file, its update needs on the device. */
static struct text text_of(const struct law_case *c, const struct way *way, int64_t device_limit)
{
    struct text text = without_limits(c, way);
    struct law_case asked = *c;

    asked.tuning = text.text;
    int64_t host = host_limit(&asked, way->tier, device_limit);
    if (device_limit)
        device_limit = find_floor(&asked, device_limit, host);
    if (host)
        add(&text, "|memory.host_bytes=%lld", (long long)host);
    if (device_limit)
        add(&text, "|memory.device_bytes=%lld", (long long)device_limit);
    return text;
}

/* It stops in the middle and goes on under another budget, with homes elsewhere. */
static void check_way(struct law_case c, const struct law_outcome *wanted, struct way way)
{
    int number = way.mode + way.budget + (int)way.tier;
    struct way then = { "auto", strcmp(way.update, "auto") ? "auto" : "host", way.mode,
                        N_BUDGETS - 1 - way.budget, (way.tier + 1) % N_TIERS };
    struct law_case asked = c;
    struct text what = { 0 };

    c.recompute = asked.recompute = modes[way.mode];
    /* Threads have memory of their own in some ops. */
    c.n_threads = asked.n_threads = 1 + number / 2 % 2;
    struct text plain = without_limits(&asked, &way);
    asked.tuning = plain.text;
    struct range range = find_range(&asked);
    struct text text = text_of(&c, &way, budget_of(&range, way.budget)), after = { 0 };
    c.stop_after = way.budget % LAW_STEPS;
    if (c.stop_after)
        after = text_of(&c, &then, budget_of(&range, then.budget));
    c.tuning_after = c.stop_after ? after.text : NULL;
    c.tuning = text.text;
    c.poison = number % 2;
    add(&what,
        "%s %s, ranks %d, tp %d, pp %d %s, cp %d %s, zero %d, %s, recompute %s, floor %lld, "
        "stop %d, %s",
        c.model, c.dtype, c.n_ranks, c.tp, c.pp, c.schedule, max_int(1, c.cp),
        c.cp_kind ? c.cp_kind : "", c.zero, text.text, c.recompute, (long long)range.floor,
        c.stop_after, after.text);
    struct law_outcome got = law_run(&c);
    law_must_equal(what.text, wanted, &got);
}

static struct law_outcome plain_of(const struct memory_case *m)
{
    struct law_case c = case_of(m);

    return law_run(&c);
}

/* At the floor; what may leave and where to, and where the optimizer runs, by number. */
static void at_the_floor(void **state)
{
    static const unsigned char some[] = { 1,  2,  5,  7,  12, 15, 19, 22, 26, 27, 29,
                                          31, 33, 35, 38, 42, 44, 46, 51, 54, 59, 60 };

    (void)state;
    for (size_t i = 0; i < sizeof some && !pairs_whole(); i++) {
        const struct memory_case *m = &cases[some[i]];
        bool is_small = some[i] < 3;

        if (law_left_out())
            continue;
        struct law_outcome wanted = plain_of(m);
        check_way(case_of(m), &wanted,
                  (struct way){ offloads[some[i] % 4 ? 0 : N_OFFLOADS - 1], updates[some[i] % 3],
                                .mode = !is_small, .tier = (enum tier)(i % N_TIERS) });
    }
}

/* Between it and all that the job would take, stopped there, to go on with another budget. */
static void above_the_floor(void **state)
{
    static const unsigned char some[] = { 2, 18, 28, 45 };

    (void)state;
    for (int i = 0; i < (int)sizeof some && !pairs_whole(); i++) {
        const struct memory_case *m = &cases[some[i]];

        if (law_left_out())
            continue;
        struct law_outcome wanted = plain_of(m);
        check_way(case_of(m), &wanted,
                  (struct way){ offloads[1 + i], updates[i % 3], 1, 1 + i % 3,
                                (enum tier)((1 + i) % N_TIERS) });
    }
}

/* Bytes of a budget at which others' placement is faster than the solver's; 0: none was found. */
static int64_t find_placement(const struct law_case *c, const struct range *range)
{
    enum { N_TRIED = 16 };
    struct kernels *kernels = test_device_open(1);
    struct arena arena = { 0 };
    struct memory_fit fit = { .placement = NULL };
    int64_t limit = 0;
    struct err err;
    struct job job;

    law_job(&job, c, &arena);
    for (int i = 1; i < N_TRIED && !fit.placement; i++) {
        limit = range->floor + (range->all - range->floor) * i / N_TRIED;
        struct memory_fit_request request = { .job = &job,
                                              .kernels = kernels,
                                              .device_bytes = limit };
        assert_int_equal(0, memory_fit(&fit, &request, &arena, &err));
    }
    bool is_found = fit.placement != NULL;
    arena_release(&arena);
    test_device_close(kernels);
    return is_found ? limit : 0;
}

/* What others made their own (plan/memory_placements.c), where the plan takes it. */
static void placed_as_by_others(void **state)
{
    struct law_case c = law_base("llama", "bf16");
    char tuning[100];

    (void)state;
    struct law_outcome wanted = law_run(&c);
    c.recompute = "auto";
    c.tuning = "memory.offload=auto";
    struct range range = find_range(&c);
    int64_t limit = find_placement(&c, &range);
    assert_true(limit > 0);
    snprintf(tuning, sizeof tuning, "%s|memory.device_bytes=%lld", c.tuning, (long long)limit);
    c.tuning = tuning;
    c.poison = 1;
    struct law_outcome got = law_run(&c);
    law_must_equal(tuning, &wanted, &got);
}

/*
 * Hours, by make soak-law: each layout in one of 24 ways of the whole product. All take their
 * next way in turn, so what is stopped early has seen each.
 */
static void the_whole_product(void **state)
{
    enum { N_CASES = sizeof cases / sizeof *cases, EVERY = 24 };
    static struct law_outcome wanted[N_CASES];
    struct pairs rows;

    (void)state;
    pairs_build(&rows, (int[]){ N_OFFLOADS, 3, 2, N_BUDGETS, N_TIERS }, 5);
    for (int k = 0; k < rows.n_rows / EVERY && pairs_whole(); k++)
        for (int i = 0; i < N_CASES; i++) {
            const int *level = rows.level[(k * 67 + i * 11) % rows.n_rows];

            if (!k)
                wanted[i] = plain_of(&cases[i]);
            check_way(case_of(&cases[i]), &wanted[i],
                      (struct way){ offloads[level[0]], updates[level[1]], level[2], level[3],
                                    (enum tier)level[4] });
            if (getenv("SAY"))
                fprintf(stderr, "way %d of %d of layout %d\n", k + 1, rows.n_rows / EVERY, i);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_the_floor),
        cmocka_unit_test(above_the_floor),
        cmocka_unit_test(placed_as_by_others),
        cmocka_unit_test(the_whole_product),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
