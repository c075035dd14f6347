/*
 * cublaslt_run.cc - see cublaslt_run.h
 */
#include "cublaslt_run.h"

#include <algorithm>
#include <vector>

static float e4m3_to_float(uint8_t code)
{
    int size = code & 0x7f;
    float x = size == 0x7f ? NAN
              : size < 8   ? ldexpf((float)size, -9)
                           : ldexpf((float)(8 + size % 8), size / 8 - 10);

    return code & 0x80 ? -x : x;
}

static float to_float(const void *from, int64_t at, cudaDataType_t type)
{
    uint16_t half = 0;

    if (type == CUDA_R_32F)
        return ((const float *)from)[at];
    if (type == CUDA_R_8F_E4M3)
        return e4m3_to_float(((const uint8_t *)from)[at]);
    half = type == CUDA_R_8F_E5M2 ? (uint16_t)(((const uint8_t *)from)[at] << 8)
                                  : ((const uint16_t *)from)[at];
    if (type == CUDA_R_16BF)
        return __uint_as_float((unsigned)half << 16);
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}

static void from_float(void *to, int64_t at, cudaDataType_t type, float x)
{
    unsigned bits = __float_as_uint(x);

    if (type == CUDA_R_32F) {
        ((float *)to)[at] = x;
    } else if (type == CUDA_R_16BF) {
        unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;

        if ((bits & 0x7fffffffu) > 0x7f800000u)
            rounded = bits >> 16 | 0x40;
        ((uint16_t *)to)[at] = (uint16_t)rounded;
    } else {
        _Float16 half = (_Float16)x;

        memcpy((uint16_t *)to + at, &half, sizeof half);
    }
}

enum { PANEL = 64, COLUMNS = 4 };

/* A column of D's first PANEL rows: four of them at a time, so that a panel's line is read once. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
multiply(float *sums, const float *panel, const float *columns, int64_t k)
{
    float sum[COLUMNS][PANEL] = {};

    for (int64_t i = 0; i < k; i++) {
        const float *line = panel + i * PANEL;

        for (int j = 0; j < COLUMNS; j++) {
            float factor = columns[j * k + i];

            for (int row = 0; row < PANEL; row++)
                sum[j][row] += line[row] * factor;
        }
    }
    memcpy(sums, sum, sizeof sum);
}

static float element(const void *memory, const emulate_layout *l, int transposed, int64_t row,
                     int64_t col)
{
    return to_float(memory, transposed ? col + row * l->ld : row + col * l->ld, l->type);
}

static void store(const matmul_call *p, const matmul_operands *o, int64_t row, int64_t col,
                  float sum)
{
    int64_t at = row + col * p->d.ld;
    float value = o->alpha * sum;

    if (o->beta != 0)
        value += o->beta * to_float(o->c, row + col * p->c.ld, p->c.type);
    if (p->matmul.epilogue == CUBLASLT_EPILOGUE_BIAS)
        value += to_float(p->matmul.bias, row, p->d.type);
    from_float(o->d, at, p->d.type, value);
}

/* begin: of k, where sums begin; they go round. */
static void compute(const matmul_call &p, const matmul_operands &o, int64_t begin)
{
    int64_t n_padded = (p.n + COLUMNS - 1) / COLUMNS * COLUMNS;
    std::vector<float> panel((size_t)(PANEL * p.k)), b((size_t)(n_padded * p.k));
    float sums[COLUMNS * PANEL];

    for (int64_t col = 0; col < p.n; col++)
        for (int64_t i = 0; i < p.k; i++)
            b[(size_t)(col * p.k + i)] =
                element(o.b, &p.b, p.matmul.transposed_b, (begin + i) % p.k, col);
    for (int64_t row = 0; row < p.m; row += PANEL) {
        int64_t n_rows = std::min<int64_t>(PANEL, p.m - row);

        for (int64_t i = 0; i < p.k; i++)
            for (int64_t r = 0; r < n_rows; r++)
                panel[(size_t)(i * PANEL + r)] =
                    element(o.a, &p.a, p.matmul.transposed_a, row + r, (begin + i) % p.k);
        for (int64_t col = 0; col < p.n; col += COLUMNS) {
            multiply(sums, panel.data(), &b[(size_t)(col * p.k)], p.k);
            for (int64_t j = 0; j < std::min<int64_t>(COLUMNS, p.n - col); j++)
                for (int64_t r = 0; r < n_rows; r++)
                    store(&p, &o, row + r, col + j, sums[j * PANEL + r]);
        }
    }
}

/* The factor of a line of A or B in block j of k, of 128. */
static float scale_of(const matmul_call &p, int operand, int64_t n_lines, int64_t line, int64_t j)
{
    const float *scales = p.matmul.scales[operand];
    int64_t n_blocks = (p.k + 127) / 128;

    if (!scales)
        return 1;
    switch (p.matmul.scale_modes[operand]) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
        return scales[j * n_lines + line];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
        return scales[line / 128 * ((n_blocks + 3) / 4 * 4) + j];
    default:
        return *scales;
    }
}

/* Of e4m3: sums of blocks, times their factors, added in order. */
static void compute_fp8(const matmul_call &p, const matmul_operands &o)
{
    std::vector<float> a((size_t)(p.m * p.k)), b((size_t)(p.n * p.k));

    for (int64_t i = 0; i < p.k; i++) {
        for (int64_t row = 0; row < p.m; row++)
            a[(size_t)(row * p.k + i)] = element(o.a, &p.a, 1, row, i);
        for (int64_t col = 0; col < p.n; col++)
            b[(size_t)(col * p.k + i)] = element(o.b, &p.b, 0, i, col);
    }
    for (int64_t row = 0; row < p.m; row++)
        for (int64_t col = 0; col < p.n; col++) {
            float sum = 0;

            for (int64_t j = 0; j * 128 < p.k; j++) {
                float block = 0;

                for (int64_t i = j * 128; i < std::min(p.k, (j + 1) * 128); i++)
                    block += a[(size_t)(row * p.k + i)] * b[(size_t)(col * p.k + i)];
                sum += scale_of(p, 0, p.m, row, j) * scale_of(p, 1, p.n, col, j) * block;
            }
            store(&p, &o, row, col, sum);
        }
}

static const void *matrix_at(const void *first, const emulate_layout *l, int64_t i)
{
    return (const char *)first + (size_t)(i * l->batch_offset) * bytes_of(l->type);
}

void cublaslt_run(const matmul_call &p, const matmul_operands &o, int64_t begin)
{
    if (is_fp8(&p)) {
        compute_fp8(p, o);
        return;
    }
    for (int64_t i = 0; i < p.d.n_batches; i++) {
        matmul_operands of_batch = o;

        of_batch.a = matrix_at(o.a, &p.a, i);
        of_batch.b = matrix_at(o.b, &p.b, i);
        of_batch.c = matrix_at(o.c, &p.c, i);
        of_batch.d = (void *)matrix_at(o.d, &p.d, i);
        compute(p, of_batch, begin);
    }
}
