/*
 * rows_fuzz.c - rows of JSON, JSONL and CSV, to trees, to conversations
 *
 * The first byte says which. Reading ends, whatever the bytes; a tree that is printed is read again
 * as the same; and what is taken for a conversation ends with an answer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/instruct/conversation.h"
#include "data/rows/row_reader_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void read_row(const struct row *row)
{
    const struct conversation_options options = { INSTRUCT_AUTO, NULL, 0, "be kind" };
    struct arena arena = { 0 };
    struct json_value *value, *again;
    struct conversation c;
    struct str first = { 0 }, second = { 0 };
    struct err err;

    if (json_value_parse(&value, row->text, row->n_bytes, &arena, &err) == 0) {
        json_value_print(value, &first);
        CHECK(json_value_parse(&again, str_text(&first), first.length, &arena, &err) == 0);
        json_value_print(again, &second);
        CHECK(first.length == second.length);
        CHECK(memcmp(str_text(&first), str_text(&second), first.length) == 0);
        if (conversation_read(&options, value, &arena, &c, &err) == 0)
            CHECK(c.text || (c.n > 1 && !strcmp(c.messages[c.n - 1].role, "assistant")));
    }
    str_release(&first);
    str_release(&second);
    arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int (*const openers[])(
        struct rows * rows, struct err * err) = { rows_open_json, rows_open_lines, rows_open_csv };
    struct rows *rows = calloc(1, sizeof *rows);
    char *copy = malloc(n_bytes ? n_bytes : 1);
    struct err err;
    struct row row;
    size_t n_rows = 0;

    if (!rows || !copy || n_bytes == 0)
        goto out;
    memcpy(copy, data + 1, n_bytes - 1);
    *rows = (struct rows){ .path = "fuzz", .at = copy, .end = copy + n_bytes - 1, .line = 1 };
    if (data[0] & 128)
        rows->column = "text";
    if (openers[data[0] % 3](rows, &err) == 0)
        while (rows_next(rows, &row, &err) > 0) {
            CHECK(n_rows++ < n_bytes);
            if (row.kind == ROW_JSON)
                read_row(&row);
        }
    rows_close(rows);
    rows = NULL;
out:
    free(rows);
    free(copy);
    return 0;
}
