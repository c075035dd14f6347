/*
 * memory_test.c - segments of exactly the planned size, between guards
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/num.h"
#include "run/memory.h"

static void open_memory(struct run_memory *memory, size_t weights, size_t stash, size_t scratch)
{
    struct program program = { .segment_bytes = { [SEGMENT_WEIGHTS] = weights,
                                                  [SEGMENT_STASH] = stash,
                                                  [SEGMENT_SCRATCH] = scratch } };
    struct err err;

    if (run_memory_create(memory, device_host(), &program, NULL, false, &err) < 0)
        fail_msg("%s", err.text);
}

/* The signal that a child dies of when it touches this byte; 0 if it lives. */
static int signal_of_touching(volatile unsigned char *byte)
{
    pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        /* Sanitizers and cmocka have handlers of their own. */
        signal(SIGSEGV, SIG_DFL);
        *byte = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static const size_t sizes[] = { 1, 63, 64, 4096, 4097, 100000, ((size_t)2 << 20) + 192 };

static void zeroed_and_usable(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct run_memory memory;

        open_memory(&memory, sizes[i], 0, 128);
        assert_null(memory.segment[SEGMENT_STASH]);
        assert_null(memory.segment[SEGMENT_CACHE]);
        assert_int_equal((uintptr_t)memory.segment[SEGMENT_WEIGHTS] % RUN_MEMORY_ALIGNMENT, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(memory.segment[SEGMENT_WEIGHTS][k], 0);
        memset(memory.segment[SEGMENT_WEIGHTS], 0xab, sizes[i]);
        assert_int_equal(memory.segment[SEGMENT_SCRATCH][0], 0);
        assert_int_equal(memory.segment[SEGMENT_SCRATCH][127], 0);
        run_memory_release(&memory);
        assert_null(memory.segment[SEGMENT_WEIGHTS]);
    }
}

static void guarded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct run_memory memory;

        open_memory(&memory, sizes[i], 64, 64);
        unsigned char *segment = memory.segment[SEGMENT_WEIGHTS];
        size_t end = align_up(sizes[i], RUN_MEMORY_ALIGNMENT);
        assert_int_equal(signal_of_touching(segment), 0);
        assert_int_equal(signal_of_touching(segment + sizes[i] - 1), 0);
        assert_int_equal(signal_of_touching(segment + end), SIGSEGV);
        assert_int_equal(signal_of_touching(segment - 4096), SIGSEGV);
        run_memory_release(&memory);
    }
}

/* The error names the segment and its size, and nothing stays behind. */
static void too_much(void **state)
{
    struct program program = { .segment_bytes = {
                                   [SEGMENT_WEIGHTS] = 4096, [SEGMENT_STATES] = (size_t)1 << 50 } };
    struct run_memory memory;
    struct err err;

    (void)state;
    assert_int_equal(run_memory_create(&memory, device_host(), &program, NULL, false, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "segment states"));
    assert_non_null(strstr(err.text, "iB"));
    for (int s = 0; s < N_SEGMENTS; s++)
        assert_null(memory.segment[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeroed_and_usable),
        cmocka_unit_test(guarded),
        cmocka_unit_test(too_much),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
