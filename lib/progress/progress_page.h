/*
 * progress_page.h - the supervisor's side of the progress page
 */
#ifndef PROGRESS_PROGRESS_PAGE_H
#define PROGRESS_PROGRESS_PAGE_H

#include <stddef.h>

#include "progress/progress.h"

/* Names the page for the ranks. */
#define PROGRESS_VARIABLE "LMTRAIN_PROGRESS"

/* Slots don't share cache lines. */
union progress_place {
    struct progress_slot slot;
    char line[448];
};

/*
 * Make the file path with n_slots empty slots and map it. It is unmapped by progress_page_close;
 * the file stays.
 */
int progress_page_create(union progress_place **page, const char *path, int n_slots,
                         struct err *err);
void progress_page_close(union progress_place *page, int n_slots);

/* The slot that progress_join returns from now on, whatever the environment says. */
void progress_adopt(struct progress_slot *slot);

/*
 * What a slot says, as "in attention layers.9, step 7, micro-batch 3", "waits in all_gather ...",
 * or outside of a step's ops "writing a checkpoint, step 7"; "starting" before its first beat.
 * Returns buffer.
 */
const char *progress_describe(const struct progress_slot *slot, char *buffer, size_t size);

#endif
