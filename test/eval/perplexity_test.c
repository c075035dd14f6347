/*
 * perplexity_test.c - eval finds the loss that training found on the same text
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "eval/perplexity.h"
#include "support/team.h"
#include "support/trained.h"

static struct trained rig;
static struct served served;

static void begin(const char *model, const char *const *overrides)
{
    struct err err;

    trained_open(&rig, model, overrides);
    trained_steps(&rig, 5);
    if (served_open(&served, trained_save(&rig, "step-00000005"), &err) < 0)
        fail_msg("%s", err.text);
}

static void end(void)
{
    served_close(&served);
    trained_close(&rig);
}

struct progress {
    int64_t calls, done, total;
};

static void on_batch(void *context, int64_t done, int64_t total)
{
    struct progress *p = context;

    assert_int_equal(done, p->done + 1);
    p->calls++;
    p->done = done;
    p->total = total;
}

static struct perplexity measure(int64_t limit)
{
    struct perplexity result = { 0 };
    struct progress progress = { 0 };
    struct err err;

    if (perplexity_measure(&served, rig.kernels, trained_path(&rig, "tokens"), limit, on_batch,
                           &progress, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(progress.calls > 0);
    assert_int_equal(progress.done, progress.total);
    return result;
}

static void agrees(const char *model, const char *const *overrides)
{
    struct err err;
    double loss;
    int64_t tokens;

    begin(model, overrides);
    struct perplexity result = measure(0);
    if (trainer_evaluate(rig.trainer, 0, NULL, &loss, &tokens, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(result.tokens, tokens);
    if (!(fabs(result.loss - loss) <= 1e-6 * loss))
        fail_msg("%.17g, training found %.17g", result.loss, loss);
    end();
}

static void agrees_with_training(void **state)
{
    (void)state;
    agrees("llama", NULL);
    agrees("gpt2", NULL);
    agrees("llama", (const char *const[]){ "train.dtype=bf16", NULL });
    /* Dropout is of training alone. */
    agrees("gpt2",
           (const char *const[]){ "model.dropout=0.3", "model.attention_dropout=0.3", NULL });
}

/* Windows, rounded up to micro-batches of two. */
static void limits(void **state)
{
    (void)state;
    begin("llama", NULL);
    struct perplexity all = measure(0);
    assert_int_equal(measure(1).tokens, 2 * 16);
    assert_int_equal(measure(2).tokens, 2 * 16);
    assert_int_equal(measure(3).tokens, 4 * 16);
    struct perplexity more = measure(1000000);
    assert_int_equal(more.tokens, all.tokens);
    assert_true(more.loss == all.loss);
    end();
}

static void bad_data(void **state)
{
    struct perplexity result = { .tokens = 77 };
    struct err err = { 0 };

    (void)state;
    begin("llama", NULL);
    assert_int_equal(perplexity_measure(&served, rig.kernels, trained_path(&rig, "nowhere"), 0,
                                        NULL, NULL, &result, &err),
                     -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "nowhere.idx"));
    assert_int_equal(result.tokens, 77);
    end();
}

static void fails_to_open(const char *path, const char *words)
{
    struct served none;
    struct err err = { 0 };

    assert_int_equal(served_open(&none, path, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
    assert_null(none.weights.store);
}

static void what_cannot_be_served(void **state)
{
    struct store_save *save;
    struct err err;
    float number = 1;
    struct store_slice slice = { "w", DTYPE_F32, 1, 1, 1, 0, 1, 0, 1, &number, 0, NULL };
    const char *path;

    (void)state;
    begin("llama", NULL);
    assert_string_equal(served.folder, trained_path(&rig, "step-00000005"));
    fails_to_open(trained_path(&rig, "nowhere"), "no checkpoint in");
    path = trained_path(&rig, "other/step-00000001");
    assert_int_equal(file_make_folders(trained_path(&rig, "other"), &err), 0);
    if (store_save_start(&save, path, 0, &slice, 1, &err) < 0 || store_save_wait(save, &err) < 0 ||
        store_commit(path, 1, 1, "{\"job\": 7}", &err) < 0)
        fail_msg("%s", err.text);
    fails_to_open(path, "it does not contain its job");
    if (store_save_start(&save, path, 0, &slice, 1, &err) < 0 || store_save_wait(save, &err) < 0 ||
        store_commit(path, 1, 1, "{\"job\": \"model: [\"}", &err) < 0)
        fail_msg("%s", err.text);
    fails_to_open(path, "its job:");
    end();
}

static int measure_as_rank(struct team_rank *rank, struct err *err)
{
    return perplexity_measure(rank->served, rank->kernels, trained_path(&rig, "tokens"), 14, NULL,
                              NULL, rank->context, err);
}

/* Whoever computes a window, its loss is added in its turn: seven batches, which divide by
 * nothing. */
static void over_ranks(void **state)
{
    static const struct team teams[] = {
        { .tp = 1, .pp = 2, .replicas = 1 }, { .tp = 1, .pp = 1, .replicas = 3 },
        { .tp = 1, .pp = 2, .replicas = 2 }, { .tp = 2, .pp = 1, .replicas = 1 },
        { .tp = 2, .pp = 2, .replicas = 2 },
    };

    (void)state;
    begin("llama", NULL);
    struct perplexity alone = measure(14);
    for (size_t i = 0; i < sizeof teams / sizeof *teams; i++) {
        struct team team = teams[i];
        struct perplexity results[TEAM_MAX] = { { 0 } };
        void *contexts[TEAM_MAX] = { NULL };

        team.model = served.folder;
        for (int k = 0; k < TEAM_MAX; k++)
            contexts[k] = &results[k];
        team_run(&team, measure_as_rank, contexts);
        for (int k = 0; k < team.tp * team.pp * team.replicas; k++) {
            assert_int_equal(results[k].tokens, alone.tokens);
            assert_true(results[k].loss == results[0].loss);
        }
        if (team.tp == 1)
            assert_true(results[0].loss == alone.loss);
        assert_true(fabs(results[0].loss - alone.loss) <= 1e-5 * alone.loss);
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_training),
        cmocka_unit_test(limits),
        cmocka_unit_test(over_ranks),
        cmocka_unit_test(bad_data),
        cmocka_unit_test(what_cannot_be_served),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
