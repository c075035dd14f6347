/*
 * verify.c - what was written, read again and held against where it came from
 *
 * Tensor by tensor under their names: in a folder they are read as they lie in its files, from a
 * checkpoint they are made as an export makes them. So both the table of names and its reverse are
 * in the comparison. Then one prompt of fixed tokens goes through both models.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/num.h"
#include "ckpt/convert.h"
#include "convert/convert_impl.h"
#include "convert/theirs.h"
#include "serve/decode.h"

#define PROMPT_TOKENS 16

/* One tensor of theirs at both places. */
struct comparison {
    struct conversion *c;
    struct served *to;
    const struct hf_names *names;
    int tensor;
    enum dtype dtype; /* in which both are compared: that of what was written */
    unsigned char *rows, *scratch;
};

/* Rows of a folder's tensor as they lie there, converted. */
static int read_stored(struct comparison *v, const struct hf_folder *folder, int64_t begin,
                       int64_t n, struct err *err)
{
    const struct safetensors_tensor *tensor;
    const struct safetensors *file = hf_folder_tensor(folder, v->tensor, &tensor);
    enum dtype stored = (enum dtype)safetensors_type_dtype(tensor->type);
    int64_t cols = theirs_cols(&v->names->tensors[v->tensor]);
    size_t row_bytes = (size_t)cols * dtype_bytes(stored);

    if (safetensors_read(file, tensor, (uint64_t)begin * row_bytes, v->scratch,
                         (size_t)n * row_bytes, err) < 0)
        return -1;
    convert(v->dtype, v->rows, stored, v->scratch, n * cols);
    return 0;
}

static int read_rows(struct comparison *v, const struct weights *weights, int64_t begin, int64_t n,
                     struct err *err)
{
    if (weights->folder)
        return read_stored(v, weights->folder, begin, n, err);
    return theirs_read(weights, &v->names->tensors[v->tensor], v->dtype, begin, n, v->rows,
                       v->scratch, err);
}

/* Exponent all ones, and bits behind it. */
static int is_nan(enum dtype dtype, const unsigned char *at)
{
    uint32_t whole;
    uint16_t half;

    if (dtype == DTYPE_F32) {
        memcpy(&whole, at, sizeof whole);
        return (whole & 0x7fffffffu) > 0x7f800000u;
    }
    memcpy(&half, at, sizeof half);
    return (half & 0x7fff) > (dtype == DTYPE_BF16 ? 0x7f80 : 0x7c00);
}

static int check_numbers(const struct comparison *v, int64_t begin, int64_t n, struct err *err)
{
    const struct hf_tensor *tensor = &v->names->tensors[v->tensor];
    int64_t cols = theirs_cols(tensor);

    for (int64_t i = 0; i < n * cols; i++)
        if (is_nan(v->dtype, v->rows + (size_t)i * dtype_bytes(v->dtype)))
            return err_set(err, ERR_DATA, "%s: tensor %s holds a NaN, at [%lld, %lld]",
                           v->c->from.folder, tensor->name, (long long)(begin + i / cols),
                           (long long)(i % cols));
    return 0;
}

static int hash_tensor(struct comparison *v, const struct weights *weights, int is_source,
                       uint64_t *hash, struct err *err)
{
    const struct hf_tensor *tensor = &v->names->tensors[v->tensor];
    int64_t rows = theirs_rows(tensor), step = theirs_step(tensor, DTYPE_F32);
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = min_i64(step, rows - row);
        size_t n_bytes = (size_t)(n * theirs_cols(tensor)) * dtype_bytes(v->dtype);

        if (read_rows(v, weights, row, n, err) < 0 ||
            (is_source && check_numbers(v, row, n, err) < 0))
            return -1;
        XXH3_64bits_update(&state, v->rows, n_bytes);
        conversion_tell(v->c, "verifying", (int64_t)n_bytes);
    }
    *hash = XXH3_64bits_digest(&state);
    return 0;
}

static enum dtype written_dtype(const struct comparison *v)
{
    const struct safetensors_tensor *tensor;

    if (v->to->weights.store)
        return store_find(v->to->weights.store, v->names->tensors[v->tensor].whole->name)->dtype;
    hf_folder_tensor(v->to->weights.folder, v->tensor, &tensor);
    return (enum dtype)safetensors_type_dtype(tensor->type);
}

static int compare_tensor(struct comparison *v, struct err *err)
{
    const char *name = v->names->tensors[v->tensor].name;
    uint64_t before, after;

    v->dtype = written_dtype(v);
    if (hash_tensor(v, &v->c->from.weights, 1, &before, err) < 0 ||
        hash_tensor(v, &v->to->weights, 0, &after, err) < 0)
        return -1;
    if (before == after)
        return 0;
    return err_set(err, ERR_DATA, "tensor %s is another one in %s than in %s", name,
                   v->c->options->to, v->c->from.folder);
}

static int compare_tensors(struct conversion *c, struct served *to, struct err *err)
{
    struct comparison v = { .c = c, .to = to };
    int64_t most = 0;
    int status = 0;

    v.names = hf_folder_names(to->weights.folder ? to->weights.folder : c->from.weights.folder);
    for (int i = 0; i < v.names->n_tensors; i++) {
        const struct hf_tensor *tensor = &v.names->tensors[i];

        most = max_i64(most, theirs_step(tensor, DTYPE_F32) * theirs_cols(tensor));
    }
    c->done = 0;
    c->total *= 2;
    v.rows = malloc((size_t)most * 2 * sizeof(float));
    if (!v.rows)
        return err_set(err, ERR_DEVICE, "out of host memory");
    v.scratch = v.rows + (size_t)most * sizeof(float);
    for (v.tensor = 0; v.tensor < v.names->n_tensors && !status; v.tensor++)
        status = compare_tensor(&v, err);
    free(v.rows);
    c->result->n_verified = v.names->n_tensors;
    return status;
}

/* ---- logits ---- */

static int compute_logits(struct conversion *c, struct served *served, float *logits,
                          struct err *err)
{
    int vocab_size = served->job.model.vocab_size, n = PROMPT_TOKENS;
    int32_t prompt[PROMPT_TOKENS];
    const int32_t *tokens[1] = { prompt };
    struct decoder *decoder;

    if (served->job.model.position == POSITION_LEARNED)
        n = min_int(n, served->job.model.max_seq_len);
    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)((i * 7919 + 3) % vocab_size);
    if (decoder_create(&decoder, served, c->options->kernels, 1, n, err) < 0)
        return -1;
    int status = decoder_feed(decoder, tokens, &n, err);
    if (!status)
        memcpy(logits, decoder_logits(decoder, 0), (size_t)vocab_size * sizeof *logits);
    decoder_destroy(decoder);
    return status;
}

static int judge_logits(struct conversion *c, const float *before, const float *after, int n,
                        struct err *err)
{
    double largest = 0, off = 0;

    for (int i = 0; i < n; i++) {
        if (!isfinite(before[i]) || !isfinite(after[i]))
            return err_set(err, ERR_DATA, "%s: the logits of a prompt are not finite",
                           c->from.folder);
        largest = fmax(largest, fabs((double)before[i]));
        off = fmax(off, fabs((double)before[i] - (double)after[i]));
    }
    c->result->logits = CONVERT_LOGITS_COMPARED;
    c->result->logits_off = largest > 0 ? off / largest : off;
    if (off > 0 && c->options->dtype < 0)
        return err_set(err, ERR_DATA, "the logits of a prompt differ by %.2g: %s, %s",
                       c->result->logits_off, c->from.folder, c->options->to);
    return 0;
}

static int compare_logits(struct conversion *c, struct served *to, struct err *err)
{
    const struct model_spec *spec = &to->job.model;
    int n = spec->vocab_size;

    /* Both in one type: what is compared is the weights. */
    c->from.job.train.dtype = to->job.train.dtype;
    double need = (double)model_spec_n_parameters(spec) * (double)dtype_bytes(to->job.train.dtype);
    c->result->logits = CONVERT_LOGITS_TOO_LARGE;
    if (c->options->available_bytes && need * 1.1 > (double)c->options->available_bytes)
        return 0;
    float *logits = calloc((size_t)n * 2, sizeof *logits);
    if (!logits)
        return err_set(err, ERR_DEVICE, "out of host memory");
    int status = compute_logits(c, &c->from, logits, err);
    if (!status)
        status = compute_logits(c, to, logits + n, err);
    if (!status)
        status = judge_logits(c, logits, logits + n, n, err);
    free(logits);
    return status;
}

int convert_verify(struct conversion *c, struct err *err)
{
    struct served to;

    if (served_open(&to, c->options->to, err) < 0)
        return err_add(err, "--verify");
    int status = compare_tensors(c, &to, err);
    if (!status)
        status = compare_logits(c, &to, err);
    served_close(&to);
    return status < 0 ? err_add(err, "--verify") : 0;
}
