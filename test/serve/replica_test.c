/*
 * replica_test.c - a model held by several ranks says what it says when one has it whole
 *
 * To the bit whatever the stages, threads and replicas, and to rounding over tensor-parallel ranks.
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
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "serve/decode.h"
#include "serve/generate.h"
#include "serve/score.h"
#include "support/team.h"
#include "support/trained.h"

#define VOCAB 64 /* of the texts; the model has a few more, which do not divide by anything */
#define N_SCORED 12
#define N_TEXTS 3
#define LENGTH_MAX 40
#define N_NEW 10

struct outcome {
    double log_likelihood[N_SCORED];
    int is_greedy[N_SCORED];
    int32_t greedy[N_TEXTS][N_NEW], drawn[N_TEXTS][N_NEW], beams[N_NEW];
    double beam_score;
    size_t bytes, cache_bytes;
};

static struct tokenizer *tokenizer;

static int32_t token(int text, int at)
{
    /* Every third text begins as the one before it. */
    return (int32_t)(rng_at(23, RNG_TEST, (uint64_t)(text / 3),
                            (uint64_t)at + (at > 9 ? 99 * (uint64_t)text : 0))
                         .word[0] %
                     VOCAB);
}

static int score_all(struct team_rank *rank, struct outcome *out, struct err *err)
{
    struct scorer_options options = { .max_positions = LENGTH_MAX, .n_rows = 24 };
    struct score scores[N_SCORED];
    int32_t tokens[N_SCORED][LENGTH_MAX];
    struct scorer *scorer;

    for (int t = 0; t < N_SCORED; t++) {
        for (int i = 0; i < LENGTH_MAX; i++)
            tokens[t][i] = token(t, i);
        scores[t] = (struct score){ .tokens = tokens[t], .n = 12 + 2 * t, .n_scored = 3 + t };
    }
    if (scorer_create(&scorer, rank->served, rank->kernels, &options, err) < 0)
        return -1;
    /* Twice: what lies in the cache does not count. */
    int status = scorer_run(scorer, scores, 5, NULL, NULL, NULL, err);
    if (!status)
        status = scorer_run(scorer, scores, N_SCORED, NULL, NULL, NULL, err);
    scorer_destroy(scorer);
    for (int t = 0; t < N_SCORED; t++) {
        out->log_likelihood[t] = scores[t].log_likelihood;
        out->is_greedy[t] = scores[t].is_greedy;
    }
    return status;
}

static int begin_texts(struct generate_text *texts, struct err *err)
{
    memset(texts, 0, sizeof *texts * N_TEXTS);
    for (int t = 0; t < N_TEXTS; t++) {
        texts[t].name = (uint64_t)t;
        for (int i = 0; i < 3 + 7 * t; i++)
            if (token_list_add(&texts[t].tokens, token(t, i), err) < 0)
                return -1;
    }
    return 0;
}

/* One after the other: side by side first, then beams of the last text. */
static int generate(struct team_rank *rank, const struct generate_options *options,
                    int32_t (*out)[N_NEW], struct outcome *outcome, struct err *err)
{
    struct generate_text texts[N_TEXTS];
    struct generator *generator = NULL;
    int n = options->n_beams > 1 ? 1 : N_TEXTS, status = begin_texts(texts, err);

    if (!status)
        status = generator_create(&generator, rank->served, rank->kernels, tokenizer, options, err);
    if (!status)
        status = generator_run(generator, texts + N_TEXTS - n, n, NULL, NULL, err);
    for (int t = 0; t < n && !status; t++) {
        const struct generate_text *text = &texts[N_TEXTS - n + t];

        for (int64_t i = 0; i < text->tokens.n - text->n_prompt && i < N_NEW; i++)
            out[t][i] = text->tokens.ids[text->n_prompt + i];
        outcome->beam_score = text->score;
        outcome->bytes = generator_bytes(generator);
        outcome->cache_bytes = generator_cache_bytes(generator);
    }
    generator_destroy(generator);
    for (int t = 0; t < N_TEXTS; t++)
        generate_text_release(&texts[t]);
    return status;
}

static int live(struct team_rank *rank, struct err *err)
{
    struct outcome *out = rank->context;
    struct generate_options greedy = { .sampler = { .top_p = 1 },
                                       .repetition_penalty = 1,
                                       .max_new_tokens = N_NEW,
                                       .n_beams = 1,
                                       .length_penalty = 1 };
    struct generate_options drawn = greedy, beams = greedy;

    drawn.sampler = (struct sampling){ .temperature = 1, .top_p = 0.95, .seed = 5 };
    drawn.repetition_penalty = 1.1;
    beams.n_beams = 3;
    if (score_all(rank, out, err) < 0 || generate(rank, &drawn, out->drawn, out, err) < 0 ||
        generate(rank, &beams, &out->beams, out, err) < 0)
        return -1;
    return generate(rank, &greedy, out->greedy, out, err);
}

/* What all ranks have got, and they all the same but for memory, of which *bytes is the most. */
static struct outcome run(const struct team *team)
{
    struct outcome outcomes[TEAM_MAX];
    void *contexts[TEAM_MAX] = { NULL };
    int n = team->tp * team->pp * team->replicas;

    memset(outcomes, 0, sizeof outcomes);
    for (int i = 0; i < n; i++)
        contexts[i] = &outcomes[i];
    team_run(team, live, contexts);
    for (int i = 1; i < n; i++)
        assert_memory_equal(&outcomes[i], &outcomes[0], offsetof(struct outcome, bytes));
    for (int i = 1; i < n; i++)
        if (outcomes[i].bytes > outcomes[0].bytes)
            outcomes[0].bytes = outcomes[i].bytes;
    return outcomes[0];
}

/* To the bit where the numerics are the same. */
static void compare(const struct team *team, const struct outcome *got, const struct outcome *one)
{
    if (team->tp == 1) {
        assert_memory_equal(got, one, offsetof(struct outcome, bytes));
        return;
    }
    for (int t = 0; t < N_SCORED; t++) {
        if (!(fabs(got->log_likelihood[t] - one->log_likelihood[t]) <=
              2e-5 * (1 - one->log_likelihood[t])))
            fail_msg("tp %d: text %d: %.9g, alone %.9g", team->tp, t, got->log_likelihood[t],
                     one->log_likelihood[t]);
        assert_int_equal(got->is_greedy[t], one->is_greedy[t]);
    }
    assert_memory_equal(got->greedy, one->greedy, sizeof one->greedy);
    assert_memory_equal(got->beams, one->beams, sizeof one->beams);
    assert_true(fabs(got->beam_score - one->beam_score) < 1e-4);
}

static void check(const char *model, const char *const *overrides, const struct team *teams, int n)
{
    struct trained rig;
    struct team one = { .tp = 1, .pp = 1, .replicas = 1 };
    struct err err;

    trained_open(&rig, model, overrides);
    trained_steps(&rig, 6);
    one.model = trained_save(&rig, "step-00000006");
    if (tokenizer_open(&tokenizer, "data/kjv-tokenizer", &err) < 0)
        fail_msg("%s", err.text);
    struct outcome alone = run(&one);
    assert_memory_not_equal(alone.drawn, alone.greedy, sizeof alone.drawn);
    assert_memory_not_equal(alone.beams, alone.greedy, sizeof alone.beams);
    for (int i = 0; i < n; i++) {
        struct team team = teams[i];

        team.model = one.model;
        struct outcome got = run(&team);
        compare(&team, &got, &alone);
        /* A rank's part of the model, and of the cache: its layers', and of these its heads'. */
        if (team.tp * team.pp > 2)
            assert_true(got.bytes < alone.bytes);
        if (team.tp <= 2) /* more share kv heads */
            assert_int_equal(got.cache_bytes * (size_t)(team.tp * team.pp), alone.cache_bytes);
    }
    tokenizer_close(tokenizer);
    trained_close(&rig);
}

static void llama(void **state)
{
    static const char *const four[] = { "model.n_layers=4", "model.vocab_size=67", NULL };
    static const struct team teams[] = {
        { .tp = 1, .pp = 1, .replicas = 1, .n_threads = 3 },
        { .tp = 1, .pp = 2, .replicas = 1 },
        { .tp = 1, .pp = 4, .replicas = 1, .n_threads = 2 },
        { .tp = 1, .pp = 1, .replicas = 2 },
        { .tp = 1, .pp = 2, .replicas = 3 },
        { .tp = 2, .pp = 1, .replicas = 1 },
        { .tp = 2, .pp = 2, .replicas = 2 },
        { .tp = 4, .pp = 1, .replicas = 1 }, /* two ranks share each kv head */
    };

    (void)state;
    check("llama", four, teams, sizeof teams / sizeof *teams);
}

/* Tied: first and last stage both have the embedding. Learned positions, biases. */
static void gpt2(void **state)
{
    static const struct team teams[] = {
        { .tp = 1, .pp = 2, .replicas = 1 },
        { .tp = 2, .pp = 2, .replicas = 1 },
    };

    (void)state;
    check("gpt2", NULL, teams, sizeof teams / sizeof *teams);
}

/* Adapters, slopes by head, windows, norms of heads, a head of directions, experts. */
static void others(void **state)
{
    static const char *const alibi[] = { "model.position=alibi", "model.window=9", NULL };
    static const char *const normed[] = { "model.qk_norm=true", "model.normalized_head=true",
                                          "model.embedding_norm=true", NULL };
    static const char *const mixture[] = { "model.n_experts=5", "model.n_active_experts=2",
                                           "model.expert_ffn_size=24", NULL };
    static const char *const lora[] = { "kind=lora", "lora.rank=4", NULL };
    static const struct team teams[] = { { .tp = 2, .pp = 2, .replicas = 1 } };

    (void)state;
    check("llama", lora, teams, 1);
    check("llama", alibi, teams, 1);
    check("llama", normed, teams, 1);
    check("llama", mixture, teams, 1);
}

static void bf16(void **state)
{
    static const char *const half[] = { "train.dtype=bf16", NULL };
    static const struct team teams[] = { { .tp = 1, .pp = 2, .replicas = 1, .n_threads = 2 } };

    (void)state;
    check("llama", half, teams, 1);
}

static void refused(void **state)
{
    struct replica replica;
    struct comm *comm;
    struct err err;

    (void)state;
    assert_int_equal(comm_self_create(&comm, &err), 0);
    assert_int_equal(replica_open(&replica, comm, NULL, NULL, 2, 3, &err), -1);
    assert_string_equal(err.text,
                        "1 rank is not a multiple of the 6 of one model replica: tp 2 * pp 3");
    comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama), cmocka_unit_test(gpt2),    cmocka_unit_test(others),
        cmocka_unit_test(bf16),  cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
