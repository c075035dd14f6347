/*
 * packs.c - lengths and counts are read once, so that the rest is arithmetic
 */
#include "data/instruct/packs.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/num.h"
#include "base/rng.h"
#include "base/str.h"
#include "data/instruct/pack_bins.h"
#include "data/stream/loader.h"
#include "data/stream/permute.h"

#define SPLIT_MAX 0.5
#define WINDOW_SAMPLES 65536 /* packed together: more would hardly fill sequences better */
/* Of permute: the order to pack in is not that of training, nor is any of another file's. */
#define TRAINING_DATASET(packs) (2 * (packs)->dataset)
#define PACKING_DATASET(packs) (2 * (packs)->dataset + 1)

/* What is known while sequences are made. */
struct packing {
    const struct packs_options *options;
    int32_t *chosen;  /* [n] samples on this side of the split, in the file's order */
    int32_t *lengths; /* [n] of them */
    int64_t n;
    struct err *err;
};

static int no_memory(struct packing *m)
{
    return err_set(m->err, ERR_DEVICE, "out of host memory for the order of %lld samples",
                   (long long)m->n);
}

/* ---- the split ---- */

static int64_t stratum_start(int64_t i, int64_t n, int64_t n_held_out)
{
    return (int64_t)((__int128)i * n / n_held_out);
}

/* Samples on this side of the split, into chosen. */
static int choose(struct packs *p, struct packing *m)
{
    const struct packs_options *o = m->options;
    int64_t n = p->file.n, n_held_out = 0;

    if (!(o->split >= 0) || o->split > SPLIT_MAX)
        return err_set(m->err, ERR_CONFIG, "split is %g, not in 0..%g", o->split, SPLIT_MAX);
    if (o->split > 0)
        n_held_out = max_i64((int64_t)((double)n * o->split), 1);
    if (n < 1 || n_held_out > n / 2)
        return err_set(m->err, ERR_DATA, "%s has %lld sample%s, too few%s", p->file.tokens.prefix,
                       (long long)n, str_s(n), o->split > 0 ? " to hold some out" : " to train on");
    if (!(m->chosen = malloc(sizeof *m->chosen * (size_t)n)))
        return no_memory(m);
    for (int64_t i = 0, s = 0; i < n; i++) {
        int64_t held = -1;

        if (n_held_out > 0) {
            while (i >= stratum_start(s + 1, n, n_held_out))
                s++;
            int64_t start = stratum_start(s, n, n_held_out);
            struct rng_block hash = rng_at(p->key, RNG_SHUFFLE, UINT64_MAX, (uint64_t)s);
            uint64_t word = (uint64_t)hash.word[0] << 32 | hash.word[1];
            held =
                start + (int64_t)(word % (uint64_t)(stratum_start(s + 1, n, n_held_out) - start));
        }
        if (o->held_out ? n_held_out == 0 || i == held : i != held)
            m->chosen[m->n++] = (int32_t)i;
    }
    return 0;
}

static int read_lengths(struct packs *p, struct packing *m)
{
    if (!(m->lengths = malloc(sizeof *m->lengths * (size_t)m->n)))
        return no_memory(m);
    for (int64_t i = 0; i < m->n; i++) {
        int64_t length = samples_length(&p->file, m->chosen[i]);

        if (length < 1 || length > p->seq_len)
            return err_set(m->err, ERR_DATA,
                           "%s: sample %d has %lld tokens, not 1..%d (hint: it was made with "
                           "another data.seq_len)",
                           p->file.tokens.prefix, m->chosen[i], (long long)length, p->seq_len);
        m->lengths[i] = (int32_t)length;
    }
    return 0;
}

/* ---- sequences ---- */

static int allocate(struct packs *p, struct packing *m)
{
    p->members = malloc(sizeof *p->members * (size_t)m->n);
    p->begins = calloc((size_t)m->n + 1, sizeof *p->begins);
    p->lengths = calloc((size_t)m->n, sizeof *p->lengths);
    p->learned = calloc((size_t)m->n, sizeof *p->learned);
    return p->members && p->begins && p->lengths && p->learned ? 0 : no_memory(m);
}

/* Longest first; of equals, the earlier first. An evaluation's batches are then of like lengths. */
static void sort_by_length(struct packs *p, struct packing *m, int64_t *at)
{
    for (int64_t i = 0; i < m->n; i++)
        at[p->seq_len - m->lengths[i] + 1]++;
    for (int s = 0; s <= p->seq_len; s++)
        at[s + 1] += at[s];
    for (int64_t i = 0; i < m->n; i++)
        p->members[at[p->seq_len - m->lengths[i]]++] = (int32_t)i;
}

/* One sample a sequence. */
static int make_singles(struct packs *p, struct packing *m)
{
    if (p->held_out) {
        int64_t *at = calloc((size_t)p->seq_len + 2, sizeof *at);

        if (!at)
            return no_memory(m);
        sort_by_length(p, m, at);
        free(at);
    }
    for (int64_t i = 0; i < m->n; i++) {
        int64_t from = p->held_out ? p->members[i] : i;

        p->members[i] = m->chosen[from];
        p->lengths[i] = m->lengths[from];
        p->begins[i + 1] = i + 1;
    }
    p->n_sequences = m->n;
    return 0;
}

/* Samples order[0..n-1] (places in chosen) in their bins become sequences behind those there
 * are. */
static int close_window(struct packs *p, struct packing *m, const int32_t *order, int64_t n,
                        int32_t *sizes, int32_t *bin_of)
{
    for (int64_t i = 0; i < n; i++)
        sizes[i] = m->lengths[order[i]];
    int64_t n_bins = pack_bins(sizes, n, p->seq_len, bin_of, m->err);
    if (n_bins < 0)
        return -1;
    int64_t *begins = p->begins + p->n_sequences;
    int64_t base = begins[0];
    for (int64_t i = 0; i < n; i++) { /* counts, then sums, then places: begins[b] ends as start */
        begins[bin_of[i] + 1]++;
        p->lengths[p->n_sequences + bin_of[i]] += sizes[i];
    }
    for (int64_t b = 0; b < n_bins; b++)
        begins[b + 1] += begins[b];
    for (int64_t i = 0; i < n; i++)
        p->members[begins[bin_of[i]]++] = m->chosen[order[i]];
    for (int64_t b = n_bins; b > 0; b--)
        begins[b] = begins[b - 1];
    begins[0] = base;
    p->n_sequences += n_bins;
    return 0;
}

static int make_packs(struct packs *p, struct packing *m)
{
    int64_t window = min_i64(m->n, WINDOW_SAMPLES);
    int32_t *order = malloc(sizeof *order * (size_t)window);
    int32_t *sizes = malloc(sizeof *sizes * (size_t)window);
    int32_t *bin_of = malloc(sizeof *bin_of * (size_t)window);
    struct permutation shuffle = { .seed = p->held_out ? 0 : p->seed,
                                   .dataset = PACKING_DATASET(p),
                                   .n = m->n };
    int rc = order && sizes && bin_of ? 0 : no_memory(m);

    for (int64_t at = 0; at < m->n && rc == 0; at += window) {
        int64_t n = min_i64(window, m->n - at);

        for (int64_t i = 0; i < n; i++)
            order[i] = (int32_t)permute(&shuffle, at + i);
        rc = close_window(p, m, order, n, sizes, bin_of);
    }
    free(order);
    free(sizes);
    free(bin_of);
    return rc;
}

static int count_learned(struct packs *p, struct packing *m)
{
    int32_t *ids = malloc(sizeof *ids * (size_t)p->seq_len);
    uint8_t *learned = malloc((size_t)p->seq_len);
    int rc = ids && learned ? 0 : no_memory(m);

    for (int64_t s = 0; s < p->n_sequences && rc == 0; s++) {
        for (int64_t i = p->begins[s]; i < p->begins[s + 1] && rc == 0; i++) {
            int32_t sample = p->members[i];
            int64_t n = samples_length(&p->file, sample);

            rc = samples_read(&p->file, sample, ids, learned, m->err);
            for (int64_t t = 1; t < n && rc == 0; t++)
                p->learned[s] += learned[t];
        }
        p->n_tokens += p->lengths[s];
        p->n_learned += p->learned[s];
    }
    free(ids);
    free(learned);
    if (rc == 0 && p->n_learned == 0)
        return err_set(m->err, ERR_DATA, "%s: none of its %lld samples has a token with loss",
                       p->file.tokens.prefix, (long long)m->n);
    return rc;
}

int packs_open(struct packs *out, const struct packs_options *options, struct err *err)
{
    struct packs p = { .seed = options->seed,
                       .seq_len = options->seq_len,
                       .packing = options->packing,
                       .dataset = options->dataset,
                       .held_out = options->held_out };
    struct packing m = { .options = options, .err = err };

    CHECK(options->seq_len >= 1);
    if (samples_open(&p.file, options->prefix, options->vocab_size, err) < 0)
        return -1;
    int rc = -1;
    if (p.file.n > INT32_MAX) {
        err_set(err, ERR_DATA, "%s has %lld samples, more than %d", options->prefix,
                (long long)p.file.n, INT32_MAX);
        goto out;
    }
    /* All of it: two files may differ in what is learned alone. */
    p.key = XXH64(p.file.tokens.bin.data, p.file.tokens.bin.n_bytes,
                  indexed_fingerprint(&p.file.tokens));
    if (choose(&p, &m) < 0 || read_lengths(&p, &m) < 0 || allocate(&p, &m) < 0)
        goto out;
    if ((p.packing ? make_packs(&p, &m) : make_singles(&p, &m)) < 0)
        goto out;
    p.n_samples = m.n;
    rc = count_learned(&p, &m);
out:
    free(m.chosen);
    free(m.lengths);
    if (rc < 0)
        packs_close(&p);
    else
        *out = p;
    return rc;
}

void packs_close(struct packs *packs)
{
    samples_close(&packs->file);
    free(packs->members);
    free(packs->begins);
    free(packs->lengths);
    free(packs->learned);
    *packs = (struct packs){ 0 };
}

int64_t packs_find(const struct packs *packs, int64_t k)
{
    CHECK(k >= 0);
    if (packs->held_out)
        return k < packs->n_sequences ? k : -1;
    struct permutation p = { .seed = packs->seed,
                             .epoch = k / packs->n_sequences,
                             .dataset = TRAINING_DATASET(packs),
                             .n = packs->n_sequences };

    return permute(&p, k % packs->n_sequences);
}

/* ---- rows ---- */

static int fill_sample(const struct packs *packs, int32_t sample, const struct packs_rows *rows,
                       int *at, struct err *err)
{
    int n = (int)samples_length(&packs->file, sample), start = *at;
    int32_t *tokens = rows->tokens + start, *targets = rows->targets + start;

    CHECK(n <= rows->n_rows - start);
    if (indexed_read(&packs->file.tokens, indexed_document_start(&packs->file.tokens, sample), n,
                     packs->file.vocab_size * 2, tokens, err) < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        targets[i] = i + 1 < n && (tokens[i + 1] & 1) ? tokens[i + 1] >> 1 : LABEL_IGNORED;
        tokens[i] >>= 1; /* the row before has looked at it */
        rows->positions[start + i] = i;
        if (rows->starts)
            rows->starts[start + i] = start;
    }
    *at += n;
    return 0;
}

int packs_fill(const struct packs *packs, int64_t sequence, const struct packs_rows *rows,
               struct err *err)
{
    int at = 0;

    for (int64_t i = sequence < 0 ? 0 : packs->begins[sequence];
         sequence >= 0 && i < packs->begins[sequence + 1]; i++)
        if (fill_sample(packs, packs->members[i], rows, &at, err) < 0)
            return -1;
    for (int start = at; at < rows->n_rows; at++) {
        rows->tokens[at] = 0;
        rows->targets[at] = LABEL_IGNORED;
        rows->positions[at] = rows->starts ? at - start : at;
        if (rows->starts)
            rows->starts[at] = start;
    }
    return 0;
}
