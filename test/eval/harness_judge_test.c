/*
 * harness_judge_test.c - what of a text that a model wrote is taken for its answer, and whether it
 * counts
 *
 * Each row was worked out by hand from the references' sources: the filters of
 * lm-evaluation-harness 0.4.13, and what evaluation.py of ModelLink does.
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
#include "eval/harness_impl.h"
#include "support/temporary.h"

static char folder[128];
static struct task task;
static struct items items;
static struct err err;

#define GSM8K "gsm8k/test.jsonl", "{\"question\": \"q\", \"answer\": \"w\\n#### 18\"}\n"
#define GSM8K_COMMA "gsm8k/test.jsonl", "{\"question\": \"q\", \"answer\": \"w\\n#### 1,002\"}\n"
#define BBH(target) \
    "bbh/bbh/navigate.json", "{\"examples\": [{\"input\": \"q\", \"target\": \"" target "\"}]}"
#define MMLU "mmlu/test/virology_test.csv", "q,a,b,c,d,B\n"
#define CEVAL "ceval/val/law_val.csv", "id,question,A,B,C,D,answer\n0,q,a,b,c,d,B\n"
#define AGIEVAL \
    "agieval/sat-math.jsonl", "{\"passage\": null, \"question\": \"q\", \"options\": [\"(A)1\", " \
                              "\"(B)2\"], \"label\": \"B\", \"answer\": null}\n"
#define AGIEVAL_SEVERAL \
    "agieval/gaokao-physics.jsonl", "{\"passage\": null, \"question\": \"q\", \"options\": [" \
                                    "\"(A)1\", \"(B)2\"], \"label\": [\"A\", \"B\"]}\n"
#define AGIEVAL_MATH \
    "agieval/math.jsonl", \
        "{\"passage\": null, \"question\": \"q\", \"options\": null, \"label\": " \
        "null, \"answer\": \"$(3,4]$\"}\n"

struct row {
    const char *task, *style, *part, *file, *data, *text, *answer;
    int right; /* by the first metric */
};

static const struct row rows[] = {
    /* ---- lmeval ---- */
    { "gsm8k", "lmeval", NULL, GSM8K, " 9 * 2 = 18.\n#### 18", "18", 1 },
    { "gsm8k", "lmeval", NULL, GSM8K, " #### $18", "[invalid]", 0 },
    { "gsm8k", "lmeval", NULL, GSM8K, "#### 18.\n#### 19", "18.", 1 }, /* the first; "." goes */
    { "gsm8k", "lmeval", NULL, GSM8K, "It is 18", "[invalid]", 0 },
    { "gsm8k", "lmeval", NULL, GSM8K_COMMA, "#### 1002", "1002", 1 },
    { "bbh", "lmeval", "navigate", BBH("Yes"), "So the answer is Yes.", "Yes", 1 },
    { "bbh", "lmeval", "navigate", BBH("(A)"), "the answer is (A)", "(A", 0 }, /* (?=.) */
    { "bbh", "lmeval", "navigate", BBH("Yes"), "the answer is Yes.\nthe answer is No.", "Yes", 1 },
    { "bbh", "lmeval", "navigate", BBH("Yes"), "Yes", "[invalid]", 0 },
    { "agieval", "lmeval", "math", AGIEVAL_MATH, " $(3, 4]$", " $(3, 4]$", 1 },
    /* ---- modellink ---- */
    { "mmlu", "modellink", "virology", MMLU, " B. b", "B", 1 },
    { "mmlu", "modellink", "virology", MMLU, "B", "B", 1 },
    { "mmlu", "modellink", "virology", MMLU, "A or B.", "B", 1 }, /* the last with a full stop */
    { "mmlu", "modellink", "virology", MMLU, "The B", "[invalid]", 0 },
    { "mmlu", "modellink", "virology", MMLU, "|", "|", 0 }, /* the class has it */
    { "mmlu", "modellink", "virology", MMLU, "A\nB.", "A", 0 },
    { "ceval", "modellink", "law", CEVAL, "\n B", "B", 1 },
    { "ceval", "modellink", "law", CEVAL, "B ", "B ", 0 },
    { "ceval", "modellink", "law", CEVAL, "B.", "B.", 0 },
    { "gsm8k", "modellink", NULL, GSM8K, "9 + 9 = 18. The answer is $18.\n", "18", 1 },
    { "gsm8k", "modellink", NULL, GSM8K, "The answer is 18", "18", 1 },
    { "gsm8k", "modellink", NULL, GSM8K, "The answer is 18 \nQ: The answer is 3.", "18", 1 },
    { "gsm8k", "modellink", NULL, GSM8K, "The answer is 18\nSo", "[invalid]",
      0 }, /* needs a blank */
    { "gsm8k", "modellink", NULL, GSM8K, "The answer is 7. The answer is 18.", "7", 0 },
    { "gsm8k", "modellink", NULL, GSM8K, "Q: The answer is 18.", "[invalid]", 0 },
    { "gsm8k", "modellink", NULL, GSM8K_COMMA, "The answer is 1,002.", "1002", 0 },
    { "bbh", "modellink", "navigate", BBH("(A)"), " A\nQ: more", "A", 1 },
    { "bbh", "modellink", "navigate", BBH("(A)"), " (A)", "(A)", 0 }, /* only the target's go */
    { "bbh", "modellink", "navigate", BBH("Yes"), "Yes ", "Yes ", 0 },
    { "bbh", "modellink", "navigate", BBH(")"), "\n", "[invalid]", 0 },
    { "agieval", "modellink", "sat-math", AGIEVAL, " (B)2", "B2", 0 },
    { "agieval", "modellink", "sat-math", AGIEVAL, " (B)\nand", "B", 1 },
    { "agieval", "modellink", "gaokao-physics", AGIEVAL_SEVERAL, "A,B", "A,B", 1 },
    { "agieval", "modellink", "gaokao-physics", AGIEVAL_SEVERAL, "A", "A", 0 },
    { "agieval", "modellink", "math", AGIEVAL_MATH, "$(3,4]$", "3,4]", 0 }, /* the target's stay */
};

static void put(const char *name, const char *text)
{
    char path[256], parent[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(file_make_folders(parent, &err), 0);
    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
}

/* The first item of a set, and a run that judges it. */
static void load(const char *name, const char *style, const char *part)
{
    struct items_options options = { folder, -1, 1, part };

    assert_int_equal(task_open(&task, name, style, &err), 0);
    for (int i = 0; i < task.n_parts; i++) /* there are none in these sets */
        if (task.parts[i].way.shots_from != TASK_FROM_DESCRIPTION)
            task.parts[i].way.n_shots = 0;
    if (items_load(&items, &task, &options, &err) < 0)
        fail_msg("%s", err.text);
}

static void judge_bytes(struct sandbox *sandbox, const char *text, size_t n_bytes,
                        struct item_result *result)
{
    struct harness harness = { .sandbox = sandbox };
    struct harness_run run = {
        .h = &harness, .task = &task, .items = &items, .results = result, .journal = -1
    };
    struct str written = { 0 };

    str_add_bytes(&written, text, n_bytes);
    if (harness_judge(&run, 0, &written, &err) < 0)
        fail_msg("%s", err.text);
    str_release(&written);
}

static void judge(struct sandbox *sandbox, const char *text, struct item_result *result)
{
    judge_bytes(sandbox, text, strlen(text), result);
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

static void answers(void **state)
{
    (void)state;
    put("bbh/cot-prompts/navigate.txt", "c\n-----\nSay.\n\nQ: One?\nA: So the answer is No.");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct item_result *result = calloc(1, sizeof *result);

        put(r->file, r->data);
        load(r->task, r->style, r->part);
        judge(NULL, r->text, result);
        if (strcmp(result->answer, r->answer) != 0 || result->values[0] != r->right)
            fail_msg("%s, %s, '%s': '%s', %g", r->task, r->style, r->text, result->answer,
                     result->values[0]);
        harness_release(result, 1);
        items_release(&items);
        task_close(&task);
    }
}

/* GSM8K's second filter: the last number, whatever stands before it. */
static void second_filter(void **state)
{
    struct item_result *result = calloc(1, sizeof *result);

    (void)state;
    put(GSM8K);
    load("gsm8k", "lmeval", NULL);
    judge(NULL, "First 7, then $18.", result);
    assert_string_equal(result->answer, "[invalid]");
    assert_true(result->values[0] == 0 && result->values[1] == 1);
    harness_release(result, 1);
    items_release(&items);
    task_close(&task);
}

/* What is kept of a completion: up to the first line that begins at the margin and defines or
 * imports nothing. */
static void programs(void **state)
{
    static const struct {
        const char *style, *text;
        int right;
    } cases[] = {
        { "lmeval", "    return 1\n", 1 },
        { "lmeval", "    return 2\n", 0 },
        { "modellink", "return 1\n", 1 },
        { "modellink", "  return g()\ndef g():\n    return 1\nprint(f(\n", 1 },
        { "modellink", "return 1\nprint(f(\n", 1 },
        { "modellink", "return math.floor(len([1]) + 0.5)\n", 1 },
        { "modellink", "return (\nprint(1)\n", 0 },
    };
    struct sandbox *sandbox;

    (void)state;
    if (sandbox_open(&sandbox, SANDBOX_ALL, &err) < 0) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    put("humaneval/HumanEval.jsonl",
        "{\"task_id\": \"0\", \"prompt\": \"def f():\\n\", \"canonical_solution\": \"\", \"test\": "
        "\"def check(f):\\n    assert f() == 1\\n\", \"entry_point\": \"f\"}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct item_result *result = calloc(1, sizeof *result);

        load("humaneval", cases[i].style, NULL);
        judge(sandbox, cases[i].text, result);
        if (result->values[0] != cases[i].right)
            fail_msg("%s: '%s' is %s", cases[i].style, cases[i].text, result->answer);
        harness_release(result, 1);
        items_release(&items);
        task_close(&task);
    }
    sandbox_close(sandbox);
}

/*
 * A text with a NUL byte is not the text before it: a program of which a copy ends there would
 * pass, and so would an answer.
 */
static void nul_bytes(void **state)
{
    static const struct {
        const char *prompt, *test, *text;
        size_t n_bytes;
        const char *answer;
    } cases[] = {
        { "def f():\\n", "def check(f):\\n    assert f() == 1\\n", "    return 1\n\0raise", 19,
          "failed: its program holds a NUL byte" },
        { "def f():\\n    return 1\\n\\u0000", "def check(f):\\n    assert f() == 1\\n", "", 0,
          "failed: its program holds a NUL byte" },
        { "def f():\\n", "def check(f):\\n    pass\\n\\u0000    assert f() == 1\\n",
          "    return 2\n", 13, "failed: its test holds a NUL byte" },
    };
    struct sandbox *sandbox;

    (void)state;
    if (sandbox_open(&sandbox, SANDBOX_ALL, &err) < 0) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct item_result *result = calloc(1, sizeof *result);
        struct str row = { 0 };

        str_printf(&row,
                   "{\"task_id\": \"0\", \"prompt\": \"%s\", \"canonical_solution\": \"\", "
                   "\"test\": \"%s\", \"entry_point\": \"f\"}\n",
                   cases[i].prompt, cases[i].test);
        put("humaneval/HumanEval.jsonl", str_text(&row));
        load("humaneval", "lmeval", NULL);
        judge_bytes(sandbox, cases[i].text, cases[i].n_bytes, result);
        assert_string_equal(result->answer, cases[i].answer);
        assert_true(result->values[0] == 0);
        str_release(&row);
        harness_release(result, 1);
        items_release(&items);
        task_close(&task);
    }
    sandbox_close(sandbox);
}

static void nul_bytes_in_answers(void **state)
{
    struct item_result *result = calloc(1, sizeof *result);

    (void)state;
    put(MMLU);
    load("mmlu", "modellink", "virology");
    judge_bytes(NULL, "B\0", 2, result);
    assert_string_equal(result->text, "B\xef\xbf\xbd");
    assert_true(result->values[0] == 1); /* the pattern finds the B */
    harness_release(result, 1);
    items_release(&items);
    task_close(&task);

    result = calloc(1, sizeof *result);
    put(CEVAL);
    load("ceval", "modellink", "law");
    judge_bytes(NULL, "B\0", 2, result);
    assert_string_equal(result->answer, "B\xef\xbf\xbd");
    assert_true(result->values[0] == 0);
    harness_release(result, 1);
    items_release(&items);
    task_close(&task);
}

/* A prompt that would end at a NUL byte is refused, by its item. */
static void nul_bytes_in_items(void **state)
{
    struct items_options options = { folder, 0, 0, NULL };

    (void)state;
    put("gsm8k/test.jsonl", "{\"question\": \"q\", \"answer\": \"#### 1\"}\n"
                            "{\"question\": \"q\\u0000r\", \"answer\": \"#### 1\"}\n");
    assert_int_equal(task_open(&task, "gsm8k", "lmeval", &err), 0);
    assert_int_equal(items_load(&items, &task, &options, &err), -1);
    assert_non_null(strstr(err.text, "item 2"));
    assert_non_null(strstr(err.text, "NUL"));
    items_release(&items);
    task_close(&task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(second_filter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(programs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nul_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nul_bytes_in_answers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nul_bytes_in_items, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
