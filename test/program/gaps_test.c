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
    if (!p->gaps[g].n_bytes)
        return 0;
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
            if (s->away[g] && s->out_await[g] >= 0 && p->gaps[g].from - p->gaps[g].n_early == i)
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
    bool early = !draw(seed, 2);

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
        while (early && gap.n_early < gap.from && !r->drains[gap.from - gap.n_early - 1] &&
               draw(seed, 3))
            gap.n_early++;
        if (gap.from < gap.to || (gap.from >= 0 && gap.to < n_ops))
            add_gap(r, gap, draw(seed, 2));
    }
}

static void drawn_problems(void **state)
{
    static struct room r;
    uint64_t seed = 1;

    (void)state;
    for (int round = 0; round < 200; round++) {
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

static struct gap_schedule choose(struct room *r, int64_t capacity, struct arena *arena)
{
    struct gap_schedule s = { 0 };
    struct err err;

    r->problem.capacity = capacity;
    assert_int_equal(gaps_choose(&s, &r->problem, arena, &err), 0);
    check_schedule(&r->problem, &s);
    return s;
}

/* A value of n_bytes rests from op 0 to op 4; op 2 needs its memory. The link has the time of op 1
 * to take it away, that of op 3 to bring it back, at a byte a nanosecond. */
static void open_hidden(struct room *r, int64_t n_bytes, int64_t out_ns, int64_t in_ns)
{
    open_room(r, 5);
    r->ns[0] = r->ns[2] = r->ns[4] = 10;
    r->ns[1] = out_ns;
    r->ns[3] = in_ns;
    add_gap(r, (struct gap){ .n_bytes = n_bytes, .from = 0, .to = 4 }, false);
    r->resident[2] += n_bytes;
}

static void hidden_if_link_has_time(void **state)
{
    static struct room r;

    (void)state;
    for (int64_t out = 99; out <= 101; out++)
        for (int64_t in = 99; in <= 101; in++) {
            struct arena arena = { 0 };
            struct gap_schedule s;

            open_hidden(&r, 100, out, in);
            s = choose(&r, 100, &arena);
            assert_int_equal(s.stall_ns, max_i64(0, 100 - out) + max_i64(0, 100 - in));
            assert_int_equal(s.out_await[0], 2);
            assert_int_equal(s.in_issue[0], 3);
            r.problem.latency_ns = 7;
            s = choose(&r, 100, &arena);
            assert_int_equal(s.stall_ns, max_i64(0, 107 - out) + max_i64(0, 107 - in));
            arena_release(&arena);
        }
}

static void edges_of_capacity(void **state)
{
    static struct room r;
    struct arena arena = { 0 };
    struct gap_schedule s, untouched;
    struct err err;
    int op;

    (void)state;
    open_hidden(&r, 100, 200, 200);
    assert_int_equal(gaps_floor(&r.problem, &op), 100);
    assert_int_equal(op, 0);
    assert_int_equal(choose(&r, 200, &arena).n_away, 0);
    assert_int_equal(choose(&r, 199, &arena).n_away, 1);
    assert_int_equal(choose(&r, 100, &arena).n_away, 1);
    memset(&s, 7, sizeof(s));
    untouched = s;
    r.resident[2] += 5;
    r.problem.capacity = 104;
    assert_int_equal(gaps_choose(&s, &r.problem, &arena, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_string_equal(err.text, "op 2 needs 105 bytes of device memory with all that may leave "
                                  "away, 104 are allowed");
    assert_memory_equal(&s, &untouched, sizeof(s));
    r.problem.capacity = 105;
    assert_int_equal(gaps_time(&s, &r.problem, &(bool){ false }, &arena, &err), -1);
    assert_non_null(strstr(err.text, "op 2 needs 205 bytes"));
    assert_int_equal(gaps_time(&s, &r.problem, &(bool){ true }, &arena, &err), 0);
    assert_int_equal(s.peak, 105);
    arena_release(&arena);
}

/* Weights of layers are read from the first to the last and back, period by period: with memory of
 * c of L layers, 2 (L - c) come in. */
static void palindrome_loads(void **state)
{
    static struct room r;

    (void)state;
    for (int n_layers = 2; n_layers <= 12; n_layers++)
        for (int c = 1; c <= n_layers; c++) {
            struct arena arena = { 0 };
            struct gap_schedule s;

            open_room(&r, 2 * n_layers);
            for (int l = 0; l < n_layers; l++) {
                int back = 2 * n_layers - 1 - l;

                r.ns[l] = r.ns[back] = 10;
                r.gaps[r.problem.n_gaps++] =
                    (struct gap){ .n_bytes = 100, .from = l, .to = back, .clean = true };
                r.gaps[r.problem.n_gaps++] =
                    (struct gap){ .n_bytes = 100, .from = back, .to = l, .clean = true };
            }
            for (int i = 0; i < 2 * n_layers; i++)
                r.resident[i] = 100 * n_layers;
            r.problem.out_rate = r.problem.in_rate = 1e15;
            s = choose(&r, 100 * c, &arena);
            assert_int_equal(s.in_bytes, 100 * 2 * (n_layers - c));
            assert_int_equal(s.out_bytes, 0);
            assert_int_equal(s.stall_ns, 0);
            arena_release(&arena);
        }
}

/* Two values could leave, of which the one that is needed later has no copy at home: where the link
 * has no time for its out, the other one goes. */
static void clean_values_need_no_out(void **state)
{
    static struct room r;
    struct arena arena = { 0 };
    struct gap_schedule s;

    (void)state;
    for (int clean = 0; clean < 2; clean++) {
        open_room(&r, 6);
        for (int i = 0; i < 6; i++)
            r.ns[i] = 100;
        add_gap(&r, (struct gap){ .n_bytes = 100, .from = 0, .to = 5 }, false);
        add_gap(&r, (struct gap){ .n_bytes = 100, .from = 0, .to = 4, .clean = clean }, false);
        r.resident[1] += 100;
        s = choose(&r, 200, &arena);
        assert_int_equal(s.away[0], !clean);
        assert_int_equal(s.away[1], clean);
        assert_int_equal(s.stall_ns, clean ? 0 : 100);
        assert_int_equal(s.out_bytes, clean ? 0 : 100);
    }
    arena_release(&arena);
}

/* What the op of the gap only reads is on its way while it runs. */
static void reads_do_not_hold_outs_up(void **state)
{
    static struct room r;
    struct arena arena = { 0 };

    (void)state;
    for (int n_early = 0; n_early < 2; n_early++) {
        open_room(&r, 5);
        for (int i = 0; i < 5; i++)
            r.ns[i] = 100;
        add_gap(&r, (struct gap){ .n_bytes = 100, .from = 1, .to = 4, .n_early = n_early }, false);
        r.resident[2] += 100;
        assert_int_equal(choose(&r, 100, &arena).stall_ns, n_early ? 0 : 100);
    }
    arena_release(&arena);
}

static void functions_end_with_their_copies(void **state)
{
    static struct room r;
    struct arena arena = { 0 };
    struct gap_schedule s;

    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        open_hidden(&r, 100, 150, 150);
        r.drains[0] = r.drains[3] = ends;
        r.problem.drains = r.drains;
        s = choose(&r, 100, &arena);
        assert_int_equal(s.stall_ns, ends ? 200 : 0);
        assert_int_equal(s.out_await[0], ends ? 1 : 2);
        assert_int_equal(s.in_issue[0], ends ? 4 : 3);
    }
    arena_release(&arena);
}

static void groups_go_as_one(void **state)
{
    static struct room r;
    struct arena arena = { 0 };
    struct gap_schedule s;

    (void)state;
    open_hidden(&r, 100, 200, 200);
    add_gap(&r, (struct gap){ .n_bytes = 10, .from = 0, .to = 2 }, false);
    r.gaps[0].group = r.gaps[1].group = 3;
    s = choose(&r, 209, &arena);
    assert_int_equal(s.n_away, 2);
    arena_release(&arena);
}

/* Nested gaps, gaps in the order of a queue, or any. */
static void open_small(struct room *r, uint64_t *seed, int kind)
{
    int n_gaps = 4 + draw(seed, 5), n = kind < 2 ? 2 * n_gaps : 20;
    int64_t sum = 0, n_bytes = 0;

    open_room(r, n);
    for (int i = 0; i < n; i++)
        sum += r->ns[i] = 50 + draw(seed, 100);
    for (int g = 0; g < n_gaps; g++) {
        int from = kind < 2 ? g : draw(seed, n - 3);
        int to = kind == 0   ? n - 1 - g
                 : kind == 1 ? g + n_gaps
                             : from + 2 + draw(seed, n - from - 2);

        add_gap(r, (struct gap){ .n_bytes = 20 + draw(seed, 100), .from = from, .to = to }, true);
        n_bytes += r->gaps[g].n_bytes;
    }
    r->problem.out_rate = r->problem.in_rate =
        (0.4 + draw(seed, 160) / 100.0) * (double)n_bytes * 3e9 / (double)sum;
}

/*
 * Against all subsets. The choice is as good but for some in a hundred, where levels do not meet
 * the capacity that the best subset needs, or no change of two gaps leads to it: these lose up to
 * 15 % of the ops' time.
 */
static void best_of_subsets(void **state)
{
    enum { N_PROBLEMS = 200, WORSE_MOST = 4, LOSS_MOST = 15 };
    static struct room r;
    uint64_t seed = 3;

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        int n_worse = 0;

        for (int i = 0; i < N_PROBLEMS; i++) {
            struct arena arena = { 0 };
            struct gap_schedule s, other;
            int64_t best = INT64_MAX, peak = 0, sum = 0, floor;
            int op;

            open_small(&r, &seed, kind);
            for (op = 0; op < r.problem.n_ops; op++) {
                peak = max_i64(peak, r.resident[op]);
                sum += r.ns[op];
            }
            floor = gaps_floor(&r.problem, &op);
            s = choose(&r, floor + draw(&seed, (int)(peak - floor) + 1), &arena);
            for (unsigned set = 0; set < 1u << r.problem.n_gaps; set++) {
                struct arena scratch = { 0 };
                bool away[N_MAX];
                struct err err;

                for (int g = 0; g < r.problem.n_gaps; g++)
                    away[g] = set >> g & 1;
                if (gaps_time(&other, &r.problem, away, &scratch, &err) == 0)
                    best = min_i64(best, other.stall_ns);
                arena_release(&scratch);
            }
            n_worse += s.stall_ns > best;
            assert_true(s.stall_ns - best <= sum * LOSS_MOST / 100);
            arena_release(&arena);
        }
        assert_in_range(n_worse, 0, N_PROBLEMS * WORSE_MOST / 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_problems),
        cmocka_unit_test(hidden_if_link_has_time),
        cmocka_unit_test(edges_of_capacity),
        cmocka_unit_test(palindrome_loads),
        cmocka_unit_test(clean_values_need_no_out),
        cmocka_unit_test(reads_do_not_hold_outs_up),
        cmocka_unit_test(functions_end_with_their_copies),
        cmocka_unit_test(groups_go_as_one),
        cmocka_unit_test(best_of_subsets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
