/*
 * gemm.c - tiles of a product, each one call of oneDNN
 *
 * A product has at most four kinds of tiles (inner, right edge, bottom edge, corner), each with a
 * primitive of its own. oneDNN's library scratch is taken from us (scratchpad_mode::user) and lies,
 * with the staging tile, in a block a thread.
 *
 * A staging tile holds the finished fp32 product where it may not go to c directly: where c is
 * accumulated (oneDNN's own accumulation adds block of k by block of k into c, which is another
 * sum), and where fp32 operands give a bf16 c, which oneDNN has no kernel for.
 *
 * What oneDNN 2.6 allocates nevertheless, and gives it no way to take from us:
 * - Its "gemm:jit" takes everything with a row stride above the width, so most cut products. The
 *   first such call of an operand dtype generates all its code (fp32: 6 MiB held for good); warm_up
 *   makes that happen in create. Each later call mallocs and frees one workspace a thread: 16 KiB
 *   (AVX2) or 73 KiB (AVX-512) where it works without copies, else both packed operands, in blocks
 *   of k, at most 1.25 MiB for tiles as choose_tiles cuts them.
 * - Each call makes a few small objects of at most 256 bytes for its list of arguments.
 * All of it is freed when the call returns; allocations_test.c counts.
 *
 * Signals: the kernels without copies point the stack pointer into that workspace. A handler that
 * interrupts them must have a stack of its own (SA_ONSTACK), or its frame lands on the heap.
 */
#include "kernels/cpu/gemm_impl.h"

#include <dnnl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "kernels/cpu/vec_math.h"

/* libgomp's: see pool.c. oneDNN sizes its scratch by it when a primitive is described. */
void omp_set_num_threads(int n_threads);

enum { ARG_A, ARG_B, ARG_BIAS, ARG_C, ARG_SCRATCH, N_ARGS };

static const int dnnl_args[N_ARGS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD };

/* Tiles of one size. */
struct part {
    int64_t m, n;
    dnnl_memory_desc_t md[N_ARGS];
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* N_ARGS a thread */
};

struct cpu_gemm {
    struct cpu_kernels *cpu;
    struct cpu_gemm_shape shape;
    int64_t n_tiles_m, n_tiles_n;
    int staged;
    size_t stage_bytes, thread_bytes; /* of one thread's block: its staging tile, all of it */
    struct part parts[2][2]; /* [bottom edge][right edge]; those that do not occur stay 0 */
};

struct tiles_run {
    struct cpu_gemm *gemm;
    const struct cpu_gemm_operands *operands;
    char *scratch;
};

/* ---- the cut ------------------------------------------------------------------------------- */

/*
 * Tiles of at most 256 x 512 keep 94 % of the speed of one call for everything (bf16, 1,024 tokens,
 * layers of LLaMA 100M), those of 128 x 256 still 90 %, smaller ones lose more. So: as few as that
 * allows, equal in size, then halved until there are enough for a handful of threads. A unit of 64
 * is no faster than 16, and leaves the last tile smaller.
 */
#define TILE_M_MAX 256
#define TILE_N_MAX 512
#define TILE_AREA_MIN (128 * 256)
#define N_TILES_WANTED 8
#define TILE_UNIT 16

/* Length of the pieces when whole is cut into n_pieces or fewer. */
static int64_t piece(int64_t whole, int64_t n_pieces)
{
    return min_i64(whole, round_up(ceil_div(whole, n_pieces), TILE_UNIT));
}

static void choose_tiles(struct cpu_gemm_shape *shape)
{
    int64_t pieces_m = ceil_div(shape->m, TILE_M_MAX), pieces_n = ceil_div(shape->n, TILE_N_MAX);

    if (!shape->tile_m || !shape->tile_n) {
        shape->tile_m = piece(shape->m, pieces_m);
        shape->tile_n = piece(shape->n, pieces_n);
        while (pieces_m * pieces_n < N_TILES_WANTED &&
               shape->tile_m * shape->tile_n >= 2 * TILE_AREA_MIN) {
            if (shape->tile_n >= shape->tile_m)
                shape->tile_n = piece(shape->n, pieces_n *= 2);
            else
                shape->tile_m = piece(shape->m, pieces_m *= 2);
        }
    }
    shape->tile_m = min_i64(shape->tile_m, shape->m);
    shape->tile_n = min_i64(shape->tile_n, shape->n);
}

/* ---- descriptions -------------------------------------------------------------------------- */

static dnnl_data_type_t dnnl_type(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A stored matrix whose logical rows and columns may be the other way round. */
static int describe_matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int64_t stride,
                           int transposed, enum dtype dtype)
{
    dnnl_dims_t dims = { rows, cols };
    dnnl_dims_t strides = { transposed ? 1 : stride, transposed ? stride : 1 };

    return dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_type(dtype), strides) == dnnl_success
               ? 0
               : -1;
}

static int describe_part(const struct cpu_gemm *gemm, struct part *part)
{
    const struct cpu_gemm_shape *s = &gemm->shape;
    dnnl_memory_desc_t *md = part->md;
    int64_t ldc = gemm->staged ? s->tile_n : s->ldc;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_matmul_desc_t desc;
    int status = -1;

    if (describe_matrix(&md[ARG_A], part->m, s->k, s->lda, s->a_transposed, s->in) ||
        describe_matrix(&md[ARG_B], s->k, part->n, s->ldb, s->b_transposed, s->in) ||
        describe_matrix(&md[ARG_BIAS], 1, part->n, part->n, 0, DTYPE_F32) ||
        describe_matrix(&md[ARG_C], part->m, part->n, ldc, 0, gemm->staged ? DTYPE_F32 : s->out))
        return -1;
    if (dnnl_primitive_attr_create(&attributes) != dnnl_success)
        return -1;
    if (dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user) ==
            dnnl_success &&
        dnnl_matmul_desc_init(&desc, &md[ARG_A], &md[ARG_B], s->bias ? &md[ARG_BIAS] : NULL,
                              &md[ARG_C]) == dnnl_success &&
        dnnl_primitive_desc_create(&part->pd, &desc, attributes, gemm->cpu->engine, NULL) ==
            dnnl_success) {
        md[ARG_SCRATCH] = *dnnl_primitive_desc_query_md(part->pd, dnnl_query_scratchpad_md, 0);
        status = 0;
    }
    dnnl_primitive_attr_destroy(attributes);
    return status;
}

static void destroy_descriptions(struct cpu_gemm *gemm)
{
    for (int i = 0; i < 4; i++)
        dnnl_primitive_desc_destroy(gemm->parts[i / 2][i % 2].pd);
}

/* The cut, the descriptions of the parts that occur, and what a thread's block must hold. */
static int describe(struct cpu_gemm *gemm, struct cpu_kernels *cpu,
                    const struct cpu_gemm_shape *shape)
{
    size_t library_bytes = 0;

    *gemm = (struct cpu_gemm){ .cpu = cpu, .shape = *shape };
    choose_tiles(&gemm->shape);
    shape = &gemm->shape;
    gemm->staged = shape->accumulate || (shape->in == DTYPE_F32 && shape->out == DTYPE_BF16);
    gemm->n_tiles_m = ceil_div(shape->m, shape->tile_m);
    gemm->n_tiles_n = ceil_div(shape->n, shape->tile_n);
    omp_set_num_threads(1);
    for (int i = 0; i < 4; i++) {
        struct part *part = &gemm->parts[i / 2][i % 2];

        part->m = i / 2 ? shape->m % shape->tile_m : shape->tile_m;
        part->n = i % 2 ? shape->n % shape->tile_n : shape->tile_n;
        if (part->m == 0 || part->n == 0)
            continue;
        if (describe_part(gemm, part)) {
            destroy_descriptions(gemm);
            return -1;
        }
        size_t bytes = dnnl_memory_desc_get_size(&part->md[ARG_SCRATCH]);

        library_bytes = bytes > library_bytes ? bytes : library_bytes;
    }
    if (gemm->staged)
        gemm->stage_bytes = align_up((size_t)(shape->tile_m * shape->tile_n) * sizeof(float), 64);
    gemm->thread_bytes = gemm->stage_bytes + align_up(library_bytes, 64);
    return 0;
}

size_t cpu_gemm_scratch_bytes(struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape)
{
    struct cpu_gemm gemm;

    if (describe(&gemm, cpu, shape))
        return 0;
    destroy_descriptions(&gemm);
    return gemm.thread_bytes * (size_t)cpu_n_threads(cpu);
}

/* ---- objects ------------------------------------------------------------------------------- */

static int create_memory(struct cpu_gemm *gemm, struct part *part)
{
    size_t n = (size_t)cpu_n_threads(gemm->cpu) * N_ARGS;

    part->memory = calloc(n, sizeof *part->memory);
    if (!part->memory)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (dnnl_memory_create(&part->memory[i], &part->md[i % N_ARGS], gemm->cpu->engine,
                               DNNL_MEMORY_NONE) != dnnl_success)
            return -1;
    return 0;
}

static void execute(struct cpu_gemm *gemm, const struct part *part, int thread,
                    void *const handles[N_ARGS])
{
    dnnl_memory_t *memory = &part->memory[thread * N_ARGS];
    dnnl_exec_arg_t args[N_ARGS];
    int n = 0;

    for (int i = 0; i < N_ARGS; i++) {
        if (i == ARG_BIAS && !gemm->shape.bias)
            continue;
        CHECK(dnnl_memory_set_data_handle(memory[i], handles[i]) == dnnl_success);
        args[n++] = (dnnl_exec_arg_t){ dnnl_args[i], memory[i] };
    }
    CHECK(dnnl_primitive_execute(part->primitive, gemm->cpu->streams[thread], n, args) ==
          dnnl_success);
}

static int uses_jit_gemm(const struct cpu_gemm *gemm)
{
    const char *name;

    for (int i = 0; i < 4; i++) {
        dnnl_primitive_desc_t pd = gemm->parts[i / 2][i % 2].pd;

        if (pd &&
            dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
            !strncmp(name, "gemm", 4))
            return 1;
    }
    return 0;
}

/* One product small enough to cost nothing, with gaps between rows so that gemm:jit makes it. */
#define WARM_SIZE 32
#define WARM_STRIDE 48

static int warm_up(struct cpu_kernels *cpu, enum dtype dtype, struct err *err)
{
    static _Atomic int
        is_warm[N_DTYPES]; /* of the process, as is oneDNN's code; twice is harmless */
    struct cpu_gemm_shape shape = { .m = WARM_SIZE,
                                    .n = WARM_SIZE,
                                    .k = WARM_SIZE,
                                    .in = dtype,
                                    .out = DTYPE_F32,
                                    .lda = WARM_STRIDE,
                                    .ldb = WARM_STRIDE,
                                    .ldc = WARM_STRIDE };
    size_t matrix_bytes = (size_t)WARM_SIZE * WARM_STRIDE * sizeof(float);
    struct cpu_gemm *gemm;
    char *memory;

    if (atomic_exchange(&is_warm[dtype], 1))
        return 0;
    if (cpu_gemm_create(&gemm, cpu, &shape, err))
        return -1;
    size_t bytes = 3 * matrix_bytes + gemm->thread_bytes;
    int rc = 0;

    if (posix_memalign((void **)&memory, 64, bytes)) {
        rc = err_set(err, ERR_DEVICE, "no memory for a first product");
    } else {
        memset(memory, 0, bytes);
        execute(gemm, &gemm->parts[0][0], 0,
                (void *[N_ARGS]){ [ARG_A] = memory,
                                  [ARG_B] = memory + matrix_bytes,
                                  [ARG_C] = memory + 2 * matrix_bytes,
                                  [ARG_SCRATCH] = memory + 3 * matrix_bytes });
        free(memory);
    }
    cpu_gemm_destroy(gemm);
    return rc;
}

static int create_parts(struct cpu_gemm *gemm)
{
    for (int i = 0; i < 4; i++) {
        struct part *part = &gemm->parts[i / 2][i % 2];

        if (!part->pd)
            continue;
        if (dnnl_primitive_create(&part->primitive, part->pd) != dnnl_success ||
            create_memory(gemm, part))
            return -1;
    }
    return 0;
}

int cpu_gemm_create(struct cpu_gemm **result, struct cpu_kernels *cpu,
                    const struct cpu_gemm_shape *shape, struct err *err)
{
    struct cpu_gemm *gemm = calloc(1, sizeof *gemm);

    if (!gemm)
        return err_set(err, ERR_DEVICE, "no memory for a product's description");
    if (describe(gemm, cpu, shape)) {
        free(gemm);
        goto refused;
    }
    if (create_parts(gemm)) {
        cpu_gemm_destroy(gemm);
        goto refused;
    }
    if (uses_jit_gemm(gemm) && warm_up(cpu, shape->in, err)) {
        cpu_gemm_destroy(gemm);
        return -1;
    }
    *result = gemm;
    return 0;

refused:
    return err_set(err, ERR_DEVICE, "oneDNN refuses a product [%lld x %lld] [%lld x %lld] of %s",
                   (long long)shape->m, (long long)shape->k, (long long)shape->k,
                   (long long)shape->n, dtype_name(shape->in));
}

void cpu_gemm_destroy(struct cpu_gemm *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < 4; i++) {
        struct part *part = &gemm->parts[i / 2][i % 2];

        for (int j = 0; part->memory && j < cpu_n_threads(gemm->cpu) * N_ARGS; j++)
            dnnl_memory_destroy(part->memory[j]);
        free(part->memory);
        dnnl_primitive_destroy(part->primitive);
    }
    destroy_descriptions(gemm);
    free(gemm);
}

/* ---- a run --------------------------------------------------------------------------------- */

CPU_INLINE void add_row_body(float *to, const float *from, int64_t n, int first)
{
    if (first)
        for (int64_t i = 0; i < n; i++)
            to[i] = 0.0f + from[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = to[i] + from[i];
}

CPU_VARIANTS(add_row, (float *to, const float *from, int64_t n, int first), (to, from, n, first));

CPU_INLINE void narrow_row_body(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = vec_to_bf16(from[i]);
}

CPU_VARIANTS(narrow_row, (uint16_t * to, const float *from, int64_t n), (to, from, n));

/* A finished product from the staging tile to its place in c. */
static void unstage(const struct cpu_gemm *gemm, const struct part *part, const float *stage,
                    void *c, int first)
{
    const struct cpu_gemm_shape *s = &gemm->shape;
    enum cpu_isa isa = gemm->cpu->isa;

    for (int64_t i = 0; i < part->m; i++) {
        const float *from = stage + i * s->tile_n;

        if (s->out == DTYPE_BF16)
            narrow_row[isa]((uint16_t *)c + i * s->ldc, from, part->n);
        else
            add_row[isa]((float *)c + i * s->ldc, from, part->n, first);
    }
}

static void run_tile(void *context, int64_t tile, int thread)
{
    const struct tiles_run *run = context;
    struct cpu_gemm *gemm = run->gemm;
    const struct cpu_gemm_operands *o = run->operands;
    const struct cpu_gemm_shape *s = &gemm->shape;
    int64_t row = tile / gemm->n_tiles_n * s->tile_m;
    int64_t col = tile % gemm->n_tiles_n * s->tile_n;
    const struct part *part = &gemm->parts[row + s->tile_m > s->m][col + s->tile_n > s->n];
    size_t in_bytes = dtype_bytes(s->in);
    char *block = run->scratch + gemm->thread_bytes * (size_t)thread;
    char *c = (char *)o->c + (size_t)(row * s->ldc + col) * dtype_bytes(s->out);
    void *handles[N_ARGS] = {
        [ARG_A] = (char *)o->a + (size_t)(s->a_transposed ? row : row * s->lda) * in_bytes,
        [ARG_B] = (char *)o->b + (size_t)(s->b_transposed ? col * s->ldb : col) * in_bytes,
        [ARG_BIAS] = s->bias ? (char *)o->bias + (size_t)col * sizeof(float) : NULL,
        [ARG_C] = gemm->staged ? block : c,
        [ARG_SCRATCH] = block + gemm->stage_bytes,
    };

    execute(gemm, part, thread, handles);
    if (gemm->staged)
        unstage(gemm, part, (const float *)block, c, o->first);
}

void cpu_gemm_run(struct cpu_gemm *gemm, const struct cpu_gemm_operands *operands, void *scratch)
{
    struct tiles_run run = { gemm, operands, scratch };

    pool_run(gemm->cpu->base.pool, gemm->n_tiles_m * gemm->n_tiles_n, run_tile, &run);
}

/* ---- widening ------------------------------------------------------------------------------ */

#define WIDEN_ROWS 16

struct widen_run {
    struct cpu_kernels *cpu;
    const struct tensor *from;
    float *to;
};

CPU_INLINE void widen_row_body(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = vec_from_bf16(from[i]);
}

CPU_VARIANTS(widen_row, (float *to, const uint16_t *from, int64_t n), (to, from, n));

static void widen_tile(void *context, int64_t tile, int thread)
{
    const struct widen_run *run = context;
    const struct tensor *from = run->from;
    int64_t end = min_i64(from->rows, (tile + 1) * WIDEN_ROWS);

    (void)thread;
    for (int64_t row = tile * WIDEN_ROWS; row < end; row++)
        widen_row[run->cpu->isa](run->to + row * from->cols, cpu_row(from, row), from->cols);
}

void cpu_widen(struct cpu_kernels *cpu, const struct tensor *from, float *to)
{
    struct widen_run run = { cpu, from, to };

    CHECK(from->dtype == DTYPE_BF16);
    pool_run(cpu->base.pool, ceil_div(from->rows, WIDEN_ROWS), widen_tile, &run);
}
