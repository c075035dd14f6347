/*
 * hub.h - names on the Hugging Face hub, given where a file or folder is wanted
 *
 * lmtrain downloads nothing; messages say the command that does.
 */
#ifndef BASE_HUB_H
#define BASE_HUB_H

#include <stdbool.h>
#include <stddef.h>

enum hub_kind { HUB_MODEL, HUB_DATASET };

/* Whether path has the form of such a name, "org/name", and is no file or folder here. */
bool hub_is_name(const char *path);

/*
 * " (hint: if it is a name on the Hugging Face hub: hf download ...)" for hub_is_name, else "".
 * Returns buffer.
 */
const char *hub_hint(char *buffer, size_t size, const char *path, enum hub_kind kind);

#define HUB_HINT_MAX 512

#endif
