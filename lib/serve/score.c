/*
 * score.c - a tree of texts, walked depth first, a batch of rows at a time
 */
#include "serve/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "model/compile.h"
#include "serve/ensemble.h"
#include "weights/init_weights.h"

#define ROWS 512
#define ASKED 64     /* rows that one SCORE looks at */
#define SHARED_MIN 4 /* tokens that are worth a segment of their own */
#define N_COLUMNS 3  /* of ports.segments */

enum { STAT_MAX, STAT_SUM, STAT_TARGET }; /* of ports.stats */

/* A query for the score of the next token after a row of the batch. */
struct score_query {
    int row;
    int32_t hoped;
    struct score *score;
};

/* A model; an ensemble has several, which get the same batches. */
struct scorer_model {
    struct program program;
    struct run *run;
    float *stats; /* of ports.stats; NULL but in the last stage */
};

struct scorer {
    const struct replica *replica;
    struct scorer_model *models; /* [n_models] */
    int n_models;
    double *logs; /* [n_models x n_asked]: log-likelihoods of a query's target */
    int vocab_size, n_rows, cache_rows, n_segments, max_positions;

    /* The batch that is being filled. */
    int n_filled;
    int32_t *tokens, *positions, *segment; /* [n_rows]: the program's inputs */
    int32_t *segments;                     /* [n_segments x N_COLUMNS] */
    int32_t *asked, *hoped;                /* [ASKED or n_rows] */
    struct arena arena;                    /* of these */
    struct score_query *questions;
    int64_t n_questions, questions_capacity;

    /*
     * Rows are taken from the front of the list; those on the path of the next texts stay in use.
     */
    int cache_used, segments_used;

    int64_t n_fed;
};

/* ---- the program ---- */

static int allocate(struct scorer *s, struct err *err)
{
    int n_asked = min_int(ASKED, s->n_rows);

    s->tokens = arena_array(&s->arena, int32_t, s->n_rows);
    s->positions = arena_array(&s->arena, int32_t, s->n_rows);
    s->segment = arena_array(&s->arena, int32_t, s->n_rows);
    s->segments = arena_array(&s->arena, int32_t, s->n_segments * N_COLUMNS);
    s->asked = arena_array(&s->arena, int32_t, n_asked);
    s->hoped = arena_array(&s->arena, int32_t, n_asked);
    s->logs = arena_array(&s->arena, double, s->n_models *n_asked);
    for (int i = 0; i < s->n_models; i++) {
        struct scorer_model *m = &s->models[i];

        if (m->program.ports.stats)
            m->stats =
                arena_alloc(&s->arena, program_value_bytes(&m->program, m->program.ports.stats));
    }
    s->questions_capacity = 1024;
    s->questions = calloc((size_t)s->questions_capacity, sizeof *s->questions);
    return s->questions ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
}

static int compile(struct program *program, void *options, const struct mesh *mesh, int pp_rank,
                   struct err *err)
{
    struct compile_score *score = options;
    struct run_scratch *scratch = score->serving.scratch_context;

    score->serving.mesh = scratch->mesh = *mesh;
    score->serving.pp_rank = pp_rank;
    return compile_score(program, score, err);
}

static int open_model(struct scorer *s, struct scorer_model *m, struct served *served,
                      struct kernels *kernels, struct err *err)
{
    struct run_scratch scratch = { .kernels = kernels, .mesh = mesh_data_parallel(1) };
    const struct model_spec *spec = &served->job.model;
    struct compile_score score = { .serving.model = spec,
                                   .serving.tuning = served->job.tuning,
                                   .serving.dtype = served->job.train.dtype,
                                   .n_rows = s->n_rows,
                                   .n_asked = min_int(ASKED, s->n_rows),
                                   .cache_rows = s->cache_rows,
                                   .n_segments = s->n_segments,
                                   .max_positions = s->max_positions,
                                   .serving.scratch = run_scratch_bytes,
                                   .serving.scratch_context = &scratch };
    struct run_options run_options = { .program = &m->program, .kernels = kernels };

    served_run_options(served, &run_options);
    if (replica_compile(s->replica, &m->program, compile, &score, err) < 0 ||
        run_create(&m->run, &run_options, err) < 0)
        return -1;
    init_constants(m->run, &m->program, spec);
    return served_load(served, m->run, &m->program, err);
}

int scorer_create(struct scorer **out, struct served *served, struct kernels *kernels,
                  const struct scorer_options *options, struct err *err)
{
    struct scorer *s = calloc(1, sizeof *s);

    if (!s)
        return err_set(err, ERR_DEVICE, "out of host memory");
    s->replica = served->replica;
    s->vocab_size = served->job.model.vocab_size;
    s->max_positions = options->max_positions;
    s->n_rows = options->n_rows ? options->n_rows : ROWS;
    /* A path of segments, a batch behind it, and room for what lies dead between the former. */
    s->cache_rows = s->max_positions + 4 * s->n_rows;
    s->n_segments = s->max_positions + s->n_rows + 2;
    s->n_models = 1 + served->n_members;
    s->models = arena_array(&s->arena, struct scorer_model, s->n_models);
    int status = open_model(s, &s->models[0], served, kernels, err);
    for (int i = 1; i < s->n_models && !status; i++)
        status = open_model(s, &s->models[i], &served->members[i - 1], kernels, err);
    if (!status)
        status = allocate(s, err);
    if (status < 0) {
        scorer_destroy(s);
        return -1;
    }
    *out = s;
    return 0;
}

void scorer_destroy(struct scorer *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_models; i++) {
        run_destroy(s->models[i].run);
        program_release(&s->models[i].program);
    }
    arena_release(&s->arena);
    free(s->questions);
    free(s);
}

/* ---- a batch ---- */

/* stats: of n_parts parts of the vocabulary, `stride` numbers apart, joined in their order
 * (Milakov & Gimelshein 2018). */
static double log_likelihood(struct score *score, const float *stats, int n_parts, int64_t stride)
{
    double most = (double)stats[STAT_MAX], sum = 0, target = 0;

    for (int i = 1; i < n_parts; i++)
        most = fmax(most, (double)stats[i * stride + STAT_MAX]);
    for (int i = 0; i < n_parts; i++, stats += stride) {
        double scale = n_parts > 1 ? exp((double)stats[STAT_MAX] - most) : 1;

        sum += (double)stats[STAT_SUM] * scale;
        target += (double)stats[STAT_TARGET]; /* 0 where it is not among these */
    }
    score->is_greedy &= target >= most;
    return target - most - log(sum);
}

static void put_ints(struct scorer_model *m, int value, const int32_t *ints, int n)
{
    if (value)
        run_put(m->run, value, 0, 0, ints, sizeof *ints * (size_t)n);
}

/* One model's log-likelihoods of n queries' targets, each n_models numbers after the one before. */
static int ask_model(struct scorer *s, int model, const struct score_query *q, int n,
                     struct err *err)
{
    struct scorer_model *m = &s->models[model];
    const struct ports *ports = &m->program.ports;
    int n_asked = min_int(ASKED, s->n_rows);

    put_ints(m, ports->query_rows, s->asked, n_asked);
    put_ints(m, ports->target_tokens, s->hoped, n_asked);
    if (run_entry(m->run, ENTRY_SCORE, 1, NULL, err) < 0 ||
        run_get(m->run, ports->stats, 0, 0, m->stats,
                program_value_bytes(&m->program, ports->stats), err) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        s->logs[i * s->n_models + model] =
            log_likelihood(q[i].score, m->stats + i * OPS_N_STATS,
                           m->program.mesh.size[axes_tensor()], (int64_t)n_asked * OPS_N_STATS);
    return 0;
}

static int ask(struct scorer *s, struct err *err)
{
    if (!s->models[0].program.ports.stats) { /* the last stage's business */
        s->n_questions = 0;
        return 0;
    }
    int n_asked = min_int(ASKED, s->n_rows);

    for (int64_t begin = 0; begin < s->n_questions; begin += n_asked) {
        const struct score_query *q = s->questions + begin;
        int n = (int)min_i64(n_asked, s->n_questions - begin);

        for (int i = 0; i < n_asked; i++) {
            s->asked[i] = i < n ? q[i].row : 0;
            s->hoped[i] = i < n ? q[i].hoped : -1;
        }
        for (int m = 0; m < s->n_models; m++)
            if (ask_model(s, m, q, n, err) < 0)
                return -1;
        for (int i = 0; i < n; i++)
            q[i].score->log_likelihood +=
                ensemble_log_mean(s->logs + (size_t)i * (size_t)s->n_models, s->n_models);
    }
    s->n_questions = 0;
    return 0;
}

/* Compute what has been filled in. */
static int flush(struct scorer *s, struct err *err)
{
    if (!s->n_filled)
        return 0;
    for (int i = s->n_filled; i < s->n_rows; i++) {
        s->tokens[i] = 0;
        s->positions[i] = -1;
        s->segment[i] = 0;
    }
    for (int i = 0; i < s->n_models; i++) {
        struct scorer_model *m = &s->models[i];
        const struct ports *ports = &m->program.ports;

        put_ints(m, ports->tokens, s->tokens, s->n_rows);
        put_ints(m, ports->positions, s->positions, s->n_rows);
        put_ints(m, ports->segment, s->segment, s->n_rows);
        put_ints(m, ports->segments, s->segments, s->n_segments * N_COLUMNS);
        if (run_entry(m->run, ENTRY_FEED, 1, NULL, err) < 0)
            return -1;
    }
    s->n_fed += s->n_filled;
    s->n_filled = 0;
    return ask(s, err);
}

static int add_question(struct scorer *s, const struct score_query *q, struct err *err)
{
    if (s->n_questions == s->questions_capacity) {
        int64_t capacity = 2 * s->questions_capacity;
        struct score_query *grown = realloc(s->questions, (size_t)capacity * sizeof *grown);

        if (!grown)
            return err_set(err, ERR_DEVICE, "out of host memory");
        s->questions = grown;
        s->questions_capacity = capacity;
    }
    s->questions[s->n_questions++] = *q;
    return 0;
}

/* ---- the tree ---- */

/* Tokens [first, end) that texts [begin_text, end_text) of the sorted ones have alike, behind those
 * of the parent; a path of such lies on a stack. */
struct score_node {
    int first, end;
    int64_t begin_text, end_text;
    int number; /* of its segment */
    int row;    /* of the cache */
};

struct score_walk {
    struct scorer *s;
    struct score **texts; /* sorted by their tokens */
    int64_t n;
    struct score_node *path;
    int depth;
};

/* What is fed of a text: its last token is only hoped for. */
static int fed_length(const struct score *text)
{
    return text->n - 1;
}

static int compare_texts(const void *a, const void *b)
{
    const struct score *x = *(const struct score *const *)a, *y = *(const struct score *const *)b;
    int n = min_int(fed_length(x), fed_length(y));

    for (int i = 0; i < n; i++)
        if (x->tokens[i] != y->tokens[i])
            return x->tokens[i] < y->tokens[i] ? -1 : 1;
    if (fed_length(x) != fed_length(y))
        return fed_length(x) < fed_length(y) ? -1 : 1;
    return (x > y) - (x < y);
}

static int common_length(const struct score *x, const struct score *y)
{
    int n = min_int(fed_length(x), fed_length(y)), i = 0;

    while (i < n && x->tokens[i] == y->tokens[i])
        i++;
    return i;
}

/*
 * The longest node that begins with text `begin` behind `first`: how many texts share how much. A
 * beginning that the next text does not share is the text's own.
 */
static struct score_node next_node(const struct score_walk *w, int first, int64_t begin,
                                   int64_t limit)
{
    const struct score *text = w->texts[begin];
    struct score_node node = { .first = first, .end = fed_length(text), .begin_text = begin };
    int64_t end = begin + 1;

    for (; end < limit; end++) {
        int shared = min_int(node.end, common_length(text, w->texts[end]));

        /* Less is no node of its own: the neighbours part here. */
        if (shared < first + SHARED_MIN && shared < node.end)
            break;
        node.end = shared;
    }
    node.end_text = end;
    return node;
}

/* Free the rows of the cache and the segments of nodes that are not on the path. */
static void drop_others(struct score_walk *w)
{
    const struct score_node *last = w->depth ? &w->path[w->depth - 1] : NULL;

    w->s->cache_used = last ? last->row + last->end - last->first : 0;
    w->s->segments_used = last ? last->number + 1 : 0;
}

/* Queries of the texts of the node after its token at `position`, which is in `row`. */
static int add_questions(struct score_walk *w, const struct score_node *node, int position, int row,
                         struct err *err)
{
    for (int64_t t = node->begin_text; t < node->end_text; t++) {
        struct score *text = w->texts[t];
        struct score_query q = { .row = row, .score = text };

        if (position < text->n - 1 - text->n_scored || position > text->n - 2)
            continue;
        q.hoped = text->tokens[position + 1];
        if (add_question(w->s, &q, err) < 0)
            return -1;
    }
    return 0;
}

static int feed_node(struct score_walk *w, const struct score_node *node, bool again,
                     struct err *err)
{
    struct scorer *s = w->s;
    const struct score *text = w->texts[node->begin_text];

    for (int position = node->first; position < node->end; position++) {
        if (s->n_filled == s->n_rows && flush(s, err) < 0)
            return -1;
        int row = s->n_filled++;

        s->tokens[row] = text->tokens[position];
        s->positions[row] = position;
        s->segment[row] = node->number;
        if (!again && add_questions(w, node, position, row, err) < 0)
            return -1;
    }
    return 0;
}

static bool has_room(const struct scorer *s, const struct score_node *node)
{
    return s->cache_used + node->end - node->first <= s->cache_rows &&
           s->segments_used < s->n_segments;
}

/* Give a node the next place in the cache, as a child of `parent`. */
static void take_place(struct scorer *s, struct score_node *node, const struct score_node *parent)
{
    CHECK(has_room(s, node));
    int32_t *columns = s->segments + (size_t)s->segments_used * N_COLUMNS;

    node->row = s->cache_used;
    node->number = s->segments_used++;
    s->cache_used += node->end - node->first;
    columns[0] = node->row;
    columns[1] = node->first;
    columns[2] = parent ? parent->number : -1;
}

/* The path once more, from the front of the cache: dead rows lay between its nodes. */
static int feed_path(struct score_walk *w, struct err *err)
{
    w->s->cache_used = w->s->segments_used = 0;
    for (int i = 0; i < w->depth; i++) {
        take_place(w->s, &w->path[i], i ? &w->path[i - 1] : NULL);
        if (feed_node(w, &w->path[i], true, err) < 0)
            return -1;
    }
    return 0;
}

static int give_place(struct score_walk *w, struct score_node *node, struct err *err)
{
    if (!has_room(w->s, node)) {
        if (flush(w->s, err) < 0)
            return -1;
        drop_others(w);
    }
    if (!has_room(w->s, node) && feed_path(w, err) < 0)
        return -1;
    take_place(w->s, node, w->depth ? &w->path[w->depth - 1] : NULL);
    return 0;
}

/* The path's nodes that text t does not go on from are left. */
static void leave(struct score_walk *w, int64_t t)
{
    while (w->depth && w->path[w->depth - 1].end_text <= t)
        w->depth--;
}

static int walk_texts(struct score_walk *w, score_progress_fn progress, void *context,
                      struct err *err)
{
    for (int64_t t = 0; t < w->n; leave(w, t)) {
        const struct score_node *parent = w->depth ? &w->path[w->depth - 1] : NULL;
        struct score_node node =
            next_node(w, parent ? parent->end : 0, t, parent ? parent->end_text : w->n);

        if (give_place(w, &node, err) < 0 || feed_node(w, &node, false, err) < 0)
            return -1;
        w->path[w->depth++] = node;
        /* Texts that end here are done: what follows them goes on. */
        while (t < node.end_text && fed_length(w->texts[t]) == node.end)
            t++;
        if (progress)
            progress(context, t, w->n);
    }
    return flush(w->s, err);
}

static int check_texts(const struct scorer *s, const struct score *scores, int64_t n,
                       struct err *err)
{
    for (int64_t i = 0; i < n; i++) {
        const struct score *text = &scores[i];

        CHECK(text->n_scored >= 1 && text->n_scored < text->n);
        if (fed_length(text) > s->max_positions)
            return err_set(err, ERR_CONFIG, "a text of %d tokens, more than the %d allowed",
                           text->n, s->max_positions + 1);
        for (int k = 0; k < text->n; k++)
            if (text->tokens[k] < 0 || text->tokens[k] >= s->vocab_size)
                return err_set(err, ERR_CONFIG, "token %d, but the model's vocabulary has %d",
                               text->tokens[k], s->vocab_size);
    }
    return 0;
}

/* The teller's, to all of the replica. */
static int tell_scores(const struct scorer *s, struct score *scores, int64_t n, struct err *err)
{
    struct told {
        double log_likelihood;
        int64_t is_greedy;
    } *told = calloc((size_t)n + 1, sizeof *told);

    if (!told)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int64_t i = 0; i < n; i++)
        told[i] = (struct told){ scores[i].log_likelihood, scores[i].is_greedy };
    int status = replica_tell(s->replica, told, (size_t)n * sizeof *told, err);
    for (int64_t i = 0; i < n; i++) {
        scores[i].log_likelihood = told[i].log_likelihood;
        scores[i].is_greedy = (int)told[i].is_greedy;
    }
    free(told);
    return status;
}

int scorer_run(struct scorer *s, struct score *scores, int64_t n, score_progress_fn progress,
               void *context, int64_t *n_fed, struct err *err)
{
    struct score_walk w = { .s = s, .n = n };

    if (check_texts(s, scores, n, err) < 0)
        return -1;
    w.texts = calloc((size_t)n + 1, sizeof(struct score *));
    w.path = calloc((size_t)s->max_positions + 2, sizeof *w.path);
    int status = w.texts && w.path ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
    if (!status) {
        for (int64_t i = 0; i < n; i++) {
            scores[i].log_likelihood = 0;
            scores[i].is_greedy = true;
            w.texts[i] = &scores[i];
        }
        qsort(w.texts, (size_t)n, sizeof(struct score *), compare_texts);
        s->n_fed = 0;
        s->n_filled = s->cache_used = s->segments_used = 0;
        s->n_questions = 0;
        status = walk_texts(&w, progress, context, err);
        if (!status)
            status = tell_scores(s, scores, n, err);
        if (n_fed)
            *n_fed = s->n_fed;
    }
    free(w.texts);
    free(w.path);
    return status;
}
