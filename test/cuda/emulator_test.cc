/*
 * emulator_test.cc - what the emulated GPU sees of kernels and host code that are wrong
 *
 * Each mutant is right for a GPU that happens to be kind: its copies arrive at once, its blocks run
 * in order, what lies behind or before memory is of use. Where the emulator can be kind, too
 * (LMTRAIN_EMULATE_ASYNC=early, _BLOCKS=forward, CUDA_DEVICE_MAX_CONNECTIONS=32), the mutant passes
 * there, so what fails is the mode and not the mutant; where it always looks (guard page, poison,
 * alignment, capture) the same kernel without its mistake passes.
 *
 * Mutants of the engine's own kernels, made by hand once; the test named fails:
 *
 *   gemm_own.cuh   copy_async_wait<OWN_STAGES - 1>: one wait too few    lora_test; with early copies,
 *                                                                       as before, it passes
 *   attention.cu   copy_async_wait<2>: likewise                         attention_tiles_test
 *   lora.cu        16 bytes less of dynamic shared memory               lora_test, by name of the
 *                                                                       ldmatrix and its thread
 *   device.cu      CUDA_DEVICE_MAX_CONNECTIONS not set: 18 streams      collective_test's ring hangs
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>

#include "support/child.h"
}

#include "cuda/emulate/nccl.h"
#include "cuda/mma.cuh"

enum { N = 64, N_BLOCKS = 16, HANGS_AFTER_S = 3 };

template <typename... P, typename... A>
static void launch(int n_blocks, int n_threads, size_t shared_bytes, void (*kernel)(P...),
                   A... arguments)
{
    emulate_launch l = { "mutant",
                         (const void *)kernel,
                         dim3((unsigned)n_blocks),
                         dim3((unsigned)n_threads),
                         shared_bytes,
                         NULL };

    emulate_run(&l, [=] { kernel(P(arguments)...); });
}

/* ---- what becomes of a mutant -------------------------------------------------------------------
 *
 * Each runs in a process of its own, which says by its status what came of it.
 */

enum { PASSED = 0, WRONG = 1 };

static char said[4096];

static void unset_modes(void)
{
    unsetenv("LMTRAIN_EMULATE_ASYNC");
    unsetenv("LMTRAIN_EMULATE_BLOCKS");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

/* One variable is set; NULL: none. */
static int outcome(void (*mutant)(void *), void *context, const char *variable, const char *value)
{
    unset_modes();
    if (variable)
        setenv(variable, value, 1);
    fflush(NULL);
    return child_run(mutant, context, said, sizeof said);
}

static void assert_refused(void (*mutant)(void *), void *context, const char *because)
{
    assert_int_not_equal(outcome(mutant, context, NULL, NULL), PASSED);
    if (!strstr(said, because))
        fail_msg("it says '%s', not '%s'", said, because);
}

static void expect(const float *got, const float *wanted, size_t n)
{
    if (memcmp(got, wanted, n * sizeof *got) != 0)
        _exit(WRONG);
}

static float *numbers(int n)
{
    void *memory;

    if (cudaMalloc(&memory, (size_t)n * sizeof(float)) != cudaSuccess)
        _exit(WRONG);
    for (int i = 0; i < n; i++)
        ((float *)memory)[i] = (float)i;
    return (float *)memory;
}

/* ---- asynchronous copies ---- */

enum copy_mistake {
    NO_MISTAKE,
    WAITS_FOR_TOO_FEW,
    NO_WAIT,
    NO_COMMIT,
    MISALIGNED_TARGET,
    MISALIGNED_SOURCE
};

/* Two stages of N / 2 numbers, the second awaited while the first is already in use. */
static void staged_kernel(const float *from, float *to, int mistake)
{
    CUDA_SHARED(float, stage);
    int i = (int)threadIdx.x * 4;

    copy_async16(stage + i + (mistake == MISALIGNED_TARGET),
                 from + i + (mistake == MISALIGNED_SOURCE), 1);
    copy_async_commit();
    copy_async16(stage + N / 2 + i, from + N / 2 + i, 1);
    if (mistake != NO_COMMIT)
        copy_async_commit();
    if (mistake == WAITS_FOR_TOO_FEW)
        copy_async_wait<2>();
    else
        copy_async_wait<1>();
    for (int j = i; j < i + 4; j++)
        to[j] = stage[j];
    if (mistake != NO_WAIT)
        copy_async_wait<0>();
    for (int j = N / 2 + i; j < N / 2 + i + 4; j++)
        to[j] = stage[j];
}

static void staged(void *mistake)
{
    float *from = numbers(N + 4), *to = numbers(N);

    memset(to, 0, N * sizeof(float));
    launch(1, N / 8, (N + 4) * sizeof(float), staged_kernel, from, to, *(int *)mistake);
    expect(to, from, N);
}

static void copies_land_at_their_wait(void **)
{
    static const int mistakes[] = { WAITS_FOR_TOO_FEW, NO_WAIT, NO_COMMIT };
    int none = NO_MISTAKE;

    assert_int_equal(outcome(staged, &none, NULL, NULL), PASSED);
    assert_int_equal(outcome(staged, &none, "LMTRAIN_EMULATE_ASYNC", "early"), PASSED);
    for (int mistake : mistakes) {
        assert_int_equal(outcome(staged, &mistake, "LMTRAIN_EMULATE_ASYNC", "late"), WRONG);
        assert_int_equal(outcome(staged, &mistake, NULL, NULL), WRONG);
        assert_int_equal(outcome(staged, &mistake, "LMTRAIN_EMULATE_ASYNC", "early"), PASSED);
    }
}

static void copies_are_aligned(void **)
{
    static const int mistakes[] = { MISALIGNED_TARGET, MISALIGNED_SOURCE };

    for (int mistake : mistakes)
        assert_refused(staged, (void *)&mistake, "cp.async of 16 bytes");
}

/* The block's rows begin where the last one's end, but for one that reads beyond the last. */
static void matrix_kernel(uint32_t *to, int beyond)
{
    CUDA_SHARED(uint16_t, rows);
    uint32_t r[4];

    for (int i = 0; i < 8; i++)
        rows[threadIdx.x * 8 + (unsigned)i] = (uint16_t)threadIdx.x;
    __syncthreads();
    load_matrices(r, rows + (threadIdx.x + (unsigned)beyond) * 8);
    to[threadIdx.x] = r[3];
}

static void matrix(void *beyond)
{
    launch(1, 32, 32 * 16, matrix_kernel, (uint32_t *)numbers(32), *(int *)beyond);
}

static void rows_of_matrices_are_in_shared_memory(void **)
{
    int none = 0, one = 1;

    assert_int_equal(outcome(matrix, &none, NULL, NULL), PASSED);
    assert_refused(matrix, &one, "ldmatrix of 16 bytes at an address that is not in");
}

/* ---- the end of shared memory ---- */

enum overrun_mistake { READS_BEYOND = 1, WRITES_BEYOND };

static void overrun_kernel(float *to, int n, int mistake)
{
    CUDA_SHARED(float, all);

    all[threadIdx.x] = 1;
    if (mistake == WRITES_BEYOND && !threadIdx.x)
        all[n] = 1;
    to[threadIdx.x] = all[threadIdx.x + (mistake == READS_BEYOND)];
}

struct overrun {
    int n, mistake;
};

static void overrun(void *context)
{
    struct overrun *o = (struct overrun *)context;

    launch(1, o->n, (size_t)o->n * sizeof(float), overrun_kernel, numbers(o->n), o->n, o->mistake);
}

static void shared_memory_ends(void **)
{
    struct overrun whole = { N, 0 }, reads = { N, READS_BEYOND }, writes = { N, WRITES_BEYOND };
    struct overrun between = { N - 1, WRITES_BEYOND }; /* and the 16 bytes that it is aligned to */

    assert_int_equal(outcome(overrun, &whole, NULL, NULL), PASSED);
    assert_refused(overrun, &reads, "touches byte 256 of its 256 bytes of dynamic shared memory");
    assert_refused(overrun, &writes, "block 0,0,0 thread 0,0,0: touches byte 256");
    assert_refused(overrun, &between, "the block wrote byte 252 of its 252 bytes");
}

static void far_kernel(float *to)
{
    to[threadIdx.x] = 1;
}

static void far(void *)
{
    launch(1, N + 1, 0, far_kernel, numbers(N));
}

static void device_memory_ends(void **)
{
    assert_refused(far, NULL,
                   "thread 64,0,0: touches byte 256 of a device allocation of 256 bytes");
}

/* ---- blocks that depend on each other ---- */

/* Sums of all before: right if blocks run one after the other. */
static void prefix_kernel(float *sums)
{
    sums[blockIdx.x] = 1 + (blockIdx.x ? sums[blockIdx.x - 1] : 0);
}

static void prefix(void *)
{
    float *sums = numbers(N_BLOCKS), wanted[N_BLOCKS];

    for (int i = 0; i < N_BLOCKS; i++)
        wanted[i] = (float)(i + 1);
    memset(sums, 0, sizeof wanted);
    launch(N_BLOCKS, 1, 0, prefix_kernel, sums);
    expect(sums, wanted, N_BLOCKS);
}

static void prefix_that_ends(void *)
{
    float *sums = numbers(N_BLOCKS);

    memset(sums, 0, N_BLOCKS * sizeof(float));
    launch(N_BLOCKS, 1, 0, prefix_kernel, sums);
    exit(sums[N_BLOCKS - 1] == N_BLOCKS ? PASSED : WRONG);
}

static void blocks_have_no_order(void **)
{
    assert_int_equal(outcome(prefix, NULL, "LMTRAIN_EMULATE_BLOCKS", "forward"), PASSED);
    assert_int_equal(outcome(prefix, NULL, "LMTRAIN_EMULATE_BLOCKS", "reverse"), WRONG);
    for (const char *seed : { "1", "2", "3", "4", "5" })
        assert_int_equal(outcome(prefix, NULL, "LMTRAIN_EMULATE_BLOCKS", seed), WRONG);
}

/* What was drawn is said when the process fails, and gives the same failure again. */
static void seed_of_a_failure(void **)
{
    const char *name = "LMTRAIN_EMULATE_BLOCKS=";

    assert_int_equal(outcome(prefix_that_ends, NULL, NULL, NULL), WRONG);
    const char *at = strstr(said, name);
    assert_non_null(at);
    char seed[32];
    snprintf(seed, sizeof seed, "%lu", strtoul(at + strlen(name), NULL, 10));
    assert_int_equal(outcome(prefix, NULL, "LMTRAIN_EMULATE_BLOCKS", seed), WRONG);
}

/* ---- alignment ---- */

static void wide_kernel(const float *from, float *to)
{
    *(float4 *)(to + threadIdx.x * 4) = *(const float4 *)(from + threadIdx.x * 4);
}

static void wide(void *offset)
{
    launch(1, N / 4, 0, wide_kernel, numbers(N + 4) + *(int *)offset, numbers(N));
}

static void vectors_are_aligned(void **)
{
    int none = 0, one = 1;

    assert_int_equal(outcome(wide, &none, NULL, NULL), PASSED);
    assert_refused(wide, &one, "thread 0,0,0: test/cuda/emulator_test.cc");
    assert_refused(wide, &one, "misaligned address");
}

/* ---- static shared memory ---- */

static void unwritten_kernel(float *to, int is_written)
{
    __shared__ float sum[N];

    if (is_written)
        sum[threadIdx.x] = 0;
    sum[threadIdx.x] += 1;
    to[blockIdx.x * N + threadIdx.x] = sum[threadIdx.x];
}

static void unwritten(void *is_written)
{
    float *to = numbers(N), wanted[N];

    for (float &w : wanted)
        w = 1;
    launch(1, N, 0, unwritten_kernel, to, *(int *)is_written);
    expect(to, wanted, N);
}

/* The second block reads what the first left. */
static void left_kernel(float *to)
{
    __shared__ float left;

    if (!blockIdx.x)
        left = 1;
    to[blockIdx.x] = left;
}

static void left(void *)
{
    float *to = numbers(2);
    static const float wanted[] = { 1, 1 };

    launch(2, 1, 0, left_kernel, to);
    expect(to, wanted, 2);
}

static void static_shared_memory_holds_nothing(void **)
{
    int no = 0, yes = 1;

    assert_int_equal(outcome(unwritten, &yes, NULL, NULL), PASSED);
    assert_int_equal(outcome(unwritten, &no, NULL, NULL), WRONG);
    assert_int_equal(outcome(left, NULL, "LMTRAIN_EMULATE_BLOCKS", "forward"), WRONG);
}

/* ---- capture ---- */

static void *some_memory, *some_pinned;
static cudaStream_t some_stream, other_stream;
static cudaEvent_t some_event;

static cudaError_t allocates(void)
{
    return cudaMalloc(&some_memory, N);
}
static cudaError_t frees(void)
{
    return cudaFree(some_memory);
}
static cudaError_t pins(void)
{
    return cudaMallocHost(&some_pinned, N);
}
static cudaError_t unpins(void)
{
    return cudaFreeHost(some_pinned);
}
static cudaError_t asks_for_memory(void)
{
    size_t free_bytes, total_bytes;

    return cudaMemGetInfo(&free_bytes, &total_bytes);
}
static cudaError_t waits_for_stream(void)
{
    return cudaStreamSynchronize(some_stream);
}
static cudaError_t waits_for_another(void)
{
    return cudaStreamSynchronize(other_stream);
}
static cudaError_t waits_for_device(void)
{
    return cudaDeviceSynchronize();
}
static cudaError_t asks_for_event(void)
{
    return cudaEventQuery(some_event);
}
static cudaError_t waits_for_event(void)
{
    return cudaEventSynchronize(some_event);
}

static void open_capture(void)
{
    cudaStreamCreateWithPriority(&some_stream, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&other_stream, cudaStreamNonBlocking, 0);
    cudaEventCreateWithFlags(&some_event, cudaEventDisableTiming);
    cudaMalloc(&some_memory, N);
    cudaMallocHost(&some_pinned, N);
    cudaEventRecord(some_event, other_stream);
    assert_int_equal(cudaStreamBeginCapture(some_stream, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
}

static void close_capture(void)
{
    cudaEventDestroy(some_event);
    cudaStreamDestroy(some_stream);
    cudaStreamDestroy(other_stream);
    cudaFree(some_memory);
    cudaFreeHost(some_pinned);
    cudaGetLastError();
}

/* What may not be called while this thread captures fails, and so does all of the capture after. */
static void what_a_capture_forbids(void **)
{
    static cudaError_t (*const calls[])(
        void) = { allocates,        frees,           pins,
                  unpins,           asks_for_memory, waits_for_another,
                  waits_for_device, asks_for_event,  waits_for_event };
    cudaGraph_t graph;

    for (cudaError_t (*call)(void) : calls) {
        open_capture();
        assert_int_equal(cudaMemsetAsync(some_memory, 0, N, some_stream), cudaSuccess);
        assert_int_equal(call(), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaMemsetAsync(some_memory, 0, N, some_stream),
                         cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(some_stream, &graph),
                         cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        assert_int_equal(call(), cudaSuccess);
        if (call == frees)
            some_memory = NULL;
        if (call == unpins)
            some_pinned = NULL;
        close_capture();
    }
}

static void *elsewhere(void *call)
{
    cudaError_t error = (*(cudaError_t(**)(void))call)();

    return (void *)(uintptr_t)error;
}

static cudaError_t from_another_thread(cudaError_t (*call)(void))
{
    pthread_t thread;
    void *error;

    assert_int_equal(pthread_create(&thread, NULL, elsewhere, &call), 0);
    pthread_join(thread, &error);
    return (cudaError_t)(uintptr_t)error;
}

static cudaError_t ends_capture(void)
{
    cudaGraph_t graph;

    return cudaStreamEndCapture(some_stream, &graph);
}

/* Other threads may go on, but not with what is captured. */
static void what_other_threads_may(void **)
{
    cudaGraph_t graph;

    open_capture();
    assert_int_equal(from_another_thread(allocates), cudaSuccess);
    assert_int_equal(from_another_thread(asks_for_event), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(some_stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    close_capture();

    static const struct {
        cudaError_t (*call)(void);
        cudaError_t error;
    } calls[] = { { waits_for_stream, cudaErrorStreamCaptureUnsupported },
                  { asks_for_event, cudaErrorCapturedEvent },
                  { waits_for_event, cudaErrorCapturedEvent },
                  { ends_capture, cudaErrorStreamCaptureWrongThread } };
    for (const auto &c : calls) {
        open_capture();
        assert_int_equal(cudaEventRecord(some_event, some_stream), cudaSuccess);
        assert_int_equal(from_another_thread(c.call), c.error);
        assert_int_equal(cudaStreamEndCapture(some_stream, &graph),
                         cudaErrorStreamCaptureInvalidated);
        close_capture();
    }
}

/* ---- hardware queues ----------------------------------------------------------------------------
 *
 * Two ranks, each a thread: stream 0 receives what the other sends on stream 8, and goes on.
 * Without a queue of its own the send stays behind the receive's successor, on both sides.
 */

enum { N_STREAMS = 9, N_RANKS = 2 };

struct rank {
    int index;
    ncclUniqueId ids[N_RANKS]; /* of a communicator for what each sends */
};

static void *exchange(void *context)
{
    struct rank *me = (struct rank *)context;
    cudaStream_t streams[N_STREAMS];
    ncclComm_t comms[N_RANKS];
    int peer = 1 - me->index;
    float *memory = numbers(2 * N);

    for (cudaStream_t &s : streams)
        cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0);
    for (int r = 0; r < N_RANKS; r++)
        ncclCommInitRankConfig(&comms[r], N_RANKS, me->ids[r], me->index, NULL);
    ncclRecv(memory, N, ncclUint8, peer, comms[peer], streams[0]);
    cudaMemsetAsync(memory, 0, N, streams[0]);
    ncclSend(memory + N, N, ncclUint8, peer, comms[me->index], streams[N_STREAMS - 1]);
    cudaStreamSynchronize(streams[0]);
    return NULL;
}

static void exchanges(void *)
{
    struct rank ranks[N_RANKS] = {};
    pthread_t threads[N_RANKS];

    alarm(HANGS_AFTER_S);
    for (ncclUniqueId &id : ranks[0].ids)
        ncclGetUniqueId(&id);
    ranks[1] = ranks[0];
    ranks[1].index = 1;
    for (int r = 0; r < N_RANKS; r++)
        pthread_create(&threads[r], NULL, exchange, &ranks[r]);
    for (pthread_t thread : threads)
        pthread_join(thread, NULL);
}

static void streams_share_hardware_queues(void **)
{
    const char *variable = "CUDA_DEVICE_MAX_CONNECTIONS";

    assert_int_equal(outcome(exchanges, NULL, NULL, NULL), -SIGALRM);
    assert_int_equal(outcome(exchanges, NULL, variable, "9"), PASSED);
    assert_int_equal(outcome(exchanges, NULL, variable, "32"), PASSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_land_at_their_wait),
        cmocka_unit_test(copies_are_aligned),
        cmocka_unit_test(rows_of_matrices_are_in_shared_memory),
        cmocka_unit_test(shared_memory_ends),
        cmocka_unit_test(device_memory_ends),
        cmocka_unit_test(blocks_have_no_order),
        cmocka_unit_test(seed_of_a_failure),
        cmocka_unit_test(vectors_are_aligned),
        cmocka_unit_test(static_shared_memory_holds_nothing),
        cmocka_unit_test(what_a_capture_forbids),
        cmocka_unit_test(what_other_threads_may),
        cmocka_unit_test(streams_share_hardware_queues),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
