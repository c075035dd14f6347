/*
 * task_fuzz.c - descriptions of benchmarks, and files of items, from outside
 *
 * The first byte says what the rest is: a description, or a file of one of the sets, in the form
 * that its authors publish; the second how many shots are asked for. A description is taken or
 * refused with its place; items that are read have prompts, and right choices among theirs; and an
 * answer is found, or isn't, in whatever text.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "eval/harness_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const struct set {
    const char *task, *style, *part, *file;
} sets[] = {
    { "mmlu", "lmeval", "virology", "test/virology_test.csv" },
    { "mmlu", "modellink", "virology", "virology/test.jsonl" },
    { "bbh", "lmeval", "navigate", "bbh/navigate.json" },
    { "bbh", "modellink", "navigate", "bbh/navigate.json" },
    { "agieval", "lmeval", "sat-en", "sat-en.jsonl" },
    { "agieval", "modellink", "gaokao-mathqa", "gaokao-mathqa.jsonl" },
    { "agieval", "lmeval", "math", "math.jsonl" },
    { "boolq", "lmeval", NULL, "boolq.jsonl" },
    { "gsm8k", "lmeval", NULL, "test.jsonl" },
    { "gsm8k", "modellink", NULL, "test.jsonl" },
    { "ceval", "lmeval", "law", "val/law_val.csv" },
    { "hellaswag", "lmeval", NULL, "hellaswag_val.jsonl" },
    { "piqa", "lmeval", NULL, "valid.jsonl" },
    { "humaneval", "modellink", NULL, "HumanEval.jsonl" },
    { "bbh", "modellink", "navigate", "bbh_template.json" },
};

enum { N_SETS = sizeof sets / sizeof *sets };

static char folder[64];
static struct task tasks[N_SETS]; /* opened once */

static void put(const char *name, const void *bytes, size_t n)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK(file_write_all(fd, bytes, n) == 0);
    close(fd);
}

static void remove_folder(void)
{
    struct err err;

    file_remove_tree(folder, &err);
}

static void open_all(void)
{
    static const char *const folders[] = { "test", "virology", "bbh", "cot-prompts", "val" };
    static const char shots[] = "canary\n-----\nSay.\n\nQ: One?\nA: So the answer is (No).";
    struct err err;
    char path[128];

    snprintf(folder, sizeof folder, "/tmp/lmtrain-task-fuzz-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(remove_folder);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        CHECK(file_make_folder(path, &err) == 0);
    }
    put("cot-prompts/navigate.txt", shots, strlen(shots));
    put("valid-labels.lst", "0\n1\n", 4);
    for (int i = 0; i < N_SETS; i++)
        CHECK(task_open(&tasks[i], sets[i].task, sets[i].style, &err) == 0);
}

static void describe(const uint8_t *data, size_t n_bytes)
{
    struct task task;
    struct err err = { 0 };
    char *text = calloc(1, n_bytes + 1);

    CHECK(text);
    memcpy(text, data, n_bytes);
    if (task_parse(&task, "fuzz", "lmeval", text, "fuzz.yaml", &err) < 0) {
        CHECK(err.code == ERR_CONFIG);
    } else {
        for (int p = 0; p < task.n_parts; p++)
            for (int m = 0; m < task_n_metrics(&task.parts[p].way); m++)
                CHECK(task_metric(&task, &task.parts[p].way, m));
        task_close(&task);
    }
    free(text);
}

/* Whatever the text: an item's own prompt will do. */
static void judge(struct task *task, const struct items *items, int64_t index)
{
    struct harness harness = { 0 };
    struct item_result *results = calloc((size_t)items->n, sizeof *results);
    struct harness_run run = {
        .h = &harness, .task = task, .items = items, .results = results, .journal = -1
    };
    struct str text = { 0 };
    struct err err;

    CHECK(results);
    str_add(&text, items->items[index].context);
    if (harness_judge(&run, index, &text, &err) == 0)
        CHECK(results[index].is_done && results[index].answer);
    str_release(&text);
    harness_release(results, items->n);
}

static void load(int which, int n_shots)
{
    struct task *task = &tasks[which];
    struct items_options options = { folder, n_shots, 8, sets[which].part };
    struct items items;
    struct err err = { 0 };
    struct str out = { 0 };

    if (items_load(&items, task, &options, &err) < 0) {
        CHECK(err.text[0]);
        return;
    }
    for (int64_t i = 0; i < items.n; i++) {
        const struct item *item = &items.items[i];

        CHECK(item->context && item->target && item->record);
        for (int g = 0; g < item->n_golds; g++)
            CHECK(0 <= item->golds[g] && item->golds[g] < item->n_choices);
        if (task->parts[item->part].way.kind == TASK_CHOICE)
            CHECK(item->n_choices > 0 && item->n_golds > 0);
        if (task->parts[item->part].way.kind == TASK_GENERATE)
            judge(task, &items, i);
    }
    items_print(&items, task, &out);
    str_release(&out);
    items_release(&items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char path[128];

    if (!*folder)
        open_all();
    if (n_bytes < 2)
        return 0;
    int which = data[0] % (N_SETS + 1);
    if (which == N_SETS) {
        describe(data + 2, n_bytes - 2);
        return 0;
    }
    put(sets[which].file, data + 2, n_bytes - 2);
    load(which, (int)(data[1] % 4) - 1);
    snprintf(path, sizeof path, "%s/%s", folder, sets[which].file);
    unlink(path);
    return 0;
}
