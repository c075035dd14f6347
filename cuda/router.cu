/*
 * router.cu - router, router_grad: the top s of m experts for each token, and the balance loss
 * (Shazeer et al. 2017; Fedus et al. 2021, eq. 4)
 *
 * A token a warp; lane l has experts l, l + 32, ... Choosing: each lane keeps the best of its own
 * that are left, the warp takes the best of these, and the lane that had it looks for its next: n
 * turns of two reductions and m / 32 looks. Rows are read again from the L1. All of it is a
 * hundredth of what the experts do, and bound by latency and instructions rather than by memory.
 *
 * The statistics' mean probabilities are sums over tokens in fp64: of 256 tokens a block, each of
 * its 8 warps adding every 8th, then over the blocks, every 32nd at a time; which adds follow on
 * which is a matter of T and m alone. Probabilities are made again from each token's maximum and
 * sum, that the first kernel leaves in scratch.
 */
#include "cuda/choices.cuh"

enum {
    TOKENS_A_BLOCK = 8,              /* a warp each */
    TOKENS_A_SUM = GPU_TOKENS_A_SUM, /* of a block of sums_kernel */
    SUM_LANES = 8,                   /* that share them */
    SEGMENTS = 32                    /* of stats_kernel */
};

/* What makes a token's logits probabilities: e^(logit - max) share. */
struct normalizer {
    double share;
    float max;
};
static_assert(sizeof(struct normalizer) == GPU_NORMALIZER_BYTES, "scratch");

/* ---- choosing ----------------------------------------------------------------------------------
 */

/* Grows as numbers do, 0 for none; what is no number is the largest, zeros are alike. */
static __device__ __forceinline__ unsigned order_of(float x)
{
    unsigned bits = __float_as_uint(x == 0 ? 0.0f : x);

    if (x != x)
        return 0xffffffffu;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct candidate {
    unsigned order; /* 0: there is none */
    int expert;
};

/* This lane's best after `last`: the next lower, of equal ones the next expert. */
static __device__ __forceinline__ struct candidate next_of(const float *logits, int m,
                                                           struct candidate last)
{
    struct candidate best = { 0, 0x7fffffff };

    for (int e = (int)threadIdx.x % 32; e < m; e += 32) {
        unsigned order = order_of(logits[e]);
        int left = order < last.order || (order == last.order && e > last.expert);

        if (left && order > best.order)
            best = candidate{ order, e };
    }
    return best;
}

static __device__ __forceinline__ void choose(const float *logits, int m, int32_t *experts, int n)
{
    int lane = (int)threadIdx.x % 32;
    struct candidate best = next_of(logits, m, candidate{ 0xffffffffu, -1 });

    for (int i = 0; i < n; i++) {
        unsigned top = __reduce_max_sync(0xffffffffu, best.order);
        unsigned mine = best.order == top ? (unsigned)best.expert : 0x7fffffffu;
        int expert = (int)__reduce_min_sync(0xffffffffu, mine);

        if (!lane)
            experts[i] = expert;
        if (best.expert == expert)
            best = next_of(logits, m, best);
    }
    __syncwarp(); /* lanes read them */
}

static __device__ __forceinline__ double sum_of_all(const float *logits, int m, float max)
{
    double sum = 0;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        sum += (double)expf(logits[e] - max);
    return warp_sum(sum);
}

/* normalizers: NULL where there are no statistics. */
static __global__ void __launch_bounds__(TOKENS_A_BLOCK * 32)
    router_kernel(rows_of<float> logit, rows_of<float> weight, rows_of<int32_t> expert,
                  struct normalizer *normalizers, int64_t n_tokens, int m, int n, int normalize)
{
    int lane = (int)threadIdx.x % 32;
    int64_t token = (int64_t)blockIdx.x * TOKENS_A_BLOCK + threadIdx.x / 32;

    if (token >= n_tokens)
        return;
    const float *logits = logit.row(token);
    const int32_t *experts = expert.row(token);
    double sum = 0, all = 0;

    choose(logits, m, expert.row(token), n);
    float max = logits[experts[0]];
    if (!normalize || normalizers)
        all = sum_of_all(logits, m, max);
    for (int i = lane; i < n; i += 32)
        sum += (double)expf(logits[experts[i]] - max);
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32)
        weight.row(token)[i] =
            (float)((double)expf(logits[experts[i]] - max) / (normalize ? sum : all));
    if (normalizers && !lane)
        normalizers[token] = normalizer{ 1 / all, max };
}

/* ---- statistics --------------------------------------------------------------------------------
 */

/* sums[blocks x m]: of the probabilities of the block's tokens. Thread (x, y): expert x of 32. */
static __global__ void __launch_bounds__(32 * SUM_LANES)
    sums_kernel(rows_of<float> logit, const struct normalizer *normalizers, double *sums,
                int64_t n_tokens, int m)
{
    __shared__ double shared[SUM_LANES][32];
    int x = (int)threadIdx.x, y = (int)threadIdx.y, e = (int)blockIdx.y * 32 + x;
    int64_t begin = (int64_t)blockIdx.x * TOKENS_A_SUM;
    double sum = 0;

#pragma unroll 4
    for (int i = y; i < TOKENS_A_SUM; i += SUM_LANES) {
        int64_t token = begin + i;

        if (token < n_tokens && e < m) {
            struct normalizer by = normalizers[token];

            sum += (double)expf(logit.row(token)[e] - by.max) * by.share;
        }
    }
    shared[y][x] = sum;
    __syncthreads();
    for (int i = 1; i < SUM_LANES && !y; i++)
        sum += shared[i][x];
    if (!y && e < m)
        sums[(int64_t)blockIdx.x * m + e] = sum;
}

struct stats {
    double *at;
    const double *sums; /* [n_sums x m] */
    const int *counts;  /* [n_counts x m] */
    int n_sums, n_counts, m;
    double n_tokens, n_choices;
    int first;
};

/* One block. Thread (x, y): expert x of 32, every 32nd of what there is to add. */
static __global__ void __launch_bounds__(32 * SEGMENTS) stats_kernel(struct stats s)
{
    __shared__ double sums[SEGMENTS][32];
    __shared__ int counts[SEGMENTS][32];
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    double balance = 0;

    for (int e = x; e - x < s.m; e += 32) {
        double sum = 0;
        int count = 0;

        for (int b = y; b < s.n_sums && e < s.m; b += SEGMENTS)
            sum += s.sums[(int64_t)b * s.m + e];
        for (int b = y; b < s.n_counts && e < s.m; b += SEGMENTS)
            count += s.counts[(int64_t)b * s.m + e];
        __syncthreads();
        sums[y][x] = sum;
        counts[y][x] = count;
        __syncthreads();
        if (y || e >= s.m)
            continue;
        for (int i = 1; i < SEGMENTS; i++) {
            sum += sums[i][x];
            count += counts[i][x];
        }
        balance += (double)count / s.n_choices * (sum / s.n_tokens);
        s.at[1 + e] = (s.first ? 0 : s.at[1 + e]) + (double)count;
    }
    if (y)
        return;
    balance = warp_sum(balance);
    if (!x)
        s.at[0] = (s.first ? 0 : s.at[0]) + s.m * balance;
}

/* ---- router ------------------------------------------------------------------------------------
 */

/* Scratch of the statistics. */
struct statistics {
    struct normalizer *normalizers; /* [T] */
    double *sums;
    int *counts;
    size_t n_bytes;
};

static int n_sums(const struct op_shape *op)
{
    return (int)ceil_div(op->in[ROUTER_LOGITS].rows, TOKENS_A_SUM);
}

static struct statistics statistics_of(const struct op_shape *op, void *scratch)
{
    int64_t T = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols;
    size_t sums = (size_t)T * sizeof(struct normalizer);
    size_t counts = sums + (size_t)(n_sums(op) * m) * sizeof(double);
    struct statistics s = { (struct normalizer *)scratch, (double *)((char *)scratch + sums),
                            (int *)((char *)scratch + counts),
                            counts + (size_t)(gpu_choices_blocks(&op->out[ROUTER_EXPERT]) * m) *
                                         sizeof(int) };

    return s;
}

static int router_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    return cuda_want_shared(kernels, call, choices_shared_bytes(call->op.in[ROUTER_LOGITS].cols),
                            err);
}

static void add_stats(struct kernels *kernels, const struct kernel_call *call,
                      const struct statistics *made, int first)
{
    const struct op_shape *op = &call->op;
    int64_t T = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols;
    struct cuda_shape sums = { dim3((unsigned)n_sums(op), (unsigned)ceil_div(m, 32)),
                               dim3(32, SUM_LANES), 0 };
    struct cuda_shape one = { dim3(1), dim3(32, SEGMENTS), 0 };
    struct stats s = {};

    s.at = (double *)op->out[ROUTER_STATS].data;
    s.sums = made->sums;
    s.counts = made->counts;
    s.n_sums = n_sums(op);
    s.n_counts = gpu_choices_blocks(&op->out[ROUTER_EXPERT]);
    s.m = (int)m;
    s.n_tokens = (double)T;
    s.n_choices = (double)tensor_elements(&op->out[ROUTER_EXPERT]);
    s.first = first;
    cuda_launch(kernels, call, sums, sums_kernel, cuda_rows<float>(&op->in[ROUTER_LOGITS]),
                made->normalizers, made->sums, T, m);
    choices_count(kernels, call, choices_of(&op->out[ROUTER_EXPERT], m), made->counts);
    cuda_launch(kernels, call, one, stats_kernel, s);
}

static void router_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t T = op->in[ROUTER_LOGITS].rows;
    int has_stats = tensor_given(&op->out[ROUTER_STATS]);
    struct statistics made = statistics_of(op, call->scratch);

    cuda_launch(kernels, call, cuda_shape_of(ceil_div(T, TOKENS_A_BLOCK), TOKENS_A_BLOCK * 32),
                router_kernel, cuda_rows<float>(&op->in[ROUTER_LOGITS]),
                cuda_rows<float>(&op->out[ROUTER_WEIGHT]),
                cuda_rows<int32_t>(&op->out[ROUTER_EXPERT]), has_stats ? made.normalizers : NULL, T,
                op->in[ROUTER_LOGITS].cols, op->out[ROUTER_WEIGHT].cols, op->attributes.normalize);
    if (has_stats)
        add_stats(kernels, call, &made, first);
}

/* ---- the gradient ------------------------------------------------------------------------------
 */

/* shares[e] = scale times how often e was chosen: m / T balance f_e; times *loss_scale, if any. */
static __global__ void __launch_bounds__(256)
    shares_kernel(const int *counts, int n_counts, int m, double scale, const float *loss_scale,
                  float *shares)
{
    int e = (int)(blockIdx.x * 256 + threadIdx.x), count = 0;

    if (e >= m)
        return;
#pragma unroll 8
    for (int b = 0; b < n_counts; b++)
        count += counts[(int64_t)b * m + e];
    if (loss_scale)
        scale *= (double)*loss_scale;
    shares[e] = (float)(scale * (double)count);
}

struct gradient {
    rows_of<float> dweight, weight;
    rows_of<int32_t> expert;
    rows_of<float> logit, out;
    const float *shares; /* NULL: no balance */
    int64_t n_tokens;
    int m, n, normalize;
};

/* sum_e shares_e p_e */
static __device__ __forceinline__ float mean_share(const float *shares, const float *logits, int m,
                                                   float max, float sum)
{
    float mean = 0;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        mean = fmaf(shares[e], expf(logits[e] - max) / sum, mean);
    return warp_sum(mean);
}

static __device__ __forceinline__ float max_of(const float *logits, int m)
{
    float max = -CUDART_INF_F;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        max = fmaxf(max, logits[e]);
    return warp_max(max);
}

/* Of the chosen ones' softmax: w_i (g_i - sum_j w_j g_j); of all experts': of the others -p_e times
 * that sum; the balance': p_e (share_e - sum_j share_j p_j). */
static __global__ void __launch_bounds__(TOKENS_A_BLOCK * 32) router_grad_kernel(struct gradient p)
{
    int64_t token = (int64_t)blockIdx.x * TOKENS_A_BLOCK + threadIdx.x / 32;

    if (token >= p.n_tokens)
        return;
    const float *g = p.dweight.row(token), *w = p.weight.row(token);
    const float *logits = p.logit.at ? p.logit.row(token) : NULL;
    const int32_t *experts = p.expert.row(token);
    float max = logits ? max_of(logits, p.m) : 0, sum = 1, mean = 0, share = 0;

    if (logits)
        sum = (float)sum_of_all(logits, p.m, max);
    for (int i = 0; i < p.n; i++)
        mean = fmaf(w[i], g[i], mean);
    if (p.shares)
        share = mean_share(p.shares, logits, p.m, max, sum);
    for (int e = (int)threadIdx.x % 32; e < p.m; e += 32) {
        float prob = logits ? expf(logits[e] - max) / sum : 0;
        float value = p.normalize ? 0 : -prob * mean;

        for (int i = 0; i < p.n; i++)
            if (experts[i] == e)
                value = w[i] * (g[i] - mean);
        p.out.row(token)[e] = p.shares ? value + prob * (p.shares[e] - share) : value;
    }
}

/* Whose shares f_e are: the layer's own choices, or those of all layers. */
static const struct tensor *balanced_choices(const struct op_shape *op)
{
    return &op->in[tensor_given(&op->in[ROUTER_GRAD_CHOICES]) ? ROUTER_GRAD_CHOICES
                                                              : ROUTER_GRAD_EXPERT];
}

static int router_grad_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    return cuda_want_shared(kernels, call,
                            choices_shared_bytes(call->op.out[ROUTER_GRAD_DLOGITS].cols), err);
}

static const float *make_shares(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct tensor *choices = balanced_choices(op);
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, T = op->out[ROUTER_GRAD_DLOGITS].rows;
    float *shares = (float *)call->scratch;
    int *counts = (int *)(shares + m);
    double scale =
        op->attributes.balance * (double)m / (double)T / (double)tensor_elements(choices);

    choices_count(kernels, call, choices_of(choices, m), counts);
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(m, 256), 256), shares_kernel, counts,
                gpu_choices_blocks(choices), m, scale,
                (const float *)op->in[ROUTER_GRAD_SCALE].data, shares);
    return shares;
}

static void router_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct gradient p = {};

    (void)first;
    p.dweight = cuda_rows<float>(&op->in[ROUTER_GRAD_DWEIGHT]);
    p.weight = cuda_rows<float>(&op->in[ROUTER_GRAD_WEIGHT]);
    p.expert = cuda_rows<int32_t>(&op->in[ROUTER_GRAD_EXPERT]);
    p.logit = cuda_rows<float>(&op->in[ROUTER_GRAD_LOGITS]);
    p.out = cuda_rows<float>(&op->out[ROUTER_GRAD_DLOGITS]);
    p.shares = op->attributes.balance > 0 ? make_shares(kernels, call) : NULL;
    p.n_tokens = op->out[ROUTER_GRAD_DLOGITS].rows;
    p.m = (int)op->out[ROUTER_GRAD_DLOGITS].cols;
    p.n = (int)op->in[ROUTER_GRAD_DWEIGHT].cols;
    p.normalize = op->attributes.normalize;
    cuda_launch(kernels, call,
                cuda_shape_of(ceil_div(p.n_tokens, TOKENS_A_BLOCK), TOKENS_A_BLOCK * 32),
                router_grad_kernel, p);
}

void cuda_register_router(struct kernels_backend *table)
{
    struct kernel_entry *router = &table->entries[OP_ROUTER];
    struct kernel_entry *gradient = &table->entries[OP_ROUTER_GRAD];

    router->run = router_run;
    router->prepare = router_prepare;
    gradient->run = router_grad_run;
    gradient->prepare = router_grad_prepare;
}
