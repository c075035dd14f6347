/*
 * router.cu - router: the top s of m experts for each token, and statistics of the balance (Shazeer
 * et al. 2017; Fedus et al. 2021, eq. 4; DeepSeek-AI 2024, section 2.1.2)
 *
 * A token a warp; lane l has experts l, l + 32, ... Choosing: each lane keeps the best of its own
 * that are left, the warp takes the best of these, and the lane that had it looks for its next: n
 * turns of two reductions and m / 32 looks. Rows are read again from the L1. Of groups of experts
 * each lane has one, whose key it makes alone, and the warp takes the best of these likewise. All
 * of it is a hundredth of what the experts do, and bound by latency and instructions rather than
 * by memory.
 *
 * The statistics' mean probabilities are sums over tokens in fp64: of 256 tokens a block, each of
 * its 8 warps adding every 8th, then over the blocks, every 32nd at a time; which adds follow on
 * which is a matter of T and m alone. Probabilities are made again from each token's maximum and
 * sum, that the first kernel leaves in scratch.
 */
#include "cuda/router.cuh"

enum {
    SUM_LANES = 8, /* that share the tokens of a block of sums_kernel */
    SEGMENTS = 32  /* of stats_kernel */
};

/* What makes a token's logits probabilities: e^(logit - max) share; sigmoids: times share. */
struct normalizer {
    double share;
    float max;
};
static_assert(sizeof(struct normalizer) == GPU_NORMALIZER_BYTES, "scratch");
static_assert(OPS_ROUTER_GROUPS_MAX <= 32, "a lane each");

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

/* A token's experts: logits, or sigmoids of them and a bias (or NULL); those of some groups. */
struct keys {
    const float *logits, *bias;
    int m, is_sigmoid;
    int group_size;
    unsigned groups; /* a bit each */
};

static __device__ __forceinline__ float key_of(const struct keys &k, int e)
{
    if (!k.is_sigmoid)
        return k.logits[e];
    return sigmoid_of(k.logits[e]) + (k.bias ? k.bias[e] : 0.0f);
}

/* This lane's best after `last`: the next lower, of equal ones the next expert. */
static __device__ __forceinline__ struct candidate next_of(const struct keys &k,
                                                           struct candidate last)
{
    struct candidate best = { 0, 0x7fffffff };

    for (int e = (int)threadIdx.x % 32; e < k.m; e += 32) {
        if (!(k.groups >> e / k.group_size & 1))
            continue;
        unsigned order = order_of(key_of(k, e));
        int left = order < last.order || (order == last.order && e > last.expert);

        if (left && order > best.order)
            best = candidate{ order, e };
    }
    return best;
}

/* Which of the warp's candidates is the best, of equal ones the lowest. */
static __device__ __forceinline__ int best_of_warp(struct candidate c)
{
    unsigned top = __reduce_max_sync(0xffffffffu, c.order);

    return (int)__reduce_min_sync(0xffffffffu, c.order == top ? (unsigned)c.expert : 0x7fffffffu);
}

static __device__ __forceinline__ void choose(const struct keys &k, int32_t *experts, int n)
{
    int lane = (int)threadIdx.x % 32;
    struct candidate best = next_of(k, candidate{ 0xffffffffu, -1 });

    for (int i = 0; i < n; i++) {
        int expert = best_of_warp(best);

        if (!lane)
            experts[i] = expert;
        if (best.expert == expert)
            best = next_of(k, best);
    }
    __syncwarp(); /* lanes read them */
}

/* A group's largest key, or the sum of its two largest. */
static __device__ __forceinline__ float group_key(const struct keys &k, int group)
{
    float first = -CUDART_INF_F, second = -CUDART_INF_F;

    for (int i = 0; i < k.group_size; i++) {
        float x = key_of(k, group * k.group_size + i);

        if (x != x)
            return x;
        if (x > first) {
            second = first;
            first = x;
        } else if (x > second) {
            second = x;
        }
    }
    return k.is_sigmoid && k.group_size > 1 ? first + second : first;
}

/* The best n of the groups, as bits. */
static __device__ __forceinline__ unsigned choose_groups(const struct keys &k, int n)
{
    int lane = (int)threadIdx.x % 32, is_group = lane * k.group_size < k.m;
    unsigned kept = 0;
    struct candidate own = { is_group ? order_of(group_key(k, lane)) : 0, lane };

    for (int i = 0; i < n; i++) {
        int group = best_of_warp(own);

        kept |= 1u << group;
        if (lane == group)
            own.order = 0;
    }
    return kept;
}

struct choosing {
    rows_of<float> logit;
    const float *bias; /* or NULL */
    rows_of<float> weight;
    rows_of<int32_t> expert;
    struct normalizer *normalizers; /* NULL where there are no statistics */
    int64_t n_tokens;
    int m, n, normalize, is_sigmoid, groups, groups_kept;
    double scale;
};

static __device__ __forceinline__ void weigh_softmax(const struct choosing &c, int64_t token)
{
    const float *logits = c.logit.row(token);
    const int32_t *experts = c.expert.row(token);
    int lane = (int)threadIdx.x % 32;
    double sum = 0, all = 0;
    float max = logits[experts[0]];

    if (!c.normalize || c.normalizers)
        all = sum_of_all(logits, c.m, max);
    for (int i = lane; i < c.n; i += 32)
        sum += (double)expf(logits[experts[i]] - max);
    sum = warp_sum(sum);
    for (int i = lane; i < c.n; i += 32)
        c.weight.row(token)[i] =
            (float)((double)expf(logits[experts[i]] - max) / (c.normalize ? sum : all) * c.scale);
    if (c.normalizers && !lane)
        c.normalizers[token] = normalizer{ 1 / all, max };
}

static __device__ __forceinline__ void weigh_sigmoid(const struct choosing &c, int64_t token)
{
    const float *logits = c.logit.row(token);
    const int32_t *experts = c.expert.row(token);
    int lane = (int)threadIdx.x % 32;
    double sum = c.normalize ? sum_of_chosen(logits, experts, c.n) : 1;

    for (int i = lane; i < c.n; i += 32)
        c.weight.row(token)[i] = (float)((double)sigmoid_of(logits[experts[i]]) / sum * c.scale);
    if (!c.normalizers)
        return;
    double all = sum_of_sigmoids(logits, c.m);
    if (!lane)
        c.normalizers[token] = normalizer{ 1 / all, 0 };
}

static __global__ void __launch_bounds__(TOKENS_A_BLOCK * 32) router_kernel(struct choosing c)
{
    int64_t token = (int64_t)blockIdx.x * TOKENS_A_BLOCK + threadIdx.x / 32;
    struct keys k = {};

    if (token >= c.n_tokens)
        return;
    k.logits = c.logit.row(token);
    k.bias = c.bias;
    k.m = c.m;
    k.is_sigmoid = c.is_sigmoid;
    k.group_size = c.m / c.groups;
    k.groups = c.groups > 1 ? choose_groups(k, c.groups_kept) : 1;
    choose(k, c.expert.row(token), c.n);
    if (c.is_sigmoid)
        weigh_sigmoid(c, token);
    else
        weigh_softmax(c, token);
}

/* ---- statistics --------------------------------------------------------------------------------
 */

/* sums[n blocks x m]: of the probabilities of the block's tokens. Thread (x, y): expert x of 32. */
static __global__ void __launch_bounds__(32 * SUM_LANES)
    sums_kernel(rows_of<float> logit, const struct normalizer *normalizers, double *sums,
                struct balance_units u, int m, int is_sigmoid)
{
    __shared__ double shared[SUM_LANES][32];
    int x = (int)threadIdx.x, y = (int)threadIdx.y, e = (int)blockIdx.y * 32 + x;
    int64_t unit = blockIdx.x / u.blocks, end = (unit + 1) * u.rows;
    int64_t begin = unit * u.rows + (int64_t)(blockIdx.x % u.blocks) * TOKENS_A_SUM;
    double sum = 0;

#pragma unroll 4
    for (int i = y; i < TOKENS_A_SUM; i += SUM_LANES) {
        int64_t token = begin + i;

        if (token < end && e < m) {
            struct normalizer by = normalizers[token];
            float l = logit.row(token)[e];

            sum += (double)(is_sigmoid ? sigmoid_of(l) : expf(l - by.max)) * by.share;
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
    double *at, *copy;  /* copy: of the counts so far; or NULL */
    const double *sums; /* [units x n_sums x m] */
    const int *counts;  /* [units x n_counts x m] */
    int n_units, n_sums, n_counts, m;
    double n_tokens, n_choices; /* of a unit */
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
        double before = s.first || y || e >= s.m ? 0 : s.at[1 + e];

        for (int unit = 0; unit < s.n_units; unit++) {
            double sum = 0;
            int count = 0;

            for (int b = y; b < s.n_sums && e < s.m; b += SEGMENTS)
                sum += s.sums[((int64_t)unit * s.n_sums + b) * s.m + e];
            for (int b = y; b < s.n_counts && e < s.m; b += SEGMENTS)
                count += s.counts[((int64_t)unit * s.n_counts + b) * s.m + e];
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
            before += (double)count;
        }
        if (y || e >= s.m)
            continue;
        s.at[1 + e] = before;
        if (s.copy)
            s.copy[e] = before;
    }
    if (y)
        return;
    balance = warp_sum(balance);
    if (!x)
        s.at[0] = (s.first ? 0 : s.at[0]) + s.m * balance / s.n_units;
}

/* ---- router ------------------------------------------------------------------------------------
 */

/* Scratch of the statistics. */
struct statistics {
    struct normalizer *normalizers; /* [T] */
    double *sums;
    int *counts;
};

static struct statistics statistics_of(const struct op_shape *op, const struct balance_units &u,
                                       void *scratch)
{
    int64_t T = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols;
    struct statistics s = {};

    s.normalizers = (struct normalizer *)scratch;
    s.sums = (double *)(s.normalizers + T);
    s.counts = (int *)(s.sums + (int64_t)u.n * u.blocks * m);
    return s;
}

static int router_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    return cuda_want_shared(kernels, call, choices_shared_bytes(call->op.in[ROUTER_LOGITS].cols),
                            err);
}

static void add_stats(struct kernels *kernels, const struct kernel_call *call,
                      const struct balance_units &u, const struct statistics *made, int first)
{
    const struct op_shape *op = &call->op;
    int64_t m = op->in[ROUTER_LOGITS].cols;
    struct cuda_shape sums = { dim3((unsigned)(u.n * u.blocks), (unsigned)ceil_div(m, 32)),
                               dim3(32, SUM_LANES), 0 };
    struct cuda_shape one = { dim3(1), dim3(32, SEGMENTS), 0 };
    struct stats s = {};

    s.at = (double *)op->out[ROUTER_STATS].data;
    s.copy = (double *)op->out[ROUTER_COUNTS].data;
    s.sums = made->sums;
    s.counts = made->counts;
    s.n_units = u.n;
    s.n_sums = u.blocks;
    s.m = (int)m;
    s.n_tokens = (double)u.rows;
    s.n_choices = (double)tensor_elements(&op->out[ROUTER_EXPERT]) / u.n;
    s.first = first;
    cuda_launch(kernels, call, sums, sums_kernel, cuda_rows<float>(&op->in[ROUTER_LOGITS]),
                made->normalizers, made->sums, u, m, op->attributes.score == ROUTER_SIGMOID);
    s.n_counts = count_units(kernels, call, &op->out[ROUTER_EXPERT], m, u, made->counts);
    cuda_launch(kernels, call, one, stats_kernel, s);
}

static void router_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *a = &op->attributes;
    int64_t T = op->in[ROUTER_LOGITS].rows;
    struct balance_units u = units_of(a, T);
    struct statistics made = statistics_of(op, u, call->scratch);
    struct choosing c = {};

    c.logit = cuda_rows<float>(&op->in[ROUTER_LOGITS]);
    c.bias = (const float *)op->in[ROUTER_BIAS].data;
    c.weight = cuda_rows<float>(&op->out[ROUTER_WEIGHT]);
    c.expert = cuda_rows<int32_t>(&op->out[ROUTER_EXPERT]);
    c.normalizers = tensor_given(&op->out[ROUTER_STATS]) ? made.normalizers : NULL;
    c.n_tokens = T;
    c.m = (int)op->in[ROUTER_LOGITS].cols;
    c.n = (int)op->out[ROUTER_WEIGHT].cols;
    c.normalize = a->normalize;
    c.is_sigmoid = a->score == ROUTER_SIGMOID;
    c.groups = ops_router_groups(a);
    c.groups_kept = a->groups_kept;
    c.scale = a->scale;
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(T, TOKENS_A_BLOCK), TOKENS_A_BLOCK * 32),
                router_kernel, c);
    if (c.normalizers)
        add_stats(kernels, call, u, &made, first);
}

void cuda_register_router(struct kernels_backend *table)
{
    struct kernel_entry *router = &table->entries[OP_ROUTER];

    router->run = router_run;
    router->prepare = router_prepare;
}
