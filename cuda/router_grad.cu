/*
 * router_grad.cu - router_grad: of weights, balance and z-loss (Fedus et al. 2021, eq. 4; Zoph et al.
 * 2022, eq. 5); balance_bias
 *
 * As in router.cu a token a warp, lane l having experts l, l + 32, ...; shares of choices, by which
 * the balance pulls, are made before, of integer counts.
 */
#include "cuda/router.cuh"

/* shares[u, e] = scale times how often e was chosen: m / T balance f_e; times *loss_scale, if any.
 * A unit's counts are n_counts rows. */
static __global__ void __launch_bounds__(256)
    shares_kernel(const int *counts, int n_counts, int m, double scale, const float *loss_scale,
                  float *shares)
{
    int e = (int)(blockIdx.x * 256 + threadIdx.x), unit = (int)blockIdx.y, count = 0;

    if (e >= m)
        return;
#pragma unroll 8
    for (int b = 0; b < n_counts; b++)
        count += counts[((int64_t)unit * n_counts + b) * m + e];
    if (loss_scale)
        scale *= (double)*loss_scale;
    shares[(int64_t)unit * m + e] = (float)(scale * (double)count);
}

/* The same of counts that are given, which are integers: their sum is exact. scale is not yet
 * divided by it. */
static __global__ void __launch_bounds__(256)
    given_shares_kernel(const double *counts, int m, double scale, const float *loss_scale,
                        float *shares)
{
    double sum = 0;

    for (int e = 0; e < m; e++)
        sum += counts[e];
    if (loss_scale)
        scale *= (double)*loss_scale;
    for (int e = (int)threadIdx.x; e < m; e += 256)
        shares[e] = (float)(scale / sum * counts[e]);
}

struct gradient {
    rows_of<float> dweight, weight;
    rows_of<int32_t> expert;
    rows_of<float> logit, out;
    const float *shares;     /* [units x m]; NULL: no balance */
    const float *loss_scale; /* of z; or NULL */
    int64_t n_tokens, unit_rows;
    int m, n, normalize, is_sigmoid;
    float scale, z; /* z: 2 / T of its coefficient */
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

/* The same of sigmoids. */
static __device__ __forceinline__ float mean_share(const float *shares, const float *logits, int m,
                                                   float sum)
{
    float mean = 0;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        mean = fmaf(shares[e], sigmoid_of(logits[e]) / sum, mean);
    return warp_sum(mean);
}

static __device__ __forceinline__ float max_of(const float *logits, int m)
{
    float max = -CUDART_INF_F;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        max = fmaxf(max, logits[e]);
    return warp_max(max);
}

/* Which choice of the token e is; -1: none. */
static __device__ __forceinline__ int choice_of(const int32_t *experts, int n, int e)
{
    int found = -1;

    for (int i = 0; i < n; i++)
        if (experts[i] == e)
            found = i;
    return found;
}

/* sum_i w_i g_i */
static __device__ __forceinline__ float mean_gradient(const float *w, const float *g, int n)
{
    float mean = 0;

    for (int i = 0; i < n; i++)
        mean = fmaf(w[i], g[i], mean);
    return mean;
}

/* Of the chosen ones' softmax: w_i (g_i - sum_j w_j g_j / scale); of all experts': of the others
 * -p_e times that sum; the balance': p_e (share_e - sum_j share_j p_j); z's: p_e times its factor
 * and log sum. */
static __device__ __forceinline__ void softmax_gradient(const struct gradient &p, int64_t token)
{
    const float *g = p.dweight.row(token), *w = p.weight.row(token);
    const float *logits = p.logit.at ? p.logit.row(token) : NULL;
    const float *shares = p.shares ? p.shares + token / p.unit_rows * p.m : NULL;
    float max = logits ? max_of(logits, p.m) : 0, sum = 1, share = 0, z = 0;
    float all = mean_gradient(w, g, p.n), mean = all / p.scale;

    if (logits)
        sum = (float)sum_of_all(logits, p.m, max);
    if (shares)
        share = mean_share(shares, logits, p.m, max, sum);
    if (p.z > 0)
        z = p.z * (p.loss_scale ? *p.loss_scale : 1.0f) * (max + logf(sum));
    for (int e = (int)threadIdx.x % 32; e < p.m; e += 32) {
        float prob = logits ? expf(logits[e] - max) / sum : 0;
        int i = choice_of(p.expert.row(token), p.n, e);
        float value = i >= 0 ? w[i] * (g[i] - mean) : p.normalize ? 0 : -prob * all;

        if (shares)
            value += prob * (shares[e] - share);
        p.out.row(token)[e] = p.z > 0 ? fmaf(z, prob, value) : value;
    }
}

/* Of sigmoids s_i over their sum S: (scale g_i - sum_j w_j g_j) / S s_i (1 - s_i); the balance', of
 * all s_e over their sum A: s_e (1 - s_e) (share_e - sum_j share_j s_j / A) / A. */
static __device__ __forceinline__ void sigmoid_gradient(const struct gradient &p, int64_t token)
{
    const float *g = p.dweight.row(token), *w = p.weight.row(token), *logits = p.logit.row(token);
    const float *shares = p.shares ? p.shares + token / p.unit_rows * p.m : NULL;
    const int32_t *experts = p.expert.row(token);
    float sum = p.normalize ? (float)sum_of_chosen(logits, experts, p.n) : 1;
    float mean = p.normalize ? mean_gradient(w, g, p.n) : 0;
    float max = 0, all = 1, share = 0, z = 0, z_sum = 1;

    if (shares) {
        all = (float)sum_of_sigmoids(logits, p.m);
        share = mean_share(shares, logits, p.m, all);
    }
    if (p.z > 0) {
        max = max_of(logits, p.m);
        z_sum = (float)sum_of_all(logits, p.m, max);
        z = p.z * (p.loss_scale ? *p.loss_scale : 1.0f) * (max + logf(z_sum));
    }
    for (int e = (int)threadIdx.x % 32; e < p.m; e += 32) {
        float s = sigmoid_of(logits[e]), slope = s * (1 - s);
        int i = choice_of(experts, p.n, e);
        float value = i >= 0 ? (p.scale * g[i] - mean) / sum * slope : 0;

        if (shares)
            value += slope * (shares[e] - share) / all;
        p.out.row(token)[e] = p.z > 0 ? fmaf(z, expf(logits[e] - max) / z_sum, value) : value;
    }
}

static __global__ void __launch_bounds__(TOKENS_A_BLOCK * 32) router_grad_kernel(struct gradient p)
{
    int64_t token = (int64_t)blockIdx.x * TOKENS_A_BLOCK + threadIdx.x / 32;

    if (token >= p.n_tokens)
        return;
    if (p.is_sigmoid)
        sigmoid_gradient(p, token);
    else
        softmax_gradient(p, token);
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
    struct balance_units u = units_of(&op->attributes, T);
    const float *loss_scale = (const float *)op->in[ROUTER_GRAD_SCALE].data;
    float *shares = (float *)call->scratch;
    int *counts = (int *)(shares + u.n * m);
    double scale = op->attributes.balance * (double)m / (double)T;
    struct cuda_shape shape = { dim3((unsigned)ceil_div(m, 256), (unsigned)u.n), dim3(256), 0 };

    if (tensor_given(&op->in[ROUTER_GRAD_COUNTS])) {
        cuda_launch(kernels, call, cuda_shape_of(1, 256), given_shares_kernel,
                    (const double *)op->in[ROUTER_GRAD_COUNTS].data, m, scale, loss_scale, shares);
        return shares;
    }
    int n_counts = count_units(kernels, call, choices, m, u, counts);
    cuda_launch(kernels, call, shape, shares_kernel, counts, n_counts, m,
                scale / ((double)tensor_elements(choices) / u.n), loss_scale, shares);
    return shares;
}

static void router_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *a = &op->attributes;
    struct gradient p = {};

    (void)first;
    p.dweight = cuda_rows<float>(&op->in[ROUTER_GRAD_DWEIGHT]);
    p.weight = cuda_rows<float>(&op->in[ROUTER_GRAD_WEIGHT]);
    p.expert = cuda_rows<int32_t>(&op->in[ROUTER_GRAD_EXPERT]);
    p.logit = cuda_rows<float>(&op->in[ROUTER_GRAD_LOGITS]);
    p.out = cuda_rows<float>(&op->out[ROUTER_GRAD_DLOGITS]);
    p.shares = a->balance > 0 ? make_shares(kernels, call) : NULL;
    p.loss_scale = (const float *)op->in[ROUTER_GRAD_SCALE].data;
    p.n_tokens = op->out[ROUTER_GRAD_DLOGITS].rows;
    p.unit_rows = gpu_router_unit(a, p.n_tokens);
    p.m = (int)op->out[ROUTER_GRAD_DLOGITS].cols;
    p.n = (int)op->in[ROUTER_GRAD_DWEIGHT].cols;
    p.normalize = a->normalize;
    p.is_sigmoid = a->score == ROUTER_SIGMOID;
    p.scale = (float)a->scale;
    p.z = (float)(2 * a->z / (double)p.n_tokens);
    cuda_launch(kernels, call,
                cuda_shape_of(ceil_div(p.n_tokens, TOKENS_A_BLOCK), TOKENS_A_BLOCK * 32),
                router_grad_kernel, p);
}

/* ---- the bias ----------------------------------------------------------------------------------
 */

/* One block. Counts are integers: the sum is exact, and m times a count is, too. */
static __global__ void __launch_bounds__(256)
    balance_bias_kernel(const double *counts, const int32_t *skip_update, float *bias, int m,
                        float rate)
{
    double sum = 0;

    if (*skip_update)
        return;
    for (int e = 0; e < m; e++)
        sum += counts[e];
    for (int e = (int)threadIdx.x; e < m; e += 256) {
        double over = counts[e] * m - sum;

        bias[e] += over > 0 ? -rate : over < 0 ? rate : 0;
    }
}

static void balance_bias_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, 256), balance_bias_kernel,
                (const double *)op->in[BALANCE_BIAS_COUNTS].data,
                (const int32_t *)op->in[BALANCE_BIAS_SKIP_UPDATE].data,
                (float *)op->in[BALANCE_BIAS_BIAS].data, op->in[BALANCE_BIAS_BIAS].cols,
                op->attributes.rate);
}

void cuda_register_router_grad(struct kernels_backend *table)
{
    struct kernel_entry *gradient = &table->entries[OP_ROUTER_GRAD];

    gradient->run = router_grad_run;
    gradient->prepare = router_grad_prepare;
    table->entries[OP_BALANCE_BIAS].run = balance_bias_run;
}
