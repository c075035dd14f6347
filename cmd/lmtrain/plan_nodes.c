/*
 * plan_nodes.c - bytes between nodes, of the pipeline rank whose nodes send most
 */
#include "plan_nodes.h"

#include "base/str.h"
#include "plan/node_bytes.h"

/* Neighbouring ranks of a node; 0: there is one node, or they are not known. */
static int ranks_of_node(const struct plan *plan)
{
    const struct job *job = plan->job;
    int n = job_node_ranks(job) ? job_node_ranks(job) : job->node_ranks;

    return n < job->world_size ? n : 0;
}

static struct node_bytes find_bytes(const struct plan *plan)
{
    bool by_node = job_node_ranks(plan->job) && plan->job->parallel.reductions != REDUCTIONS_FAST;
    struct node_bytes most = { 0 };

    for (int rank = 0; rank < plan->job->parallel.pp; rank++) {
        struct node_bytes bytes = node_bytes_of(&plan->programs[rank], ranks_of_node(plan), by_node,
                                                kernels_are_gpu(plan->kernels));

        if (bytes.at_once > most.at_once)
            most = bytes;
    }
    return most;
}

/* Why nothing goes by node. */
static const char *reason(const struct plan *plan)
{
    if (plan->job->parallel.reductions == REDUCTIONS_FAST)
        return "the library's way";
    if (plan->job->parallel.node_ranks == 1)
        return "all ranks at once, as parallel.node_ranks says";
    return "all ranks at once: no large ones are of groups that have a power of two of neighbours "
           "on each node";
}

void plan_print_nodes(const struct plan *plan, struct str *out)
{
    char sent[32], at_once[32];

    if (!ranks_of_node(plan))
        return;
    struct node_bytes bytes = find_bytes(plan);
    str_bytes(sent, sizeof sent, (uint64_t)bytes.sent);
    str_bytes(at_once, sizeof at_once, (uint64_t)bytes.at_once);
    str_printf(out, "between nodes of %d ranks: sums and gathers send %s a node and step",
               ranks_of_node(plan), sent);
    if (bytes.n_by_node)
        str_printf(out, ", %s if %d of them did not go by node\n", at_once, bytes.n_by_node);
    else
        str_printf(out, ", %s\n", reason(plan));
}

void plan_add_nodes(const struct plan *plan, cJSON *json)
{
    if (!ranks_of_node(plan))
        return;
    struct node_bytes bytes = find_bytes(plan);
    cJSON *object = cJSON_AddObjectToObject(json, "between_nodes");
    cJSON_AddNumberToObject(object, "node_ranks", ranks_of_node(plan));
    cJSON_AddNumberToObject(object, "sent_bytes", (double)bytes.sent);
    cJSON_AddNumberToObject(object, "at_once_bytes", (double)bytes.at_once);
    cJSON_AddNumberToObject(object, "n_by_node", bytes.n_by_node);
}
