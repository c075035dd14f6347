/*
 * temporary.h - folders of a test's own, in $TMPDIR
 */
#ifndef SUPPORT_TEMPORARY_H
#define SUPPORT_TEMPORARY_H

#include <stddef.h>

/*
 * Make a fresh folder in $TMPDIR, or in /tmp where that is not set, and put its path into path. 0,
 * or -1 where it cannot be made or its path does not fit. file_remove_tree is for the end.
 */
int temporary_folder(char *path, size_t size);

#endif
