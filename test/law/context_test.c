/*
 * context_test.c - under context parallelism every row of the forward has the bits of one rank
 *
 * Ranks exchange heads, gather what heads are computed from, gather keys, or exchange and gather. A
 * hash of each row of each value that a compute op of
 * the forward writes is compared with one rank's, by op and by the row's place in its sequence,
 * whoever computed it; between the two exchanges of heads each head of a row by itself. The last op
 * is the head's, whose first output is the gradient of each row. Sequences are no power of two
 * long, one or three in a micro-batch, packed so that documents lie across all edges of chunks, or
 * one of them is longer than half. The sum of losses is one rank's but for its order; the loss of a
 * single row to the bit.
 *
 * That a rank which counts the positions of its rows from 0 is found is tested here, too: nothing
 * else could, since positions are data.
 */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>
#include <cmocka.h>

#include "base/num.h"
#include "golden/fill.h"
#include "law/context_models.h"
#include "model/model.h"
#include "support/law_rig.h"
#include "support/layouts.h"
#include "support/pairs.h"

#define N_SEQUENCES_MAX 3
#define N_ROWS_MAX (N_SEQUENCES_MAX * SEQ_LEN_MAX)

/* ---- hashes of rows ---- */

struct row_hash {
    uint64_t key, hash;
    char op[56];
    int order;          /* of the op among the rank's */
    int out, row, part; /* row: among the micro-batch's; part: a head, or a choice of an expert */
};

struct recorder {
    struct row_hash *list;
    int64_t n, capacity;
    struct op_hashes hashes; /* not used: probes are called while there are some */
    struct run_probe probe;
    struct mesh mesh;
    struct mesh_place place;
    int n_sequences, seq_len;
    int32_t local[SEQ_LEN_MAX], pair[SEQ_LEN_MAX]; /* rows in the sequence */
    struct op_shape op;                            /* the one at hand */
    char text[48];
    uint64_t seen[512]; /* hashes of the texts of ops before */
    int n_seen;
    int n_heads, n_kv_heads, head_dim; /* of the model */
    int is_fastseq, is_qkv;            /* is_qkv: the op at hand is the product of q, k and v */
    int32_t *choice_of;                /* of rows by expert: which choice each is, of all tokens' */
    int is_done;
};

/* Several ops of a layer may have one text: which of them it is. */
static int occurrence(struct recorder *r)
{
    uint64_t hash = XXH3_64bits(r->text, strlen(r->text));
    int n = 0;

    for (int i = 0; i < r->n_seen; i++)
        n += r->seen[i] == hash;
    assert_true(r->n_seen < (int)(sizeof r->seen / sizeof *r->seen));
    r->seen[r->n_seen++] = hash;
    return n;
}

static void add(struct recorder *r, int number, int out, int row, int part, const void *data,
                size_t n_bytes)
{
    if (r->n == r->capacity) {
        r->capacity = 2 * r->capacity + 1024;
        r->list = realloc(r->list, sizeof *r->list * (size_t)r->capacity);
        CHECK(r->list);
    }
    struct row_hash *h = &r->list[r->n++];
    int key[3] = { out, row, part };
    *h = (struct row_hash){
        .hash = XXH3_64bits(data, n_bytes), .order = r->n_seen, .out = out, .row = row, .part = part
    };
    snprintf(h->op, sizeof h->op, "%s #%d", r->text, number);
    h->key = XXH3_64bits_withSeed(key, sizeof key, XXH3_64bits(h->op, strlen(h->op)));
}

/* Columns of a head in this output; 0: all heads are here, or it has none. */
static int head_columns(const struct recorder *r, int out)
{
    const struct op_shape *op = &r->op;

    switch (op->kind) {
    case OP_LINEAR:
        return r->is_qkv ? r->head_dim : 0;
    case OP_ROPE:
        return op->attributes.head_dim;
    case OP_HEAD_NORM:
        return out == HEAD_NORM_RSTD ? 1 : op->attributes.head_dim;
    case OP_ATTENTION:
        return out == ATTENTION_LSE ? 1 : op->attributes.head_dim;
    default:
        return 0;
    }
}

/*
 * Of queries' heads, then keys', then values', of which the rank has h of n h, and g of n g; or one
 * of few, which it shares with neighbours.
 */
static int whole_head(const struct recorder *r, int head)
{
    int n = r->mesh.size[AXIS_ULYSSES], rank = r->place.of[AXIS_ULYSSES];
    int h = r->op.attributes.n_heads, g = r->op.attributes.n_kv_heads;

    if (r->is_qkv) {
        n = r->is_fastseq ? n : 1;
        rank = r->is_fastseq ? rank : 0;
        h = r->n_heads / n;
        g = r->n_kv_heads / n;
    }
    if (head < h)
        return rank * h + head;
    int first = r->n_kv_heads >= n ? rank * g : rank / (n / r->n_kv_heads);
    return n * h + (head - h) / g * r->n_kv_heads + first + (head - h) % g;
}

/* Row `at` of an output, which is this row of the micro-batch's; part: of what has no heads. */
static void hash_row(struct recorder *r, int number, int out, int64_t at, int row, int part)
{
    const struct tensor *t = &r->op.out[out];
    int n = head_columns(r, out);
    size_t each = dtype_bytes(t->dtype), n_bytes = each * (size_t)(n ? n : t->cols);
    const unsigned char *data = t->data;

    data += (size_t)(at * t->stride) * each;
    if (!n)
        add(r, number, out, row, part, data, n_bytes);
    for (int head = 0; n && head < t->cols / n; head++)
        add(r, number, out, row, whole_head(r, head), data + n_bytes * (size_t)head, n_bytes);
}

static int row_of(const struct recorder *r, const int32_t *rows, int64_t n, int64_t at)
{
    return (int)(at / n) * r->seq_len + rows[at % n];
}

static int is_by_expert(enum op_kind kind)
{
    return kind == OP_DISPATCH || kind == OP_EXPERT_LINEAR || kind == OP_EXPERT_SWIGLU;
}

/* Outputs of which each row is a row of the sequence, before or behind the exchanges, or a choice
 * of one. */
static void hash_output(struct recorder *r, int number, int out)
{
    struct context_cut cut = model_context_cut(&r->mesh);
    int64_t n_local = r->seq_len / context_size(cut), n_pair = r->seq_len / cut.keys;
    int64_t n_rows = r->op.out[out].rows;

    if (is_by_expert(r->op.kind)) {
        int64_t each = n_rows / n_local / r->n_sequences;

        for (int64_t i = 0; i < n_rows; i++) {
            int32_t choice = r->choice_of[i];
            int row = row_of(r, r->local, n_local, choice / each);

            hash_row(r, number, out, i, row, (int)(choice % each));
        }
        return;
    }
    int is_pair = n_rows == n_pair * r->n_sequences;
    if (!is_pair && n_rows != n_local * r->n_sequences)
        return;
    for (int64_t i = 0; i < n_rows; i++)
        hash_row(r, number, out, i,
                 is_pair ? row_of(r, r->pair, n_pair, i) : row_of(r, r->local, n_local, i), 0);
}

/* From now on rows by expert are in this order. */
static void note_order(struct recorder *r)
{
    const struct tensor *place = &r->op.out[EXPERT_ORDER_PLACE];

    int64_t n = place->rows * place->cols;

    r->choice_of = realloc(r->choice_of, sizeof *r->choice_of * (size_t)n);
    CHECK(r->choice_of);
    for (int64_t i = 0; i < n; i++)
        r->choice_of[((const int32_t *)place->data)[i]] = (int32_t)i;
}

static int before(void *context, const struct op_shape *op, const char *text, struct err *err)
{
    struct recorder *r = context;

    (void)err;
    r->op = *op;
    snprintf(r->text, sizeof r->text, "%s", text);
    return 0;
}

static int after(void *context, struct err *err)
{
    struct recorder *r = context;

    (void)err;
    if (r->is_done)
        return 0;
    int number = occurrence(r);
    r->is_qkv = r->op.kind == OP_LINEAR && !number && strstr(r->text, "layers.");
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (tensor_given(&r->op.out[k]) && r->op.kind != OP_EXPERT_ORDER)
            hash_output(r, number, k);
    if (r->op.kind == OP_EXPERT_ORDER)
        note_order(r);
    r->is_done = r->op.kind == OP_HEAD_CROSS_ENTROPY;
    return 0;
}

/* ---- a scene: what is computed ---- */

enum packing { WHOLE, ACROSS_EDGES, ONE_LONG, N_PACKINGS };

struct scene {
    struct experiment experiment;
    struct layout layout;
    int sizes[1];
    int32_t tokens[N_ROWS_MAX], targets[N_ROWS_MAX], starts[N_ROWS_MAX];
    struct recorder recorders[LAYOUT_RANKS_MAX];
};

static void begin(void *context, int rank, struct run *run, const struct program *program)
{
    struct scene *s = context;
    struct recorder *r = &s->recorders[rank];
    struct mesh_place place = mesh_place(&program->mesh, rank);
    struct context_cut cut = model_context_cut(&program->mesh);

    *r = (struct recorder){ .probe = { .context = r, .before = before, .after = after },
                            .mesh = program->mesh,
                            .place = place,
                            .n_sequences = s->experiment.n_sequences,
                            .seq_len = s->experiment.seq_len,
                            .n_heads = s->experiment.spec.n_heads,
                            .n_kv_heads = s->experiment.spec.n_kv_heads,
                            .head_dim = s->experiment.spec.head_dim,
                            .is_fastseq = s->layout.fastseq };
    context_rows(cut, r->seq_len, place.of[AXIS_ULYSSES], place.of[AXIS_CP], r->local);
    context_pair_rows(cut, r->seq_len, place.of[AXIS_CP], r->pair);
    run_hash_ops(run, &r->hashes, NULL, AXIS_DP);
    run_probe_op(run, &r->probe);
}

/* Documents of these lengths, over and over; or one that is longer than half between short ones. */
static void pack(struct scene *s, enum packing packing)
{
    static const int lengths[] = { 7, 16, 1, 29, 11, 15, 2 };
    int n = s->experiment.seq_len;

    for (int sequence = 0; sequence < s->experiment.n_sequences; sequence++)
        for (int row = 0, start = 0, k = sequence; row < n; row++) {
            int length = lengths[k % 7];

            if (packing == ONE_LONG && start > 0 && start < n / 3)
                length = n / 2 + 5;
            if (row == start + length) {
                start = row;
                k++;
            }
            s->starts[sequence * n + row] = start;
        }
    s->experiment.starts = packing == WHOLE ? NULL : s->starts;
}

static void open_scene(struct scene *s, const struct model_spec *spec, int n_sequences,
                       enum packing packing)
{
    int seq_len = n_sequences == 1 ? SEQ_LEN_MAX : 144;

    memset(s, 0, sizeof *s);
    s->sizes[0] = n_sequences;
    s->experiment = (struct experiment){ .spec = *spec,
                                         .n_sequences = n_sequences,
                                         .seq_len = seq_len,
                                         .tokens = s->tokens,
                                         .targets = s->targets,
                                         .sizes = s->sizes,
                                         .n_sizes = 1,
                                         .weights = layout_golden_weights,
                                         .context = s };
    for (int i = 0; i < n_sequences * seq_len; i++) {
        s->tokens[i] = (int32_t)(golden_word("tokens", i) % VOCAB);
        s->targets[i] = (int32_t)(golden_word("targets", i) % VOCAB);
        if (golden_word("ignored", i) % 5 == 0)
            s->targets[i] = LABEL_IGNORED;
    }
    pack(s, packing);
}

static double run_scene(struct scene *s, struct layout layout)
{
    struct outcome outcome;
    struct err err;

    s->layout = layout;
    if (layout_run(&s->experiment, &layout, &outcome, &err) < 0)
        fail_msg("%s", err.text);
    double loss = outcome.loss;
    outcome_release(&outcome);
    return loss;
}

/* ---- all rows of all ranks, in order of keys ---- */

struct rows {
    struct row_hash *list;
    int64_t n;
    double loss;
};

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct row_hash *)a)->key, y = ((const struct row_hash *)b)->key;

    return (x > y) - (x < y);
}

static struct rows rows_of(struct scene *s, struct layout layout)
{
    struct rows rows = { 0 };

    s->experiment.begin = begin;
    rows.loss = run_scene(s, layout);
    for (int i = 0; i < LAYOUT_RANKS_MAX; i++) {
        struct recorder *r = &s->recorders[i];

        if (r->n) {
            rows.list = realloc(rows.list, sizeof *rows.list * (size_t)(rows.n + r->n));
            assert_non_null(rows.list);
            memcpy(rows.list + rows.n, r->list, sizeof *rows.list * (size_t)r->n);
        }
        rows.n += r->n;
        free(r->list);
        free(r->choice_of);
        run_hashes_release(&r->hashes);
        memset(r, 0, sizeof *r);
    }
    assert_true(rows.n > 0);
    qsort(rows.list, (size_t)rows.n, sizeof *rows.list, by_key);
    return rows;
}

static int64_t n_keys(const struct rows *rows)
{
    int64_t n = 0;

    for (int64_t i = 0; i < rows->n; i++)
        n += i == 0 || rows->list[i].key != rows->list[i - 1].key;
    return n;
}

/* How many rows have other bits; of `what` the first by its op. A rank may have a row that another
 * has, too (a kv head that they share), but all have the rows of one. */
static int64_t compare(const struct rows *wanted, const struct rows *got, char *what, size_t size)
{
    int64_t n = 0;
    int first = INT_MAX;

    for (int64_t i = 0; i < got->n; i++) {
        const struct row_hash *h = &got->list[i];
        const struct row_hash *w =
            bsearch(h, wanted->list, (size_t)wanted->n, sizeof *wanted->list, by_key);

        if (w && w->hash == h->hash)
            continue;
        n++;
        if (h->order >= first)
            continue;
        first = h->order;
        snprintf(what, size, "%s, output %d, row %d, part %d%s", h->op, h->out, h->row, h->part,
                 w ? "" : ": no such row");
    }
    if (n_keys(wanted) != n_keys(got) && !n++)
        snprintf(what, size, "%lld rows of %lld", (long long)n_keys(got),
                 (long long)n_keys(wanted));
    return n;
}

/* ---- tests ---- */

static const struct context_cut cuts[] = {
    { 2, 1 }, { 3, 1 }, { 4, 1 }, { 8, 1 }, { 1, 2 }, { 1, 3 },
    { 1, 4 }, { 1, 8 }, { 2, 2 }, { 2, 4 }, { 4, 2 }, { 3, 2 },
};
enum { N_CUTS = sizeof cuts / sizeof *cuts };

static int fits(const struct model_spec *spec, struct context_cut cut, int fastseq)
{
    if (fastseq)
        return cut.keys == 1 && spec->n_kv_heads % cut.ulysses == 0;
    return spec->n_heads % cut.ulysses == 0 &&
           (spec->n_kv_heads % cut.ulysses == 0 || cut.ulysses % spec->n_kv_heads == 0);
}

static struct layout layout_of(struct context_cut cut)
{
    return (struct layout){ .tp = 1, .dp = 1, .pp = 1, .ulysses = cut.ulysses, .keys = cut.keys };
}

static struct layout fastseq_of(struct context_cut cut, int fastseq)
{
    struct layout layout = layout_of(cut);

    layout.fastseq = fastseq;
    return layout;
}

static void check_scene(struct scene *s, int model, int dtype, int packing, struct layout layout)
{
    struct model_spec spec = spec_of(model);
    char what[128], scene[160];

    s->experiment.dtype = dtype ? DTYPE_BF16 : DTYPE_F32;
    struct rows wanted = rows_of(s, layout_of((struct context_cut){ 1, 1 }));
    struct rows got = rows_of(s, layout);
    int64_t n = compare(&wanted, &got, what, sizeof what);
    snprintf(scene, sizeof scene,
             "model %d (%d heads, %d kv heads), %s, %d sequences, packing %d, "
             "%s %d, keys %d",
             model, spec.n_heads, spec.n_kv_heads, dtype ? "bf16" : "fp32",
             s->experiment.n_sequences, packing, layout.fastseq ? "fastseq" : "ulysses",
             layout.ulysses, layout.keys);
    if (n)
        fail_msg("%s: %lld of %lld rows differ: %s", scene, (long long)n, (long long)got.n, what);
    if (!(fabs(got.loss - wanted.loss) <= 1e-12 * wanted.loss))
        fail_msg("%s: loss %a, wanted %a", scene, got.loss, wanted.loss);
    free(wanted.list);
    free(got.list);
}

static void every_row_has_its_bits(void **state)
{
    struct scene *s = malloc(sizeof *s);
    struct pairs rows;

    (void)state;
    assert_non_null(s);
    pairs_build(&rows, (int[]){ N_CUTS, N_MODELS, N_PACKINGS, 2, 2, 2 }, 6);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        struct model_spec spec = spec_of(row[1]);

        if (!fits(&spec, cuts[row[0]], row[5]) || law_left_out())
            continue;
        open_scene(s, &spec, row[3] ? 3 : 1, (enum packing)row[2]);
        check_scene(s, row[1], row[4], row[2], fastseq_of(cuts[row[0]], row[5]));
    }
    free(s);
}

/* With one target there is one loss. */
static void loss_of_each_row(void **state)
{
    static const struct context_cut some[] = { { 1, 1 }, { 2, 1 }, { 1, 4 }, { 2, 2 } };
    struct scene *s = malloc(sizeof *s);
    struct model_spec spec = spec_of(0);

    (void)state;
    assert_non_null(s);
    for (int row = 0; row < 48; row += 1 + 4 * (row % 6 == 0)) {
        double loss[4];

        open_scene(s, &spec, 1, ACROSS_EDGES);
        s->experiment.seq_len = 48; /* chunks of 6 and 12 */
        for (int i = 0; i < 48; i++)
            s->targets[i] = i == row ? i : LABEL_IGNORED;
        for (int k = 0; k < 4; k++) {
            loss[k] = run_scene(s, layout_of(some[k]));
            if (memcmp(&loss[k], &loss[0], sizeof loss[0]) != 0)
                fail_msg("row %d, ulysses %d, keys %d: loss %a, wanted %a", row, some[k].ulysses,
                         some[k].keys, loss[k], loss[0]);
        }
    }
    free(s);
}

static void local_positions_are_found(void **state)
{
    static const struct {
        int model;
        struct context_cut cut;
        const char *op;
    } ways[] = { { 0, { 2, 1 }, "rope" }, { 0, { 1, 2 }, "rope" }, { 6, { 2, 2 }, "embed" } };
    struct scene *s = malloc(sizeof *s);
    char what[128];

    (void)state;
    assert_non_null(s);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct model_spec spec = spec_of(ways[i].model);

        open_scene(s, &spec, 1, WHOLE);
        struct rows wanted = rows_of(s, layout_of((struct context_cut){ 1, 1 }));
        s->experiment.counts_locally = 1;
        struct rows got = rows_of(s, layout_of(ways[i].cut));
        assert_true(fabs(got.loss - wanted.loss) > 1e-6 * wanted.loss);
        assert_true(compare(&wanted, &got, what, sizeof what) > 0);
        assert_non_null(strstr(what, ways[i].op));
        free(wanted.list);
        free(got.list);
    }
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_its_bits),
        cmocka_unit_test(loss_of_each_row),
        cmocka_unit_test(local_positions_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
