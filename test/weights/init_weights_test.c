/*
 * init_weights_test.c - initial parameters: their distribution, and that they depend on seed and
 * name alone
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "support/tiny_model.h"
#include "weights/init_weights.h"

struct rig {
    struct model_spec spec;
    struct program program;
    struct pool *pool;
    struct kernels *kernels;
    struct run *run;
};

static void rig_open(struct rig *rig, const char *model, enum dtype dtype, int n_threads,
                     uint64_t seed)
{
    struct err err;

    memset(rig, 0, sizeof *rig);
    rig->spec = real_spec(model);
    struct compile_train options = tiny_compile(&rig->spec, 1);
    options.dtype = dtype;
    if (pool_create(&rig->pool, n_threads, NULL, &err) < 0 ||
        kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err) < 0)
        fail_msg("%s", err.text);
    struct run_scratch scratch = { .kernels = rig->kernels, .mesh = options.mesh };
    options.scratch = run_scratch_bytes;
    options.scratch_context = &scratch;
    if (compile_train(&rig->program, &options, &err) < 0)
        fail_msg("%s", err.text);
    struct run_options run_options = { .program = &rig->program, .kernels = rig->kernels };
    if (run_create(&rig->run, &run_options, &err) < 0)
        fail_msg("%s", err.text);
    init_parameters(rig->run, &rig->program, &(struct mesh_place){ 0 }, rig->pool, seed);
}

static void rig_close(struct rig *rig)
{
    run_destroy(rig->run);
    program_release(&rig->program);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
}

static const float *master(const struct rig *rig, int i)
{
    return run_data(rig->run, rig->program.parameters[i].master, 0);
}

static int64_t n_elements(const struct parameter *p)
{
    return p->rows * p->cols;
}

/*
 * Mean and deviation within five of their own deviations, std / sqrt(n) and std / sqrt(2 n); the
 * largest of n normals is near std * sqrt(2 ln n).
 */
static void check_normal(const struct parameter *p, const float *data)
{
    double sum = 0, squares = 0, largest = 0, n = (double)n_elements(p);

    for (int64_t i = 0; i < n_elements(p); i++) {
        sum += (double)data[i];
        squares += (double)data[i] * (double)data[i];
        largest = fmax(largest, fabs((double)data[i]));
    }
    double mean = sum / n, std = sqrt(squares / n - mean * mean);
    if (!(fabs(mean) < 5 * p->init_std / sqrt(n)))
        fail_msg("%s: mean %g of %g normals of deviation %g", p->name, mean, n, p->init_std);
    if (!(fabs(std / p->init_std - 1) < 5 / sqrt(2 * n)))
        fail_msg("%s: deviation %g, wanted %g", p->name, std, p->init_std);
    assert_true(largest > 0.7 * p->init_std * sqrt(2 * log(n)));
    assert_true(largest < 1.6 * p->init_std * sqrt(2 * log(n)));
}

static void check_constant(const struct parameter *p, const float *data, float expected)
{
    for (int64_t i = 0; i < n_elements(p); i++)
        if (data[i] != expected)
            fail_msg("%s[%lld] is %g", p->name, (long long)i, (double)data[i]);
}

static void check_distribution(const char *model)
{
    struct rig rig;

    rig_open(&rig, model, DTYPE_F32, 2, 1);
    for (int i = 0; i < rig.program.n_parameters; i++) {
        const struct parameter *p = &rig.program.parameters[i];

        if (p->init == INIT_NORMAL)
            check_normal(p, master(&rig, i));
        else
            check_constant(p, master(&rig, i), p->init == INIT_ONES);
    }
    rig_close(&rig);
}

static void distribution(void **state)
{
    (void)state;
    check_distribution("llama-4m");
    check_distribution("gpt2-tiny");
}

/* Equal on any number of threads; another seed or name gives other numbers. */
static void what_it_depends_on(void **state)
{
    struct rig a, b, c;

    (void)state;
    rig_open(&a, "llama-tiny", DTYPE_F32, 1, 7);
    rig_open(&b, "llama-tiny", DTYPE_BF16, 3, 7);
    rig_open(&c, "llama-tiny", DTYPE_F32, 1, 8);
    for (int i = 0; i < a.program.n_parameters; i++) {
        const struct parameter *p = &a.program.parameters[i];
        size_t n_bytes = (size_t)n_elements(p) * sizeof(float);

        assert_memory_equal(master(&a, i), master(&b, i), n_bytes);
        if (p->init != INIT_NORMAL)
            continue;
        assert_memory_not_equal(master(&a, i), master(&c, i), n_bytes);
        for (int k = 0; k < i; k++)
            if (a.program.parameters[k].init == INIT_NORMAL)
                assert_memory_not_equal(master(&a, i), master(&a, k), 16);
    }
    rig_close(&a);
    rig_close(&b);
    rig_close(&c);
}

/* A bf16 weight is its master, rounded; moments begin at zero. */
static void weights_and_moments(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, "llama-tiny", DTYPE_BF16, 2, 1);
    for (int i = 0; i < rig.program.n_parameters; i++) {
        const struct parameter *p = &rig.program.parameters[i];

        check_constant(p, run_data(rig.run, p->moment1, 0), 0);
        check_constant(p, run_data(rig.run, p->moment2, 0), 0);
        if (p->n_dims == 1)
            continue;
        const uint16_t *weight = run_data(rig.run, p->weight, 0);
        for (int64_t k = 0; k < n_elements(p); k++)
            assert_int_equal(weight[k], bf16_from_float(master(&rig, i)[k]));
    }
    rig_close(&rig);
}

/* Row p: cosines, then sines, of p theta^(-2i / head_dim). */
static void rope_table(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, "llama-tiny", DTYPE_F32, 1, 1);
    init_constants(rig.run, &rig.program, &rig.spec);
    const struct value *v = &rig.program.values[rig.program.ports.rope_table];
    const float *table = run_data(rig.run, rig.program.ports.rope_table, 0);
    for (int64_t position = 0; position < v->rows; position++)
        for (int64_t i = 0; i < v->cols / 2; i++) {
            double angle =
                (double)position * pow(rig.spec.rope_theta, -2.0 * (double)i / (double)v->cols);

            assert_true(fabs((double)table[position * v->cols + i] - cos(angle)) < 1e-5);
            assert_true(fabs((double)table[position * v->cols + v->cols / 2 + i] - sin(angle)) <
                        1e-5);
        }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution),
        cmocka_unit_test(what_it_depends_on),
        cmocka_unit_test(weights_and_moments),
        cmocka_unit_test(rope_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
