/*
 * zero3_test.c - zero 3: shards of weights, and how much of them is whole at a time
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/str.h"
#include "zero3_programs.h"

/* The last op that reads of what ops[gather] has gathered. */
static int last_reader(const struct program *p, const struct function *f, int gather)
{
    int base = program_base(p, f->ops[gather].out[0]), last = -1;

    for (int i = gather + 1; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (f->ops[i].in[k] && program_base(p, f->ops[i].in[k]) == base)
                last = i;
    return last;
}

/* Bytes of weights that are whole at one time, at most, in any function. */
static size_t most_whole(const struct program *p)
{
    size_t most = 0;

    for (int n = 0; n < p->n_functions; n++) {
        const struct function *f = &p->functions[n];

        for (int at = 0; at < f->n_ops; at++) {
            size_t n_bytes = 0;

            for (int i = 0; i <= at; i++)
                if (is_gather(p, &f->ops[i]) && last_reader(p, f, i) >= at)
                    n_bytes += program_value_bytes(p, f->ops[i].out[0]);
            most = n_bytes > most ? n_bytes : most;
        }
    }
    return most;
}

static size_t bucket_bytes(const struct program *p, int bucket)
{
    const struct bucket *b = &p->buckets[bucket];

    return (size_t)b->n_elements * dtype_bytes(p->values[b->weight_shard].dtype);
}

/* The two largest buckets of matrices, and that of all vectors. */
static size_t two_buckets(const struct program *p)
{
    size_t largest[2] = { 0 }, vectors = 0;
    char *seen = arena_array(&((struct program *)p)->arena, char, p->n_buckets);

    for (int i = 0; i < p->n_parameters; i++) {
        int bucket = p->parameters[i].bucket;
        size_t n_bytes = bucket_bytes(p, bucket);

        if (seen[bucket])
            continue;
        seen[bucket] = 1;
        if (p->parameters[i].n_dims == 1) {
            vectors += n_bytes;
        } else if (n_bytes > largest[0]) {
            largest[1] = largest[0];
            largest[0] = n_bytes;
        } else if (n_bytes > largest[1]) {
            largest[1] = n_bytes;
        }
    }
    return largest[0] + largest[1] + vectors;
}

/* A bucket is a part of one layer's matrices, or vectors. */
static void buckets_follow_layers(void **state)
{
    struct model_spec spec = real_spec("llama-22m");

    (void)state;
    for (int small = 0; small < 2; small++) {
        struct compile_train options = zero_3(&spec, 4, ZERO3_GATHER_PASS);
        struct program p;

        options.gradients.bucket_bytes = (size_t)(small ? 1 : 1024) << 20;
        compile(&p, &options);
        for (int i = 0; i < p.n_parameters; i++)
            for (int k = 0; k < i; k++) {
                const struct parameter *a = &p.parameters[i], *b = &p.parameters[k];
                size_t length = strcspn(a->name + 7, ".") + 7;

                if (a->bucket != b->bucket)
                    continue;
                assert_int_equal(a->n_dims, b->n_dims);
                if (a->n_dims > 1) {
                    assert_true(str_starts_with(a->name, "layers."));
                    assert_memory_equal(a->name, b->name, length);
                }
            }
        /* One a layer, the vectors, and the embedding, which is the head too. */
        if (!small)
            assert_int_equal(p.n_buckets, spec.n_layers + (spec.tied_embeddings ? 2 : 3));
        else
            assert_true(p.n_buckets > 2 * spec.n_layers);
        program_release(&p);
    }
}

/* Weights take the dp_size-th part, and what is whole of them about two buckets. */
static void memory_of_a_pass(void **state)
{
    struct model_spec spec = real_spec("llama-22m");

    (void)state;
    for (int dp_size = 2; dp_size <= 8; dp_size *= 2)
        for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++) {
            struct compile_train options = zero_3(&spec, dp_size, ZERO3_GATHER_PASS);
            struct program whole, p;

            options.dtype = DTYPE_BF16;
            options.recompute = (enum recompute_kind)kind;
            compile(&p, &options);
            options.gradients.zero = 0;
            compile(&whole, &options);
            double share = (double)p.segment_bytes[SEGMENT_WEIGHTS] * dp_size /
                           (double)whole.segment_bytes[SEGMENT_WEIGHTS];
            if (!(share >= 1 && share < 1.05))
                fail_msg("dp %d: %zu bytes of weights, %zu at zero 0", dp_size,
                         p.segment_bytes[SEGMENT_WEIGHTS], whole.segment_bytes[SEGMENT_WEIGHTS]);
            assert_true(most_whole(&p) <= two_buckets(&p));
            assert_true(4 * most_whole(&p) > two_buckets(&p));
            /* They lie in the scratch: as much of it as they take, and what place loses. */
            if (!(p.segment_bytes[SEGMENT_SCRATCH] <=
                  whole.segment_bytes[SEGMENT_SCRATCH] + two_buckets(&p) * 5 / 4))
                fail_msg("dp %d: %zu bytes of scratch, %zu at zero 0, two buckets %zu", dp_size,
                         p.segment_bytes[SEGMENT_SCRATCH], whole.segment_bytes[SEGMENT_SCRATCH],
                         two_buckets(&p));
            program_release(&p);
            program_release(&whole);
        }
}

/* Every gather is issued where the one before it is first read, and read later. */
static void one_bucket_ahead(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct model_spec spec = tiny_spec(m ? "gpt2" : "llama");
        struct compile_train options = zero_3(&spec, 3, ZERO3_GATHER_PASS);
        struct program p;
        int n_gathers = 0;

        compile(&p, &options);
        for (int n = 0; n < p.n_functions; n++) {
            const struct function *f = &p.functions[n];
            int before = -1;

            for (int i = 0; i < f->n_ops; i++) {
                if (!is_gather(&p, &f->ops[i]))
                    continue;
                n_gathers++;
                assert_int_equal(f->ops[i].stream, STREAM_DP_GATHER);
                if (before < 0)
                    assert_int_equal(i, 0);
                else
                    assert_true(first_reader(&p, f, before) > i);
                for (int k = before + 1; before >= 0 && k < i; k++)
                    assert_true(f->ops[k].stream == STREAM_COMPUTE || n_gathers < 3 ||
                                f->ops[k].kind == OP_REDUCE_SCATTER);
                before = i;
            }
        }
        assert_true(n_gathers > 6);
        program_release(&p);
    }
}

static int count_gathers(const struct program *p, const char *function, int bucket)
{
    int n = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            n += !strcmp(p->functions[f].name, function) && is_gather(p, &p->functions[f].ops[i]) &&
                 (bucket < 0 || p->values[p->functions[f].ops[i].out[0]].bucket == 1 + bucket);
    return n;
}

/* A tied embedding is not held through all the layers; what each layer reads is. */
static void what_is_read_again_much_later(void **state)
{
    struct model_spec spec = tiny_spec("gpt2");
    struct compile_train options;
    struct program p;

    (void)state;
    options = zero_3(&spec, 2, ZERO3_GATHER_PASS);
    compile(&p, &options);
    for (int i = 0; i < p.n_parameters; i++) {
        const struct parameter *q = &p.parameters[i];
        int wanted = !strcmp(q->name, "embedding.weight") ? 2 : 1;

        assert_int_equal(count_gathers(&p, "forward 0", q->bucket), wanted);
        assert_int_equal(count_gathers(&p, "evaluate 0", q->bucket), wanted);
    }
    program_release(&p);
}

/* Each op has gathers of its own right ahead of it, each of one parameter. */
static void one_op_at_a_time(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct model_spec spec = tiny_spec(m ? "gpt2" : "llama");
        struct compile_train options = zero_3(&spec, 2, ZERO3_GATHER_OP);
        struct program p;

        compile(&p, &options);
        assert_int_equal(p.n_buckets, p.n_parameters);
        for (int n = 0; n < p.n_functions; n++) {
            const struct function *f = &p.functions[n];

            for (int i = 0; i < f->n_ops; i++) {
                int reader = i;

                if (!is_gather(&p, &f->ops[i]))
                    continue;
                while (is_gather(&p, &f->ops[reader]))
                    reader++;
                assert_int_equal(first_reader(&p, f, i), reader);
                assert_int_equal(last_reader(&p, f, i), reader);
            }
        }
        program_release(&p);
    }
}

static int count_staging_actions(const struct program *p)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    int n = 0;

    for (int i = 0; i < step->n_actions; i++)
        n += step->actions[i].kind == ACTION_RUN &&
             str_starts_with(p->functions[step->actions[i].function].name, "gather ");
    return n;
}

/* Bytes of chunk c in its staging. */
static size_t gathered_bytes(const struct program *p, int c)
{
    char name[16];
    size_t n_bytes = 0;

    snprintf(name, sizeof name, "gather %d", c);
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops && !strcmp(p->functions[f].name, name); i++)
            n_bytes += program_value_bytes(p, p->functions[f].ops[i].out[0]);
    assert_true(n_bytes > 0);
    return n_bytes;
}

static size_t max_bytes(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A staging cell is no larger than its larger chunk, whose buckets include the likes of the
 * other's. */
static void check_staging(const struct program *p)
{
    size_t shards = 0, stagings = 0;

    for (int i = 0; i < p->n_buckets; i++)
        shards += program_value_bytes(p, p->buckets[i].weight_shard);
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].name && str_starts_with(p->values[id].name, "weights_staging."))
            stagings += program_value_bytes(p, id);
    assert_int_equal(p->segment_bytes[SEGMENT_WEIGHTS], shards + stagings);
    assert_int_equal(stagings, max_bytes(gathered_bytes(p, 0), gathered_bytes(p, 2)) +
                                   max_bytes(gathered_bytes(p, 1), gathered_bytes(p, 3)));
}

/* Behind the last action of the chunk before, so that it travels during the next chunk's. */
static void check_ahead(const struct program *p)
{
    static const char *const wanted[] = { "gather 0",  "gather 1", "forward 0", "gather 2",
                                          "forward 1", "gather 3", "forward 2", "forward 3" };
    const struct entry *step = &p->entries[ENTRY_STEP];
    int n = 0;

    for (int i = 0; i < step->n_actions && n < 8; i++) {
        const struct action *a = &step->actions[i];
        const char *name = p->functions[a->function].name;

        if (a->kind != ACTION_RUN || (n && !strcmp(name, wanted[n - 1])))
            continue;
        if (str_starts_with(name, "gather ") || str_starts_with(name, "forward "))
            assert_string_equal(name, wanted[n++]);
    }
    assert_int_equal(n, 8);
}

/* Chunks 0 to 3, back from 3 over 2, which are still there, to 1 and 0: whatever the micro-batches.
 */
static void runs_share_two_stagings(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct model_spec spec;
        struct compile_train options = four_chunks(&spec, PIPELINE_BREADTH_FIRST);
        struct program p;

        options.pipeline.rank = rank;
        compile(&p, &options);
        assert_int_equal(count_staging_actions(&p), 6);
        check_staging(&p);
        check_ahead(&p);
        program_release(&p);
        options = four_chunks(&spec, PIPELINE_INTERLEAVED);
        options.pipeline.rank = rank;
        compile(&p, &options);
        assert_true(count_staging_actions(&p) > 6);
        program_release(&p);
    }
}

/* One or two chunks never lose their staging: a run is a step, which is zero 2. */
static void a_run_of_all_is_a_step(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct str text[2] = { { 0 }, { 0 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct compile_train options = zero_3(&spec, 2, i ? ZERO3_GATHER_STEP : ZERO3_GATHER_RUN);
        struct program p;

        compile(&p, &options);
        assert_int_equal(p.entries[ENTRY_GATHER].n_actions, 1);
        print_program(&p, PRINT_ADDRESSES, &text[i]);
        program_release(&p);
    }
    assert_string_equal(str_text(&text[0]), str_text(&text[1]));
    str_release(&text[0]);
    str_release(&text[1]);
}

/* Nothing of the weights goes from a function to another; nobody has them whole between entries. */
static void gathered_is_not_stashed(void **state)
{
    (void)state;
    for (int hold = ZERO3_GATHER_PASS; hold <= ZERO3_GATHER_OP; hold++)
        for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++) {
            struct model_spec spec = tiny_spec("gpt2");
            struct compile_train options = zero_3(&spec, 2, (enum zero3_gather)hold);
            struct program p;

            options.recompute = (enum recompute_kind)kind;
            compile(&p, &options);
            assert_int_equal(p.entries[ENTRY_GATHER].n_actions, 0);
            for (int id = 1; id < p.n_values; id++) {
                const struct value *v = &p.values[id];

                if (!v->bucket)
                    continue;
                assert_true(v->scope != SCOPE_STASH);
                assert_int_equal(v->role == ROLE_WEIGHT, v->spread[AXIS_DP] == SPREAD_COLS);
            }
            program_release(&p);
        }
}

/* ---- what verify refuses ---- */

static void a_gather_is_missing(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = zero_3(&spec, 2, ZERO3_GATHER_PASS);
    struct program p;

    (void)state;
    compile(&p, &options);
    struct function *f = &p.functions[0];
    struct op gather = f->ops[0];
    assert_true(is_gather(&p, &gather));
    f->ops[0] = (struct op){ .kind = OP_ADD,
                             .in = { p.buckets[0].moment1, p.buckets[0].moment1 },
                             .out = { p.buckets[0].moment2 },
                             .layer = -1 };
    must_refuse(&p, "embedding.weight", "is read before it is written");
    /* There, but only of another bucket's shards. */
    f->ops[0] = gather;
    int other = p.values[f->ops[1].in[0]].bucket;
    p.values[gather.in[0]].bucket = other;
    must_refuse(&p, "weights.", "is gathered from another bucket's shards");
    program_release(&p);
}

static void a_staging_has_another_chunk(void **state)
{
    struct model_spec spec;
    struct compile_train options = four_chunks(&spec, PIPELINE_BREADTH_FIRST);
    struct program p;
    struct err err;

    (void)state;
    options.pipeline.rank = 1;
    compile(&p, &options);
    struct entry *step = &p.entries[ENTRY_STEP];
    int n_left = 0, n_seen = 0;
    for (int i = 0; i < step->n_actions; i++) {
        const struct action *a = &step->actions[i];
        int staging = a->kind == ACTION_RUN && a->micro_batch < 0 &&
                      !strcmp(p.functions[a->function].name, "gather 2");

        n_seen += staging;
        if (!staging)
            step->actions[n_left++] = *a;
    }
    assert_int_equal(n_seen, 1);
    step->n_actions = n_left;
    must_refuse(&p, "weight", "is read where another bucket was gathered since");
    step->n_actions = 0;
    assert_int_equal(verify(&p, &err), 0);
    /* An evaluation finds nothing in the stagings. */
    struct entry *evaluate = &p.entries[ENTRY_EVALUATE];
    evaluate->actions++;
    evaluate->n_actions--;
    must_refuse(&p, "weight", "is read as whole before its shards were gathered");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_follow_layers),  cmocka_unit_test(memory_of_a_pass),
        cmocka_unit_test(one_bucket_ahead),       cmocka_unit_test(what_is_read_again_much_later),
        cmocka_unit_test(one_op_at_a_time),       cmocka_unit_test(runs_share_two_stagings),
        cmocka_unit_test(a_run_of_all_is_a_step), cmocka_unit_test(gathered_is_not_stashed),
        cmocka_unit_test(a_gather_is_missing),    cmocka_unit_test(a_staging_has_another_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
