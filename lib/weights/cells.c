/*
 * cells.c - see the header
 */
#include "weights/cells.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/halves.h"
#include "base/num.h"
#include "run/file_tier.h"

#define PIECE_BYTES ((size_t)16 << 20)
#define SAVE_QUEUE (DEVICE_N_QUEUES - 1)

static size_t row_bytes_of(const struct store_slice *slice)
{
    return (size_t)(slice->col_end - slice->col_begin) * dtype_bytes(slice->dtype);
}

/* A piece of a slice, from its first row on: as many rows as fit, at least one. */
static int64_t rows_that_fit(const struct store_slice *slice)
{
    return min_i64(slice->row_end - slice->row_begin,
                   max_i64(1, (int64_t)(PIECE_BYTES / row_bytes_of(slice))));
}

static size_t stride_bytes_of(const struct store_slice *slice)
{
    return slice->stride ? (size_t)slice->stride * dtype_bytes(slice->dtype) : row_bytes_of(slice);
}

/* Its upper or its lower words, as a slice of 16-bit elements. */
static struct store_slice words_of(const struct store_slice *slice, void *data)
{
    struct store_slice words = *slice;

    CHECK(slice->dtype == DTYPE_F32);
    words.dtype = DTYPE_BF16;
    words.data = data;
    words.low = NULL;
    return words;
}

/* ---- to the cells ---- */

static void put_rows(struct run *run, const struct store_slice *piece, const unsigned char *rows)
{
    int64_t n_rows = piece->row_end - piece->row_begin;
    size_t row_bytes = row_bytes_of(piece), stride_bytes = stride_bytes_of(piece);

    if (row_bytes == stride_bytes) {
        run_put_at(run, piece->data, rows, (size_t)n_rows * row_bytes);
        return;
    }
    for (int64_t row = 0; row < n_rows; row++)
        run_put_at(run, (unsigned char *)piece->data + (size_t)row * stride_bytes,
                   rows + (size_t)row * row_bytes, row_bytes);
}

/* rows: of fp32, and behind them as much memory. */
static void put_halves(struct run *run, const struct store_slice *piece, const unsigned char *rows)
{
    int64_t n = (piece->row_end - piece->row_begin) * (piece->col_end - piece->col_begin);
    const float *x = (const float *)(const void *)rows;
    uint16_t *upper = (uint16_t *)(uintptr_t)(x + n), *lower = upper + n;
    struct store_slice uppers = words_of(piece, piece->data), lowers = words_of(piece, piece->low);

    for (int64_t i = 0; i < n; i++) {
        upper[i] = halves_upper(x[i]);
        lower[i] = halves_lower(x[i]);
    }
    put_rows(run, &uppers, (const unsigned char *)upper);
    put_rows(run, &lowers, (const unsigned char *)lower);
}

int cells_read(struct run *run, const struct store_slice *slice, cells_read_fn read, void *context,
               struct err *err)
{
    struct store_slice piece = *slice;
    size_t stride_bytes = slice->low ? stride_bytes_of(slice) / 2 : stride_bytes_of(slice);
    int status = 0;

    bool is_near = device_is_host(run_device(run)) && !file_tier_has(slice->data) && !slice->low;
    if (is_near || slice->row_begin == slice->row_end || slice->col_begin == slice->col_end)
        return read(context, slice, err);
    unsigned char *rows =
        malloc((size_t)rows_that_fit(slice) * row_bytes_of(slice) * (slice->low ? 2 : 1));
    if (!rows)
        return err_set(err, ERR_DEVICE, "out of host memory");
    while (piece.row_begin < slice->row_end && !status) {
        struct store_slice here = piece;

        piece.row_end = here.row_end = piece.row_begin + rows_that_fit(&piece);
        here.data = rows;
        here.low = NULL;
        here.stride = 0;
        status = read(context, &here, err);
        if (!status && slice->low)
            put_halves(run, &piece, rows);
        else if (!status)
            put_rows(run, &piece, rows);
        size_t n_bytes = (size_t)(piece.row_end - piece.row_begin) * stride_bytes;
        piece.data = (unsigned char *)piece.data + n_bytes;
        piece.low = piece.low ? (unsigned char *)piece.low + n_bytes : NULL;
        piece.row_begin = piece.row_end;
        piece.row_end = slice->row_end;
    }
    free(rows);
    return status;
}

/* ---- from the cells ---- */

struct cells_reader {
    struct run *run;
    struct device *device;
    struct device_event *event;
    unsigned char *pieces[2]; /* pinned; a piece stays until the one after the next */
    size_t piece_bytes[2];
    int next;
    float *joined[2]; /* what the words of that piece are */
};

int cells_reader_create(struct cells_reader **out, struct run *run, struct err *err)
{
    struct device *device = run_device(run);
    struct cells_reader *reader;

    *out = NULL;
    reader = calloc(1, sizeof *reader);
    if (!reader)
        return err_set(err, ERR_DEVICE, "out of host memory");
    reader->run = run;
    reader->device = device;
    if (device_is_host(device)) {
        *out = reader;
        return 0;
    }
    if (device->ops->open_queue(device, SAVE_QUEUE, err) < 0 ||
        device->ops->event_create(device, 0, &reader->event, err) < 0) {
        cells_reader_destroy(reader);
        return -1;
    }
    /* What has been run so far comes first. */
    device->ops->event_record(device, DEVICE_COMPUTE, reader->event);
    device->ops->event_wait(device, SAVE_QUEUE, reader->event);
    *out = reader;
    return 0;
}

void cells_reader_destroy(struct cells_reader *reader)
{
    if (!reader)
        return;
    if (!device_is_host(reader->device))
        reader->device->ops->event_destroy(reader->device, reader->event);
    for (int i = 0; i < 2; i++) {
        if (reader->pieces[i])
            reader->device->ops->release_pinned(reader->device, reader->pieces[i]);
        free(reader->joined[i]);
    }
    free(reader);
}

/* At least n_bytes of pinned memory for the next piece. */
static int make_room(struct cells_reader *reader, size_t n_bytes, struct err *err)
{
    struct device *device = reader->device;
    void *memory;

    if (reader->piece_bytes[reader->next] >= n_bytes)
        return 0;
    if (reader->pieces[reader->next])
        device->ops->release_pinned(device, reader->pieces[reader->next]);
    free(reader->joined[reader->next]);
    reader->joined[reader->next] = NULL;
    reader->pieces[reader->next] = NULL;
    reader->piece_bytes[reader->next] = 0;
    if (device->ops->allocate_pinned(device, n_bytes, &memory, err) < 0)
        return -1;
    reader->pieces[reader->next] = memory;
    reader->piece_bytes[reader->next] = n_bytes;
    return 0;
}

/* Until the queue of saves has done what was put there. */
static void wait_for_copy(struct cells_reader *reader)
{
    const struct timespec pause = { 0, 50000 };
    struct device *device = reader->device;

    if (device_is_host(device))
        return;
    device->ops->event_record(device, SAVE_QUEUE, reader->event);
    while (!device->ops->event_done(device, reader->event))
        nanosleep(&pause, NULL);
}

static int copy_cells(const struct cells_reader *reader, unsigned char *to,
                      const unsigned char *from, size_t n_bytes, struct err *err)
{
    struct device *device = reader->device;

    if (file_tier_has(from))
        return run_read_file(reader->run, to, from, n_bytes, err);
    device->ops->copy(device, SAVE_QUEUE, to, from, n_bytes);
    return 0;
}

/* Rows to memory where they lie one after the other. */
static int copy_rows(const struct cells_reader *reader, const struct store_slice *slice,
                     int64_t n_rows, unsigned char *to, struct err *err)
{
    size_t row_bytes = row_bytes_of(slice), stride_bytes = stride_bytes_of(slice);
    const unsigned char *from = slice->data;

    bool is_dense = row_bytes == stride_bytes;
    size_t n_copies = is_dense ? 1 : (size_t)n_rows;
    size_t copy_bytes = is_dense ? (size_t)n_rows * row_bytes : row_bytes;
    for (size_t i = 0; i < n_copies; i++)
        if (copy_cells(reader, to + i * row_bytes, from + i * stride_bytes, copy_bytes, err) < 0)
            return -1;
    return 0;
}

/* n elements whose words were copied to `words`, the upper ones first. NULL without memory. */
static float *join(struct cells_reader *reader, int number, const uint16_t *words, int64_t n)
{
    if (!reader->joined[number])
        reader->joined[number] = malloc(reader->piece_bytes[number]);
    float *x = reader->joined[number];
    for (int64_t i = 0; i < n && x; i++)
        x[i] = halves_join(words[i], words[n + i]);
    return x;
}

int cells_load(void *context, struct store_slice *slice, struct err *err)
{
    struct cells_reader *reader = context;
    int64_t n_rows = rows_that_fit(slice);
    int64_t n = n_rows * (slice->col_end - slice->col_begin);
    int number = reader->next;

    size_t n_bytes = (size_t)n_rows * row_bytes_of(slice);
    if (make_room(reader, n_bytes > PIECE_BYTES ? n_bytes : PIECE_BYTES, err) < 0)
        return -1;
    unsigned char *to = reader->pieces[number];
    reader->next = !number;
    if (slice->low) {
        struct store_slice uppers = words_of(slice, slice->data);
        struct store_slice lowers = words_of(slice, slice->low);

        if (copy_rows(reader, &uppers, n_rows, to, err) < 0 ||
            copy_rows(reader, &lowers, n_rows, to + n_bytes / 2, err) < 0)
            return -1;
    } else if (copy_rows(reader, slice, n_rows, to, err) < 0) {
        return -1;
    }
    wait_for_copy(reader);
    slice->row_end = slice->row_begin + n_rows;
    slice->data = slice->low ? (void *)join(reader, number, (const void *)to, n) : to;
    if (!slice->data)
        return err_set(err, ERR_DEVICE, "out of host memory");
    slice->low = NULL;
    slice->stride = 0;
    return 0;
}
