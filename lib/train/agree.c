/*
 * agree.c - what all ranks of a trainer tell each other outside of its program
 */
#include <stdlib.h>

#include "train/trainer_impl.h"

/* The channel of agreements; those of the mesh axes come before it. */
#define WORLD_CHANNEL (N_GROUP_AXES * N_STREAMS)

/* Run fn where comm is used: on the worker, or here if there is none. */
static int trainer_call(struct trainer *t, worker_fn fn, void *argument, struct err *err)
{
    progress_meet(t->options.progress, "agreement of all ranks");
    int status =
        t->options.worker ? worker_call(t->options.worker, fn, argument, err) : fn(argument, err);
    progress_phase(t->options.progress, t->run ? "between steps" : "starting");
    return status;
}

struct world_request {
    struct trainer *trainer;
    int64_t *value;
    const void *send;
    void *receive;
    size_t n_bytes;
    int root, to, from;
};

static int make_world(void *argument, struct err *err)
{
    struct trainer *t = ((struct world_request *)argument)->trainer;
    int *ranks = calloc((size_t)t->world_size, sizeof *ranks);

    for (int i = 0; ranks && i < t->world_size; i++)
        ranks[i] = i;
    int status = ranks ? comm_group_create(&t->world, t->options.comm, ranks, t->world_size,
                                           WORLD_CHANNEL, err)
                       : err_set(err, ERR_DEVICE, "out of host memory");
    free(ranks);
    return status;
}

int trainer_join(struct trainer *t, struct err *err)
{
    struct world_request request = { .trainer = t };

    return trainer_call(t, make_world, &request, err);
}

static int agree_largest(void *argument, struct err *err)
{
    struct world_request *r = argument;

    return comm_agree(r->trainer->world, COMM_MAX, r->value, err);
}

int trainer_agree(struct trainer *t, int64_t *value, struct err *err)
{
    struct world_request request = { .trainer = t, .value = value };

    return trainer_call(t, agree_largest, &request, err);
}

int trainer_agree_in_rounds(struct trainer *t, int64_t *value, bool meets, struct err *err)
{
    struct world_request request = { .trainer = t, .value = value };

    if (meets)
        progress_meet(t->options.progress, "agreement of all ranks");
    return t->options.worker ? worker_call(t->options.worker, agree_largest, &request, err)
                             : agree_largest(&request, err);
}

static int gather_all(void *argument, struct err *err)
{
    struct world_request *r = argument;

    return comm_all_gather(r->trainer->world, r->send, r->receive, r->n_bytes, err);
}

int trainer_gather(struct trainer *t, const void *send, void *receive, size_t n_bytes,
                   struct err *err)
{
    struct world_request request = {
        .trainer = t, .send = send, .receive = receive, .n_bytes = n_bytes
    };

    return trainer_call(t, gather_all, &request, err);
}

static int shift_one(void *argument, struct err *err)
{
    struct world_request *r = argument;

    return comm_send_receive(r->trainer->world, r->send, r->to, r->receive, r->from, r->n_bytes,
                             err);
}

int trainer_shift(struct trainer *t, const void *send, int to, void *receive, int from,
                  size_t n_bytes, struct err *err)
{
    struct world_request request = {
        .trainer = t, .send = send, .receive = receive, .n_bytes = n_bytes, .to = to, .from = from
    };

    return trainer_call(t, shift_one, &request, err);
}

static int broadcast_one(void *argument, struct err *err)
{
    struct world_request *r = argument;

    return comm_broadcast(r->trainer->world, r->receive, r->n_bytes, r->root, err);
}

int trainer_broadcast(struct trainer *t, void *buffer, size_t n_bytes, int root, struct err *err)
{
    struct world_request request = {
        .trainer = t, .receive = buffer, .n_bytes = n_bytes, .root = root
    };

    return trainer_call(t, broadcast_one, &request, err);
}

int trainer_settle(struct trainer *t, int status, struct err *err)
{
    int64_t failed = status < 0 ? err->code : 0;
    struct err agreed;

    if (trainer_agree(t, &failed, &agreed) < 0) {
        if (status == 0)
            *err = agreed;
        return -1;
    }
    if (failed && status == 0)
        return err_set(err, (enum err_code)failed, "another rank could not start");
    return status;
}
