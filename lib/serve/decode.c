/*
 * decode.c - prefill and decode
 */
#include "serve/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "model/compile.h"
#include "serve/ensemble.h"
#include "weights/init_weights.h"
#include "weights/rope_tables.h"

#define PREFILL_MAX 128 /* tokens of a sequence in one piece */

struct decoder {
    struct program program;
    struct run *run;
    int n_sequences, prefill_len, cache_len, vocab_size;
    int *lengths;
    char *spare;            /* of decoder_reorder: a copy of one cell, on the device */
    int32_t *fed;           /* a piece's tokens, positions and last rows */
    struct model_spec spec; /* of rotations that change as texts grow */
    bool is_dynamic;
    int *waiting,
        *group;  /* [n_sequences] tokens to feed, and those of them with the same rotations */
    float *rows; /* of the table of rotations, [cache_len x head_dim]; NULL unless is_dynamic */
    struct decoder **members; /* of an ensemble: [n_members], one each */
    int n_members;
    float *logits; /* [n_sequences x vocab_size]: kept, as pieces end at different times; where the
                      head is */
};

static int compile(struct program *program, void *options, const struct mesh *mesh, int pp_rank,
                   struct err *err)
{
    struct compile_generate *generate = options;
    struct run_scratch *scratch = generate->serving.scratch_context;

    generate->serving.mesh = scratch->mesh = *mesh;
    generate->serving.pp_rank = pp_rank;
    return compile_generate(program, generate, err);
}

int decoder_create(struct decoder **out, struct served *served, struct kernels *kernels,
                   int n_sequences, int cache_len, struct err *err)
{
    return decoder_create_pieces(out, served, kernels, n_sequences, cache_len, PREFILL_MAX, err);
}

static int create_one(struct decoder **out, struct served *served, struct kernels *kernels,
                      int n_sequences, int cache_len, int piece, struct err *err)
{
    struct decoder *d = calloc(1, sizeof *d);
    struct run_scratch scratch = { .kernels = kernels, .mesh = mesh_data_parallel(1) };
    const struct model_spec *spec = &served->job.model;

    if (!d)
        return err_set(err, ERR_DEVICE, "out of host memory");
    d->n_sequences = n_sequences;
    d->cache_len = cache_len;
    d->prefill_len = min_int(cache_len, piece);
    d->vocab_size = spec->vocab_size;
    d->spec = *spec;
    d->is_dynamic = spec->position == POSITION_ROPE && spec->rope_scaling.type == ROPE_DYNAMIC;
    d->group = calloc((size_t)n_sequences, sizeof *d->group);
    d->waiting = calloc((size_t)n_sequences, sizeof *d->waiting);
    if (d->is_dynamic)
        d->rows = calloc((size_t)cache_len * (size_t)spec->head_dim, sizeof *d->rows);
    d->lengths = calloc((size_t)n_sequences, sizeof *d->lengths);
    d->logits = calloc((size_t)n_sequences * (size_t)spec->vocab_size, sizeof *d->logits);
    d->fed = calloc((size_t)n_sequences * (2 * (size_t)d->prefill_len + 1), sizeof *d->fed);
    struct compile_generate options = { .serving.model = spec,
                                        .serving.tuning = served->job.tuning,
                                        .serving.dtype = served->job.train.dtype,
                                        .n_sequences = n_sequences,
                                        .prefill_len = d->prefill_len,
                                        .cache_len = cache_len,
                                        .serving.scratch = run_scratch_bytes,
                                        .serving.scratch_context = &scratch };
    struct run_options run_options = { .program = &d->program, .kernels = kernels };
    served_run_options(served, &run_options);
    bool has_memory =
        d->lengths && d->logits && d->fed && d->group && d->waiting && (d->rows || !d->is_dynamic);
    int status = has_memory ? replica_compile(served->replica, &d->program, compile, &options, err)
                            : err_set(err, ERR_DEVICE, "out of host memory");
    if (!status)
        status = run_create(&d->run, &run_options, err);
    if (!status) {
        init_constants(d->run, &d->program, spec);
        status = served_load(served, d->run, &d->program, err);
    }
    if (status < 0) {
        decoder_destroy(d);
        return -1;
    }
    *out = d;
    return 0;
}

int decoder_create_pieces(struct decoder **out, struct served *served, struct kernels *kernels,
                          int n_sequences, int cache_len, int piece, struct err *err)
{
    struct decoder *d;

    if (create_one(&d, served, kernels, n_sequences, cache_len, piece, err) < 0)
        return -1;
    d->members = calloc((size_t)served->n_members + 1, sizeof *d->members);
    CHECK(d->members);
    for (; d->n_members < served->n_members; d->n_members++)
        if (create_one(&d->members[d->n_members], &served->members[d->n_members], kernels,
                       n_sequences, cache_len, piece, err) < 0) {
            decoder_destroy(d);
            return -1;
        }
    *out = d;
    return 0;
}

void decoder_destroy(struct decoder *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_members; i++)
        decoder_destroy(d->members[i]);
    free(d->members);
    if (d->spare)
        run_device(d->run)->ops->release(run_device(d->run), d->spare);
    run_destroy(d->run);
    program_release(&d->program);
    free(d->lengths);
    free(d->logits);
    free(d->fed);
    free(d->group);
    free(d->waiting);
    free(d->rows);
    free(d);
}

int decoder_load(struct decoder *d, struct served *served, struct err *err)
{
    CHECK(!d->n_members);
    decoder_reset(d);
    d->spec = served->job.model;
    return served_load(served, d->run, &d->program, err);
}

size_t decoder_bytes(const struct decoder *d)
{
    size_t total = program_memory_bytes(&d->program);

    for (int i = 0; i < d->n_members; i++)
        total += decoder_bytes(d->members[i]);
    return total;
}

/* Of a sequence, from as many parts of the vocabulary as there are tensor-parallel ranks. */
static int keep_logits(struct decoder *d, int sequence, struct err *err)
{
    const struct ports *ports = &d->program.ports;
    int64_t part = d->program.values[ports->logits].cols, vocab = d->vocab_size;
    float *to = d->logits + sequence * vocab;

    for (int64_t at = 0, row = sequence; at < vocab; at += part, row += d->n_sequences)
        if (run_get(d->run, ports->logits, 0, (size_t)(row * part) * sizeof *to, to + at,
                    sizeof *to * (size_t)min_i64(part, vocab - at), err) < 0)
            return -1;
    return 0;
}

static void put_ints(struct decoder *d, int value, const int32_t *ints, int n)
{
    run_put(d->run, value, 0, 0, ints, sizeof *ints * (size_t)n);
}

/* One piece: at most `length` tokens of each sequence from `begin` on; rows that are none are
 * padding. */
static int feed_piece(struct decoder *d, const int32_t *const *tokens, const int *n_tokens,
                      int begin, int length, struct err *err)
{
    const struct ports *ports = &d->program.ports;
    int32_t *ids = d->fed, *positions = ids + d->n_sequences * length;
    int32_t *last_rows = positions + d->n_sequences * length;

    for (int s = 0; s < d->n_sequences; s++) {
        int n = max_int(0, min_int(length, n_tokens[s] - begin));

        last_rows[s] = s * length + max_int(0, n - 1);
        for (int i = 0; i < length; i++) {
            ids[s * length + i] = i < n ? tokens[s][begin + i] : 0;
            positions[s * length + i] = i < n ? d->lengths[s] + i : -1;
        }
    }
    put_ints(d, ports->tokens, ids, d->n_sequences * length);
    put_ints(d, ports->positions, positions, d->n_sequences * length);
    if (ports->logits)
        put_ints(d, ports->last_rows, last_rows, d->n_sequences);
    if (run_entry(d->run, length == 1 ? ENTRY_DECODE : ENTRY_PREFILL, 1, NULL, err) < 0)
        return -1;
    for (int s = 0; s < d->n_sequences; s++) {
        int n = max_int(0, min_int(length, n_tokens[s] - begin));

        d->lengths[s] += n;
        if (n > 0 && ports->logits && keep_logits(d, s, err) < 0)
            return -1;
    }
    return 0;
}

static int feed(struct decoder *d, const int32_t *const *tokens, const int *n_tokens,
                struct err *err)
{
    int longest = 0;

    for (int s = 0; s < d->n_sequences; s++)
        longest = max_int(longest, n_tokens[s]);
    for (int begin = 0; begin < longest;) {
        int length = longest - begin == 1 ? 1 : d->prefill_len;

        if (feed_piece(d, tokens, n_tokens, begin, length, err) < 0)
            return -1;
        begin += length;
    }
    return 0;
}

/* The rows of n positions from `first` on, as a text of this length has them. */
static void put_rotations(struct decoder *d, int first, int n, int64_t length)
{
    int id = d->program.ports.rope_table, head_dim = d->spec.head_dim;
    size_t row_bytes = sizeof *d->rows * (size_t)head_dim;

    if (!id)
        return;
    rope_table_fill_rows(d->rows, first, n, length, head_dim, &d->spec);
    run_put(d->run, id, 0, (size_t)first * row_bytes, d->rows, (size_t)n * row_bytes);
}

/*
 * Dynamic NTK: tokens that are fed are rotated for the length that the sequence then has; keys that
 * are in the cache stay as they were rotated, as in transformers. A run has one table, so only
 * sequences whose lengths have the same frequencies are fed together; all within the original
 * length have the same.
 */
static int feed_dynamic(struct decoder *d, const int32_t *const *tokens, const int *n_tokens,
                        struct err *err)
{
    memcpy(d->waiting, n_tokens, sizeof *d->waiting * (size_t)d->n_sequences);
    for (int s = 0; s < d->n_sequences; s++) {
        int64_t length = rope_table_length(d->lengths[s] + d->waiting[s], &d->spec);
        int first = d->cache_len, end = 0;

        if (d->waiting[s] == 0)
            continue;
        for (int k = 0; k < d->n_sequences; k++) {
            int total = d->lengths[k] + d->waiting[k];

            d->group[k] = 0;
            if (d->waiting[k] == 0 || rope_table_length(total, &d->spec) != length)
                continue;
            d->group[k] = d->waiting[k];
            d->waiting[k] = 0;
            first = min_int(first, d->lengths[k]);
            end = max_int(end, total);
        }
        put_rotations(d, first, end - first, length);
        if (feed(d, tokens, d->group, err) < 0)
            return -1;
    }
    return 0;
}

/* Of an ensemble: logits of sequences that were fed become the log of the mean probabilities. */
static void average_logits(struct decoder *d, const int *n_tokens)
{
    const float **others = calloc((size_t)d->n_members + 1, sizeof *others);

    CHECK(others);
    for (int s = 0; s < d->n_sequences; s++) {
        if (!n_tokens[s])
            continue;
        for (int i = 0; i < d->n_members; i++)
            others[i] = decoder_logits(d->members[i], s);
        ensemble_average(d->logits + (size_t)s * (size_t)d->vocab_size, others, d->n_members,
                         d->vocab_size);
    }
    free(others);
}

int decoder_feed(struct decoder *d, const int32_t *const *tokens, const int *n_tokens,
                 struct err *err)
{
    for (int s = 0; s < d->n_sequences; s++)
        if (d->lengths[s] + n_tokens[s] > d->cache_len)
            return err_set(err, ERR_CONFIG, "a sequence of %d tokens, more than the %d allowed",
                           d->lengths[s] + n_tokens[s], d->cache_len);
    int status =
        d->is_dynamic ? feed_dynamic(d, tokens, n_tokens, err) : feed(d, tokens, n_tokens, err);
    for (int i = 0; i < d->n_members && !status; i++)
        status = decoder_feed(d->members[i], tokens, n_tokens, err);
    if (!status && d->n_members && d->program.ports.logits)
        average_logits(d, n_tokens);
    return status;
}

const float *decoder_logits(const struct decoder *d, int sequence)
{
    return d->logits + (size_t)sequence * (size_t)d->vocab_size;
}

int decoder_length(const struct decoder *d, int sequence)
{
    return d->lengths[sequence];
}

void decoder_reset(struct decoder *d)
{
    memset(d->lengths, 0, sizeof *d->lengths * (size_t)d->n_sequences);
    for (int i = 0; i < d->n_members; i++)
        decoder_reset(d->members[i]);
}

void decoder_truncate(struct decoder *d, int sequence, int length)
{
    CHECK(length <= d->lengths[sequence]);
    d->lengths[sequence] = length;
    for (int i = 0; i < d->n_members; i++)
        decoder_truncate(d->members[i], sequence, length);
}

/* Rows of a sequence in a cell of keys or values; returns how many bytes, or 0 if it is another
 * cell. */
static size_t cache_bytes(const struct decoder *d, int value)
{
    const struct value *v = &d->program.values[value];

    if (v->role != ROLE_CACHE || v->base)
        return 0;
    return (size_t)d->cache_len * (size_t)v->cols * dtype_bytes(v->dtype);
}

size_t decoder_cache_bytes(const struct decoder *d)
{
    size_t total = 0;

    for (int i = 1; i < d->program.n_values; i++)
        total += cache_bytes(d, i) * (size_t)d->n_sequences;
    for (int i = 0; i < d->n_members; i++)
        total += decoder_cache_bytes(d->members[i]);
    return total;
}

static void reorder_cell(struct decoder *d, char *data, size_t bytes, const int *from, int n)
{
    struct device *device = run_device(d->run);
    size_t row_bytes = bytes / (size_t)d->cache_len;

    for (int s = 0; s < n; s++)
        device->ops->copy(device, DEVICE_COMPUTE, d->spare + (size_t)s * bytes,
                          data + (size_t)s * bytes, row_bytes * (size_t)d->lengths[s]);
    for (int s = 0; s < n; s++)
        if (from[s] != s)
            device->ops->copy(device, DEVICE_COMPUTE, data + (size_t)s * bytes,
                              d->spare + (size_t)from[s] * bytes,
                              row_bytes * (size_t)d->lengths[from[s]]);
}

/* Returns 0, or -1 and ERR_DEVICE. */
static int make_spare(struct decoder *d, size_t n_bytes, struct err *err)
{
    struct device *device = run_device(d->run);
    void *spare;

    if (d->spare)
        return 0;
    if (device->ops->allocate(device, n_bytes, &spare, err) < 0)
        return -1;
    d->spare = spare;
    return 0;
}

static int reorder_one(struct decoder *d, const int *from, int n, struct err *err)
{
    size_t most = 0;
    int same = 1;

    CHECK(n <= d->n_sequences);
    for (int s = 0; s < n; s++)
        same &= from[s] == s;
    for (int i = 1; i < d->program.n_values; i++)
        most = cache_bytes(d, i) > most ? cache_bytes(d, i) : most;
    if (same || !most)
        return 0;
    if (make_spare(d, most * (size_t)d->n_sequences, err) < 0)
        return -1;
    for (int i = 1; i < d->program.n_values; i++)
        if (cache_bytes(d, i))
            reorder_cell(d, run_data(d->run, i, 0), cache_bytes(d, i), from, n);
    int *lengths = malloc(sizeof *lengths * (size_t)n);
    CHECK(lengths);
    memcpy(lengths, d->lengths, sizeof *lengths * (size_t)n);
    for (int s = 0; s < n; s++)
        d->lengths[s] = lengths[from[s]];
    free(lengths);
    return 0;
}

int decoder_reorder(struct decoder *d, const int *from, int n, struct err *err)
{
    int status = reorder_one(d, from, n, err);

    for (int i = 0; i < d->n_members && !status; i++)
        status = reorder_one(d->members[i], from, n, err);
    return status;
}
