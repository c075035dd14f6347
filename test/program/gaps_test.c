/*
 * gaps_test.c - memory stays within the capacity, schedules mean what gaps.h says, closed forms,
 * and the choice against all subsets of small problems
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/gaps.h"

enum { N_MAX = 512 };

/* A problem with room of its own. */
struct room {
    struct gap_problem problem;
    int64_t ns[N_MAX], resident[N_MAX];
    bool drains[N_MAX];
    struct gap gaps[N_MAX];
};

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(*seed >> 33) % (uint32_t)n);
}

static void open_room(struct room *r, int n_ops)
{
    memset(r, 0, sizeof(*r));
    r->problem = (struct gap_problem){ .n_ops = n_ops,
                                       .ns = r->ns,
                                       .resident = r->resident,
                                       .gaps = r->gaps,
                                       .out_rate = 1e9,
                                       .in_rate = 1e9 };
}

/* A value that the period has all along but for its gap. */
static void add_gap(struct room *r, struct gap gap, bool lives_in_gap_only)
{
    struct gap_problem *p = &r->problem;

    for (int i = 0; i < p->n_ops; i++) {
        bool wraps = gap.from >= gap.to;
        bool lives = !lives_in_gap_only ||
                     (wraps ? i <= gap.to || i >= gap.from : i >= gap.from && i <= gap.to);

        r->resident[i] += lives ? gap.n_bytes : 0;
    }
    r->gaps[p->n_gaps++] = gap;
}

static bool is_away(const struct gap_problem *p, const struct gap_schedule *s, int g, int op)
{
    const struct gap *gap = &p->gaps[g];
    int begin = s->out_await[g] >= 0 ? s->out_await[g] : gap->from + 1;
    int end = s->in_issue[g] >= 0 ? s->in_issue[g] : p->n_ops;

    if (!s->away[g])
        return false;
    return gap->from < gap->to ? begin <= op && op < end : op < end || op >= begin;
}

static bool same_function(const struct gap_problem *p, int a, int b)
{
    for (int i = a; i < b; i++)
        if (p->drains && p->drains[i])
            return false;
    return true;
}

static int64_t copy_ns(const struct gap_problem *p, int g, double rate)
{
    return p->latency_ns + (int64_t)((double)p->gaps[g].n_bytes * 1e9 / rate + 0.5);
}

/* The stall by the sentences of gaps.h, each op and gap looked at anew. */
static int64_t replay(const struct gap_problem *p, const struct gap_schedule *s)
{
    int64_t now = 0, sum = 0, out_free = 0, in_free = 0, out_ends[N_MAX], in_ends[N_MAX];

    for (int i = 0; i <= p->n_ops; i++) {
        for (int g = 0; g < p->n_gaps; g++)
            if (s->away[g] && s->out_await[g] == i)
                now = max_i64(now, out_ends[g]);
        if (i == p->n_ops)
            break;
        for (int to = i; to <= p->n_ops; to++)
            for (int g = 0; g < p->n_gaps; g++)
                if (s->away[g] && s->in_issue[g] == i && p->gaps[g].to == to)
                    in_ends[g] = in_free = max_i64(in_free, now) + copy_ns(p, g, p->in_rate);
        for (int g = 0; g < p->n_gaps; g++)
            if (s->away[g] && p->gaps[g].to == i)
                now = max_i64(now, in_ends[g]);
        now += p->ns[i];
        sum += p->ns[i];
        for (int g = 0; g < p->n_gaps; g++)
            if (s->away[g] && s->out_await[g] >= 0 && p->gaps[g].from == i)
                out_ends[g] = out_free = max_i64(out_free, now) + copy_ns(p, g, p->out_rate);
    }
    return now - sum;
}

static void check_schedule(const struct gap_problem *p, const struct gap_schedule *s)
{
    int64_t peak = 0;
    int n_away = 0;

    for (int i = 0; i < p->n_ops; i++) {
        int64_t n_bytes = p->resident[i];

        for (int g = 0; g < p->n_gaps; g++)
            n_bytes -= is_away(p, s, g, i) ? p->gaps[g].n_bytes : 0;
        peak = max_i64(peak, n_bytes);
    }
    assert_int_equal(peak, s->peak);
    assert_true(peak <= p->capacity);
    for (int g = 0; g < p->n_gaps; g++) {
        const struct gap *gap = &p->gaps[g];
        bool wraps = gap->from >= gap->to;

        n_away += s->away[g];
        if (!s->away[g]) {
            assert_int_equal(s->out_await[g], -1);
            assert_int_equal(s->in_issue[g], -1);
            continue;
        }
        if (gap->clean || gap->from < 0) {
            assert_int_equal(s->out_await[g], -1);
        } else {
            assert_in_range(s->out_await[g], gap->from + 1, p->n_ops);
            assert_true(same_function(p, gap->from, s->out_await[g] - 1));
        }
        if (gap->to == p->n_ops) {
            assert_int_equal(s->in_issue[g], -1);
            continue;
        }
        assert_in_range(s->in_issue[g], 0, gap->to);
        assert_true(same_function(p, s->in_issue[g], gap->to));
        if (!wraps)
            assert_true(s->in_issue[g] >= max_int(s->out_await[g], gap->from + 1));
    }
    assert_int_equal(n_away, s->n_away);
    assert_int_equal(replay(p, s), s->stall_ns);
}

static void draw_problem(struct room *r, uint64_t *seed, int n_ops_most, int n_gaps_most)
{
    int n_ops = 1 + draw(seed, n_ops_most), n_gaps = draw(seed, n_gaps_most + 1);
    int n_groups = 1 + draw(seed, 4);
    bool drains = draw(seed, 2), groups = !draw(seed, 4), wraps = !draw(seed, 3);

    open_room(r, n_ops);
    for (int i = 0; i < n_ops; i++) {
        r->ns[i] = draw(seed, 100);
        r->resident[i] = draw(seed, 50);
        r->drains[i] = !draw(seed, 8);
    }
    r->problem.drains = drains ? r->drains : NULL;
    r->problem.out_rate = 1e8 * (1 + draw(seed, 30));
    r->problem.in_rate = 1e8 * (1 + draw(seed, 30));
    r->problem.latency_ns = draw(seed, 3);
    for (int g = 0; g < n_gaps; g++) {
        struct gap gap = { .n_bytes = draw(seed, 60),
                           .from = draw(seed, n_ops + 1) - 1,
                           .to = draw(seed, n_ops + 1),
                           .clean = !draw(seed, 4),
                           .group = groups ? draw(seed, n_groups) : 0 };

        if (!wraps && gap.from >= gap.to) {
            int from = gap.from;

            gap.from = gap.to - 1;
            gap.to = from + 1;
        }
        if (gap.from < gap.to || (gap.from >= 0 && gap.to < n_ops))
            add_gap(r, gap, draw(seed, 2));
    }
}

static void drawn_problems(void **state)
{
    static struct room r;
    uint64_t seed = 1;

    (void)state;
    for (int round = 0; round < 800; round++) {
        struct arena arena = { 0 };
        struct gap_schedule s;
        struct err err;
        int64_t floor, peak = 0, stall = INT64_MAX;
        int op;

        draw_problem(&r, &seed, 40, 20);
        floor = gaps_floor(&r.problem, &op);
        for (int i = 0; i < r.problem.n_ops; i++)
            peak = max_i64(peak, r.resident[i]);
        r.problem.capacity = floor - 1;
        assert_int_equal(gaps_choose(&s, &r.problem, &arena, &err), -1);
        for (int64_t capacity = floor; capacity <= peak; capacity += 1 + (peak - floor) / 12) {
            r.problem.capacity = capacity;
            assert_int_equal(gaps_choose(&s, &r.problem, &arena, &err), 0);
            check_schedule(&r.problem, &s);
            assert_true(s.stall_ns <= stall);
            stall = s.stall_ns;
            assert_int_equal(gaps_time(&s, &r.problem, s.away, &arena, &err), 0);
            check_schedule(&r.problem, &s);
        }
        r.problem.capacity = peak;
        assert_int_equal(gaps_choose(&s, &r.problem, &arena, &err), 0);
        check_schedule(&r.problem, &s);
        assert_int_equal(s.n_away, 0);
        assert_int_equal(s.stall_ns, 0);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_problems),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
