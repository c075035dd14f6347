/*
 * stragglers_test.c - a rank that is slow is found, and noise is not
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>

#include <cmocka.h>

#include "train/stragglers.h"

enum { N_RANKS_MAX = 16 };

/* ---- numbers that look like times ---- */

static uint64_t drawn;

/* Uniform in (0, 1). */
static double uniform(void)
{
    uint64_t z = (drawn += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    double radius = sqrt(-2 * log(uniform()));

    return radius * cos(2 * M_PI * uniform());
}

struct job {
    int n_ranks;
    struct stragglers *stragglers;
    struct straggler_times times[N_RANKS_MAX];
    struct straggler_finding findings[2 * N_RANKS_MAX];
};

static void begin(struct job *job, int n_ranks, const int *work)
{
    const int equal[N_RANKS_MAX] = { 0 };

    *job = (struct job){ .n_ranks = n_ranks,
                         .stragglers = stragglers_create(work ? work : equal, n_ranks, 1.1) };
}

/* Each rank computes for a second, but for some percent of noise. */
static void draw(struct job *job, double noise)
{
    for (int rank = 0; rank < job->n_ranks; rank++)
        job->times[rank] =
            (struct straggler_times){ { (float)(1 + noise * normal()), 0.01f, 0.02f } };
}

static int add(struct job *job)
{
    return stragglers_add(job->stragglers, job->times, 2, job->findings);
}

/* Samples until something is found. */
static int samples_until(struct job *job, double noise, int slow, enum straggler_class class,
                         double more)
{
    for (int sample = 1; sample <= 1000; sample++) {
        draw(job, noise);
        if (slow >= 0)
            job->times[slow].of[class] += (float)more;
        if (add(job))
            return sample;
    }
    return 0;
}

/* ---- tests ---- */

static void test_names_rank_and_class(void **state)
{
    static const enum straggler_class classes[] = { STRAGGLER_COMPUTE, STRAGGLER_WAITING,
                                                    STRAGGLER_INPUT };
    struct job job;

    (void)state;
    for (int i = 0; i < N_STRAGGLER_CLASSES; i++) {
        int merged = classes[i] == STRAGGLER_WAITING ? STRAGGLER_MERGED : 1;

        begin(&job, 4, NULL);
        assert_int_equal(samples_until(&job, 0, 2, classes[i], 0.3), STRAGGLER_SLOW * merged);
        const struct straggler_finding *f = &job.findings[0];
        assert_int_equal(f->rank, 2);
        assert_int_equal(f->n_peers, 3);
        assert_false(f->is_over);
        assert_int_equal(f->class, classes[i]);
        assert_int_equal(f->n_steps, 2 * STRAGGLER_SLOW * merged);
        assert_true(fabs(f->ratio - (merged > 1 ? 1.33 / 1.03 : 1.32 / 1.02)) < 1e-3);
        assert_true(fabs(f->peers[STRAGGLER_COMPUTE] - 0.5) < 1e-3); /* of two steps */
        assert_true(fabs(f->own[classes[i]] - f->peers[classes[i]] - 0.15) < 1e-3);
        assert_int_equal(stragglers_count(job.stragglers), 1);

        /* It is said once; and once when it is over. */
        for (int k = 0; k < 50 * merged; k++) {
            draw(&job, 0);
            job.times[2].of[classes[i]] += 0.3f;
            assert_int_equal(add(&job), 0);
        }
        assert_int_equal(samples_until(&job, 0, -1, classes[i], 0),
                         merged * (STRAGGLER_WINDOW - STRAGGLER_FAST + 1));
        assert_true(f->is_over);
        assert_int_equal(f->rank, 2);
        assert_int_equal(stragglers_count(job.stragglers), 0);
        assert_int_equal(samples_until(&job, 0, -1, classes[i], 0), 0);
        stragglers_destroy(job.stragglers);
    }
}

static void test_finds_15_percent_soon(void **state)
{
    struct job job;
    int n_late = 0;

    (void)state;
    for (int try = 0; try < 200; try++) {
        begin(&job, 8, NULL);
        int sample = samples_until(&job, 0.015, 5, STRAGGLER_COMPUTE, 0.15 * 1.03);

        assert_int_equal(job.findings[0].rank, 5);
        n_late += sample > 25;
        stragglers_destroy(job.stragglers);
    }
    assert_true(n_late <= 2);
}

/* Tails of a Cauchy distribution: an eighth of the samples are 1.1 times too long and more. */
static double heavy_tail(void)
{
    return 0.02 * fabs(tan(M_PI * (uniform() - 0.5)));
}

/* A burst of up to `longest` samples in which a rank gets half of its cores. */
static void make_bursts(struct job *job, int *left, int longest)
{
    for (int rank = 0; rank < job->n_ranks; rank++) {
        if (!left[rank] && uniform() < 0.02)
            left[rank] = 1 + (int)(uniform() * longest);
        if (left[rank]) {
            job->times[rank].of[STRAGGLER_WAITING] += (float)(0.3 + uniform());
            left[rank]--;
        }
    }
}

static void test_noise_is_no_straggler(void **state)
{
    static const int sizes[] = { 2, 3, 8 };
    enum { N_SAMPLES = 100000 };
    struct job job;

    (void)state;
    for (int i = 0; i < 3; i++) {
        int left[N_RANKS_MAX] = { 0 };

        begin(&job, sizes[i], NULL);
        for (int sample = 0; sample < N_SAMPLES; sample++) {
            draw(&job, 0.05);
            for (int rank = 0; rank < job.n_ranks; rank++)
                job.times[rank].of[STRAGGLER_COMPUTE] += (float)heavy_tail();
            make_bursts(&job, left, 10);
            assert_int_equal(add(&job), 0);
        }
        stragglers_destroy(job.stragglers);
    }
}

static void test_compares_equal_work_alone(void **state)
{
    static const int work[] = { 7, 3, 7, 3, 7, 3, 9, 3 };
    struct straggler_finding slowest;
    struct job job;

    (void)state;
    begin(&job, 8, work);
    for (int sample = 0; sample < 100; sample++) {
        draw(&job, 0);
        for (int rank = 0; rank < 8; rank++)
            job.times[rank].of[STRAGGLER_COMPUTE] *= (float)work[rank];
        assert_int_equal(add(&job), 0);
        assert_int_equal(stragglers_slowest(job.stragglers, &slowest),
                         sample + 1 >= STRAGGLER_WINDOW);
    }
    assert_true(fabs(slowest.ratio - 1) < 1e-3);
    for (int sample = 0; sample < STRAGGLER_WINDOW; sample++) {
        draw(&job, 0);
        for (int rank = 0; rank < 8; rank++)
            job.times[rank].of[STRAGGLER_COMPUTE] *= (float)(work[rank] + (rank == 5));
        if (sample + 1 != STRAGGLER_SLOW)
            assert_int_equal(add(&job), 0);
        else
            assert_int_equal(add(&job), 1);
    }
    assert_int_equal(job.findings[0].rank, 5);
    assert_int_equal(job.findings[0].n_peers, 3);
    assert_true(stragglers_slowest(job.stragglers, &slowest));
    assert_int_equal(slowest.rank, 5);
    assert_true(slowest.ratio > 1.3 && slowest.ratio < 4.0 / 3 + 1e-3);
    stragglers_destroy(job.stragglers);
}

static void test_ranks_without_peers(void **state)
{
    static const int work[] = { 1, 2 };
    struct straggler_finding slowest;
    struct job job;

    (void)state;
    begin(&job, 2, work);
    assert_int_equal(samples_until(&job, 0, 0, STRAGGLER_COMPUTE, 10), 0);
    assert_false(stragglers_slowest(job.stragglers, &slowest));
    stragglers_destroy(job.stragglers);

    begin(&job, 2, NULL); /* times that are not known */
    for (int sample = 0; sample < 50; sample++)
        assert_int_equal(add(&job), 0);
    stragglers_destroy(job.stragglers);
    stragglers_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_rank_and_class),
        cmocka_unit_test(test_finds_15_percent_soon),
        cmocka_unit_test(test_noise_is_no_straggler),
        cmocka_unit_test(test_compares_equal_work_alone),
        cmocka_unit_test(test_ranks_without_peers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
