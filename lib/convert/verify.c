/*
 * verify.c - what was written, read again and held against where it came from
 *
 * Tensor by tensor under their names: in a folder they are read as they lie in its files, from a
 * checkpoint they are made as an export makes them. So both the table of names and its reverse are
 * in the comparison. The source's hashes were taken while it was converted; what did not go by from
 * front to back is read again. Then one prompt of fixed tokens goes through both models.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/num.h"
#include "ckpt/convert_dtype.h"
#include "convert/convert_impl.h"
#include "convert/hf_rows.h"
#include "serve/decode.h"

#define PROMPT_TOKENS 16

/* One tensor at both places. */
struct tensor_comparison {
    struct conversion *c;
    struct vocab_source to; /* nothing grows in it any more */
    int number; /* of the HF tensors, or of the parameters where both sides are checkpoints */
    const char *name;
    enum dtype dtype; /* in which both are compared: that of what was written */
    int64_t rows, cols, step;
    unsigned char *data, *scratch;
    size_t data_bytes;
};

static bool is_between_checkpoints(const struct conversion *c)
{
    return !c->names.n_tensors;
}

/* Rows of a folder's tensor as they lie there, and those that it grows by. */
static int read_stored(struct tensor_comparison *v, const struct vocab_source *from, int64_t begin,
                       int64_t n, struct err *err)
{
    const struct hf_tensor *tensor = &v->c->names.tensors[v->number];
    size_t row_bytes = (size_t)v->cols * dtype_bytes(v->dtype);
    int64_t there = n;

    if (grown_vocab_grows(from, tensor->whole->name))
        there = max_i64(0, min_i64(begin + n, from->rows_there) - begin);
    if (there && hf_folder_read_rows(from->weights->folder, v->number, begin, there, v->dtype,
                                     v->data, err) < 0)
        return -1;
    for (int64_t row = there; row < n; row++)
        convert(v->dtype, v->data + (size_t)row * row_bytes, DTYPE_F32,
                grown_vocab_mean(from, tensor->whole->name, 0), v->cols);
    return 0;
}

static int read_rows(struct tensor_comparison *v, const struct vocab_source *from, int64_t begin,
                     int64_t n, struct err *err)
{
    if (is_between_checkpoints(v->c)) {
        struct store_slice slice = *store_tensor(v->c->from.weights.store, v->number);

        slice.row_begin = begin;
        slice.row_end = begin + n;
        slice.data = v->data;
        return store_read(from->weights->store, &slice, err);
    }
    if (from->weights->folder)
        return read_stored(v, from, begin, n, err);
    return hf_rows_read(from, &v->c->names.tensors[v->number], v->dtype, begin, n, v->data,
                        v->scratch, err);
}

/* The source's file that has a tensor's element. */
static const char *file_of(const struct tensor_comparison *v, int64_t row, int64_t col)
{
    struct conversion *c = v->c;
    const struct safetensors_tensor *found;

    if (c->from.weights.folder)
        return hf_folder_tensor(c->from.weights.folder, v->number, &found)->path;
    if (is_between_checkpoints(c))
        return store_file_of(c->from.weights.store, v->name, row, col, &c->arena);
    const struct hf_tensor *tensor = &c->names.tensors[v->number];
    int64_t theirs = tensor->transposed ? col : row, ours = theirs;
    for (int i = 0; i < tensor->n_pieces; i++)
        if (tensor->pieces[i].theirs <= theirs)
            ours = tensor->pieces[i].ours + theirs - tensor->pieces[i].theirs;
    return store_file_of(c->from.weights.store, tensor->whole->name, ours,
                         tensor->transposed ? row : col, &c->arena);
}

static bool is_nan(enum dtype dtype, const unsigned char *at)
{
    float x;

    convert(DTYPE_F32, &x, dtype, at, 1);
    return isnan(x);
}

static int refuse_number(const struct tensor_comparison *v, int64_t at, int nan, struct err *err)
{
    int64_t row = at / v->cols, col = at % v->cols;
    int asked = v->c->options->dtype;

    return err_set(err, ERR_DATA, "%s: tensor %s holds %s, at [%lld, %lld]%s%s",
                   file_of(v, row, col), v->name, nan ? "a NaN" : "an infinite number",
                   (long long)row, (long long)col, asked >= 0 && !nan ? " as " : "",
                   asked >= 0 && !nan ? dtype_name((enum dtype)asked) : "");
}

static int hash_tensor(struct tensor_comparison *v, const struct vocab_source *from,
                       const char *doing, uint64_t *hash, struct err *err)
{
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    for (int64_t row = 0; row < v->rows; row += v->step) {
        int64_t n = min_i64(v->step, v->rows - row);
        size_t n_bytes = (size_t)(n * v->cols) * dtype_bytes(v->dtype);

        if (read_rows(v, from, row, n, err) < 0)
            return -1;
        int64_t bad = convert_first_bad(v->dtype, v->data, n * v->cols);
        if (bad >= 0)
            return refuse_number(v, row * v->cols + bad,
                                 is_nan(v->dtype, v->data + (size_t)bad * dtype_bytes(v->dtype)),
                                 err);
        XXH3_64bits_update(&state, v->data, n_bytes);
        conversion_tell(v->c, doing, (int64_t)n_bytes);
    }
    *hash = XXH3_64bits_digest(&state);
    return 0;
}

static void describe_tensor(struct tensor_comparison *v, int number)
{
    struct conversion *c = v->c;
    const struct safetensors_tensor *stored;

    v->number = number;
    if (is_between_checkpoints(c)) {
        const struct store_slice *ours = store_tensor(c->from.weights.store, number);

        v->name = ours->name;
        v->dtype = ours->dtype;
        v->rows = ours->rows;
        v->cols = ours->cols;
        v->step = max_i64(1, conversion_piece(c) / (v->cols * (int64_t)dtype_bytes(v->dtype)));
        v->step = min_i64(v->step, v->rows);
        return;
    }
    const struct hf_tensor *tensor = &c->names.tensors[number];
    v->name = tensor->name;
    v->rows = hf_rows_rows(tensor);
    v->cols = hf_rows_cols(tensor);
    v->step = hf_rows_step(tensor, DTYPE_F32, conversion_piece(c));
    if (v->to.weights->store) {
        v->dtype = store_find(v->to.weights->store, tensor->whole->name)->dtype;
        return;
    }
    hf_folder_tensor(v->to.weights->folder, number, &stored);
    v->dtype = (enum dtype)safetensors_type_dtype(stored->type);
}

static int need_data(struct tensor_comparison *v, struct err *err)
{
    size_t n_bytes = (size_t)(v->step * v->cols) * sizeof(float);

    if (v->data_bytes >= n_bytes)
        return 0;
    free(v->data);
    v->data = malloc(2 * n_bytes);
    v->data_bytes = v->data ? n_bytes : 0;
    if (!v->data)
        return err_set(err, ERR_DEVICE, "out of host memory");
    v->scratch = v->data + n_bytes;
    return 0;
}

static int compare_tensor(struct tensor_comparison *v, struct err *err)
{
    struct conversion *c = v->c;
    const struct tensor_hash *seen = c->seen ? &c->seen[v->number] : NULL;
    uint64_t before, after;

    if (need_data(v, err) < 0 || hash_tensor(v, &v->to, "verifying", &after, err) < 0)
        return -1;
    if (seen && seen->state == SEEN_WHOLE && seen->n_elements == v->rows * v->cols)
        before = seen->hash;
    else if (hash_tensor(v, &c->source, "verifying", &before, err) < 0)
        return -1;
    if (before == after)
        return 0;
    return err_set(err, ERR_DATA, "tensor %s differs between %s and %s", v->name, c->partial,
                   c->from.folder);
}

/* Bytes that will be read: of all that was written, and of what did not go by from front to
 * back. */
static int64_t count_bytes(struct tensor_comparison *v, int n)
{
    struct conversion *c = v->c;
    int64_t n_bytes = 0;

    for (int i = 0; i < n; i++) {
        describe_tensor(v, i);
        bool is_seen = c->seen && c->seen[i].state == SEEN_WHOLE;
        n_bytes += v->rows * v->cols * (int64_t)dtype_bytes(v->dtype) * (2 - is_seen);
    }
    return n_bytes;
}

static int compare_tensors(struct conversion *c, struct served *to, struct err *err)
{
    struct tensor_comparison v = { .c = c, .to = { .weights = &to->weights } };
    int n = is_between_checkpoints(c) ? store_n_tensors(c->from.weights.store) : c->names.n_tensors;
    int status = 0;

    if (c->from.weights.folder)
        hf_folder_watch(c->from.weights.folder, NULL, NULL);
    c->done = 0;
    c->total = count_bytes(&v, n);
    for (int i = 0; i < n && !status; i++) {
        describe_tensor(&v, i);
        status = compare_tensor(&v, err);
    }
    free(v.data);
    c->result->n_verified = n;
    return status;
}

/* ---- logits ---- */

/* The prompt is made of the first n_logits tokens, whose logits are kept. */
static int feed_prompt(const struct served *served, struct decoder *decoder, int n_logits,
                       float *logits, struct err *err)
{
    int n = PROMPT_TOKENS;
    int32_t prompt[PROMPT_TOKENS];
    const int32_t *tokens[1] = { prompt };

    if (served->job.model.position == POSITION_LEARNED)
        n = min_int(n, served->job.model.max_seq_len);
    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)((i * 7919 + 3) % n_logits);
    if (decoder_feed(decoder, tokens, &n, err) < 0)
        return -1;
    memcpy(logits, decoder_logits(decoder, 0), (size_t)n_logits * sizeof *logits);
    return 0;
}

static bool is_same_model(const struct job *a, const struct job *b)
{
    struct str x = { 0 }, y = { 0 };

    job_print_model(a, &x);
    job_print_model(b, &y);
    int same = !strcmp(str_text(&x), str_text(&y));
    str_release(&x);
    str_release(&y);
    return same;
}

/*
 * The logits of both models. The second model is loaded into the memory of the first if their
 * shapes are equal, since touching new memory is most of the work.
 */
static int compute_logits(struct conversion *c, struct served *to, int n_logits, float *before,
                          float *after, struct err *err)
{
    struct kernels *kernels = c->options->kernels;
    struct decoder *decoder;

    if (decoder_create(&decoder, &c->from, kernels, 1, PROMPT_TOKENS, err) < 0)
        return -1;
    int status = feed_prompt(&c->from, decoder, n_logits, before, err);
    if (!status && is_same_model(&c->from.job, &to->job)) {
        status = decoder_load(decoder, to, err);
    } else if (!status) {
        decoder_destroy(decoder);
        if (decoder_create(&decoder, to, kernels, 1, PROMPT_TOKENS, err) < 0)
            return -1;
    }
    if (!status)
        status = feed_prompt(to, decoder, n_logits, after, err);
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
                       c->result->logits_off, c->from.folder, c->partial);
    return 0;
}

static int compare_logits(struct conversion *c, struct served *to, struct err *err)
{
    const struct model_spec *spec = &to->job.model;
    int n = spec->vocab_size, n_before = c->result->vocab_before;

    /* Both in one type: what is compared is the weights. Tokens that are new have no logits. */
    c->from.job.train.dtype = to->job.train.dtype;
    c->from.job.model.vocab_size = n_before = n_before ? n_before : n;
    double need = (double)model_spec_n_parameters(spec) * (double)dtype_bytes(to->job.train.dtype);
    c->result->logits = CONVERT_LOGITS_TOO_LARGE;
    if (c->options->available_bytes && need * 1.1 > (double)c->options->available_bytes)
        return 0;
    float *logits = calloc((size_t)n * 2, sizeof *logits);
    if (!logits)
        return err_set(err, ERR_DEVICE, "out of host memory");
    int status = compute_logits(c, to, n_before, logits, logits + n, err);
    if (!status)
        status = judge_logits(c, logits, logits + n, n_before, err);
    free(logits);
    return status;
}

int convert_verify(struct conversion *c, struct err *err)
{
    struct served to;

    if (served_open(&to, c->partial, err) < 0)
        return err_add(err, "--verify");
    int status = compare_tensors(c, &to, err);
    if (!status)
        status = compare_logits(c, &to, err);
    served_close(&to);
    return status < 0 ? err_add(err, "--verify") : 0;
}
