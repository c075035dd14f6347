/*
 * events.h - TensorBoard's event files, for scalars
 *
 * The file is a list of records: u64 length, masked CRC of it, data, masked CRC of the data. The
 * data are protocol buffers (tensorflow/core/util/event.proto), of which we write four kinds of
 * field. Written from front to back with one write a call, so that TensorBoard can read along. It
 * knows nothing of training: tags are the caller's.
 */
#ifndef REPORT_EVENTS_H
#define REPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct events;

struct events_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* kept as float; nan and infinite are fine */
};

/*
 * Make a new file in folder. Its first event says that a run begins at first_step, so that
 * TensorBoard forgets what earlier files of the folder say of this step and later ones. ERR_FAILED
 * on failure.
 */
int events_open(struct events **events, const char *folder, int64_t first_step, struct err *err);

/* -1 if the disk does not take them: they are lost then, and the file is whole. */
int events_scalars(struct events *events, int64_t step, const struct events_scalar *scalars, int n,
                   struct err *err);

/* NULL is fine. */
void events_close(struct events *events);

/* CRC-32C (Castagnoli), by the CPU's instruction where it has one; _table never uses it. */
uint32_t events_crc32c(const void *data, size_t n_bytes);
uint32_t events_crc32c_table(const void *data, size_t n_bytes);

#endif
