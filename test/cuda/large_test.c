/*
 * large_test.c - every op of two models' training programs at its own shapes; `gpu-tests large`
 *
 * The list is made of the compiled programs: Qwen2.5's 7B with states and gradients in bf16, Llama
 * 3's 70B with both in fp32, of one layer each that a layer's neighbours have, in micro-batches of
 * 4096 and 8192 tokens, and the 70B's of 65,536, where operands have more than 2^31 elements.
 * Attention is run as it is, by lmtrain's own kernels, and by cuDNN alone, and at 32,768 tokens as
 * well. Each op is one line: milliseconds, rates, error of a sample, verdict. An op that does not
 * fit the memory that is free is left out; one that ends the process, or hangs it, costs the others
 * nothing.
 *
 * On the emulated GPU widths, vocabulary and tokens are LMTRAIN_LARGE_SCALE times less (64),
 * and the 65,536 tokens are left out.
 * LMTRAIN_LARGE_ONLY: only ops whose line has this in it.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/programs.h"
#include "support/large_case.h"

#define TABLE_LARGE 8388593 /* the last prime below 2^23 */
#define TABLE_SMALL 65521
#define ITEM_SECONDS 90
#define ITEMS_MAX 512
#define EMULATED_SCALE 64

struct model {
    const char *name, *states;
    int n_heads, n_kv_heads, hidden_size, ffn_size, vocab_size;
    int seq_len;
    int tokens[3]; /* of micro-batches; 0: no more */
};

static const struct model models[] = {
    { "qwen2-7b", "bf16", 28, 4, 3584, 18944, 152064, 4096, { 4096, 8192, 0 } },
    { "llama3-70b", "fp32", 64, 8, 8192, 28672, 128256, 4096, { 4096, 8192, 65536 } },
};

struct list {
    struct large_item *items;
    int n;
};

/* Shared with the process that runs them. */
struct progress {
    int at;
    int n[LARGE_SKIPPED + 1];
};

/* ---- which ops there are ---- */

static void set(const char **sets, int *n, struct arena *arena, const char *key, long long value)
{
    sets[(*n)++] = arena_printf(arena, "%s=%lld", key, value);
}

/* A group of query heads keeps its size where all is reduced, but there is one group. */
static void read_job(struct job *job, const struct model *model, int tokens, int scale,
                     struct arena *arena)
{
    int seq_len = model->seq_len / scale, n = 0;
    const char *sets[8];
    struct err err;
    char *text = arena_printf(
        arena,
        "{model: %s, data: {train: none, tokenizer: none, seq_len: %d}, "
        "train: {steps: 1, global_batch: %d, micro_batch: %d, dtype: bf16, gradient_dtype: %s}, "
        "optimizer: {states: %s}, ranks: 1, output: none}",
        model->name, seq_len, tokens / model->seq_len, tokens / model->seq_len, model->states,
        model->states);

    set(sets, &n, arena, "model.n_layers", 2);
    if (scale > 1) {
        set(sets, &n, arena, "model.n_heads", model->n_heads / model->n_kv_heads);
        set(sets, &n, arena, "model.n_kv_heads", 1);
        set(sets, &n, arena, "model.hidden_size", model->hidden_size / scale);
        set(sets, &n, arena, "model.ffn_size", model->ffn_size / scale);
        set(sets, &n, arena, "model.vocab_size", model->vocab_size / scale);
    }
    if (job_read_text(job, text, strlen(text), model->name, sets, n, arena, &err) < 0 ||
        job_resolve(job, 1, arena, &err) < 0)
        fail_msg("%s", err.text);
}

static int is_listed(const struct list *list, const struct op_shape *shape)
{
    for (int i = 0; i < list->n; i++)
        if (!memcmp(&list->items[i].shape, shape, sizeof *shape))
            return 1;
    return 0;
}

static void name_item(struct large_item *item, const char *where)
{
    const struct op_shape *op = &item->shape;
    int n = snprintf(item->name, sizeof item->name, "%s: %s", where, op_info(op->kind)->name);
    const struct tensor *shown[] = { &op->in[0], &op->in[1], &op->out[0] };

    for (size_t i = 0; i < 3; i++)
        if (tensor_given(shown[i]) && n < (int)sizeof item->name)
            n += snprintf(item->name + n, sizeof item->name - (size_t)n, "%s [%lld x %lld] %s",
                          i == 2 ? " ->" : "", (long long)shown[i]->rows, (long long)shown[i]->cols,
                          dtype_name(shown[i]->dtype));
    if (item->attention && n < (int)sizeof item->name)
        snprintf(item->name + n, sizeof item->name - (size_t)n, ", %s", item->attention);
}

static struct large_item *add_item(struct list *list, const char *where,
                                   const struct op_shape *shape, const char *attention)
{
    struct large_item *item = &list->items[list->n++];

    CHECK(list->n <= ITEMS_MAX);
    item->shape = *shape;
    item->attention = attention;
    name_item(item, where);
    return item;
}

/* As the program's own choice, and by each of the two. */
static void add_attention(struct list *list, const char *where, const struct op_shape *shape)
{
    static const char *const choices[] = { NULL, "own", "cudnn" };

    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        add_item(list, where, shape, choices[i]);
}

static void add_op(struct list *list, const char *where, const struct program *p,
                   const struct op *op)
{
    struct op_shape shape = program_op_shape(p, op);

    /* Views lie densely here: gaps of outputs would hold what nothing has written. */
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        shape.in[i].stride = shape.in[i].cols;
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        shape.out[i].stride = shape.out[i].cols;
    shape.attributes.rng_site = 0; /* a name, of which dropout's and rounding's numbers are made */
    if (op_is_collective(op->kind) || is_listed(list, &shape))
        return;
    if (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_GRAD) {
        add_attention(list, where, &shape);
        return;
    }
    struct large_item *item = add_item(list, where, &shape, NULL);
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        if (op->in[i] && program_has_content(p, op->in[i])) {
            void *content = malloc(program_value_bytes(p, op->in[i]));

            CHECK(content);
            program_fill_content(p, op->in[i], content);
            item->content[i] = content;
        }
}

static void add_program(struct list *list, const struct model *model, int tokens, int scale,
                        struct kernels *kernels)
{
    struct arena arena = { 0 };
    struct program program;
    struct job job;
    struct err err;
    char where[64];

    read_job(&job, model, tokens, scale, &arena);
    if (programs_compile(&program, &(struct programs_request){ .job = &job, .kernels = kernels },
                         &err) < 0)
        fail_msg("%s", err.text);
    snprintf(where, sizeof where, "%s %d", model->name, tokens / scale);
    for (int f = 0; f < program.n_functions; f++)
        for (int i = 0; i < program.functions[f].n_ops; i++)
            add_op(list, where, &program, &program.functions[f].ops[i]);
    program_release(&program);
    arena_release(&arena);
}

/* The attention of a list's first model, at one sequence of this length. */
static void add_long_attention(struct list *list, int seq_len)
{
    int n = list->n;
    char where[64];

    snprintf(where, sizeof where, "%s long %d", models[0].name, seq_len);
    for (int i = 0; i < n; i++) {
        struct op_shape shape = list->items[i].shape;
        int is_first = strstr(list->items[i].name, models[0].name) != NULL;

        if ((shape.kind != OP_ATTENTION && shape.kind != OP_ATTENTION_GRAD) || !is_first)
            continue;
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            shape.in[k].rows = shape.in[k].rows ? seq_len : 0;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            shape.out[k].rows = shape.out[k].rows ? seq_len : 0;
        shape.attributes.seq_len = seq_len;
        if (!is_listed(list, &shape))
            add_attention(list, where, &shape);
    }
}

static void make_list(struct list *list, int scale)
{
    struct kernels *kernels = NULL;
    struct err err;

    list->items = calloc(ITEMS_MAX, sizeof *list->items);
    assert_non_null(list->items);
    if (kernels_gpu_sizes_create(&kernels, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int i = 0; i < (scale == 1 ? 3 : 2) && models[m].tokens[i]; i++)
            add_program(list, &models[m], models[m].tokens[i], scale, kernels);
    add_long_attention(list, 32768 / scale);
    kernels_destroy(kernels);
}

/* ---- running them ---- */

/* In this process from now on: the device, and kernels that choose attention so. */
static struct kernels *open_kernels(struct device *device, const char *attention)
{
    struct kernels *kernels = NULL;
    struct err err;

    if (attention)
        setenv("LMTRAIN_ATTENTION", attention, 1);
    else
        unsetenv("LMTRAIN_ATTENTION");
    if (kernels_cuda_create(&kernels, device, &err) < 0) {
        fprintf(stderr, "large: %s\n", err.text);
        exit(1);
    }
    return kernels;
}

static void run_item(const struct large_item *item, struct device *device,
                     struct progress *progress)
{
    static const char *const words[] = { "?", "ok  ", "FAIL", "skip" };
    struct kernels *kernels = open_kernels(device, item->attention);
    char text[400];
    int is_lost;

    alarm(ITEM_SECONDS);
    enum large_verdict verdict = large_run(item, kernels, &is_lost, text, sizeof text);
    alarm(0);
    printf("%s %s: %s\n", words[verdict], item->name, text);
    fflush(stdout);
    progress->n[verdict]++;
    if (is_lost)
        exit(1);
    kernels_destroy(kernels);
}

/* A process of its own: from item `at` until one is its end. */
static void run_from(const struct list *list, struct progress *progress, const char *only)
{
    struct device *device;
    struct err err;

    if (device_cuda_open(&device, 0, &err) < 0) {
        fprintf(stderr, "large: %s\n", err.text);
        exit(1);
    }
    for (; progress->at < list->n; progress->at++)
        if (!only || strstr(list->items[progress->at].name, only))
            run_item(&list->items[progress->at], device, progress);
    exit(0);
}

/* Whether the GPU is there, and whether it is the emulated one, as only another process may ask:
 * who has asked a driver cannot fork any more. */
static int is_emulated(void)
{
    struct device *device;
    struct err err;
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        if (device_cuda_open(&device, 0, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            _exit(2);
        }
        _exit(strstr(device->description, "emulated") != NULL);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) > 1)
        fail_msg("no GPU to test");
    return WEXITSTATUS(status);
}

static void run_list(const struct list *list, struct progress *progress, const char *only)
{
    int before, status;

    for (progress->at = 0; progress->at < list->n; progress->at++) {
        int n_failed = progress->n[LARGE_FAILED];

        before = progress->at;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            run_from(list, progress, only);
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            fail_msg("no process for the ops from %s on", list->items[before].name);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return;
        if (progress->n[LARGE_FAILED] > n_failed && WIFEXITED(status))
            continue; /* it said so */
        printf("FAIL %s: the process ended with %s %d%s\n", list->items[progress->at].name,
               WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
               WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? " (it took too long)" : "");
        progress->n[LARGE_FAILED]++;
    }
}

static void test_ops(void **state)
{
    const char *text = getenv("LMTRAIN_LARGE_SCALE"), *only = getenv("LMTRAIN_LARGE_ONLY");
    int scale = text ? (int)strtol(text, NULL, 10) : is_emulated() ? EMULATED_SCALE : 1;
    struct progress *progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct list list = { 0 };

    (void)state;
    assert_true(progress != MAP_FAILED);
    assert_true(scale >= 1);
    large_make_table(scale == 1 ? TABLE_LARGE : TABLE_SMALL);
    make_list(&list, scale);
    run_list(&list, progress, only);
    printf("large: %d ok, %d failed, %d left out of %d\n", progress->n[LARGE_OK],
           progress->n[LARGE_FAILED], progress->n[LARGE_SKIPPED], list.n);
    assert_true(progress->n[LARGE_OK] > 0);
    assert_int_equal(progress->n[LARGE_FAILED], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
