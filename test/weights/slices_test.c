/*
 * slices_test.c - parameters in parts: filled alike in any layout, saved once, read by any layout
 */
#include "ckpt/ckpt_fixture.h"

#include "base/num.h"
#include "layout/axes.h"
#include "program/passes.h"
#include "weights/init_weights.h"
#include "weights/slices.h"

/* A layout; zero: the states of parameters lie in a bucket, those of experts in another, and each
 * data rank has a shard. */
struct layout {
    int tp, dp, zero, ep, replicas;
};

static const struct layout layouts[] = {
    { 1, 1, 0, 1, 1 },  { 2, 1, 0, 1, 1 }, { 4, 1, 0, 1, 1 }, { 1, 3, 0, 1, 1 }, { 1, 2, 1, 1, 1 },
    { 2, 2, 0, 1, 1 },  { 2, 2, 1, 1, 1 }, { 4, 3, 1, 1, 1 }, { 1, 1, 0, 3, 1 }, { 2, 2, 1, 3, 2 },
    { 1, 21, 0, 1, 1 }, { 1, 2, 0, 3, 1 }, { 2, 1, 1, 3, 1 },
};
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

/* Pieces of all kinds, vocabularies that do not divide (of the small one, rank 3 of 4 has nothing),
 * and experts, which are split before their matrices are. */
static const struct {
    const char *name;
    int n_dims;
    int64_t rows, cols;
    struct parameter_split split;
} parameters[] = {
    { "qkv.weight", 2, 32, 12, { .along = SPREAD_ROWS, .n_pieces = 3, .pieces = { 16, 8, 8 } } },
    { "qkv.bias", 1, 1, 32, { .along = SPREAD_COLS, .n_pieces = 3, .pieces = { 16, 8, 8 } } },
    { "gate_up.weight", 2, 40, 12, { .along = SPREAD_ROWS, .n_pieces = 2, .pieces = { 20, 20 } } },
    { "down.weight", 2, 12, 20, { .along = SPREAD_COLS, .n_pieces = 1, .pieces = { 20 } } },
    { "mixed.weight", 2, 11, 20, { .along = SPREAD_COLS, .n_pieces = 2, .pieces = { 12, 8 } } },
    { "norm.weight", 1, 1, 12, { .along = SPREAD_SAME, .n_pieces = 0, .pieces = { 0 } } },
    { "positions.weight", 2, 7, 5, { .along = SPREAD_SAME, .n_pieces = 0, .pieces = { 0 } } },
    { "embedding.weight", 2, 13, 12, { .along = SPREAD_ROWS, .n_pieces = 1, .pieces = { 13 } } },
    { "small.weight", 2, 5, 3, { .along = SPREAD_ROWS, .n_pieces = 1, .pieces = { 5 } } },
    { "experts.weight", 2, 36, 5, { .along = SPREAD_ROWS, .n_pieces = 2, .pieces = { 8, 4 } } },
    { "experts.down", 2, 12, 20, { .along = SPREAD_COLS, .n_pieces = 1, .pieces = { 20 } } },
};
#define N_PARAMETERS ((int)(sizeof parameters / sizeof *parameters))

enum { N_EXPERTS = 3 };

static int is_of_experts(int parameter)
{
    return !strncmp(parameters[parameter].name, "experts.", 8);
}

/* Gate and up of each expert that the rank has. */
static int n_repeats(int parameter, int ep)
{
    return strcmp(parameters[parameter].name, "experts.weight") ? 1 : N_EXPERTS / ep;
}

/* One rank of a layout. Its run is told of a mesh of one rank: it runs nothing. */
struct rig {
    struct layout layout;
    int world_rank;
    struct mesh_place place;
    struct program program, alone;
    struct pool *pool;
    struct kernels *kernels;
    struct run *run;
};

/* What one axis shards is one bucket: of experts, and of all else. */
static void shard_over(struct program *p, enum mesh_axis axis)
{
    struct bucket *bucket = &p->buckets[p->n_buckets];
    int size = mesh_size(&p->mesh, axis);

    *bucket = (struct bucket){ .axis = axis };
    for (int i = 0; i < p->n_parameters; i++) {
        if (program_shard_axis(p, i) != axis)
            continue;
        p->parameters[i].bucket = p->n_buckets;
        p->parameters[i].bucket_offset = bucket->n_elements;
        bucket->n_elements += p->parameters[i].rows * p->parameters[i].cols;
    }
    int64_t shard = ceil_div(bucket->n_elements, size);
    bucket->n_elements = shard * size;
    bucket->master = program_cell(p, ROLE_MASTER, "master", 1, shard, DTYPE_F32);
    bucket->weight_shard = bucket->master;
    bucket->moment1 = program_cell(p, ROLE_MOMENT1, "m", 1, shard, DTYPE_F32);
    bucket->moment2 = program_cell(p, ROLE_MOMENT2, "v", 1, shard, DTYPE_F32);
    p->n_buckets++;
}

static void shard_all(struct program *p)
{
    enum mesh_axis dense = axes_shard(&p->mesh, PARAMETER_DENSE);
    enum mesh_axis expert = axes_shard(&p->mesh, PARAMETER_EXPERT);

    p->buckets = arena_array(&p->arena, struct bucket, 2);
    shard_over(p, dense);
    if (expert != dense)
        shard_over(p, expert);
}

static void keep_all(struct program *p)
{
    for (int i = 0; i < p->n_parameters; i++) {
        struct parameter *q = &p->parameters[i];

        q->moment1 = program_cell(p, ROLE_MOMENT1, "m", q->rows, q->cols, DTYPE_F32);
        q->moment2 = program_cell(p, ROLE_MOMENT2, "v", q->rows, q->cols, DTYPE_F32);
    }
}

static struct mesh mesh_of(struct layout layout)
{
    struct mesh mesh = mesh_data_parallel(layout.dp);

    mesh.size[AXIS_TP] = layout.tp;
    mesh.size[AXIS_EP] = layout.ep;
    mesh.size[AXIS_REPLICA] = layout.replicas;
    return mesh;
}

static int world_size(struct layout layout)
{
    struct mesh mesh = mesh_of(layout);

    return mesh_world_size(&mesh);
}

static void declare(struct program *p, int i, int ep)
{
    struct parameter_split split = parameters[i].split;
    struct parameter_split by_expert = { .along = SPREAD_ROWS,
                                         .n_pieces = 1,
                                         .pieces = { parameters[i].rows } };
    int k = program_parameter(p, parameters[i].name, parameters[i].n_dims, parameters[i].rows,
                              parameters[i].cols, DTYPE_F32, INIT_NORMAL, 1);

    if (is_of_experts(i))
        program_split_parameter(p, k, AXIS_EP, &by_expert);
    split.n_repeats = n_repeats(i, ep);
    program_split_parameter(p, k, AXIS_TP, &split);
}

static void rig_open(struct rig *rig, struct layout layout, int world_rank)
{
    struct mesh mesh = mesh_of(layout);
    struct err err;

    *rig = (struct rig){ .layout = layout,
                         .world_rank = world_rank,
                         .place = mesh_place(&mesh, world_rank) };
    program_init(&rig->program, &mesh);
    for (int i = 0; i < N_PARAMETERS; i++)
        declare(&rig->program, i, layout.ep);
    if (layout.zero)
        shard_all(&rig->program);
    else
        keep_all(&rig->program);
    place(&rig->program);
    rig->alone = rig->program;
    rig->alone.mesh = mesh_data_parallel(1);
    struct run_options options = { .program = &rig->alone };
    assert_ok(pool_create(&rig->pool, 1, NULL, &err), &err);
    assert_ok(kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err), &err);
    options.kernels = rig->kernels;
    assert_ok(run_create(&rig->run, &options, &err), &err);
}

static void rig_close(struct rig *rig)
{
    run_destroy(rig->run);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
    program_release(&rig->program);
}

/* State k (master, moments) of the rank's element of a parameter's part, or NULL if not kept. */
static float *element(const struct rig *rig, int parameter, int k, int64_t i)
{
    struct parameter_part part = program_parameter_part(&rig->program, parameter, &rig->place);
    int cells[3] = { part.master, part.moment1, part.moment2 };

    if (i < part.begin || i >= part.end)
        return NULL;
    return (float *)run_data(rig->run, cells[k], 0) + part.offset + i - part.begin;
}

/* Which element of the part is this one of the whole; -1: another rank's. */
static int64_t local_element(const struct rig *rig, int parameter, int64_t i)
{
    const struct parameter_split *split = &parameters[parameter].split;
    int64_t row = i / parameters[parameter].cols, col = i % parameters[parameter].cols;
    int64_t of_ep = parameters[parameter].rows / rig->layout.ep;

    if (is_of_experts(parameter)) {
        if (row / of_ep != rig->place.of[AXIS_EP])
            return -1;
        row %= of_ep;
    }
    int64_t *at = split->along == SPREAD_ROWS ? &row : &col, left = *at, base = 0;

    for (int k = 0; k < split->n_pieces * n_repeats(parameter, rig->layout.ep); k++) {
        int64_t piece = split->pieces[k % split->n_pieces];
        int64_t part = ceil_div(piece, rig->layout.tp);

        if (left < piece) {
            if (left / part != rig->place.of[AXIS_TP])
                return -1;
            *at = base + left % part;
            break;
        }
        left -= piece;
        base += part;
    }
    return row * rig->program.parameters[parameter].cols + col;
}

static int64_t n_whole(int parameter)
{
    return parameters[parameter].rows * parameters[parameter].cols;
}

/* All parameters' first values, of one rank that has everything. */
struct whole {
    float *values[N_PARAMETERS];
};

static void make_whole(struct whole *whole)
{
    struct rig rig;

    rig_open(&rig, layouts[0], 0);
    init_parameters(rig.run, &rig.program, &rig.place, rig.pool, 5);
    for (int i = 0; i < N_PARAMETERS; i++) {
        size_t n_bytes = sizeof(float) * (size_t)n_whole(i);

        whole->values[i] = malloc(n_bytes);
        memcpy(whole->values[i], element(&rig, i, 0, 0), n_bytes);
    }
    rig_close(&rig);
}

static void free_whole(struct whole *whole)
{
    for (int i = 0; i < N_PARAMETERS; i++)
        free(whole->values[i]);
}

/* The moments that the tests save: told from the master and from each other. */
static float state_of(float master, int k)
{
    return k == 0 ? master : k == 1 ? master + 10 : master * master;
}

/* What the rank has is what the whole has there, and zero elsewhere. */
static void check_part(const struct rig *rig, const struct whole *whole, int n_states)
{
    for (int p = 0; p < N_PARAMETERS; p++) {
        const struct parameter *q = &rig->program.parameters[p];
        int64_t n = q->rows * q->cols;
        char *has = calloc((size_t)n, 1);

        for (int64_t i = 0; i < n_whole(p); i++) {
            int64_t local = local_element(rig, p, i);

            if (local < 0)
                continue;
            assert_true(local < n && !has[local]);
            has[local] = 1;
            for (int k = 0; k < n_states; k++) {
                const float *value = element(rig, p, k, local);

                if (value && *value != state_of(whole->values[p][i], k))
                    fail_msg("rank %d of tp %d, dp %d, ep %d: %s, state %d, element %d is %g",
                             rig->world_rank, rig->layout.tp, rig->layout.dp, rig->layout.ep,
                             q->name, k, (int)i, (double)*value);
            }
        }
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < n_states; k++)
                if (!has[i] && element(rig, p, k, i))
                    assert_true(*element(rig, p, k, i) == 0);
        free(has);
    }
}

static void each_rank_has_its_part_of_the_same_whole(void **state)
{
    struct whole whole;
    struct rig rig;

    (void)state;
    make_whole(&whole);
    for (size_t l = 0; l < N_LAYOUTS; l++)
        for (int rank = 0; rank < world_size(layouts[l]); rank++) {
            rig_open(&rig, layouts[l], rank);
            /* Padding is made zero, not found so. */
            for (int p = 0; p < N_PARAMETERS; p++)
                for (int64_t i = 0; i < n_whole(p); i++)
                    if (i < rig.program.parameters[p].rows * rig.program.parameters[p].cols &&
                        element(&rig, p, 0, i))
                        *element(&rig, p, 0, i) = 9;
            init_parameters(rig.run, &rig.program, &rig.place, rig.pool, 5);
            check_part(&rig, &whole, 1);
            rig_close(&rig);
        }
    free_whole(&whole);
}

/* Fill, and make moments of it; padding stays zero. */
static void fill_states(struct rig *rig)
{
    init_parameters(rig->run, &rig->program, &rig->place, rig->pool, 5);
    for (int p = 0; p < N_PARAMETERS; p++)
        for (int64_t i = 0; i < n_whole(p); i++) {
            int64_t local = local_element(rig, p, i);

            for (int k = 1; k < 3 && local >= 0; k++)
                if (element(rig, p, k, local))
                    *element(rig, p, k, local) = state_of(*element(rig, p, 0, local), k);
        }
}

/* Count each element of the whole that a slice has: [parameter][state][element]. */
static void count(const struct slices *slices, unsigned char *counts[N_PARAMETERS][3])
{
    static const char *const suffixes[3] = { "", ".m", ".v" };

    for (int j = 0; j < slices->n; j++) {
        const struct store_slice *s = &slices->slices[j];
        unsigned char *found = NULL;

        for (int p = 0; p < N_PARAMETERS; p++)
            for (int k = 0; k < 3; k++) {
                char name[64];

                snprintf(name, sizeof name, "%s%s", parameters[p].name, suffixes[k]);
                if (!strcmp(name, s->name)) {
                    found = counts[p][k];
                    assert_int_equal(s->rows * s->cols, n_whole(p));
                    assert_int_equal(s->n_dims, parameters[p].n_dims);
                    assert_int_equal(s->cols, s->n_dims == 1 ? 1 : parameters[p].cols);
                }
            }
        assert_non_null(found);
        for (int64_t row = s->row_begin; row < s->row_end; row++)
            for (int64_t col = s->col_begin; col < s->col_end; col++)
                found[row * s->cols + col]++;
    }
}

static void saved_slices_cover_the_whole_once(void **state)
{
    (void)state;
    for (size_t l = 0; l < N_LAYOUTS; l++) {
        unsigned char *counts[N_PARAMETERS][3];
        struct rig rig;

        for (int p = 0; p < N_PARAMETERS; p++)
            for (int k = 0; k < 3; k++)
                counts[p][k] = calloc((size_t)n_whole(p), 1);
        int n_savers = 0;
        for (int rank = 0; rank < world_size(layouts[l]); rank++) {
            struct slices slices = { 0 };

            rig_open(&rig, layouts[l], rank);
            slices_to_save(&slices, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
            count(&slices, counts);
            n_savers += slices.n > 0;
            slices_release(&slices);
            rig_close(&rig);
        }
        if (layouts[l].dp > SLICES_SAVERS_MAX)
            assert_int_equal(n_savers, SLICES_SAVERS_MAX);
        for (int p = 0; p < N_PARAMETERS; p++)
            for (int k = 0; k < 3; k++) {
                for (int64_t i = 0; i < n_whole(p); i++)
                    assert_int_equal(counts[p][k][i], 1);
                free(counts[p][k]);
            }
    }
}

static void save(const char *folder, struct layout layout)
{
    struct err err = { 0 };
    struct rig rig;

    for (int rank = 0; rank < world_size(layout); rank++) {
        struct slices slices = { 0 };

        rig_open(&rig, layout, rank);
        fill_states(&rig);
        slices_to_save(&slices, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
        fixture_save(folder, rank, slices.slices, slices.n);
        slices_release(&slices);
        rig_close(&rig);
    }
    assert_ok(store_commit(folder, world_size(layout), 1, "{}", &err), &err);
}

static void load(struct rig *rig, const char *folder)
{
    struct slices slices = { 0 };
    struct err err = { 0 };
    struct store *store;

    assert_ok(store_open(&store, folder, &err), &err);
    for (int p = 0; p < N_PARAMETERS; p++)
        for (int64_t i = 0; i < rig->program.parameters[p].rows * rig->program.parameters[p].cols;
             i++)
            for (int k = 0; k < 3; k++)
                if (element(rig, p, k, i))
                    *element(rig, p, k, i) = -7;
    slices_to_read(&slices, rig->run, &rig->program, &rig->place, SLICES_OF_ALL);
    slices_clear_split(rig->run, &rig->program, &rig->place);
    for (int i = 0; i < slices.n; i++)
        assert_ok(store_read(store, &slices.slices[i], &err), &err);
    slices_release(&slices);
    store_close(store);
}

static void any_layout_reads_any_others(void **state)
{
    struct whole whole;
    struct rig rig;

    make_whole(&whole);
    for (size_t from = 0; from < N_LAYOUTS; from++) {
        char name[32];

        snprintf(name, sizeof name, "step-%d", (int)from);
        const char *folder = fixture_path(*state, name);
        save(folder, layouts[from]);
        for (size_t to = 0; to < N_LAYOUTS; to++)
            for (int rank = 0; rank < world_size(layouts[to]); rank++) {
                rig_open(&rig, layouts[to], rank);
                load(&rig, folder);
                check_part(&rig, &whole, 3);
                rig_close(&rig);
            }
    }
    free_whole(&whole);
}

/* Each rank by itself: all that it reads, and nothing else. */
static void a_rank_reads_its_own(void **state)
{
    struct whole whole;
    struct rig rig;

    make_whole(&whole);
    for (size_t l = 0; l < N_LAYOUTS; l++)
        for (int rank = 0; rank < world_size(layouts[l]); rank++) {
            struct slices own = { 0 }, twice = { 0 };
            struct err err = { 0 };
            struct store *store;
            char name[48];

            snprintf(name, sizeof name, "own-%d-%d/step-1", (int)l, rank);
            const char *folder = fixture_path(*state, name);
            rig_open(&rig, layouts[l], rank);
            fill_states(&rig);
            slices_to_read(&own, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
            slices_to_read(&twice, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
            slices_to_read(&twice, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
            slices_make_whole(&own);
            slices_make_whole(&twice);
            slices_keep_once(&twice);
            assert_int_equal(own.n, twice.n);
            fixture_save(folder, 0, twice.slices, twice.n);
            assert_ok(store_commit(folder, 1, 1, "{}", &err), &err);
            rig_close(&rig);
            slices_release(&own);
            slices_release(&twice);

            rig_open(&rig, layouts[l], rank);
            struct slices again = { 0 };
            slices_to_read(&again, rig.run, &rig.program, &rig.place, SLICES_OF_ALL);
            slices_make_whole(&again);
            slices_clear_split(rig.run, &rig.program, &rig.place);
            assert_ok(store_open(&store, folder, &err), &err);
            assert_int_equal(store_n_tensors(store), again.n);
            for (int i = 0; i < again.n; i++)
                assert_ok(store_read(store, &again.slices[i], &err), &err);
            check_part(&rig, &whole, 3);
            store_close(store);
            slices_release(&again);
            rig_close(&rig);
        }
    free_whole(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_has_its_part_of_the_same_whole),
        cmocka_unit_test(saved_slices_cover_the_whole_once),
        cmocka_unit_test_setup_teardown(any_layout_reads_any_others, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_rank_reads_its_own, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
