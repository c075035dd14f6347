/*
 * rows_test.c - each kind of file gives its rows, with their lines, and says what is wrong with
 * them
 */
#include "data_fixture.h"

#include "data/rows/rows.h"

static const char *folder;

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

static char *write_file(const char *name, const char *text)
{
    char *path = fixture_path(folder, name);
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    return path;
}

/* All rows as "LINE kind text|", and an error at the end as "! what". */
static void read_rows(const char *path, const char *column, struct str *out)
{
    static const char *const kinds[] = { "json", "text", "bad" };
    struct rows *rows;
    struct row row;
    struct err err;
    int rc = rows_open(&rows, path, ROWS_AUTO, column, &err);

    if (rc == 0) {
        while ((rc = rows_next(rows, &row, &err)) > 0) {
            str_printf(out, "%lld %s ", (long long)row.number, kinds[row.kind]);
            str_add_bytes(out, row.text, row.n_bytes);
            str_add_char(out, '|');
        }
        rows_close(rows);
    }
    if (rc < 0) {
        assert_int_equal(err.code, ERR_DATA);
        assert_true(str_starts_with(err.text, path));
        str_printf(out, "!%s", err.text + strlen(path));
    }
}

static const struct reading {
    const char *name, *text, *column, *expected;
} readings[] = {
    { "a.jsonl", "{\"a\": 1}\r\n\n  \n{\"b\": [2]}", NULL,
      "1 json {\"a\": 1}\r|4 json {\"b\": [2]}|" },
    { "bom.jsonl", "\xef\xbb\xbf{}\n", NULL, "1 json {}|" },
    { "a.json", "[\n{\"a\": \"]}\\\"\"},\n{\"b\": {\"c\": []}}\n]\n", NULL,
      "2 json {\"a\": \"]}\\\"\"}|3 json {\"b\": {\"c\": []}}|" },
    { "empty.json", "[]", NULL, "" },
    { "none.json", "", NULL, "" },
    { "lines.json", "{\"a\": 1}\n{\"a\": 2}\nbroken\n", NULL,
      "1 json {\"a\": 1}|2 json {\"a\": 2}|3 json broken|" },
    { "pretty.json", "{\n \"a\": 1\n}\n{\n \"a\": 2\n}\n", NULL,
      "1 json {\n \"a\": 1\n}|4 json {\n \"a\": 2\n}|" },
    { "open.json", "[{\"a\": 1}", NULL, "1 json {\"a\": 1}|!:1: the array does not end" },
    { "comma.json", "[{}\n{}]", NULL, "1 json {}|!:2: no ',' between the rows of the array" },
    { "trail.json", "[{}] x", NULL, "1 json {}|!:1: unexpected characters after the array" },
    { "scalar.json", "[{}, 3]", NULL,
      "1 json {}|!:1: no object starts here (hint: a row is {\"column\": value, ...})" },
    { "cut.json", "[{\"a\": \"x", NULL, "!:1: the object that starts here does not end" },
    { "a.csv", "x,y\n1,\"a \"\"b\"\",\nc\"\n\n,z\r\n", NULL,
      "2 json {\"x\":\"1\",\"y\":\"a \\\"b\\\",\\nc\"}|5 json {\"x\":\"\",\"y\":\"z\"}|" },
    { "bom.csv", "\xef\xbb\xbfx;y\n1;2,3", NULL, "2 json {\"x\":\"1\",\"y\":\"2,3\"}|" },
    { "a.tsv", "x\ty\na,b\tc\n", NULL, "2 json {\"x\":\"a,b\",\"y\":\"c\"}|" },
    { "few.csv", "x,y\n1\n1,2,3\n4,5\n", NULL,
      "2 bad 1 fields, the header has 2|3 bad 3 fields, the header has 2|4 json "
      "{\"x\":\"4\",\"y\":\"5\"}|" },
    { "quote.csv", "x,y\n\"a\"b,c\n4,5\n", NULL,
      "2 bad text follows the closing quote of a field (hint: quotes within a field are "
      "doubled)|3 json {\"x\":\"4\",\"y\":\"5\"}|" },
    { "unended.csv", "x,y\n1,2\n3,\"4\n5,6\n", NULL,
      "2 json {\"x\":\"1\",\"y\":\"2\"}|!:3: a quoted field does not end" },
    { "twice.csv", "x,x\n", NULL, "!:1: column 'x' occurs twice" },
    { "nothing.csv", "", NULL, "!: no header: the file is empty" },
    { "column.csv", "x,y\n1,\"a\nb\"\n3,\n", "y", "2 text a\nb|4 text |" },
    { "other.csv", "x,y\n", "z", "!: there is no column 'z' (hint: it has x, y)" },
    { "a.txt", "In the\nbeginning", NULL, "0 text In the\nbeginning|" },
    { "b.txt", "", NULL, "" },
    { "no.parquet", "x,y\n", NULL, "!: it is not a parquet file: it does not begin with PAR1" },
};

static void test_readings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        char *path = write_file(readings[i].name, readings[i].text);
        struct str out = { 0 };

        read_rows(path, readings[i].column, &out);
        if (strcmp(str_text(&out), readings[i].expected) != 0)
            fail_msg("%s: '%s', not '%s'", readings[i].name, str_text(&out), readings[i].expected);
        str_release(&out);
        free(path);
    }
}

static void test_files(void **state)
{
    char *inner = fixture_path(folder, "tree/b"), *hidden = fixture_path(folder, "tree/.git");
    char *top = fixture_path(folder, "tree"), *pattern = fixture_path(folder, "tree/*.csv");
    char *nothing = fixture_path(folder, "tree/*.tsv");
    const char *inputs[] = { top, pattern };
    struct row_files files = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(file_make_folders(inner, &err), 0);
    assert_int_equal(file_make_folders(hidden, &err), 0);
    free(write_file("tree/c.csv", "x"));
    free(write_file("tree/a.jsonl", ""));
    free(write_file("tree/b/z.parquet", ""));
    free(write_file("tree/b/a.txt", ""));
    free(write_file("tree/README.md", ""));
    free(write_file("tree/.git/x.csv", ""));
    assert_int_equal(row_files_find(&files, inputs, 2, &err), 0);
    assert_int_equal(files.n, 5);
    assert_int_equal(files.n_ignored, 1);
    assert_true(str_ends_with(files.paths[0], "tree/a.jsonl"));
    assert_true(str_ends_with(files.paths[1], "tree/b/a.txt"));
    assert_true(str_ends_with(files.paths[2], "tree/b/z.parquet"));
    assert_true(str_ends_with(files.paths[3], "tree/c.csv"));
    assert_true(str_ends_with(files.paths[4], "tree/c.csv"));
    row_files_release(&files);
    inputs[0] = nothing;
    assert_int_equal(row_files_find(&files, inputs, 1, &err), -1);
    assert_non_null(strstr(err.text, "*.tsv: no file matches"));
    free(inner);
    free(hidden);
    free(top);
    free(pattern);
    free(nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_readings),
                                        cmocka_unit_test(test_files) };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
