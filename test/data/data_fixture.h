/*
 * data_fixture.h - a temporary folder, and token files in it, for the tests of data
 */
#ifndef TEST_DATA_DATA_FIXTURE_H
#define TEST_DATA_DATA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* needs those above */

#include "base/file.h"
#include "data/stream/indexed_writer.h"

/* A fresh folder's name, in a static buffer; fixture_remove removes it with all in it. */
static inline const char *fixture_folder(void)
{
    static char folder[4096];
    const char *base = getenv("TMPDIR");

    snprintf(folder, sizeof folder, "%s/lmtrain-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static inline void fixture_remove(const char *folder)
{
    struct err err;

    assert_int_equal(file_remove_tree(folder, &err), 0);
}

/* FOLDER/NAME in a heap string. */
static inline char *fixture_path(const char *folder, const char *name)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    return path;
}

/* A token file whose token at position p is first + p, cut into documents of document_tokens. */
static inline char *fixture_counting(const char *folder, const char *name, int32_t first,
                                     int n_tokens, int document_tokens, int vocab_size)
{
    char *prefix = fixture_path(folder, name);
    struct indexed_writer writer;
    struct err err = { 0 };
    int32_t *ids = calloc((size_t)n_tokens + 1, sizeof *ids);

    assert_non_null(ids);
    for (int i = 0; i < n_tokens; i++)
        ids[i] = first + i;
    assert_int_equal(indexed_writer_open(&writer, prefix, vocab_size, &err), 0);
    for (int i = 0; i < n_tokens; i += document_tokens) {
        int n = n_tokens - i < document_tokens ? n_tokens - i : document_tokens;

        assert_int_equal(indexed_writer_add(&writer, ids + i, n, &err), 0);
    }
    assert_int_equal(indexed_writer_finish(&writer, &err), 0);
    free(ids);
    return prefix;
}

#endif
