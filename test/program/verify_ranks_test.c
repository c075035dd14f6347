/*
 * verify_ranks_test.c - every pipeline passes, and none does once a transfer is missing or
 * misplaced
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

enum { N_LAYERS = 8, N_MICRO_BATCHES = 8, RANKS_MAX = 4 };

struct way {
    enum pipeline_kind kind;
    int n_ranks, n_chunks, dp_size;
};

/* All ranks' programs, as each compiles its own. */
static void compile_ranks(struct program *programs, const struct way *way, const char *model)
{
    struct model_spec spec = tiny_spec(model);

    spec.n_layers = N_LAYERS;
    for (int rank = 0; rank < way->n_ranks; rank++) {
        struct compile_train options = tiny_compile(&spec, max_int(way->dp_size, 1));
        struct err err;

        options.mesh.size[AXIS_PP] = way->n_ranks;
        options.n_micro_batches = N_MICRO_BATCHES;
        options.pipeline.kind = way->kind;
        options.pipeline.n_chunks = way->n_chunks;
        options.pipeline.rank = rank;
        options.gradients.zero = way->dp_size > 1;
        if (compile_train(&programs[rank], &options, &err) < 0)
            fail_msg("%s", err.text);
    }
}

static void release(struct program *programs, int n)
{
    for (int i = 0; i < n; i++)
        program_release(&programs[i]);
}

static void test_every_kind(void **state)
{
    static const char *const models[] = { "llama", "gpt2" };
    struct program programs[RANKS_MAX];
    struct err err;

    (void)state;
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        for (int n = 2; n <= RANKS_MAX; n++) {
            int chunked = kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST ||
                          kind == PIPELINE_ZB_V;
            struct way way = { (enum pipeline_kind)kind, n, chunked ? 2 : 1, 1 + n % 2 };

            compile_ranks(programs, &way, models[n % 2]);
            if (verify_ranks(programs, n, &err))
                fail_msg("%s, %d ranks: %s", pipeline_name(way.kind), n, err.text);
            release(programs, n);
        }
}

/* The n-th action of the step that runs a function whose name begins so. */
static int find_run(const struct program *p, const char *name, int n)
{
    const struct entry *step = &p->entries[ENTRY_STEP];

    for (int i = 0; i < step->n_actions; i++)
        if (step->actions[i].kind == ACTION_RUN &&
            !strncmp(p->functions[step->actions[i].function].name, name, strlen(name)) && !n--)
            return i;
    fail_msg("no '%s'", name);
    return -1;
}

static void swap(struct program *p, int i, int k)
{
    struct action *actions = p->entries[ENTRY_STEP].actions, action = actions[i];

    actions[i] = actions[k];
    actions[k] = action;
}

static void remove_action(struct program *p, int i)
{
    struct entry *step = &p->entries[ENTRY_STEP];

    memmove(&step->actions[i], &step->actions[i + 1],
            sizeof *step->actions * (size_t)(step->n_actions - i - 1));
    step->n_actions--;
}

static void refused(const struct program *programs, int n, const char *words)
{
    struct err err = { 0 };

    assert_int_equal(verify_ranks(programs, n, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    if (!strstr(err.text, words))
        fail_msg("'%s' is not in: %s", words, err.text);
}

static void test_missing_and_misplaced(void **state)
{
    static const struct way way = { PIPELINE_1F1B, 2, 1, 1 };
    struct program p[RANKS_MAX];
    struct err err;

    (void)state;
    compile_ranks(p, &way, "llama");
    assert_int_equal(verify_ranks(p, 2, &err), 0);
    swap(&p[1], find_run(&p[1], "receive forward", 2), find_run(&p[1], "receive forward", 3));
    refused(p, 2, "receives what is sent of another micro-batch");
    release(p, 2);

    compile_ranks(p, &way, "llama");
    remove_action(&p[1], find_run(&p[1], "receive forward", N_MICRO_BATCHES - 1));
    refused(p, 2, "rank 0, send forward 0, micro-batch 7: waits for ever");
    release(p, 2);

    compile_ranks(p, &way, "llama");
    remove_action(&p[1], find_run(&p[1], "send backward", 0));
    refused(p, 2, "receives what is sent of another micro-batch");
    release(p, 2);

    /* One rank's value is of another size. */
    compile_ranks(p, &way, "llama");
    const struct function *f =
        &p[1].functions
             [p[1].entries[ENTRY_STEP].actions[find_run(&p[1], "receive forward", 0)].function];
    p[1].values[f->ops[0].out[0]].cols /= 2;
    refused(p, 2, "receives other bytes than are sent");
    release(p, 2);

    /* The norm is of all stages, and one does not come. */
    compile_ranks(p, &way, "llama");
    remove_action(&p[1], find_run(&p[1], "update", 0));
    refused(p, 2, "update, micro-batch -1: waits for ever");
    release(p, 2);
}

/* Received only when they are used, breadth-first's transfers wait for each other in a ring. */
static void test_ring(void **state)
{
    static const struct way way = { PIPELINE_BREADTH_FIRST, 2, 2, 1 };
    struct program p[RANKS_MAX];
    struct err err;

    (void)state;
    compile_ranks(p, &way, "llama");
    assert_int_equal(verify_ranks(p, 2, &err), 0);
    for (int rank = 0; rank < 2; rank++)
        for (int m = N_MICRO_BATCHES - 1; m >= 0; m--) {
            struct entry *step = &p[rank].entries[ENTRY_STEP];
            int i = find_run(&p[rank], "receive forward 1", m), to = i;

            while (strcmp(p[rank].functions[step->actions[to].function].name, "forward 1") != 0 ||
                   step->actions[to].kind != ACTION_RUN ||
                   step->actions[to].micro_batch != step->actions[i].micro_batch)
                to++;
            for (; i + 1 < to; i++)
                swap(&p[rank], i, i + 1);
        }
    refused(p, 2, "waits for ever");
    release(p, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_missing_and_misplaced),
        cmocka_unit_test(test_ring),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
