/*
 * gemm.c - how a product is cut: rounds, tasks, panels, register blocks
 *
 * A round takes a block of rows of c and a chunk of k. In its first phase threads pack that part of
 * a, once for all (PACKED_LANES); in its second they take tasks: one panel of columns by a group of
 * rows. A task packs its panel of b, a piece of k that fits the first-level cache at a time, and
 * multiplies it with the group's panels of a, which stream by from the second or third level: 32
 * bytes a step of 24 multiply-adds. So a is packed once, b once a group of rows, and both cost
 * about a hundredth of the product.
 *
 * One panel of a, as in decoding, is another matter: each weight is used for these rows alone, and
 * bringing it here is all the work. A task reads its lines of b once then, and packs none.
 *
 * Where blocks of k have scales, a block is a piece: its sums begin at 0, and are scaled and added
 * to those of the blocks before.
 *
 * Rows that lie in runs are packed run by run, each into whole panels, so that no register block
 * has rows of two: rows are counted with those that the last panel of a run lacks (padded rows).
 *
 * Between pieces of k a task's sums stay in its accumulation buffer (fp32) register block by
 * register block; where k is too long for one round, all of a round's sums do, in one that all
 * tasks share. The last piece finishes: bias, rounding to 16 bits, or the one add to an accumulated
 * c.
 */
#include "kernels/cpu/gemm_impl.h"

#include "base/num.h"
#include "kernels/cpu/gemm_code_impl.h"
#include "kernels/cpu/vec_math.h"

/* None of these shows in the bits. */
#define ROWS_A_BLOCK 1024
#define PACKED_LANES (1 << 20)        /* of a in a round: 4 MiB */
#define SHARED_ACCUM_FLOATS (2 << 20) /* 8 MiB */
#define ROWS_A_GROUP_MIN 128
#define TASKS_A_THREAD 4
#define PANEL_GAP 16      /* lanes */
#define GEMM_COLS_MAX 48  /* of a register block */
#define ROWS_A_PACKING 96 /* a multiple of every panel's width */

struct cut {
    const struct gemm_code *code;
    enum gemm_lane lane;
    int elements;            /* a lane */
    int64_t n_steps;         /* of k, all of it */
    int64_t run_rows;        /* of a run; all m where rows lie together */
    int64_t padded_run_rows; /* the same in whole panels; m where rows lie together */
    int64_t padded_rows;     /* of all runs */
    int64_t block_rows;      /* of c in a round, whole panels */
    int64_t block_cols;      /* likewise */
    int64_t chunk_steps;     /* of k in a round, whole pieces */
    int64_t piece_steps;     /* of k in a panel */
    int64_t panel_lanes;     /* from one panel of a to the next */
    int64_t group_rows;      /* of c in a task, whole panels */
    int shares_accum;        /* k takes more than one round */
    bool has_blocks;         /* of k, several, with scales: pieces are blocks */
    bool is_skinny;          /* rows of c: b is not packed */
    int64_t accum_stride;    /* floats from one register block of a task to the next */
    size_t packed_bytes, accum_bytes, panel_bytes; /* accum: of all threads, if shared */
};

/* length cut into as few pieces of at most `most` as it takes, of equal size but for rounding. */
static int64_t even_piece(int64_t length, int64_t most, int64_t unit)
{
    return round_up(ceil_div(length, ceil_div(length, most)), unit);
}

static void cut_block(struct cut *cut, const struct cpu_gemm_shape *s, int n_threads)
{
    const struct gemm_code *code = cut->code;
    int64_t n_panels;

    cut->run_rows = s->run_rows ? s->run_rows : s->m;
    cut->padded_run_rows = s->run_rows ? round_up(s->run_rows, code->rows) : s->m;
    cut->padded_rows = s->m / cut->run_rows * cut->padded_run_rows;
    cut->block_rows = even_piece(cut->padded_rows, ROWS_A_BLOCK, code->rows);
    cut->block_cols = round_up(s->n, code->cols);
    cut->piece_steps =
        cut->has_blocks ? s->scaled_k / cut->elements : even_piece(cut->n_steps, code->steps, 1);
    cut->chunk_steps = even_piece(
        cut->n_steps, max_i64(PACKED_LANES / cut->block_rows, cut->piece_steps), cut->piece_steps);
    cut->shares_accum = cut->chunk_steps < cut->n_steps;
    if (cut->shares_accum)
        cut->block_cols =
            min_i64(cut->block_cols, round_up(SHARED_ACCUM_FLOATS / cut->block_rows, code->cols));

    n_panels = cut->block_cols / code->cols;
    cut->is_skinny = code->multiply_skinny && cut->padded_rows <= code->rows && s->b_transposed &&
                     !cut->shares_accum && !s->scaled_k;
    /* A line apart, or panels of 128 steps would begin in one cache set. */
    cut->panel_lanes = cut->piece_steps * code->rows + (cut->is_skinny ? 0 : PANEL_GAP);
    cut->group_rows = cut->block_rows;
    while (n_panels * ceil_div(cut->block_rows, cut->group_rows) < TASKS_A_THREAD * n_threads &&
           cut->group_rows >= 2 * ROWS_A_GROUP_MIN)
        cut->group_rows = round_up(cut->group_rows / 2, code->rows);
}

static struct cut cut_product(const struct cpu_kernels *cpu, const struct cpu_gemm_shape *s)
{
    struct cut cut = { .lane = LANE_F32, .elements = 1 };
    int64_t block_floats, n_panels;

    if (s->in == DTYPE_F16)
        cut.lane = LANE_HALF;
    if (s->in == DTYPE_BF16) {
        cut.lane = cpu->has_avx512_bf16 ? LANE_PAIR : LANE_WIDENED;
        cut.elements = cpu->has_avx512_bf16 ? 2 : 1;
    }
    cut.code = cpu_gemm_code(cpu, cut.lane);
    cut.n_steps = ceil_div(s->k, cut.elements);
    cut.has_blocks = s->scaled_k && s->scaled_k < s->k;
    cut_block(&cut, s, cpu_n_threads(cpu));

    block_floats = (int64_t)cut.code->rows * cut.code->cols;
    /* Of one piece, a task needs one register block at a time. */
    cut.accum_stride = cut.piece_steps < cut.n_steps ? block_floats : 0;
    if (cut.shares_accum)
        cut.accum_bytes = (size_t)(cut.block_rows * cut.block_cols) * sizeof(float);
    else
        cut.accum_bytes =
            (size_t)max_i64(cut.group_rows / cut.code->rows * cut.accum_stride, block_floats) *
            sizeof(float);
    n_panels = cut.block_rows / cut.code->rows * (cut.chunk_steps / cut.piece_steps);
    cut.packed_bytes = (size_t)(n_panels * cut.panel_lanes) * sizeof(uint32_t);
    cut.panel_bytes = (size_t)(cut.code->cols * cut.piece_steps) * sizeof(uint32_t);
    if (cut.has_blocks)
        cut.panel_bytes += (size_t)block_floats * sizeof(float);
    cut.packed_bytes = align_up(cut.packed_bytes, 64);
    cut.accum_bytes = align_up(cut.accum_bytes, 64);
    cut.panel_bytes = align_up(cut.panel_bytes, 64);
    return cut;
}

size_t cpu_gemm_scratch_bytes(const struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape)
{
    struct cut cut = cut_product(cpu, shape);
    size_t n_threads = (size_t)cpu_n_threads(cpu);

    return cut.packed_bytes + n_threads * cut.panel_bytes +
           (cut.shares_accum ? 1 : n_threads) * cut.accum_bytes;
}

/* Pieces and blocks are rounded up by less than one of their own, whatever is cut. */
size_t cpu_gemm_scratch_most(const struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape)
{
    struct cut cut = cut_product(cpu, shape);
    const struct gemm_code *code = cut.code;
    int64_t n_threads = cpu_n_threads(cpu);
    int64_t rows = round_up(min_i64(shape->m, ROWS_A_BLOCK), code->rows);
    int64_t block = cut.has_blocks ? shape->scaled_k / cut.elements : code->steps;
    int64_t most_steps = max_i64(block, code->steps);
    int64_t cols = round_up(shape->n, code->cols), steps = cut.n_steps + most_steps;
    int64_t packed = min_i64(rows * steps, PACKED_LANES + rows * 2 * most_steps);
    /* Of several pieces, each is half of the longest or more. */
    int64_t n_panels =
        min_i64(rows / code->rows * ceil_div(cut.n_steps, min_i64(block, code->steps)),
                ceil_div(2 * packed, code->rows * min_i64(block, code->steps)));
    int64_t accum_buffers = n_threads * max_i64(rows, code->rows) * code->cols;
    int64_t panels = n_threads * round_up(code->cols * most_steps, 16);

    if (shape->scaled_k) /* sums of a block */
        panels += n_threads * code->rows * code->cols;
    accum_buffers =
        max_i64(accum_buffers, min_i64(rows * cols, SHARED_ACCUM_FLOATS + rows * code->cols));
    return (size_t)(packed + n_panels * PANEL_GAP + accum_buffers + panels) * sizeof(uint32_t) +
           64 * (size_t)(n_threads + 2);
}

/* ---- a round ---- */

struct round {
    const struct cpu_kernels *cpu;
    const struct cpu_gemm_shape *shape;
    const struct cpu_gemm_operands *operands;
    const struct cut *cut;
    struct gemm_source a, b;
    uint32_t *packed; /* pieces of k, of panels, of steps */
    char *accum_buffers, *panels;
    /* What it covers. */
    int64_t row, n_rows, col, n_cols, step, n_steps;
};

static int64_t n_pieces(const struct round *r)
{
    return ceil_div(r->n_steps, r->cut->piece_steps);
}

/* Steps of a piece of the round's. */
static int64_t piece_length(const struct round *r, int64_t piece)
{
    return min_i64(r->cut->piece_steps, r->n_steps - piece * r->cut->piece_steps);
}

/* The part of a source that a piece of the round's covers. */
static struct gemm_part part_of(const struct round *r, int64_t piece, int64_t line, int64_t n_lines)
{
    int64_t k = (r->step + piece * r->cut->piece_steps) * r->cut->elements;
    int64_t length = piece_length(r, piece) * r->cut->elements;

    return (struct gemm_part){
        .line = line, .n_lines = n_lines, .k = k, .n_k = min_i64(length, r->shape->k - k)
    };
}

static uint32_t *packed_at(const struct round *r, int64_t piece, int64_t row)
{
    int64_t panel = (piece * r->cut->block_rows + row) / r->cut->code->rows;

    return r->packed + panel * r->cut->panel_lanes;
}

/* A padded row: which run it is of, which row of that, and how many rows there are from it on. */
struct run_row {
    int64_t run, row, n;
};

static struct run_row run_row(const struct cut *cut, int64_t padded)
{
    int64_t run = padded / cut->padded_run_rows, row = padded % cut->padded_run_rows;

    return (struct run_row){ run, row, cut->run_rows - row };
}

static void pack_tile(void *context, int64_t tile, int thread)
{
    const struct round *r = context;
    int64_t row = tile / n_pieces(r) * ROWS_A_PACKING, piece = tile % n_pieces(r);
    int64_t end = min_i64(row + ROWS_A_PACKING, r->n_rows);

    (void)thread;
    while (row < end) {
        struct run_row at = run_row(r->cut, r->row + row);
        struct gemm_part part = part_of(r, piece, at.row, min_i64(at.n, end - row));
        struct gemm_source a = r->a;

        a.data =
            (const char *)a.data + (size_t)(at.run * r->shape->run_lda) * dtype_bytes(r->shape->in);
        r->cut->code->pack_a(packed_at(r, piece, row), r->cut->panel_lanes, &a, &part);
        row += r->cut->padded_run_rows - at.row;
    }
}

#define USUAL_COLS GEMM_COLS_MAX /* of a register block of AVX-512 */

/* A finished register block on its way to c. */
struct finish {
    const float *sums;
    int64_t stride; /* of the sums' rows */
    void *c;
    int64_t ldc;
    int n_rows, n_cols;
    const float *bias;
    int accumulate, first;
    enum dtype out;
};

CPU_INLINE void finish_row(const struct finish *f, int64_t row, int n_cols)
{
    const float *sums = f->sums + row * f->stride;
    float *c = (float *)f->c + row * f->ldc;
    uint16_t *narrow = (uint16_t *)f->c + row * f->ldc;

    if (f->out == DTYPE_BF16 && f->accumulate && !f->first)
        for (int i = 0; i < n_cols; i++)
            narrow[i] = vec_to_bf16(vec_from_bf16(narrow[i]) + sums[i]);
    else if (f->out == DTYPE_F16 && f->bias)
        for (int i = 0; i < n_cols; i++)
            narrow[i] = vec_to_fp16(sums[i] + f->bias[i]);
    else if (f->out == DTYPE_F16)
        for (int i = 0; i < n_cols; i++)
            narrow[i] = vec_to_fp16(sums[i]);
    else if (f->out == DTYPE_BF16 && f->bias)
        for (int i = 0; i < n_cols; i++)
            narrow[i] = vec_to_bf16(sums[i] + f->bias[i]);
    else if (f->out == DTYPE_BF16)
        for (int i = 0; i < n_cols; i++)
            narrow[i] = vec_to_bf16(sums[i]);
    else if (f->accumulate && !f->first)
        for (int i = 0; i < n_cols; i++)
            c[i] = c[i] + sums[i];
    else if (f->bias)
        for (int i = 0; i < n_cols; i++)
            c[i] = sums[i] + f->bias[i];
    else
        for (int i = 0; i < n_cols; i++)
            c[i] = 0.0f + sums[i];
}

CPU_INLINE void finish_block_body(const struct finish *f)
{
    if (f->n_cols == USUAL_COLS)
        for (int64_t row = 0; row < f->n_rows; row++)
            finish_row(f, row, USUAL_COLS);
    else
        for (int64_t row = 0; row < f->n_rows; row++)
            finish_row(f, row, f->n_cols);
}

CPU_VARIANTS(finish_block, (const struct finish *f), (f));

/* Where a block of c starts, and how large it is. */
struct place {
    int64_t row, col;
    int n_rows, n_cols;
};

static char *c_at(const struct round *r, int64_t row, int64_t col)
{
    struct run_row at = run_row(r->cut, row);

    return (char *)r->operands->c +
           (size_t)(at.run * r->shape->run_ldc + at.row * r->shape->ldc + col) *
               dtype_bytes(r->shape->out);
}

static void finish(const struct round *r, const struct place *at, const float *sums)
{
    struct finish f = { .sums = sums,
                        .stride = r->cut->code->cols,
                        .c = c_at(r, at->row, at->col),
                        .ldc = r->shape->ldc,
                        .n_rows = at->n_rows,
                        .n_cols = at->n_cols,
                        .bias = r->operands->bias ? r->operands->bias + at->col : NULL,
                        .accumulate = r->shape->accumulate,
                        .first = r->operands->first,
                        .out = r->shape->out };

    finish_block[r->cpu->isa](&f);
}

/* ---- scales ---- */

/* A register block's sums of one block of k, on their way to those of all. */
struct scaling {
    const float *block;
    float *sums;
    int n_rows, n_cols, stride;
    int fresh;                   /* it is the first */
    struct cpu_gemm_scales a, b; /* from this block of k on */
    int64_t row, col;            /* the first of the register block */
};

CPU_INLINE float scale_at(const struct cpu_gemm_scales *scales, int64_t line)
{
    return scales->at[(line >> scales->shift) * scales->line_stride];
}

CPU_INLINE void add_scaled_body(const struct scaling *s)
{
    float of_b[GEMM_COLS_MAX];

    for (int j = 0; j < s->n_cols; j++)
        of_b[j] = scale_at(&s->b, s->col + j);
    for (int64_t i = 0; i < s->n_rows; i++) {
        const float *block = s->block + i * s->stride;
        float *sums = s->sums + i * s->stride, of_a = scale_at(&s->a, s->row + i);

        for (int j = 0; j < s->n_cols; j++)
            sums[j] = __builtin_fmaf(of_a * of_b[j], block[j], s->fresh ? 0.0f : sums[j]);
    }
}

CPU_VARIANTS(add_scaled, (const struct scaling *s), (s));

/* block: NULL where the sums themselves are those of the only block. */
static void scale_block(const struct round *r, const struct place *at, int64_t step, float *sums,
                        const float *block)
{
    int64_t number = r->cut->has_blocks ? step / r->cut->piece_steps : 0;
    struct scaling s = { .block = block ? block : sums,
                         .sums = sums,
                         .n_rows = at->n_rows,
                         .n_cols = at->n_cols,
                         .stride = r->cut->code->cols,
                         .fresh = !number,
                         .a = r->operands->a_scales,
                         .b = r->operands->b_scales,
                         .row = at->row,
                         .col = at->col };

    s.a.at += number * s.a.k_stride;
    s.b.at += number * s.b.k_stride;
    add_scaled[r->cpu->isa](&s);
}

/*
 * Prefetching: into the second-level cache, for the first is full of the panels that are multiplied
 * meanwhile. Always inline: gcc 12 takes a function that only prefetches for one without effects,
 * and drops its calls. What it is worth is in bench/results/cpu.md.
 */
CPU_INLINE void prefetch_row(const char *from, int64_t n_bytes)
{
    for (int64_t at = 0; at < n_bytes; at += 64)
        __builtin_prefetch(from + at, 0, 2);
}

/* What the sums will be written to or added to. */
CPU_INLINE void prefetch_c(const struct round *r, const struct place *at)
{
    int64_t element_bytes = (int64_t)dtype_bytes(r->shape->out);
    const char *c = c_at(r, at->row, at->col);

    for (int row = 0; row < at->n_rows; row++)
        prefetch_row(c + row * r->shape->ldc * element_bytes, at->n_cols * element_bytes);
}

/* Share i of n of a part of b that will be packed next: whole stored rows, which lie too far apart
 * for the processor to foresee them. */
CPU_INLINE void prefetch_b(const struct round *r, const struct gemm_part *part, int64_t i,
                           int64_t n)
{
    const struct gemm_source *b = &r->b;
    int along = b->k_stride == 1;
    int64_t n_rows = along ? part->n_lines : part->n_k, n_cols = along ? part->n_k : part->n_lines;
    int64_t stride = along ? b->line_stride : b->k_stride;
    int64_t element_bytes = (int64_t)dtype_bytes(r->shape->in);
    const char *from = (const char *)b->data +
                       (part->line * b->line_stride + part->k * b->k_stride) * element_bytes;

    for (int64_t row = n_rows * i / n; row < n_rows * (i + 1) / n; row++)
        prefetch_row(from + row * stride * element_bytes, n_cols * element_bytes);
}

/* A task's rows, and its sums. */
struct gemm_task {
    int64_t row, row_end, panel; /* within the round */
    float *accum_buffer;         /* of its first register block */
    uint32_t *b;                 /* its thread's panel */
    float *block;                /* and sums of one block of k, where they are scaled */
};

static struct gemm_task task_at(const struct round *r, int64_t number, int thread)
{
    const struct cut *cut = r->cut;
    int64_t n_panels = ceil_div(r->n_cols, cut->code->cols);
    struct gemm_task task = { .row = number / n_panels * cut->group_rows,
                              .panel = number % n_panels };

    task.row_end = min_i64(task.row + cut->group_rows, r->n_rows);
    task.b = (uint32_t *)(void *)(r->panels + (size_t)thread * cut->panel_bytes);
    task.block = (float *)(void *)(task.b + cut->code->cols * cut->piece_steps);
    if (cut->shares_accum)
        task.accum_buffer = (float *)(void *)r->accum_buffers +
                            (task.panel * cut->block_rows + task.row) * cut->code->cols;
    else
        task.accum_buffer = (float *)(void *)(r->accum_buffers + (size_t)thread * cut->accum_bytes);
    return task;
}

/* Of b, what this thread will probably pack after this: the others take the panels between. */
static struct gemm_part next_part(const struct round *r, const struct gemm_task *task,
                                  int64_t piece)
{
    int64_t panel = task->panel;

    if (++piece == n_pieces(r)) {
        piece = 0;
        panel += cpu_n_threads(r->cpu);
    }
    int64_t col = panel * r->cut->code->cols, n_cols = min_i64(r->cut->code->cols, r->n_cols - col);
    return n_cols > 0 ? part_of(r, piece, r->col + col, n_cols) : (struct gemm_part){ 0 };
}

/*
 * code->multiply. Of AVX2 it is compiled without sanitizers, which make it sixty times as slow (the
 * Makefile's unchecked_of): they check its panels here.
 */
static void multiply(const struct gemm_code *code, float *sums, const uint32_t *a,
                     const uint32_t *b, int64_t n_steps, int fresh, const struct place *at)
{
    cpu_check_range(sums, code->rows * code->cols * (int64_t)sizeof *sums);
    cpu_check_range(a, code->rows * n_steps * (int64_t)sizeof *a);
    cpu_check_range(b, code->cols * n_steps * (int64_t)sizeof *b);
    code->multiply(sums, a, b, n_steps, fresh, at->n_rows, at->n_cols);
}

static void multiply_piece(const struct round *r, const struct gemm_task *task, int64_t piece)
{
    const struct cut *cut = r->cut;
    const struct gemm_code *code = cut->code;
    int64_t col = task->panel * code->cols, n_steps = piece_length(r, piece);
    int64_t n_blocks = ceil_div(task->row_end - task->row, code->rows);
    int fresh = r->step == 0 && piece == 0;
    int last = r->step + piece * cut->piece_steps + n_steps == cut->n_steps;
    struct place at = { .col = r->col + col, .n_cols = (int)min_i64(code->cols, r->n_cols - col) };
    struct gemm_part part = part_of(r, piece, at.col, at.n_cols);
    struct gemm_part next = next_part(r, task, piece);

    code->pack_b(task->b, 0, &r->b, &part);
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t row = task->row + block * code->rows;
        float *sums = task->accum_buffer + block * cut->accum_stride;

        at.row = r->row + row;
        at.n_rows = (int)min_i64(code->rows, run_row(cut, at.row).n);
        prefetch_b(r, &next, block, n_blocks);
        if (last)
            prefetch_c(r, &at);
        multiply(code, cut->has_blocks ? task->block : sums, packed_at(r, piece, row), task->b,
                 n_steps, fresh || cut->has_blocks, &at);
        if (cut->has_blocks)
            scale_block(r, &at, r->step + piece * cut->piece_steps, sums, task->block);
        else if (last && r->shape->scaled_k)
            scale_block(r, &at, 0, sums, NULL);
        if (last)
            finish(r, &at, sums);
    }
}

/* The pieces of a's one panel lie one behind the other. */
static void multiply_skinny(const struct round *r, const struct gemm_task *task)
{
    const struct gemm_code *code = r->cut->code;
    int64_t col = task->panel * code->cols;
    struct place at = { .col = col,
                        .n_rows = (int)r->n_rows,
                        .n_cols = (int)min_i64(code->cols, r->n_cols - col) };
    struct gemm_part part = { .line = col, .n_lines = at.n_cols, .n_k = r->shape->k };

    code->multiply_skinny(task->accum_buffer, r->packed, &r->b, &part, at.n_rows);
    finish(r, &at, task->accum_buffer);
}

static void multiply_tile(void *context, int64_t tile, int thread)
{
    const struct round *r = context;
    struct gemm_task task = task_at(r, tile, thread);

    if (r->cut->is_skinny) {
        multiply_skinny(r, &task);
        return;
    }
    for (int64_t piece = 0; piece < n_pieces(r); piece++)
        multiply_piece(r, &task, piece);
}

static void run_round(struct round *r)
{
    struct pool *pool = r->cpu->base.pool;
    const struct cut *cut = r->cut;
    int64_t n_groups = ceil_div(r->n_rows, cut->group_rows);

    pool_run(pool, ceil_div(r->n_rows, ROWS_A_PACKING) * n_pieces(r), pack_tile, r);
    pool_run(pool, n_groups * ceil_div(r->n_cols, cut->code->cols), multiply_tile, r);
}

static struct gemm_source source_of(const void *data, enum gemm_lane lane, int along, int64_t ld)
{
    return (struct gemm_source){
        .data = data, .lane = lane, .line_stride = along ? ld : 1, .k_stride = along ? 1 : ld
    };
}

void cpu_gemm_run(struct cpu_kernels *cpu, const struct cpu_gemm_shape *s,
                  const struct cpu_gemm_operands *o, void *scratch)
{
    struct cut cut = cut_product(cpu, s);
    struct round r = { .cpu = cpu, .shape = s, .operands = o, .cut = &cut };

    r.a = source_of(o->a, cut.lane, !s->a_transposed, s->lda);
    r.b = source_of(o->b, cut.lane, s->b_transposed, s->ldb);
    r.packed = scratch;
    r.panels = (char *)scratch + cut.packed_bytes;
    r.accum_buffers = r.panels + (size_t)cpu_n_threads(cpu) * cut.panel_bytes;
    for (r.row = 0; r.row < cut.padded_rows; r.row += cut.block_rows)
        for (r.col = 0; r.col < s->n; r.col += cut.block_cols)
            for (r.step = 0; r.step < cut.n_steps; r.step += cut.chunk_steps) {
                r.n_rows = min_i64(cut.block_rows, cut.padded_rows - r.row);
                r.n_cols = min_i64(cut.block_cols, s->n - r.col);
                r.n_steps = min_i64(cut.chunk_steps, cut.n_steps - r.step);
                run_round(&r);
            }
}
