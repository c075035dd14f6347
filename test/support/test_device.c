/*
 * test_device.c - see the header
 */
#include "support/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/num.h"

enum { GUARD_BYTES = 256, GUARD = 0xa5, POISON = 0xff };

bool test_device_is_cuda(void)
{
    const char *name = getenv("LMTRAIN_TEST_DEVICE");

    return name && !strcmp(name, "cuda");
}

char *test_set_aside(const char *name, const char *value)
{
    const char *was = getenv(name);
    char *kept = was ? strdup(was) : NULL;

    setenv(name, value, 1);
    return kept;
}

void test_put_back(const char *name, char *kept)
{
    if (kept)
        setenv(name, kept, 1);
    else
        unsetenv(name);
    free(kept);
}

static struct device *gpu(void)
{
    static struct device *device;
    struct err err;

    if (!device && device_cuda_open(&device, 0, &err) < 0)
        fail_msg("%s", err.text);
    return device;
}

struct kernels *test_device_open(int n_threads)
{
    struct kernels *kernels = NULL;
    struct pool *pool;
    struct err err;

    if (test_device_is_cuda()) {
        if (kernels_cuda_create(&kernels, gpu(), &err) < 0)
            fail_msg("%s", err.text);
        return kernels;
    }
    if (pool_create(&pool, n_threads, NULL, &err) || kernels_cpu_create(&kernels, pool, NULL, &err))
        fail_msg("%s", err.text);
    return kernels;
}

void test_device_close(struct kernels *kernels)
{
    struct pool *pool = kernels->pool;

    kernels_destroy(kernels);
    pool_destroy(pool);
}

int test_device_create(struct device **device, struct kernels **kernels, struct pool *pool,
                       struct err *err)
{
    *device = device_host();
    if (!test_device_is_cuda())
        return kernels_cpu_create(kernels, pool, NULL, err);
    return device_cuda_open(device, 0, err) < 0 ? -1 : kernels_cuda_create(kernels, *device, err);
}

/* ---- operands there and back ---- */

struct moved {
    struct test_extent host;
    unsigned char *there;
};

static void *allocate(struct device *device, size_t n_bytes)
{
    struct err err;
    void *memory;

    if (device->ops->allocate(device, n_bytes, &memory, &err) < 0)
        fail_msg("%s", err.text);
    return memory;
}

static void wait_all(struct device *device)
{
    struct err err;

    if (device->ops->wait(device, DEVICE_COMPUTE, &err) < 0)
        fail_msg("%s", err.text);
}

/* On the host an operand stays where it is. */
static struct moved move(struct device *device, const struct test_extent *extent, struct tensor *t)
{
    struct moved m = { *extent, NULL };

    if (!tensor_given(t) || device_is_host(device))
        return m;
    m.there = allocate(device, extent->n_bytes);
    device->ops->copy(device, DEVICE_COMPUTE, m.there, extent->begin, extent->n_bytes);
    t->data = m.there + ((unsigned char *)t->data - (unsigned char *)extent->begin);
    return m;
}

/* An output in an input's memory goes with that, there and back. */
static struct moved move_output(struct device *device, const struct test_extent *extent,
                                struct tensor *t, const struct moved inputs[OPS_MAX_INPUTS])
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++) {
        const struct moved *input = &inputs[i];

        if (!tensor_given(t) || !input->there || input->host.begin != extent->begin)
            continue;
        t->data = input->there + ((unsigned char *)t->data - (unsigned char *)extent->begin);
        return (struct moved){ *extent, NULL };
    }
    return move(device, extent, t);
}

static void move_back(struct device *device, struct moved *m)
{
    if (!m->there)
        return;
    device->ops->copy(device, DEVICE_COMPUTE, m->host.begin, m->there, m->host.n_bytes);
    wait_all(device);
    device->ops->release(device, m->there);
}

static void *make_scratch(struct device *device, size_t n_bytes)
{
    unsigned char *scratch = allocate(device, n_bytes + GUARD_BYTES);

    device->ops->fill(device, DEVICE_COMPUTE, scratch, POISON, n_bytes);
    device->ops->fill(device, DEVICE_COMPUTE, scratch + n_bytes, GUARD, GUARD_BYTES);
    return scratch;
}

static void drop_scratch(struct device *device, unsigned char *scratch, size_t n_bytes)
{
    unsigned char guard[GUARD_BYTES];

    device->ops->copy(device, DEVICE_COMPUTE, guard, scratch + n_bytes, GUARD_BYTES);
    wait_all(device);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != GUARD)
            fail_msg("byte %zu behind the scratch was overwritten", i);
    device->ops->release(device, scratch);
}

void test_device_run(const struct op_shape *op, const struct test_extent in[OPS_MAX_INPUTS],
                     const struct test_extent out[OPS_MAX_OUTPUTS], int n_threads, bool first)
{
    struct kernels *kernels = test_device_open(n_threads);
    struct device *device = kernels->device;
    struct kernel_call call = { .op = *op };
    struct moved moved_in[OPS_MAX_INPUTS], moved_out[OPS_MAX_OUTPUTS];
    struct err err;
    size_t scratch_bytes = kernels_scratch_bytes(kernels, op);

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        moved_in[i] = move(device, &in[i], &call.op.in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        moved_out[i] = move_output(device, &out[i], &call.op.out[i], moved_in);
    call.scratch = make_scratch(device, align_up(scratch_bytes, 64));
    if (kernels_prepare(kernels, &call, &err))
        fail_msg("%s", err.text);
    kernels_run(kernels, &call, first ? KERNELS_FIRST : 0);
    wait_all(device);
    kernels_release(kernels, &call);
    drop_scratch(device, call.scratch, align_up(scratch_bytes, 64));
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        move_back(device, &moved_in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        move_back(device, &moved_out[i]);
    test_device_close(kernels);
}

/* ---- instruction sets ---- */

/* Whether the CPU's backend, as LMTRAIN_CPU_ISA leaves it, names this instruction set. */
static bool backend_is_of(const char *isa)
{
    struct kernels *kernels = NULL;
    struct pool *pool;
    struct err err;
    char word[32];

    if (pool_create(&pool, 1, NULL, &err) || kernels_cpu_create(&kernels, pool, NULL, &err))
        fail_msg("%s", err.text);
    snprintf(word, sizeof word, " %s ", isa);
    bool is = strstr(kernels_identity(kernels), word) != NULL;
    kernels_destroy(kernels);
    pool_destroy(pool);
    return is;
}

bool test_has_bf16(void)
{
    return backend_is_of("avx512_bf16");
}

int test_each_isa(int (*tests)(void))
{
    static const char *const isas[] = { "avx512_bf16", "avx512", "avx2", "plain" };
    int n_failed = 0;

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        pid_t pid;
        int status;

        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            setenv("LMTRAIN_CPU_ISA", isas[i], 1);
            bool is_new = backend_is_of(isas[i]);
            printf("LMTRAIN_CPU_ISA=%s%s\n", isas[i], is_new ? "" : ": not of this machine");
            exit(is_new && tests() ? 1 : 0);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "failed with LMTRAIN_CPU_ISA=%s\n", isas[i]);
            n_failed++;
        }
    }
    return n_failed;
}
