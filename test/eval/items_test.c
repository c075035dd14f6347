/*
 * items_test.c - the data of each task in each form it is published in, and the prompts made of it
 *
 * Those that lm-evaluation-harness builds of the real sets are held against test/eval/golden by
 * test/oracle/eval.py.
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
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "eval/items.h"
#include "support/temporary.h"

static char folder[128];
static struct task task;
static struct items items;
static struct err err;

static const char *path_of(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    char parent[256];

    snprintf(parent, sizeof parent, "%s", path_of(name));
    *strrchr(parent, '/') = '\0';
    assert_int_equal(file_make_folders(parent, &err), 0);
    assert_int_equal(file_write(path_of(name), text, strlen(text), &err), 0);
}

static int load(const char *name, const char *style, int n_shots, const char *parts)
{
    struct items_options options = {
        .data = folder, .n_shots = n_shots, .limit = 9, .parts = parts
    };

    if (task_open(&task, name, style, &err) < 0)
        return -1;
    if (items_load(&items, &task, &options, &err) < 0) {
        task_close(&task);
        return -1;
    }
    return 0;
}

static void loaded(const char *name, const char *style, int n_shots, const char *parts)
{
    if (load(name, style, n_shots, parts) < 0)
        fail_msg("%s: %s", name, err.text);
}

static void unload(void)
{
    items_release(&items);
    task_close(&task);
}

static void expect(int64_t i, const char *context, const char *target)
{
    assert_true(i < items.n);
    assert_string_equal(items.items[i].context, context);
    assert_string_equal(items.items[i].target, target);
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

#define HEADER \
    "The following are multiple choice questions (with answers) about high school biology.\n\n"
#define QUESTION "Which, if any?\nA. a\nB. b, c\nC. \"d\"\nD. 4\nAnswer:"

/* hendrycks/test: no header, letters. */
static void mmlu_csv(void **state)
{
    (void)state;
    put("mmlu/test/high_school_biology_test.csv",
        "\"Which, if any?\",a,\"b, c\",\"\"\"d\"\"\",4,B\n"
        "Two?,1,2,3,4,D\n");
    put("mmlu/dev/high_school_biology_dev.csv", "One?,w,x,y,z,C\nMore?,1,2,3,4,A\n");
    loaded("mmlu", "lmeval", 1, "high_school_biology");
    assert_int_equal(items.n, 2);
    expect(0, HEADER "One?\nA. w\nB. x\nC. y\nD. z\nAnswer: C\n\n" QUESTION, "1");
    assert_int_equal(items.items[0].n_choices, 4);
    assert_string_equal(items.items[0].choices[3], " D");
    assert_int_equal(items.items[0].golds[0], 1);
    unload();

    loaded("mmlu", "modellink", 1, "high_school_biology");
    expect(0,
           "The following are multiple choice questions (with answers) about  high school "
           "biology.\nOne?\nA. w\nB. x\nC. y\nD. z\nAnswer: C\n\n" QUESTION,
           "B");
    unload();

    /* More shots than there are; none; subjects without files. */
    assert_int_equal(load("mmlu", "lmeval", 5, "high_school_biology"), -1);
    assert_non_null(strstr(err.text, "5 shots are requested, but there are only 2"));
    assert_int_equal(load("mmlu", "lmeval", 0, "anatomy"), -1);
    assert_non_null(strstr(err.text, "searched test/anatomy_test.csv, data/test/anatomy_test.csv"));
    assert_int_equal(load("mmlu", "lmeval", 0, "anatomi"), -1);
    assert_non_null(strstr(err.text, "(hint: anatomy)"));
    loaded("mmlu", "lmeval", 0, "present");
    expect(0, HEADER QUESTION, "1");
    unload();
    put("mmlu/test/high_school_biology_test.csv", "Two?,1,2,3,4,E\n");
    assert_int_equal(load("mmlu", "lmeval", 0, "high_school_biology"), -1);
    put("mmlu/test/high_school_biology_test.csv", "Two?,1,2,3,B\n");
    assert_int_equal(load("mmlu", "lmeval", 0, "high_school_biology"), -1);
    assert_non_null(strstr(err.text, "_test.csv:1: 5 fields"));
}

/* The copy with a header and numbers; JSONL of the hub. */
static void mmlu_others(void **state)
{
    static const char text[] = "question,choice0,choice1,choice2,choice3,answer\n"
                               "\"Which, if any?\",a,\"b, c\",\"\"\"d\"\"\",4,1\n";

    (void)state;
    put("test/high_school_biology_test.csv", text);
    loaded("mmlu", "lmeval", 0, "high_school_biology");
    expect(0, HEADER QUESTION, "1");
    unload();
    assert_int_equal(file_remove_tree(path_of("test"), &err), 0);
    put("mmlu/high_school_biology/test.jsonl",
        "{\"question\":\"Which, if any?\",\"choices\":[\"a\",\"b, c\",\"\\\"d\\\"\",\"4\"],"
        "\"answer\":1}\n");
    loaded("mmlu", "lmeval", 0, "high_school_biology");
    expect(0, HEADER QUESTION, "1");
    unload();
}

static void bbh(void **state)
{
    (void)state;
    put("bbh/bbh/navigate.json",
        "{\"canary\": \"c\", \"examples\": [{\"input\": \"Back?\", \"target\": \"(Yes)\"}]}");
    put("bbh/cot-prompts/navigate.txt",
        "canary\n-----\nSay.\n\nQ: One?\nA: Let's think step by step. So the answer is No.\n\n"
        "Q: Two?\nA: Let's think step by step.\nWell. So the answer is (Yes).");
    loaded("bbh", "lmeval", 2, "navigate");
    expect(0,
           "Say.\n\nQ: One?\nA: Let's think step by step.\nSo the answer is No.\n\nQ: Two?\nA: "
           "Let's think step by step.\nWell. So the answer is (Yes).\n\nQ: Back?\nA: Let's think "
           "step by step.\n",
           "(Yes)");
    unload();
    loaded("bbh", "modellink", 1, "navigate");
    expect(0, "Say.\n\nQ: One?\nA: No\n\nQ: Back?\nA:", "Yes");
    unload();
    assert_int_equal(load("bbh", "lmeval", 4, "navigate"), -1);
    assert_non_null(strstr(err.text, "at most 3"));
}

static void boolq(void **state)
{
    (void)state;
    put("boolq/boolq.jsonl", "{\"query\": \"Passage: A (b).\\nQuestion: is it so?\\n\", \"choices\""
                             ": [\"no\", \"yes\"], \"gold\": 1}\n");
    put("boolq/boolq.jsonl",
        "{\"query\": \"Passage: A (b).\\nQuestion: is it so?\", \"choices\": [\"no\", \"yes\"], "
        "\"gold\": 1}\n");
    loaded("boolq", "lmeval", 0, NULL);
    expect(0, "A (b).\nQuestion: is it so?\nAnswer:", "1");
    assert_string_equal(items.items[0].choices[1], " yes");
    unload();
    assert_int_equal(file_remove_tree(path_of("boolq"), &err), 0);
    put("boolq/dev.jsonl", "{\"question\": \"is it so\", \"title\": \"t\", \"answer\": false, "
                           "\"passage\": \"A (b).\"}\n");
    loaded("boolq", "modellink", 0, NULL);
    expect(0, "A (b).\nQuestion: is it so?\nAnswer:", "1");
    assert_string_equal(items.items[0].choices[0], "Yes");
    unload();
}

static void agieval(void **state)
{
    (void)state;
    put("agieval/sat-en.jsonl", "{\"passage\": \"P. \", \"question\": \"Q?\", \"options\": "
                                "[\"(A)x\", \"(B)y\"], \"label\": \"B\", \"answer\": null}\n");
    put("agieval/gaokao-mathqa.jsonl", "{\"passage\": null, \"question\": \"Q\", \"options\": "
                                       "[\"(A)x\", \"(B)y\"], \"label\": [\"A\", \"B\"]}\n");
    put("agieval/math.jsonl", "{\"passage\": null, \"question\": \"Q?\", \"options\": null, "
                              "\"label\": null, \"answer\": \"3\"}\n");
    loaded("agieval", "lmeval", 0, "present");
    assert_int_equal(items.n, 3);
    expect(0, "Q: Q?\nA: The answer is", "3");
    expect(1, "P. Q: Q? Answer Choices: (A)x (B)y\nA: Among A through B, the answer is", "[1]");
    assert_string_equal(items.items[1].choices[1], " (B)y");
    expect(2, "问题：Q 选项：(A)x (B)y\n答案：从A到B, 我们应选择", "[0, 1]");
    assert_int_equal(items.items[2].n_golds, 2);
    unload();
    loaded("agieval", "modellink", 0, "sat-en");
    expect(0, "   P. \nQ?\n\nChoose from the following options:\n\n(A)x\n(B)y\n\nAnswer:", "B");
    unload();
    assert_int_equal(load("agieval", "lmeval", 0, NULL), -1);
    assert_non_null(strstr(err.text, "--subjects present"));
}

/* More choices that are right than there is room for. */
static void many_golds(void **state)
{
    char text[1024] = "{\"query\": \"Q\", \"gold\": \"same\", \"choices\": [\"same\"";

    (void)state;
    for (int i = 1; i < 4 * ITEM_GOLDS_MAX; i++)
        strncat(text, ", \"same\"", sizeof text - strlen(text) - 1);
    strncat(text, "]}\n", sizeof text - strlen(text) - 1);
    put("agieval/hf/sat-en.jsonl", text);
    loaded("agieval", "lmeval", 0, "sat-en");
    assert_int_equal(items.items[0].n_choices, 4 * ITEM_GOLDS_MAX);
    assert_int_equal(items.items[0].n_golds, ITEM_GOLDS_MAX);
    unload();
}

/* A .gz that is broken is refused, and leaves no file open. */
static void broken_zip(void **state)
{
    static const char bytes[] = "\x1f\x8b\x08\0\0\0\0\0\0\x03\x07";
    int before = dup(0), after;

    (void)state;
    assert_int_equal(close(before), 0);
    assert_int_equal(file_write(path_of("HumanEval.jsonl.gz"), bytes, sizeof bytes - 1, &err), 0);
    assert_int_equal(load("humaneval", "lmeval", 0, NULL), -1);
    assert_non_null(strstr(err.text, "HumanEval.jsonl.gz cannot be decompressed"));
    after = dup(0);
    assert_int_equal(close(after), 0);
    assert_int_equal(after, before);
}

static void gsm8k(void **state)
{
    (void)state;
    put("gsm8k/test.jsonl", "{\"question\": \"How many?\", \"answer\": \"1+1.\\n#### 1,002\"}\n");
    put("gsm8k/train.jsonl", "{\"question\": \"What?\", \"answer\": \"3.\\n#### 3\"}\n");
    loaded("gsm8k", "lmeval", 1, NULL);
    expect(0, "Question: What?\nAnswer: 3.\n#### 3\n\nQuestion: How many?\nAnswer:",
           "1+1.\n#### 1,002");
    unload();
    loaded("gsm8k", "modellink", 1, NULL);
    expect(0, "Q: What?\n\nA:3. The answer is 3.\n\nHow many?", "1,002");
    unload();
}

static void humaneval(void **state)
{
    static const char text[] =
        "{\"task_id\": \"HumanEval/0\", \"prompt\": \"def f():\\n\", \"canonical_solution\": "
        "\"    return 1\\n\", \"test\": \"def check(f):\\n    assert f() == 1\\n\", "
        "\"entry_point\": \"f\"}\n";

    (void)state;
    put("humaneval/HumanEval.jsonl", text);
    loaded("humaneval", "lmeval", 0, NULL);
    expect(0, "def f():\n", "    return 1\n");
    unload();
    assert_int_equal(file_remove_tree(path_of("humaneval"), &err), 0);
    gzFile zip = gzopen(path_of("HumanEval.jsonl.gz"), "wb");
    assert_true(gzwrite(zip, text, (unsigned)strlen(text)) > 0);
    assert_int_equal(gzclose(zip), Z_OK);
    loaded("humaneval", "modellink", 0, NULL);
    expect(0,
           "The definition and function description of the python function are as follows. Please "
           "complete the implementation of the python function.\ndef f():\n",
           "    return 1\n");
    unload();
}

static void ceval(void **state)
{
    (void)state;
    put("ceval/val/law_val.csv", "id,question,A,B,C,D,answer\n0,问？,甲,乙,丙,丁,C\n");
    put("ceval/dev/law_dev.csv",
        "id,question,A,B,C,D,answer,explanation\n0,早？,甲,乙,丙,丁,A,因为\n");
    loaded("ceval", "lmeval", 1, "law");
    expect(
        0,
        "以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n早？\nA. 甲\nB. 乙\nC. 丙\nD. "
        "丁\n答案： A\n\n问？\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案：",
        "2");
    unload();
    loaded("ceval", "modellink", 1, "law");
    expect(0,
           "请从下列选择题中选择正确的选项。\n\n问：早？\nA. 甲\nB. 乙\nC. 丙\nD. "
           "丁\n答：A\n\n问：问？\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答：",
           "C");
    unload();
}

/* As lm-evaluation-harness's hellaswag/utils.py cleans it. */
static void hellaswag_and_piqa(void **state)
{
    (void)state;
    put("hellaswag/hellaswag_val.jsonl",
        "{\"activity_label\": \"Cooking\", \"ctx_a\": \"[header] How [title] To [step] x]\", "
        "\"ctx_b\": \"THE man\", \"endings\": [\" a  b \", \"c [x [y] d\"], \"label\": \"1\"}\n");
    loaded("hellaswag", "lmeval", 0, NULL);
    expect(0, "Cooking: How. To x] The man", "1");
    assert_string_equal(items.items[0].choices[0], " a b");
    assert_string_equal(items.items[0].choices[1], " c d");
    unload();
    put("piqa/valid.jsonl",
        "{\"goal\": \"Boil.\", \"sol1\": \"s\", \"sol2\": \"t\", \"label\": 0}\n");
    loaded("piqa", "lmeval", 0, NULL);
    expect(0, "Question: Boil.\nAnswer:", "0");
    assert_string_equal(items.items[0].choices[1], " t");
    unload();
}

#define CODE \
    "test:\n  - files: a\nstyles:\n  lmeval:\n    kind: code\n    prompt: a\n    target: b\n" \
    "    metrics: m\n"

/* A description that is wrong says where. */
static void mistakes(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        { "tests: []\n", "x.yaml:1: unknown key 'tests' (hint: test)" },
        { "test:\n  - files: a\nstyles:\n  lmeval:\n    kind: choise\n",
          "x.yaml:5: kind is 'choise' (hint: choice)" },
        { "test:\n  - files: a\nstyles:\n  lmeval:\n    promt: a\n",
          "x.yaml:5: unknown key 'promt' (hint: prompt)" },
        { "test:\n  - files: a\nstyles:\n  lmeval:\n    prompt: \"{{ a\"\n", "x.yaml:5: prompt" },
        { "test:\n  - files: a\nstyles:\n  lmeval:\n    ignore: ['(']\n", "x.yaml:5" },
        { "test:\n  - files: a\nstyles:\n  lmeval:\n    prompt: a\n", "has no target" },
        { "test:\n  - file: a\n", "x.yaml:2: unknown key 'file' (hint: files)" },
        { "test:\n  - files: a\nstyles:\n  other:\n    prompt: a\n",
          "has no style 'lmeval' (hint: other)" },
        { "styles: {}\n", "has no key test" },
        { CODE "    program: p\n", "has no test, which decides about its program" },
        { CODE "    program: p\n    test: t\n", "has no entry, the name that its test calls" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(task_parse(&task, "x", "lmeval", cases[i].text, "x.yaml", &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        if (!strstr(err.text, cases[i].expected))
            fail_msg("'%s' is not in '%s'", cases[i].expected, err.text);
    }
    assert_int_equal(task_open(&task, "mmlo", "lmeval", &err), -1);
    assert_non_null(strstr(err.text, "(hint: mmlu)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mmlu_csv, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mmlu_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bbh, set_up, tear_down),
        cmocka_unit_test_setup_teardown(boolq, set_up, tear_down),
        cmocka_unit_test_setup_teardown(agieval, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_golds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_zip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(gsm8k, set_up, tear_down),
        cmocka_unit_test_setup_teardown(humaneval, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ceval, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hellaswag_and_piqa, set_up, tear_down),
        cmocka_unit_test(mistakes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
