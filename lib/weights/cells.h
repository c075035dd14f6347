/*
 * cells.h - slices of a store whose memory is a run's cells, on whatever device that is
 *
 * A slice's data is an address that run_data gave. On the host it is read and written there; from
 * and to a GPU or the run's file it goes in pieces of whole rows; and so does fp32 in two words
 * (slice->low), which files and those that read them see as what it is.
 */
#ifndef WEIGHTS_CELLS_H
#define WEIGHTS_CELLS_H

#include "ckpt/store.h"
#include "run/run.h"

/* Fill slice->data, in host memory, with its range: store_read and its like. */
typedef int (*cells_read_fn)(void *context, const struct store_slice *slice, struct err *err);

/* Fill a slice of cells. Returns 0, or -1 and read's error. */
int cells_read(struct run *run, const struct store_slice *slice, cells_read_fn read, void *context,
               struct err *err);

/*
 * Reads cells for a save in the background, beside what is run: on a GPU on a queue of its own,
 * from when it was made. Nothing may write the cells until the last of them is read
 * (store_save_busy).
 */
struct cells_reader;
int cells_reader_create(struct cells_reader **reader, struct run *run, struct err *err);
void cells_reader_destroy(struct cells_reader *reader);

/* A store_load_fn; context is the reader. */
int cells_load(void *context, struct store_slice *slice, struct err *err);

#endif
