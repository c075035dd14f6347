/*
 * bpe_test.c - the heap merges as the plain rule says
 */
#include "data/data_fixture.h"

#include "base/rng.h"
#include "tokenizer/bpe/bpe.h"

#define N_MERGES 600

static struct arena arena;
static struct bpe bpe;

/* All bytes, and random merges over the letters a to d: words of theirs meet many of them. */
static void build(void)
{
    static char spellings[256 + N_MERGES][128];
    int n = 0, n_merges = 0;

    bpe_init(&bpe, &arena, 1, 256 + N_MERGES, 256 + N_MERGES);
    bpe_init_merges(&bpe, N_MERGES);
    for (int code = 0; code <= 0x143; code++) {
        char *spelling = spellings[n];
        int printable = (code >= '!' && code <= '~') || (code >= 0xa1 && code != 0xad);

        if (!printable)
            continue;
        if (code < 0x80)
            snprintf(spelling, sizeof *spellings, "%c", code);
        else
            snprintf(spelling, sizeof *spellings, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
        assert_int_equal(bpe_add_token(&bpe, n++, spelling, strlen(spelling)), 0);
    }
    assert_int_equal(n, 256);
    assert_int_equal(bpe_find_bytes(&bpe), -1);
    for (uint64_t i = 0; n_merges < N_MERGES; i++) {
        struct rng_block r = rng_at(1, RNG_TEST, 0, i);
        int left = r.word[0] % 2 ? 'a' - '!' + (int)(r.word[1] % 4) : n - 1 - (int)(r.word[1] % 40);
        int right =
            r.word[2] % 2 ? 'a' - '!' + (int)(r.word[3] % 4) : n - 1 - (int)(r.word[3] % 40);

        if ((left > 'd' - '!' && left < 256) || (right > 'd' - '!' && right < 256))
            continue;
        if (strlen(spellings[left]) + strlen(spellings[right]) > 60)
            continue;
        memcpy(spellings[n], spellings[left], sizeof *spellings);
        memcpy(spellings[n] + strlen(spellings[n]), spellings[right], strlen(spellings[right]) + 1);
        if (bpe_add_token(&bpe, n, spellings[n], strlen(spellings[n])) < 0)
            continue;
        bpe_add_merge(&bpe, left, right, n_merges++, n);
        n++;
    }
}

/* Join the leftmost pair of least rank, again and again. */
static size_t merge_plainly(int32_t *ids, size_t n)
{
    for (;;) {
        const struct bpe_merge *best = NULL;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            for (size_t slot = 0; slot <= bpe.merge_mask; slot++) {
                const struct bpe_merge *m = &bpe.merges[slot];

                if (m->pair == ((uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1]) &&
                    (!best || m->rank < best->rank)) {
                    best = m;
                    at = i;
                }
            }
        if (!best)
            return n;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_equals_plain_merging(void **state)
{
    struct bpe_scratch scratch = { 0 };

    (void)state;
    for (uint64_t trial = 0; trial < 400; trial++) {
        size_t n = 1 + trial % 40, n_ids;
        char word[40];
        int32_t expected[40];

        for (size_t i = 0; i < n; i++) {
            word[i] = (char)('a' + rng_at(2, RNG_TEST, trial, i).word[0] % 4);
            expected[i] = bpe.byte_ids[(unsigned char)word[i]];
        }
        const int32_t *ids = bpe_encode(&bpe, &scratch, word, n, &n_ids);
        assert_non_null(ids);
        assert_int_equal(n_ids, merge_plainly(expected, n));
        for (size_t i = 0; i < n_ids; i++)
            assert_int_equal(ids[i], expected[i]);
    }
    bpe_scratch_release(&scratch);
}

static void test_spelling_and_bytes(void **state)
{
    int32_t space = bpe_find(&bpe, "\xc4\xa0", 2);

    (void)state;
    assert_int_equal(space, bpe.byte_ids[' ']);
    assert_int_equal(bpe.tokens[space].n_bytes, 1);
    assert_int_equal(bpe.tokens[space].bytes[0], ' ');
    for (int byte = 0; byte < 256; byte++) {
        const struct bpe_token *token = &bpe.tokens[bpe.byte_ids[byte]];

        assert_int_equal(token->n_bytes, 1);
        assert_int_equal((unsigned char)token->bytes[0], byte);
    }
    assert_int_equal(bpe_find(&bpe, "nix", 3), -1);
}

static void test_taken(void **state)
{
    struct bpe small;

    (void)state;
    bpe_init(&small, &arena, 1, 4, 8);
    assert_int_equal(bpe_add_token(&small, 7, "a b", 3), 0);
    assert_int_equal(bpe_add_token(&small, 7, "x", 1), -1);
    assert_int_equal(bpe_add_token(&small, 6, "a b", 3), -1);
    assert_int_equal(bpe_add_token(&small, 6, "a", 1), 0);
    assert_int_equal(small.tokens[7].n_bytes, 3); /* a space spells nothing: it stands for itself */
    assert_int_equal(bpe_find_bytes(&small), 0);
    assert_null(small.tokens[0].spelling);
}

static void test_ignore_merges(void **state)
{
    struct bpe_scratch scratch = { 0 };
    size_t n_ids;
    int32_t last = bpe.n_ids - 1;
    const struct bpe_token *token = &bpe.tokens[last];

    (void)state;
    bpe.ignore_merges = 1;
    assert_int_equal(bpe_index_words(&bpe), 0);
    const int32_t *ids = bpe_encode(&bpe, &scratch, token->bytes, token->n_bytes, &n_ids);
    assert_int_equal(n_ids, 1);
    assert_int_equal(ids[0], last);
    bpe.ignore_merges = 0;
    bpe_scratch_release(&scratch);
}

static int set_up(void **state)
{
    (void)state;
    build();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_plain_merging),
        cmocka_unit_test(test_spelling_and_bytes),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_ignore_merges),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
