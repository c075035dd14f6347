/*
 * corpus_test.c - files in, documents out, bad lines by name
 */
#include "data_fixture.h"

#include "data/stream/corpus.h"
#include "data/stream/dataset_stats.h"

static const char *folder;
static struct tokenizer *tokenizer;

static int set_up(void **state)
{
    struct err err = { 0 };

    (void)state;
    folder = fixture_folder();
    return tokenizer_open(&tokenizer, "data/kjv-tokenizer", &err);
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    fixture_remove(folder);
    return 0;
}

static char *write_input(const char *name, const char *text)
{
    char *path = fixture_path(folder, name);
    struct err err = { 0 };

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    return path;
}

static void count_call(void *context, const struct corpus_counts *counts)
{
    assert_in_range(counts->n_documents, 1, 3);
    assert_in_range(counts->n_file_bytes, 17, counts->n_all_file_bytes);
    ++*(int *)context;
}

/* The text of document d, without its last token if that ends the text. */
static void expect_document(const struct indexed *indexed, int64_t d, const char *text, int ended)
{
    int64_t start = indexed_document_start(indexed, d);
    int64_t n = indexed_document_start(indexed, d + 1) - start;
    struct str decoded = { 0 };
    struct err err = { 0 };
    int32_t ids[256];

    assert_in_range(n, 1, 256);
    assert_int_equal(indexed_read(indexed, start, n, 4096, ids, &err), 0);
    assert_int_equal(ids[n - 1] == 0, ended);
    tokenizer_decode(tokenizer, ids, n - ended, &decoded);
    assert_string_equal(str_text(&decoded), text);
    str_release(&decoded);
}

static void test_text_and_jsonl(void **state)
{
    char *text = write_input("one.txt", "In the beginning\n");
    char *jsonl = write_input("two.jsonl", "{\"body\": \"God created\", \"text\": \"no\"}\n\n"
                                           "{\"body\": \"\"}\n{\"body\": \"the \\u0068eaven\"}");
    char *empty = write_input("empty.txt", ""), *prefix = fixture_path(folder, "mixed");
    const char *inputs[] = { text, jsonl, empty };
    struct corpus_counts counts;
    struct indexed indexed;
    struct dataset_stats census;
    struct err err = { 0 };

    (void)state;
    for (int ended = 0; ended < 2; ended++) {
        int n_calls = 0;
        struct corpus_options options = { .inputs = inputs,
                                          .n_inputs = 3,
                                          .column = "body",
                                          .prefix = prefix,
                                          .end_of_text = ended ? 0 : -1,
                                          .progress = count_call,
                                          .context = &n_calls };

        if (corpus_tokenize(tokenizer, &options, &counts, &err) < 0)
            fail_msg("%s", err.text);
        assert_in_range(n_calls, 1, 3);
        assert_int_equal(counts.n_inputs, 3);
        assert_int_equal(counts.n_documents, 3);
        assert_int_equal(counts.n_empty, 2);
        assert_int_equal(counts.n_bytes, 17 + 11 + 10);
        /* The share that is done comes to its end. */
        assert_int_equal(counts.n_all_file_bytes, 17 + file_size(jsonl));
        assert_int_equal(counts.n_file_bytes, counts.n_all_file_bytes);
        assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
        assert_int_equal(indexed.n_tokens, counts.n_tokens);
        assert_int_equal(indexed.type, INDEXED_U16);
        expect_document(&indexed, 0, "In the beginning\n", ended);
        expect_document(&indexed, 1, "God created", ended);
        expect_document(&indexed, 2, "the heaven", ended);
        assert_int_equal(dataset_stats_take(&census, &indexed, 4096, 0, &err), 0);
        assert_int_equal(census.n_ended, ended ? 3 : 0);
        indexed_close(&indexed);
    }
    free(text);
    free(jsonl);
    free(empty);
    free(prefix);
}

/* A folder of everything, in the order of paths. */
static void test_folder(void **state)
{
    char *inner = fixture_path(folder, "all"), *prefix = fixture_path(folder, "all-out");
    struct corpus_options options = { .inputs = (const char *const *)&inner,
                                      .n_inputs = 1,
                                      .column = "t",
                                      .prefix = prefix,
                                      .end_of_text = -1 };
    struct corpus_counts counts;
    struct indexed indexed;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(file_make_folders(inner, &err), 0);
    char *files[] = {
        write_input("all/a.csv", "n,t\n1,\"In the beginning\"\n2,\n"),
        write_input("all/b.json", "[{\"t\": \"God created\"},\n {\"t\": \"the heaven\"}]"),
        write_input("all/c.jsonl", "{\"t\": \"And God said\"}\n"),
        write_input("all/d.txt", "Let there be light"),
        write_input("all/README.md", "not rows"),
    };
    if (corpus_tokenize(tokenizer, &options, &counts, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(counts.n_documents, 5);
    assert_int_equal(counts.n_empty, 1);
    assert_int_equal(counts.n_found, 4);
    assert_int_equal(counts.n_inputs, 4);
    assert_int_equal(counts.n_ignored, 1);
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    expect_document(&indexed, 0, "In the beginning", 0);
    expect_document(&indexed, 1, "God created", 0);
    expect_document(&indexed, 2, "the heaven", 0);
    expect_document(&indexed, 3, "And God said", 0);
    expect_document(&indexed, 4, "Let there be light", 0);
    indexed_close(&indexed);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        free(files[i]);
    free(inner);
    free(prefix);
}

static void expect_error(const char *path, enum rows_format format, const char *text)
{
    char *prefix = fixture_path(folder, "failed"),
         *partial = fixture_path(folder, "failed.bin.partial");
    char *bin = fixture_path(folder, "failed.bin");
    struct corpus_options options = { .inputs = &path,
                                      .n_inputs = 1,
                                      .column = "text",
                                      .prefix = prefix,
                                      .end_of_text = 0,
                                      .format = format };
    struct corpus_counts counts;
    struct err err = { 0 };

    assert_int_equal(corpus_tokenize(tokenizer, &options, &counts, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
    assert_false(file_exists(partial));
    assert_false(file_exists(bin));
    free(prefix);
    free(partial);
    free(bin);
}

static void test_errors(void **state)
{
    char *bad_line = write_input("bad.jsonl", "{\"text\": \"a\"}\n\n{\"text\": 1}\n");
    char *bad_text = write_input("bad.txt", "abc\xff");
    char *bad_json_text = write_input("utf8.jsonl", "{\"text\": \"a\xff\"}\n");

    (void)state;
    expect_error(bad_line, ROWS_AUTO, "bad.jsonl:3: field 'text' is not a string");
    expect_error(bad_text, ROWS_AUTO, "bad.txt: byte 3 (0xff) is not valid UTF-8");
    expect_error(bad_text, ROWS_JSONL, "bad.txt:1: an object is expected");
    expect_error(bad_json_text, ROWS_AUTO, "utf8.jsonl:1: byte 1 (0xff) is not valid UTF-8");
    expect_error("/nonexistent.jsonl", ROWS_AUTO, "/nonexistent.jsonl");
    expect_error("/dev/zero", ROWS_JSONL, "/dev/zero:1: the line is longer than 268435456 bytes");
    char *inner = fixture_path(folder, "inner");
    struct err err;
    assert_int_equal(file_make_folders(inner, &err), 0);
    expect_error(inner, ROWS_JSONL, "inner has no file of rows");
    char *csv = write_input("inner/bad.csv", "text,n\na,1\nb\n");
    expect_error(inner, ROWS_AUTO, "inner/bad.csv:3: 1 fields, the header has 2");
    free(inner);
    free(csv);
    expect_error("/nonexistent.txt", ROWS_AUTO, "/nonexistent.txt");
    free(bad_line);
    free(bad_text);
    free(bad_json_text);
}

/* Documents of many lengths, with empty ones between; a bad line at `bad` unless it is negative. */
static char *write_many(int n, int bad)
{
    struct str lines = { 0 };

    for (int i = 0; i < n; i++) {
        str_printf(&lines, "{\"text\": \"");
        for (int k = 0; k < i % 37; k++)
            str_printf(&lines, "%s%d and the LORD said %d, ", k ? " " : "", i, k * i);
        str_add(&lines, bad >= 0 && (i == bad || i == bad + 3000) ? "\": 1}\n" : "\"}\n");
    }
    char *path = write_input("many.jsonl", str_text(&lines));
    str_release(&lines);
    return path;
}

/* Bit-equal files from any number of threads. */
static void test_threads(void **state)
{
    char *input = write_many(20000, -1), *first_bin = NULL, *first_idx = NULL;
    size_t n_first_bin = 0, n_first_idx = 0;
    struct err err = { 0 };

    (void)state;
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        char *prefix = fixture_path(folder, "threads"), *bin, *idx;
        char *bin_path = fixture_path(folder, "threads.bin");
        char *idx_path = fixture_path(folder, "threads.idx");
        const char *path = input;
        size_t n_bin, n_idx;
        struct corpus_counts counts;
        struct corpus_options options = { .inputs = &path,
                                          .n_inputs = 1,
                                          .column = "text",
                                          .prefix = prefix,
                                          .end_of_text = 0,
                                          .n_threads = n_threads };

        if (corpus_tokenize(tokenizer, &options, &counts, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(counts.n_documents + counts.n_empty, 20000);
        assert_int_equal(counts.n_empty, 541);
        assert_int_equal(file_read(bin_path, 1u << 30, ERR_DATA, &bin, &n_bin, &err), 0);
        assert_int_equal(file_read(idx_path, 1u << 30, ERR_DATA, &idx, &n_idx, &err), 0);
        if (!first_bin) {
            first_bin = bin, n_first_bin = n_bin;
            first_idx = idx, n_first_idx = n_idx;
        } else {
            assert_int_equal(n_bin, n_first_bin);
            assert_int_equal(n_idx, n_first_idx);
            assert_memory_equal(bin, first_bin, n_bin);
            assert_memory_equal(idx, first_idx, n_idx);
            free(bin);
            free(idx);
        }
        free(prefix);
        free(bin_path);
        free(idx_path);
    }
    free(first_bin);
    free(first_idx);
    free(input);
}

/* The first bad line is named, whichever thread is first to meet one. */
static void test_first_error(void **state)
{
    char *input = write_many(20000, 11000), *prefix = fixture_path(folder, "first");
    const char *path = input;
    struct corpus_options options = { .inputs = &path,
                                      .n_inputs = 1,
                                      .column = "text",
                                      .prefix = prefix,
                                      .end_of_text = 0,
                                      .n_threads = 4 };
    struct corpus_counts counts;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(corpus_tokenize(tokenizer, &options, &counts, &err), -1);
    assert_non_null(strstr(err.text, "many.jsonl:11001: "));
    free(prefix);
    free(input);
}

static void test_unwritable(void **state)
{
    const char *input = "data/kjv-tokenizer/tokenizer.json";
    struct corpus_options options = {
        .inputs = &input, .n_inputs = 1, .column = "text", .prefix = "/dev/null/x", .end_of_text = 0
    };
    struct corpus_counts counts;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(corpus_tokenize(tokenizer, &options, &counts, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_and_jsonl), cmocka_unit_test(test_folder),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_threads),
        cmocka_unit_test(test_first_error),    cmocka_unit_test(test_unwritable),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
