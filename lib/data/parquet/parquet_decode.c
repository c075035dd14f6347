/*
 * parquet_decode.c - runs, plain values, dictionaries and deltas
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "data/parquet/parquet_impl.h"

void parquet_values_release(struct parquet_values *values)
{
    free(values->numbers);
    free(values->slices);
    free(values->made);
    *values = (struct parquet_values){ 0 };
}

bool parquet_is_slices(const struct parquet_node *node)
{
    return node->type == PARQUET_BYTES || node->type == PARQUET_FIXED ||
           node->type == PARQUET_INT96;
}

static int reserve(struct parquet_values *v, int64_t n)
{
    if (n > v->capacity || !v->numbers) {
        size_t count = (size_t)max_i64(n, 1);

        free(v->numbers);
        free(v->slices);
        v->numbers = malloc(count * sizeof *v->numbers);
        v->slices = malloc(count * sizeof *v->slices);
        v->capacity = v->numbers && v->slices ? (int64_t)count : 0;
        if (!v->capacity)
            return -1;
    }
    v->n = n;
    return 0;
}

/* ---- runs ---- */

/* Up to 8 bytes from `at`, what is behind the end being 0. */
static uint64_t load_up_to_8(const unsigned char *at, const unsigned char *end)
{
    uint64_t word = 0;

    memcpy(&word, at, end - at < 8 ? (size_t)(end - at) : 8);
    return word;
}

static int read_varint(struct parquet_bytes *in, uint64_t *value)
{
    struct thrift t = { in->at, in->end, 0 };

    *value = thrift_varint(&t);
    in->at = t.at;
    return t.failed ? -1 : 0;
}

/* n values of n_bits each, packed from the low bit of each byte on. */
static void unpack(const unsigned char *at, const unsigned char *end, int n_bits, uint32_t *out,
                   int64_t n)
{
    uint64_t mask = ((uint64_t)1 << n_bits) - 1;

    for (int64_t i = 0, bit = 0; i < n; i++, bit += n_bits)
        out[i] = (uint32_t)(load_up_to_8(at + bit / 8, end) >> (bit % 8) & mask);
}

int parquet_decode_runs(struct parquet_bytes *in, int n_bits, uint32_t *out, int64_t n)
{
    if (n_bits == 0) {
        memset(out, 0, (size_t)n * sizeof *out);
        return 0;
    }
    while (n > 0) {
        uint64_t head;

        if (read_varint(in, &head) < 0)
            return -1;
        int64_t n_run = (int64_t)min_i64((int64_t)(head >> 1), INT32_MAX);
        if (head & 1) { /* groups of eight */
            int64_t n_groups = n_run, n_bytes = n_groups * n_bits;

            if (n_groups == 0)
                return -1;
            n_run = min_i64(n_groups * 8, n);
            /* The last group may be cut where its values are no more. */
            if ((n_run * n_bits + 7) / 8 > in->end - in->at)
                return -1;
            unpack(in->at, in->end, n_bits, out, n_run);
            in->at += min_i64(n_bytes, in->end - in->at);
        } else {
            int n_bytes = (n_bits + 7) / 8;

            if (n_run == 0 || in->end - in->at < n_bytes)
                return -1;
            uint64_t value = load_up_to_8(in->at, in->at + n_bytes);
            in->at += n_bytes;
            n_run = min_i64(n_run, n);
            if (value >> n_bits)
                return -1;
            for (int64_t i = 0; i < n_run; i++)
                out[i] = (uint32_t)value;
        }
        out += n_run;
        n -= n_run;
    }
    return 0;
}

int parquet_decode_levels(struct parquet_bytes *in, int max, uint8_t *out, int64_t n,
                          int64_t *n_full)
{
    enum { AT_ONCE = 1024 };
    uint32_t levels[AT_ONCE];
    int n_bits = 0;

    *n_full = 0;
    while (max >> n_bits)
        n_bits++;
    /* Runs don't stop where our pieces do: what is decoded is what whole runs give. */
    while (n > 0) {
        uint64_t head;
        if (read_varint(in, &head) < 0)
            return -1;
        int64_t n_run = min_i64((int64_t)(head >> 1), INT32_MAX);
        if (!(head & 1)) {
            if (n_run == 0 || in->at == in->end || *in->at > max)
                return -1;
            n_run = min_i64(n_run, n);
            memset(out, *in->at, (size_t)n_run);
            *n_full += *in->at == max ? n_run : 0;
            in->at++;
            out += n_run;
            n -= n_run;
            continue;
        }
        int64_t n_bytes = n_run * n_bits, n_values = min_i64(n_run * 8, n);
        if (n_run == 0 || (n_values * n_bits + 7) / 8 > in->end - in->at)
            return -1;
        for (int64_t done = 0; done < n_values; done += AT_ONCE) {
            int64_t part = min_i64(AT_ONCE, n_values - done);

            unpack(in->at + done * n_bits / 8, in->end, n_bits, levels, part);
            for (int64_t i = 0; i < part; i++) {
                if (levels[i] > (uint32_t)max)
                    return -1;
                out[done + i] = (uint8_t)levels[i];
                *n_full += levels[i] == (uint32_t)max;
            }
        }
        in->at += min_i64(n_bytes, in->end - in->at);
        out += n_values;
        n -= n_values;
    }
    return 0;
}

/* ---- plain ---- */

static int width_of(const struct parquet_node *node)
{
    switch (node->type) {
    case PARQUET_INT32:
    case PARQUET_FLOAT:
        return 4;
    case PARQUET_INT64:
    case PARQUET_DOUBLE:
        return 8;
    case PARQUET_INT96:
        return 12;
    default:
        return node->type_length;
    }
}

static int plain_bytes(struct parquet_values *v, struct parquet_bytes in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t length;

        if (in.end - in.at < 4)
            return -1;
        memcpy(&length, in.at, 4);
        in.at += 4;
        if (length > (size_t)(in.end - in.at))
            return -1;
        v->slices[i] = (struct parquet_slice){ in.at, length };
        in.at += length;
    }
    return 0;
}

static int plain(struct parquet_values *v, const struct parquet_node *node, struct parquet_bytes in,
                 int64_t n)
{
    int width = width_of(node);

    if (node->type == PARQUET_BYTES)
        return plain_bytes(v, in, n);
    if (node->type == PARQUET_BOOLEAN) {
        if ((n + 7) / 8 > in.end - in.at)
            return -1;
        for (int64_t i = 0; i < n; i++)
            v->numbers[i] = in.at[i / 8] >> (i % 8) & 1;
        return 0;
    }
    if (n * width > in.end - in.at)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *at = in.at + i * width;

        if (width <= 8 && !parquet_is_slices(node))
            v->numbers[i] = load_up_to_8(at, at + width);
        else
            v->slices[i] = (struct parquet_slice){ at, (size_t)width };
    }
    return 0;
}

/* Byte k of all values, for each k in turn. */
static int stream_split(struct parquet_values *v, const struct parquet_node *node,
                        struct parquet_bytes in, int64_t n)
{
    int64_t width = width_of(node);

    if (node->type == PARQUET_BYTES || node->type == PARQUET_BOOLEAN ||
        node->type == PARQUET_INT96 || n * width > in.end - in.at)
        return -1;
    if (!parquet_is_slices(node)) {
        for (int64_t i = 0; i < n; i++) {
            v->numbers[i] = 0;
            for (int64_t k = 0; k < width; k++)
                v->numbers[i] |= (uint64_t)in.at[k * n + i] << (8 * k);
        }
        return 0;
    }
    free(v->made);
    if (!(v->made = malloc((size_t)max_i64(n * width, 1))))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < width; k++)
            v->made[i * width + k] = in.at[k * n + i];
        v->slices[i] = (struct parquet_slice){ v->made + i * width, (size_t)width };
    }
    return 0;
}

/* ---- dictionaries ---- */

static int from_dictionary(struct parquet_values *v, const struct parquet_node *node,
                           struct parquet_bytes in, int64_t n,
                           const struct parquet_values *dictionary)
{
    bool is_slices = parquet_is_slices(node);
    int n_bits = in.at < in.end ? *in.at++ : 0, rc = 0;

    if (n == 0)
        return 0;
    uint32_t *indices = malloc((size_t)n * sizeof *indices);
    if (!indices || n_bits > 32 || parquet_decode_runs(&in, n_bits, indices, n) < 0)
        rc = -1;
    for (int64_t i = 0; i < n && rc == 0; i++) {
        if (indices[i] >= (uint64_t)dictionary->n)
            rc = -1;
        else if (is_slices)
            v->slices[i] = dictionary->slices[indices[i]];
        else
            v->numbers[i] = dictionary->numbers[indices[i]];
    }
    free(indices);
    return rc;
}

/* ---- deltas ---- */

static int read_zigzag(struct parquet_bytes *in, uint64_t *value)
{
    if (read_varint(in, value) < 0)
        return -1;
    *value = (*value >> 1) ^ -(*value & 1);
    return 0;
}

/* n_bits (0..64) from bit on. */
static uint64_t bits_at(const unsigned char *at, const unsigned char *end, int64_t bit, int n_bits)
{
    const unsigned char *from = at + bit / 8;
    int shift = (int)(bit % 8);
    uint64_t value = load_up_to_8(from, end) >> shift;

    if (shift + n_bits > 64 && end - from > 8)
        value |= (uint64_t)from[8] << (64 - shift);
    return n_bits == 64 ? value : value & (((uint64_t)1 << n_bits) - 1);
}

/* A delta-packed list of exactly n numbers; *in goes behind it. */
static int delta_binary(struct parquet_bytes *in, uint64_t *out, int64_t n)
{
    uint64_t block, n_mini, total, value, least;

    if (read_varint(in, &block) < 0 || read_varint(in, &n_mini) < 0 ||
        read_varint(in, &total) < 0 || read_zigzag(in, &value) < 0)
        return -1;
    if (n_mini == 0 || n_mini > 1024 || block > 1 << 20 || block == 0 || block % n_mini ||
        (block / n_mini) % 8 || total != (uint64_t)n)
        return -1;
    int64_t per_mini = (int64_t)(block / n_mini), i = 0;
    if (n > 0)
        out[i++] = value;
    while (i < n) {
        if (read_zigzag(in, &least) < 0 || (uint64_t)(in->end - in->at) < n_mini)
            return -1;
        const unsigned char *widths = in->at;
        in->at += n_mini;
        for (uint64_t m = 0; m < n_mini && i < n; m++) {
            int n_bits = widths[m];
            int64_t n_bytes = per_mini * n_bits / 8, n_here = min_i64(per_mini, n - i);

            /* Some writers cut the last one off where its values end. */
            if (n_bits > 64 || (n_here * n_bits + 7) / 8 > in->end - in->at)
                return -1;
            for (int64_t k = 0; k < n_here; k++)
                out[i++] = value += least + bits_at(in->at, in->end, k * n_bits, n_bits);
            in->at += min_i64(n_bytes, in->end - in->at);
        }
    }
    return 0;
}

static int delta_numbers(struct parquet_values *v, const struct parquet_node *node,
                         struct parquet_bytes in, int64_t n)
{
    if (node->type != PARQUET_INT32 && node->type != PARQUET_INT64)
        return -1;
    if (delta_binary(&in, v->numbers, n) < 0)
        return -1;
    for (int64_t i = 0; i < n && node->type == PARQUET_INT32; i++)
        v->numbers[i] = (uint32_t)v->numbers[i];
    return 0;
}

/* Lengths, then all bytes; the lengths stay in numbers. */
static int delta_length(struct parquet_values *v, struct parquet_bytes *in, int64_t n)
{
    if (delta_binary(in, v->numbers, n) < 0)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        if (v->numbers[i] > (uint64_t)(in->end - in->at))
            return -1;
        v->slices[i] = (struct parquet_slice){ in->at, (size_t)v->numbers[i] };
        in->at += v->numbers[i];
    }
    return 0;
}

/* How much of the value before each begins with; then the rests. */
static int delta_bytes(struct parquet_values *v, const struct parquet_node *node,
                       struct parquet_bytes in, int64_t n)
{
    uint64_t *prefixes = malloc((size_t)max_i64(n, 1) * sizeof *prefixes);
    size_t total = 0, before = 0;
    size_t total_max = PARQUET_PAGE_BYTES_FREE + PARQUET_PAGE_RATIO_MAX * (size_t)(in.end - in.at);
    int rc =
        !prefixes || delta_binary(&in, prefixes, n) < 0 || delta_length(v, &in, n) < 0 ? -1 : 0;

    for (int64_t i = 0; i < n && rc == 0; i++) {
        if (prefixes[i] > before)
            rc = -1;
        before = (size_t)prefixes[i] + v->slices[i].n;
        total += before;
        if (total > total_max || total > PARQUET_PAGE_BYTES_MAX ||
            (node->type == PARQUET_FIXED && before != (size_t)node->type_length))
            rc = -1;
    }
    if (rc == 0) {
        free(v->made);
        v->made = malloc(total > 0 ? total : 1);
        rc = v->made ? 0 : -1;
    }
    unsigned char *at = v->made;
    for (int64_t i = 0; i < n && rc == 0; i++) {
        size_t n_prefix = (size_t)prefixes[i], n_rest = v->slices[i].n;

        if (n_prefix > 0)
            memcpy(at, v->slices[i - 1].at, n_prefix);
        if (n_rest > 0)
            memcpy(at + n_prefix, v->slices[i].at, n_rest);
        v->slices[i] = (struct parquet_slice){ at, n_prefix + n_rest };
        at += n_prefix + n_rest;
    }
    free(prefixes);
    return rc;
}

/* ---- by encoding ---- */

/* Booleans: their length, then runs of one bit. */
static int boolean_runs(struct parquet_values *v, const struct parquet_node *node,
                        struct parquet_bytes in, int64_t n)
{
    uint8_t *bits = malloc((size_t)max_i64(n, 1));
    int64_t n_full;
    int rc = -1;

    if (bits && node->type == PARQUET_BOOLEAN && in.end - in.at >= 4) {
        in.at += 4;
        rc = parquet_decode_levels(&in, 1, bits, n, &n_full);
        for (int64_t i = 0; i < n && rc == 0; i++)
            v->numbers[i] = bits[i];
    }
    free(bits);
    return rc;
}

int parquet_decode_values(struct parquet_values *v, const struct parquet_node *node, int encoding,
                          struct parquet_bytes in, int64_t n,
                          const struct parquet_values *dictionary, struct err *err)
{
    int rc;

    if (reserve(v, n) < 0)
        return err_set(err, ERR_DEVICE, "out of host memory for %lld values", (long long)n);
    switch (encoding) {
    case ENCODING_PLAIN:
        rc = plain(v, node, in, n);
        break;
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_RLE_DICTIONARY:
        if (!dictionary)
            return err_set(err, ERR_DATA, "a page without the dictionary that it needs");
        rc = from_dictionary(v, node, in, n, dictionary);
        break;
    case ENCODING_RLE:
        rc = boolean_runs(v, node, in, n);
        break;
    case ENCODING_DELTA_BINARY:
        rc = delta_numbers(v, node, in, n);
        break;
    case ENCODING_DELTA_LENGTH:
        rc = node->type == PARQUET_BYTES ? delta_length(v, &in, n) : -1;
        break;
    case ENCODING_DELTA_BYTES:
        rc = node->type == PARQUET_BYTES || node->type == PARQUET_FIXED
                 ? delta_bytes(v, node, in, n)
                 : -1;
        break;
    case ENCODING_STREAM_SPLIT:
        rc = stream_split(v, node, in, n);
        break;
    default:
        return err_set(err, ERR_DATA, "encoding %d is not supported", encoding);
    }
    return rc == 0 ? 0
                   : err_set(err, ERR_DATA, "a page's values are broken (encoding %d)", encoding);
}
