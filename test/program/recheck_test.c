/*
 * recheck_test.c - the pieces of an update that are computed again: within the shards, and in turn
 * all of each
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/recheck_piece.h"

enum { DP_SIZE = 2, N_BUCKETS = 5, N_TURNS = 100 };

/* Blocks of a rank's shard; 0: the bucket is frozen, and has none. */
static const int64_t n_blocks[N_BUCKETS] = { 1, RECHECK_PIECE_BLOCKS, 0, RECHECK_PIECE_BLOCKS + 1,
                                             3 * RECHECK_PIECE_BLOCKS + 5 };

static void make(struct program *p)
{
    struct mesh mesh = mesh_data_parallel(DP_SIZE);

    program_init(p, &mesh);
    p->buckets = arena_array(&p->arena, struct bucket, N_BUCKETS);
    p->n_buckets = N_BUCKETS;
    for (int i = 0; i < N_BUCKETS; i++) {
        int64_t n = n_blocks[i] * OPS_NORM_BLOCK;
        struct bucket *b = &p->buckets[i];

        *b = (struct bucket){ .n_elements = n * DP_SIZE, .n_uses = n > 0 };
        if (!n)
            continue;
        b->shards[0] = program_cell(p, ROLE_GRADIENT, "gradient", 1, n, DTYPE_F32);
        b->moment1 = program_cell(p, ROLE_MOMENT1, "m", 1, n, DTYPE_BF16);
        b->moment2 = program_cell(p, ROLE_MOMENT2, "v", 1, n, DTYPE_BF16);
        b->weight_shard = b->master = program_cell(p, ROLE_WEIGHT, "weight", 1, n, DTYPE_BF16);
    }
}

static void test_all_blocks(void **state)
{
    struct program p;
    char *seen[N_BUCKETS];

    (void)state;
    make(&p);
    for (int i = 0; i < N_BUCKETS; i++)
        seen[i] = calloc((size_t)n_blocks[i] + 1, 1);
    for (int64_t turn = 0; turn < N_TURNS; turn++) {
        struct recheck_piece piece = recheck_piece_at(&p, turn);

        assert_in_range(piece.bucket, 0, N_BUCKETS - 1);
        assert_in_range(piece.n_blocks, 1, RECHECK_PIECE_BLOCKS);
        assert_true(piece.first_block >= 0);
        assert_true(piece.first_block + piece.n_blocks <= n_blocks[piece.bucket]);
        for (int64_t i = 0; i < piece.n_blocks; i++)
            seen[piece.bucket][piece.first_block + i] = 1;
    }
    for (int i = 0; i < N_BUCKETS; i++) {
        for (int64_t k = 0; k < n_blocks[i]; k++)
            assert_true(seen[i][k]);
        free(seen[i]);
    }
    program_release(&p);
}

static void test_bytes(void **state)
{
    struct program p;
    size_t largest = (size_t)RECHECK_PIECE_BLOCKS * OPS_NORM_BLOCK;

    (void)state;
    make(&p);
    /* A gradient in fp32; weight and moments in bf16; the tables of decays and
     * sites. */
    assert_int_equal(recheck_piece_bytes(&p), largest * (4 + 3 * 2) + 2 * RECHECK_PIECE_BLOCKS * 8);
    p.n_buckets = 0;
    assert_int_equal(recheck_piece_bytes(&p), 0);
    program_release(&p);
}

static void test_none(void **state)
{
    struct program p;

    (void)state;
    make(&p);
    for (int i = 0; i < N_BUCKETS; i++)
        p.buckets[i].n_uses = 0;
    assert_int_equal(recheck_piece_at(&p, 7).bucket, -1);
    assert_int_equal(recheck_piece_bytes(&p), 0);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_blocks),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
