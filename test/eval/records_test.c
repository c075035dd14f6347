/*
 * records_test.c - each form in which a benchmark is published is found and read, and what is
 * missing, short or broken is said
 *
 * Parquet files are scripts/golden/eval_sets.py's. The text forms of most tasks are in
 * items_test.c.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "eval/items.h"
#include "support/temporary.h"

#define GOLDEN "test/eval/golden/"

static char folder[128];
static struct task task;
static struct items items;
static struct err err;

static void put_bytes(const char *name, const char *bytes, size_t n)
{
    char path[256], parent[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(file_make_folders(parent, &err), 0);
    assert_int_equal(file_write(path, bytes, n, &err), 0);
}

static void put(const char *name, const char *text)
{
    put_bytes(name, text, strlen(text));
}

static void copy(const char *from, const char *name)
{
    char *bytes;
    size_t n;

    assert_int_equal(file_read(from, 1 << 20, ERR_DATA, &bytes, &n, &err), 0);
    put_bytes(name, bytes, n);
    free(bytes);
}

static int load_limited(const char *name, const char *parts, int64_t limit)
{
    struct items_options options = { folder, 0, limit, parts };

    assert_int_equal(task_open(&task, name, "lmeval", &err), 0);
    if (items_load(&items, &task, &options, &err) == 0)
        return 0;
    task_close(&task);
    return -1;
}

static int load(const char *name, const char *parts)
{
    return load_limited(name, parts, 9);
}

static void unload(void)
{
    items_release(&items);
    task_close(&task);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int tear_down(void **state)
{
    (void)state;
    return file_remove_tree(folder, &err);
}

/* A file of the hub at the place where a clone of its repository has it. */
struct published {
    const char *golden, *place, *task, *part, *context_end, *target;
    int n_items;
};

static const struct published parquet[] = {
    { "mmlu", "mmlu/virology/test-00000-of-00001.parquet", "mmlu", "virology",
      "Two?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:", "1", 2 },
    { "mmlu", "mmlu/all/test-00000-of-00001.parquet", "mmlu", "anatomy",
      "about anatomy.\n\nBone?\nA. a\nB. b\nC. c\nD. d\nAnswer:", "3", 1 },
    { "agieval", "agieval/agieval-sat-en/data/test-00000-of-00001-3ae7ab.parquet", "agieval",
      "sat-en", "Q: Which?", "[1]", 1 },
    { "boolq", "boolq/data/validation-00000-of-00001.parquet", "boolq", NULL,
      "It is.\nQuestion: is it so?\nAnswer:", "1", 1 },
    { "super_glue", "boolq/boolq/validation-00000-of-00001.parquet", "boolq", NULL,
      "It is.\nQuestion: is it so?\nAnswer:", "1", 1 },
    { "gsm8k", "gsm8k/main/test-00000-of-00001.parquet", "gsm8k", NULL,
      "Question: How many?\nAnswer:", "1+1.\n#### 2", 1 },
    { "ceval", "ceval/law/val-00000-of-00001.parquet", "ceval", "law",
      "问？\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案：", "2", 1 },
    { "hellaswag", "hellaswag/data/validation-00000-of-00001.parquet", "hellaswag", NULL,
      "Cooking: A man cooks. He", "0", 1 },
    { "piqa", "piqa/plain_text/validation-00000-of-00001.parquet", "piqa", NULL,
      "Question: Boil.\nAnswer:", "0", 1 },
    { "humaneval", "humaneval/openai_humaneval/test-00000-of-00001.parquet", "humaneval", NULL,
      "def f():\n", "    return 1\n", 1 },
};

static void parquet_of_the_hub(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof parquet / sizeof *parquet; i++) {
        const struct published *p = &parquet[i];
        char golden[128];

        snprintf(golden, sizeof golden, GOLDEN "%s.parquet", p->golden);
        copy(golden, p->place);
        if (load(p->task, p->part) < 0)
            fail_msg("%s: %s", p->place, err.text);
        assert_int_equal(items.n, p->n_items);
        if (!str_ends_with(items.items[0].context, p->context_end))
            fail_msg("%s: '%s'", p->place, items.items[0].context);
        assert_string_equal(items.items[0].target, p->target);
        assert_non_null(strstr(str_text(&items.found), p->place));
        unload();
        assert_int_equal(file_remove_tree(folder, &err), 0);
        assert_int_equal(file_make_folder(folder, &err), 0);
    }
}

/* BBH's parquet has its shots elsewhere: beside it. */
static void parquet_of_bbh(void **state)
{
    (void)state;
    copy(GOLDEN "bbh.parquet", "bbh/navigate/test-00000-of-00001.parquet");
    assert_int_equal(load("bbh", "navigate"), -1);
    assert_non_null(strstr(err.text, "cot-prompts/navigate.txt"));
    put("bbh/cot-prompts/navigate.txt", "canary\n-----\nSay.\n\nQ: One?\nA: Let's think step by "
                                        "step.\nSo the answer is No.");
    assert_int_equal(load("bbh", "navigate"), 0);
    assert_string_equal(items.items[0].context, "Say.\n\nQ: Back?\nA: Let's think step by step.\n");
    unload();
}

/* What is written twice as several files is one set, in the order of names. */
static void several_files(void **state)
{
    (void)state;
    copy(GOLDEN "gsm8k.parquet", "gsm8k/test-00000-of-00002.parquet");
    copy(GOLDEN "gsm8k.parquet", "gsm8k/test-00001-of-00002.parquet");
    assert_int_equal(load("gsm8k", NULL), 0);
    assert_int_equal(items.n, 2);
    assert_non_null(strstr(str_text(&items.found), "and 1 more"));
    unload();
}

#define GOALS \
    "{\"goal\": \"Boil.\", \"sol1\": \"s\", \"sol2\": \"t\"}\n" \
    "{\"goal\": \"Cool.\", \"sol1\": \"u\", \"sol2\": \"v\"}\n"

static void piqa_with_its_labels(void **state)
{
    (void)state;
    put("piqa/valid.jsonl", GOALS);
    put("piqa/valid-labels.lst", "1\n0\n");
    assert_int_equal(load("piqa", NULL), 0);
    assert_int_equal(items.n, 2);
    assert_string_equal(items.items[0].target, "1");
    assert_string_equal(items.items[1].target, "0");
    unload();
    put("piqa/valid-labels.lst", "0\r\n1");
    assert_int_equal(load("piqa", NULL), 0);
    assert_string_equal(items.items[1].target, "1");
    unload();
    assert_int_equal(load_limited("piqa", NULL, 1), 0);
    unload();

    put("piqa/valid-labels.lst", "0\n");
    assert_int_equal(load("piqa", NULL), -1);
    assert_non_null(strstr(err.text, "piqa/valid.jsonl:2: there is no label for it in valid-lab"));
    put("piqa/valid-labels.lst", "0\n1\n1\n");
    assert_int_equal(load("piqa", NULL), -1);
    assert_non_null(strstr(err.text, "has fewer rows than valid-labels.lst has labels"));
    put("piqa/valid-labels.lst", "0\nx\n");
    assert_int_equal(load("piqa", NULL), -1);
    put_bytes("piqa/valid-labels.lst", "0\n1\n\0", 5); /* not as if the file ended there */
    assert_int_equal(load("piqa", NULL), -1);
    assert_non_null(strstr(err.text, "valid-labels.lst holds a NUL byte"));
}

/* Of every task: nothing is there, and the message names the first file of each form. */
static void missing(void **state)
{
    static const struct {
        const char *task, *looked;
    } cases[] = {
        { "mmlu", "test/abstract_algebra_test.csv" },
        { "bbh", "cot-prompts/boolean_expressions.txt" },
        { "agieval", "aqua-rat.jsonl" },
        { "humaneval", "HumanEval.jsonl.gz" },
        { "boolq", "boolq.jsonl" },
        { "gsm8k", "test.jsonl" },
        { "ceval", "val/accountant_val.csv" },
        { "hellaswag", "hellaswag_val.jsonl" },
        { "piqa", "valid.jsonl" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char looked[512];

        assert_int_equal(load(cases[i].task, NULL), -1);
        assert_int_equal(err.code, ERR_DATA);
        snprintf(looked, sizeof looked, ", in %s/%s and in %s", folder, cases[i].task, folder);
        if (!strstr(err.text, cases[i].looked) || !strstr(err.text, looked))
            fail_msg("no '%s' in '%s'", cases[i].looked, err.text);
    }
}

/* Less than the published number of items is an error, but for who asks for less. */
static void short_sets(void **state)
{
    static const struct {
        const char *task, *golden, *place, *says;
    } cases[] = {
        { "humaneval", "humaneval", "humaneval/test-0.parquet", "humaneval has 164 items" },
        { "boolq", "boolq", "boolq/validation-0.parquet", "boolq has 3270 items" },
        { "gsm8k", "gsm8k", "gsm8k/test-0.parquet", "gsm8k has 1319 items" },
        { "hellaswag", "hellaswag", "hellaswag/validation-0.parquet", "hellaswag has 10042 items" },
        { "piqa", "piqa", "piqa/validation-0.parquet", "piqa has 1838 items" },
        { "mmlu", "mmlu", "mmlu/virology/test-0.parquet", "--subjects present" },
        { "ceval", "ceval", "ceval/law/val-0.parquet", "--subjects present" },
        { "agieval", "agieval", "agieval/agieval-sat-en/data/test-0.parquet",
          "--subjects present" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char golden[128];

        snprintf(golden, sizeof golden, GOLDEN "%s.parquet", cases[i].golden);
        copy(golden, cases[i].place);
        assert_int_equal(load_limited(cases[i].task, NULL, 0), -1);
        if (!strstr(err.text, cases[i].says))
            fail_msg("no '%s' in '%s'", cases[i].says, err.text);
    }
}

static void broken(void **state)
{
    (void)state;
    put("gsm8k/test.jsonl", "{\"question\": \"How many?\"\n");
    assert_int_equal(load("gsm8k", NULL), -1);
    assert_non_null(strstr(err.text, "gsm8k/test.jsonl:1"));
    put("gsm8k/test.jsonl", "");
    assert_int_equal(load("gsm8k", NULL), -1);
    put("humaneval/HumanEval.jsonl.gz", "\x1f\x8b no zip");
    assert_int_equal(load("humaneval", NULL), -1);
    assert_non_null(strstr(err.text, "cannot be decompressed"));
    put("boolq/validation-0.parquet", "PAR1 and no more");
    assert_int_equal(load("boolq", NULL), -1);
    assert_non_null(strstr(err.text, "boolq/validation-0.parquet"));
    put("bbh/cot-prompts/navigate.txt", "c\n-----\nSay.");
    put("bbh/bbh/navigate.json", "{\"canary\": \"c\", \"items\": []}");
    assert_int_equal(load("bbh", "navigate"), -1);
    assert_non_null(strstr(err.text, "'examples' is"));
    put("mmlu/test/virology_test.csv", "Two?,1,2,3,4,E\n");
    assert_int_equal(load("mmlu", "virology"), -1);
    assert_non_null(strstr(err.text, "virology_test.csv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(parquet_of_the_hub, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parquet_of_bbh, set_up, tear_down),
        cmocka_unit_test_setup_teardown(several_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(piqa_with_its_labels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_sets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
