/*
 * collective_experts_test.c - rows to the ranks that have their experts and back, of values in a
 * device's memory: the bytes of those in the host's
 *
 * Ranks are threads, each with an emulated GPU of its own. Both kinds are done on the host, which
 * test/run/collective_experts_test.c holds against their definition; then staged, and enqueued with
 * NCCL, under every order in which queues may run. Inputs are written on the compute queue just
 * before, and overwritten there just after.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/pause.h"
#include "ops/op_info.h"
#include "run/collective.h"
#include "support/gpu_ranks.h"

enum { N_RUNS = 2, N_GUARD = 64, BYTES_MAX = 1 << 16 };

struct play {
    struct op_shape shape;
    struct gpu_ranks ranks;
    int is_skewed;   /* all go to the last rank's experts first */
    size_t bytes[3]; /* of in, choices, out */
    unsigned char out[ENQUEUED + 1][GPU_RANKS_MAX][N_RUNS][BYTES_MAX];
};

/* Distinct experts of a token of any rank; in the second run some choices were dropped. */
static void fill_choices(const struct play *play, int run, int32_t *choices)
{
    const struct tensor *t = &play->shape.in[SEND_ROWS_CHOICES];
    int m = play->shape.attributes.n_experts;

    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t i = 0; i < t->cols; i++) {
            struct rng_block draw = rng_at(3, RNG_TEST, (uint64_t)run, (uint64_t)row);
            int64_t first = play->is_skewed ? m - 1 : (int64_t)(draw.word[0] % (unsigned)m);

            choices[row * t->cols + i] =
                run && (row + i) % 5 == 0 ? -1 : (int32_t)((first + i) % m);
        }
}

static void fill(unsigned char *bytes, size_t n, int rank, int run)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(31u * (unsigned)rank + 57u * (unsigned)run + i * 7u + (i >> 8));
}

/* ---- threads may not use cmocka: they CHECK ---- */

struct operands {
    unsigned char *given[3]; /* pinned: in, choices, out as they are before */
    void *at[3], *scratch, *host_tables;
    unsigned char *staging[4], *result;
    size_t scratch_bytes;
};

static struct operands make_operands(const struct play *play, const struct gpu_rank *p)
{
    struct operands o = { .scratch_bytes =
                              collective_scratch_bytes(&play->shape, play->ranks.size, 0) };

    for (int i = 0; i < 3; i++) {
        o.given[i] = gpu_rank_allocate_pinned(p, play->bytes[i]);
        o.at[i] = gpu_rank_allocate(p, play->bytes[i]);
        o.staging[i] = gpu_rank_allocate_pinned(p, play->bytes[i]);
    }
    o.staging[3] = gpu_rank_allocate_pinned(p, o.scratch_bytes + N_GUARD);
    o.scratch = gpu_rank_allocate(p, o.scratch_bytes + N_GUARD);
    o.result = gpu_rank_allocate_pinned(p, play->bytes[2]);
    o.host_tables =
        gpu_rank_allocate_pinned(p, collective_host_bytes(&play->shape, play->ranks.size));
    p->device->ops->fill(p->device, DEVICE_COMPUTE, o.scratch, 0xff, o.scratch_bytes + N_GUARD);
    return o;
}

static void drop_operands(const struct gpu_rank *p, const struct operands *o)
{
    for (int i = 0; i < 3; i++) {
        p->device->ops->release_pinned(p->device, o->given[i]);
        p->device->ops->release(p->device, o->at[i]);
    }
    for (int i = 0; i < 4; i++)
        p->device->ops->release_pinned(p->device, o->staging[i]);
    p->device->ops->release(p->device, o->scratch);
    p->device->ops->release_pinned(p->device, o->result);
    p->device->ops->release_pinned(p->device, o->host_tables);
}

static struct collective make_collective(const struct play *play, const struct gpu_rank *p,
                                         const struct operands *o)
{
    struct collective c = collective_of(&play->shape, p->group, o->scratch);
    struct tensor *operands[3] = { &c.in, &c.choices, &c.out };
    struct err err;

    c.base.first = 1;
    c.base.device = p->kernels ? p->device : NULL;
    c.base.queue = GPU_RANK_QUEUE;
    c.kernels = p->kernels;
    for (int i = 0; i < 3; i++)
        operands[i]->data = o->at[i];
    if (play->ranks.way == STAGED) {
        c.device_in = c.in;
        c.device_choices = c.choices;
        c.device_out = c.out;
        for (int i = 0; i < 3; i++)
            operands[i]->data = o->staging[i];
        c.scratch = o->staging[3];
    }
    if (play->ranks.way == ENQUEUED)
        c.host_tables = o->host_tables;
    if (p->kernels) {
        CHECK(p->device->ops->event_create(p->device, 0, &c.base.given, &err) == 0);
        CHECK(p->device->ops->event_create(p->device, 0, &c.base.done, &err) == 0);
    }
    return c;
}

static void run_once(const struct play *play, struct collective *c)
{
    struct device *device = c->base.device;
    struct comm_pause pause;
    struct err err;
    int progress;

    if (device)
        device->ops->event_record(device, DEVICE_COMPUTE, c->base.given);
    if (play->ranks.way == ENQUEUED) {
        device->ops->event_wait(device, c->base.queue, c->base.given);
        CHECK(c->base.mover->enqueue(&c->base, &err) == 0);
        device->ops->event_record(device, c->base.queue, c->base.done);
        device->ops->event_wait(device, DEVICE_COMPUTE, c->base.done);
        return;
    }
    comm_pause_begin(&pause);
    while ((progress = stream_op_run(&c->base, &err)) > COMM_DONE)
        comm_pause(&pause, progress);
    CHECK(progress == COMM_DONE);
}

static void check_guard(const struct gpu_rank *p, const struct operands *o)
{
    unsigned char guard[N_GUARD];
    struct err err;

    gpu_rank_copy(p, guard, (unsigned char *)o->scratch + o->scratch_bytes, N_GUARD);
    CHECK(p->device->ops->wait(p->device, DEVICE_COMPUTE, &err) == 0);
    for (int i = 0; i < N_GUARD; i++)
        CHECK(guard[i] == 0xff);
}

static void *play_rank(void *argument)
{
    struct gpu_rank_of *me = argument;
    struct play *play = me->context;
    struct gpu_rank p = gpu_rank_open(&play->ranks, me->rank);
    struct operands o = make_operands(play, &p);
    struct collective c = make_collective(play, &p, &o);
    struct err err;

    for (int run = 0; run < N_RUNS; run++) {
        fill(o.given[0], play->bytes[0], me->rank, run);
        fill_choices(play, run, (int32_t *)(void *)o.given[1]);
        memset(o.given[2], 0x3c, play->bytes[2]);
        for (int i = 0; i < 3; i++)
            gpu_rank_copy(&p, o.at[i], o.given[i], play->bytes[i]);
        run_once(play, &c);
        gpu_rank_copy(&p, o.result, o.at[2], play->bytes[2]);
        for (int i = 0; i < 2; i++)
            p.device->ops->fill(p.device, DEVICE_COMPUTE, o.at[i], 0, play->bytes[i]);
        CHECK(p.device->ops->wait(p.device, DEVICE_COMPUTE, &err) == 0);
        memcpy(play->out[play->ranks.way][me->rank][run], o.result, play->bytes[2]);
    }
    check_guard(&p, &o);
    if (c.base.given) {
        p.device->ops->event_destroy(p.device, c.base.given);
        p.device->ops->event_destroy(p.device, c.base.done);
    }
    CHECK(comm_barrier(p.group, &err) == 0);
    drop_operands(&p, &o);
    gpu_rank_close(&p);
    return NULL;
}

/* ---- and the tests may ---- */

static void play_way(struct play *play, enum gpu_way way)
{
    play->ranks.way = way;
    gpu_ranks_run(&play->ranks, play_rank, play);
}

/* What is defined of a rank's output: of return_rows the rows of choices that were not dropped. */
static size_t defined_bytes(const struct play *play, int rank, int run)
{
    static int32_t choices[BYTES_MAX / sizeof(int32_t)];
    const struct tensor *t = &play->shape.in[SEND_ROWS_CHOICES], *out = &play->shape.out[OPS_FIRST];
    int64_t own = tensor_elements(t) / play->ranks.size, n = 0;

    if (play->shape.kind == OP_SEND_ROWS)
        return play->bytes[2];
    fill_choices(play, run, choices);
    for (int64_t i = rank * own; i < (rank + 1) * own; i++)
        n += choices[i] >= 0;
    return (size_t)(n * out->cols) * dtype_bytes(out->dtype);
}

static void check(struct play *play)
{
    const struct tensor *operands[3] = { &play->shape.in[0], &play->shape.in[1],
                                         &play->shape.out[0] };
    struct err err;

    if (op_check(&play->shape, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < 3; i++) {
        play->bytes[i] = collective_extent(operands[i]);
        assert_true(play->bytes[i] <= BYTES_MAX);
    }
    play_way(play, ON_HOST);
    for (int i = 0; i < GPU_N_ORDERS; i++)
        for (enum gpu_way way = STAGED; way <= ENQUEUED; way++) {
            gpu_set_order(i);
            play_way(play, way);
            for (int r = 0; r < play->ranks.size; r++)
                for (int run = 0; run < N_RUNS; run++)
                    if (memcmp(play->out[ON_HOST][r][run], play->out[way][r][run],
                               defined_bytes(play, r, run)))
                        fail_msg("%s over %d ranks differs, %s, streams %s",
                                 op_info(play->shape.kind)->name, play->ranks.size,
                                 gpu_way_names[way], gpu_orders[i]);
        }
}

static struct tensor dense(int64_t rows, int64_t cols, enum dtype dtype)
{
    return (struct tensor){ NULL, rows, cols, cols, dtype };
}

/* More tokens than a block takes at a time; rows of 16 bytes, of 4 and of 2; one expert a rank, and
 * several; a choice of all of them. */
static const struct form {
    int size, own, n_tokens, n_chosen, cols;
    int is_skewed, first, experts; /* experts 0: all of a rank's */
} forms[] = {
    { 2, 3, 300, 2, 8, 0, 0, 0 }, { 2, 1, 5, 1, 3, 0, 0, 0 }, { 3, 2, 7, 2, 2, 1, 0, 0 },
    { 4, 2, 3, 3, 16, 0, 0, 0 },  { 2, 2, 1, 4, 6, 0, 0, 0 }, { 4, 1, 9, 2, 8, 1, 0, 0 },
    { 2, 3, 300, 2, 8, 0, 1, 1 }, { 3, 2, 7, 3, 2, 1, 0, 1 }, { 2, 4, 40, 5, 16, 0, 2, 2 },
};

static void each_form(enum op_kind kind)
{
    struct play *play = test_malloc(sizeof *play);

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *f = &forms[i];
        int64_t all = (int64_t)f->size * f->n_tokens;
        int64_t bound = all * (f->n_chosen < f->own ? f->n_chosen : f->own);
        int is_sent = kind == OP_SEND_ROWS;

        *play = (struct play){ .ranks.size = f->size, .is_skewed = f->is_skewed };
        play->shape.kind = kind;
        play->shape.attributes.n_experts = f->size * f->own;
        play->shape.attributes.first = f->first;
        play->shape.attributes.experts = f->experts;
        play->shape.in[0] = dense(is_sent ? f->n_tokens : bound, f->cols, DTYPE_BF16);
        play->shape.in[1] = dense(all, f->n_chosen, DTYPE_I32);
        play->shape.out[0] =
            dense(is_sent ? all : (int64_t)f->n_tokens * f->n_chosen, f->cols, DTYPE_BF16);
        check(play);
    }
    test_free(play);
}

static void send_rows(void **state)
{
    (void)state;
    each_form(OP_SEND_ROWS);
}

static void return_rows(void **state)
{
    (void)state;
    each_form(OP_RETURN_ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(send_rows),
        cmocka_unit_test(return_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
