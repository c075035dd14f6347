/*
 * comm_self.c - a world of one: the front door answers everything
 */
#include <stdlib.h>

#include "comm/comm_impl.h"

static void self_destroy(struct comm *comm)
{
    free(comm);
}

static const struct comm_ops self_ops = {
    .group_bytes = sizeof(struct comm_group),
    .destroy = self_destroy,
};

int comm_self_create(struct comm **comm, struct err *err)
{
    struct comm *made = calloc(1, sizeof *made);

    if (!made)
        return err_set(err, ERR_DEVICE, "no memory for a communicator");
    made->ops = &self_ops;
    made->world_size = 1;
    *comm = made;
    return 0;
}
