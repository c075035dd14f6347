/*
 * hf_dataset_test.c - globs, and which split a file's name means
 *
 * What load_dataset's arguments become as a whole is in test/cli/operations-data.sh.
 */
#include "data_fixture.h"

#include "data/rows/hf_dataset_impl.h"
#include "data/stream/token_part.h"

static void test_globs(void **state)
{
    static const struct {
        const char *pattern, *path;
        bool matches;
    } cases[] = {
        { "a.jsonl", "a.jsonl", true },
        { "./a.jsonl", "a.jsonl", true },
        { "a.jsonl", "b/a.jsonl", false },
        { "*.jsonl", "a.jsonl", true },
        { "*.jsonl", "b/a.jsonl", false },
        { "**/*.jsonl", "a.jsonl", true },
        { "**/*.jsonl", "c/b/a.jsonl", true },
        { "**/a.jsonl", "xa.jsonl", false },
        { "b/**", "b/c/a.jsonl", true },
        { "b/**", "c/a.jsonl", false },
        { "b/**/x/*", "b/x/a", true },
        { "b/**/x/*", "b/c/d/x/a", true },
        { "b/**/x/*", "b/c/d/xx/a", false },
        { "train-*-of-*.parquet", "train-00-of-01.parquet", true },
        { "train-?.csv", "train-1.csv", true },
        { "train-?.csv", "train-12.csv", false },
        { "train?csv", "train/csv", false },
        { "[a-c]x", "bx", true },
        { "[!a-c]x", "bx", false },
        { "[!a-c]x", "dx", true },
        { "[]]x", "]x", true },
        { "[ax", "[ax", true },
        { "", "", true },
        { "*", "", true },
        { "a*b*c", "aXXbYYc", true },
        { "a*b*c", "aXXbYY", false },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (hf_matches(cases[i].pattern, cases[i].path, &arena) != cases[i].matches)
            fail_msg("'%s' and '%s'", cases[i].pattern, cases[i].path);
    arena_release(&arena);
}

/* The split of each of these files, "-" for none, by their names alone. */
static void expect_splits(const char *const *names, const char *const *splits, int n)
{
    struct err err = { 0 };
    struct hf_dataset d = { .err = &err };
    struct hf_file *files;
    int n_files = hf_find_splits(&d, names, n, &files), n_expected = 0;

    for (int i = 0; i < n; i++) {
        const char *found = "-";

        for (int k = 0; k < n_files; k++)
            if (files[k].file == i)
                found = files[k].split;
        assert_string_equal(found, splits[i]);
        n_expected += strcmp(splits[i], "-") != 0;
    }
    assert_int_equal(n_files, n_expected);
    arena_release(&d.arena);
}

static void test_splits_by_names(void **state)
{
    static const char *const shards[] = { "data/extra.csv", "data/my_split-00000-of-00002.csv",
                                          "data/train-00000-of-00001.csv", "test/x.csv" };
    static const char *const of_shards[] = { "-", "my_split", "train", "-" };
    static const char *const folders[] = { "a/dev/x.csv", "training/1.csv", "val.csv" };
    static const char *const of_folders[] = { "validation", "train", "-" };
    static const char *const words[] = { "constraint.csv", "my-eval_1.csv", "x_train.csv",
                                         "trained.csv" };
    static const char *const of_words[] = { "-", "test", "train", "-" };
    static const char *const none[] = { "a.csv", "b/c.csv" };
    static const char *const all_train[] = { "train", "train" };

    (void)state;
    expect_splits(shards, of_shards, 4);
    expect_splits(folders, of_folders, 3);
    expect_splits(words, of_words, 4);
    expect_splits(none, all_train, 2);
}

/* Every byte of every file is in one part, in order, and parts differ by a byte at most. */
static void test_shares(void **state)
{
    static const int64_t sizes[] = { 0, 100, 1, 0, 0, 37, 5000, 2, 0 };

    (void)state;
    for (int n = 1; n <= 60; n++) {
        struct token_part part = { .n_parts = n, .n_files = 9, .n_file_bytes = 5140 };
        int64_t next[9] = { 0 };

        for (part.part = 1; part.part <= n; part.part++) {
            struct token_share share = token_share_of(&part);
            int64_t begin, end, sum = 0;

            for (int i = 0; i < 9; i++) {
                if (!token_share_of_file(&share, sizes[i], &begin, &end))
                    continue;
                assert_int_equal(begin, next[i]);
                next[i] = end;
                sum += end - begin;
            }
            assert_in_range(sum, 5149 / n, 5149 / n + 1);
        }
        for (int i = 0; i < 9; i++)
            assert_int_equal(next[i], sizes[i] + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_globs),
        cmocka_unit_test(test_splits_by_names),
        cmocka_unit_test(test_shares),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
