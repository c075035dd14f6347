/*
 * events.h - TensorBoard's event files, for scalars
 *
 * The file is a list of records: u64 length, masked CRC of it, data, masked CRC of the data. The
 * data are protocol buffers (tensorflow/core/util/event.proto), of which we write four kinds of
 * field. Texts and hparams are summaries of TensorBoard's plugins (tensorboard/plugins/hparams,
 * plugin_data.proto). Written from front to back with one write a call, so that TensorBoard can
 * read along. It knows nothing of training: tags are the caller's.
 */
#ifndef REPORT_EVENTS_H
#define REPORT_EVENTS_H

#include <stdbool.h>
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

/* A text at step 0, in Markdown, for the text plugin. -1 as above. */
int events_text(struct events *events, const char *tag, const char *text, struct err *err);

/* What the run is made of, for the hparams plugin: values that are numbers, true or false are kept
 * as such, others as texts. -1 as above. */
struct events_hparam {
    const char *key, *value;
};
int events_hparams(struct events *events, const struct events_hparam *hparams, int n,
                   struct err *err);

/* That this session has ended, well or not, for the same plugin. -1 as above. */
int events_end(struct events *events, bool is_success, struct err *err);

/* NULL is fine. */
void events_close(struct events *events);

/* CRC-32C (Castagnoli), by the CPU's instruction where it has one; _table never uses it. */
uint32_t events_crc32c(const void *data, size_t n_bytes);
uint32_t events_crc32c_table(const void *data, size_t n_bytes);

#endif
