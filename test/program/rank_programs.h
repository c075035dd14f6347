/*
 * rank_programs.h - the programs of all ranks of a small model, of which one can be altered
 */
#ifndef TEST_PROGRAM_RANK_PROGRAMS_H
#define TEST_PROGRAM_RANK_PROGRAMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

enum { N_LAYERS = 8, STAGES_MAX = 4, RANKS_MAX = 32 };

struct way {
    enum pipeline_kind kind;
    int tp, dp, pp, n_chunks, n_micro_batches;
    int zero, early, sequence_parallel;
    enum recompute_kind recompute;
    const char *model;
    int ulysses, keys; /* ranks that exchange heads, and that gather keys; 0: 1 */
    int fastseq;       /* the former gather the input of qkv; of as many kv heads as heads */
};

/* Of all ranks, as each compiles its own: those of one stage the same. */
struct fleet {
    struct mesh mesh;
    int n;
    struct program stages[STAGES_MAX];
    const struct program *list[RANKS_MAX];
    /* One rank has a copy that a test may change; what it points to is in `arena`. */
    struct program spoilt;
    struct arena arena;
};

static inline void fleet_open(struct fleet *f, const struct way *way)
{
    struct model_spec spec = tiny_spec(way->model);
    struct err err;

    memset(f, 0, sizeof *f);
    f->mesh = mesh_data_parallel(way->dp);
    f->mesh.size[AXIS_TP] = way->tp;
    f->mesh.size[AXIS_PP] = way->pp;
    f->mesh.size[AXIS_ULYSSES] = max_int(1, way->ulysses);
    f->mesh.size[AXIS_CP] = max_int(1, way->keys);
    f->n = mesh_world_size(&f->mesh);
    spec.n_layers = N_LAYERS;
    spec.n_kv_heads = way->fastseq ? spec.n_heads : spec.n_kv_heads;
    for (int stage = 0; stage < way->pp; stage++) {
        struct compile_train options = tiny_compile(&spec, way->dp);

        options.mesh = f->mesh;
        options.n_micro_batches = way->n_micro_batches;
        options.sequence_parallel = way->sequence_parallel;
        options.fastseq = way->fastseq;
        options.recompute = way->recompute;
        options.pipeline.kind = way->kind;
        options.pipeline.n_chunks = way->n_chunks;
        options.pipeline.rank = stage;
        options.gradients.zero = way->zero;
        options.gradients.early = way->early;
        if (compile_train(&f->stages[stage], &options, &err) < 0)
            fail_msg("%s, tp %d, ulysses %d, keys %d, dp %d, pp %d, zero %d: %s",
                     pipeline_name(way->kind), way->tp, f->mesh.size[AXIS_ULYSSES],
                     f->mesh.size[AXIS_CP], way->dp, way->pp, way->zero, err.text);
    }
    for (int rank = 0; rank < f->n; rank++)
        f->list[rank] = &f->stages[mesh_coordinate(&f->mesh, rank, AXIS_PP)];
}

static inline void fleet_close(struct fleet *f)
{
    for (int i = 0; i < f->mesh.size[AXIS_PP]; i++)
        program_release(&f->stages[i]);
    arena_release(&f->arena);
}

static inline void *copy_of(struct arena *arena, const void *items, size_t n_bytes)
{
    return memcpy(arena_alloc(arena, n_bytes), items, n_bytes);
}

/* The rank's program, to be changed in one place. An earlier one is whole again. */
static inline struct program *fleet_spoil(struct fleet *f, int rank)
{
    struct program *p = &f->spoilt;

    for (int i = 0; i < f->n; i++)
        f->list[i] = &f->stages[mesh_coordinate(&f->mesh, i, AXIS_PP)];
    arena_release(&f->arena);
    *p = *f->list[rank];
    p->values = copy_of(&f->arena, p->values, sizeof *p->values * (size_t)p->n_values);
    p->functions = copy_of(&f->arena, p->functions, sizeof *p->functions * (size_t)p->n_functions);
    /* Room for one op or action more. */
    for (int i = 0; i < p->n_functions; i++) {
        struct function *function = &p->functions[i];
        struct op *ops = arena_array(&f->arena, struct op, function->n_ops + 1);

        function->ops = memcpy(ops, function->ops, sizeof *ops * (size_t)function->n_ops);
    }
    for (int e = 0; e < N_ENTRIES; e++) {
        struct entry *entry = &p->entries[e];
        struct action *actions = arena_array(&f->arena, struct action, entry->n_actions + 1);

        if (entry->n_actions)
            memcpy(actions, entry->actions, sizeof *actions * (size_t)entry->n_actions);
        entry->actions = actions;
    }
    f->list[rank] = p;
    return p;
}

static inline void accepted(const struct fleet *f)
{
    struct err err;

    if (verify_ranks(f->list, &f->mesh, &err) < 0)
        fail_msg("%s", err.text);
}

static inline int is_chunked(enum pipeline_kind kind)
{
    return kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST || kind == PIPELINE_ZB_V;
}

/* Numbers that are the same in each run. */
static inline uint32_t draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % (uint32_t)n;
}

static inline struct way draw_way(uint64_t *seed)
{
    struct way way = { .kind = (enum pipeline_kind)draw(seed, PIPELINE_DYNAMIC),
                       .tp = 1 << draw(seed, 3),
                       .dp = 1 << draw(seed, 2),
                       .pp = 1 << draw(seed, 3),
                       .n_micro_batches = 1 + (int)draw(seed, 6),
                       .zero = (int)draw(seed, 3),
                       .early = (int)draw(seed, 2),
                       .sequence_parallel = (int)draw(seed, 2),
                       .recompute = (enum recompute_kind)draw(seed, 3),
                       .model = draw(seed, 2) ? "gpt2" : "llama" };

    way.n_chunks = is_chunked(way.kind) ? 2 : 1;
    return way;
}

static inline void swap_actions(struct entry *entry, int i, int k)
{
    struct action action = entry->actions[i];

    entry->actions[i] = entry->actions[k];
    entry->actions[k] = action;
}

static inline void remove_action(struct entry *entry, int i)
{
    memmove(&entry->actions[i], &entry->actions[i + 1],
            sizeof *entry->actions * (size_t)(entry->n_actions - i - 1));
    entry->n_actions--;
}

static inline void double_action(struct entry *entry, int i)
{
    memmove(&entry->actions[i + 1], &entry->actions[i],
            sizeof *entry->actions * (size_t)(entry->n_actions - i));
    entry->n_actions++;
}

static inline void swap_ops(struct function *f, int i, int k)
{
    struct op op = f->ops[i];

    f->ops[i] = f->ops[k];
    f->ops[k] = op;
}

static inline void remove_op(struct function *f, int i)
{
    memmove(f->ops + i, f->ops + i + 1, sizeof *f->ops * (size_t)(f->n_ops - i - 1));
    f->n_ops--;
}

static inline void double_op(struct function *f, int i)
{
    memmove(f->ops + i + 1, f->ops + i, sizeof *f->ops * (size_t)(f->n_ops - i));
    f->n_ops++;
}

/* Ranks of tp 2, dp 2, pp 2: world rank = tp + 2 dp + 4 pp. */
static const struct way eight = { .kind = PIPELINE_1F1B,
                                  .tp = 2,
                                  .dp = 2,
                                  .pp = 2,
                                  .n_chunks = 1,
                                  .n_micro_batches = 4,
                                  .zero = 1,
                                  .sequence_parallel = 1,
                                  .model = "llama" };

#endif
