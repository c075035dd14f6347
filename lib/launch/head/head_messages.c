/*
 * head_messages.c - what a node's daemon says, and whether that can be
 *
 * A daemon is trusted with its own ranks only. What cannot be (a rank of another node, an end
 * before the start) is treated as a lost link.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/log.h"
#include "launch/head/head_impl.h"

/* Room for this much output is on its way to the head at most, a node. */
enum { CREDIT_STEP_BYTES = 64 << 10 };

/* The rank that the message speaks of, if it is one of the node's; else NULL. */
static struct head_rank *rank_of(struct launch_head *head, int node, const struct message *message)
{
    if (message->rank < 0 || message->rank >= head->n_ranks ||
        head->ranks[message->rank].node != node)
        return NULL;
    return &head->ranks[message->rank];
}

/* Returns -1 if the data is no slot. */
static int take_slot(struct head_rank *rank, const struct message *message)
{
    if (message->n_bytes != sizeof rank->slot)
        return -1;
    memcpy(&rank->slot, message->data, sizeof rank->slot);
    if (rank->first_step < 0 && atomic_load(&rank->slot.beat))
        rank->first_step = atomic_load(&rank->slot.step);
    return 0;
}

static int take_hello(struct launch_head *head, int node, const struct message *message)
{
    struct head_node *mine = &head->nodes[node];
    char name[200];

    if (mine->said_hello)
        return -1;
    if (message->number != MESSAGE_PROTOCOL || message->id != sizeof(struct progress_slot)) {
        err_set(&head->start_err, ERR_CONFIG,
                "host %s has a different version of lmtrain (hint: install the same version on all "
                "hosts)",
                mine->host);
        return 0;
    }
    /* PMIx tells nodes apart by name, and its lists end names at commas. */
    snprintf(name, sizeof name, "%s", message->text);
    for (char *c = name; *c; c++)
        if (strchr(",;[]() \t\r\n/", *c))
            *c = '-';
    snprintf(mine->name, sizeof mine->name, "%s", *name ? name : "node");
    for (int i = 0; i < head->n_nodes; i++)
        if (i != node && !strcmp(head->nodes[i].name, mine->name))
            snprintf(mine->name, sizeof mine->name, "%s-%d", name, node);
    mine->said_hello = 1;
    if (++head->n_hellos == head->n_nodes && head->phase == RUNNING)
        head_send_specs(head);
    return 0;
}

static int take_started(struct launch_head *head, int node, const struct message *message)
{
    struct head_rank *rank = rank_of(head, node, message);

    if (!rank || rank->pid || message->number <= 1)
        return -1;
    rank->pid = message->number;
    return 0;
}

static int take_ended(struct launch_head *head, int node, const struct message *message)
{
    struct head_rank *rank = rank_of(head, node, message);

    if (!rank || !rank->running || !rank->pid ||
        !(WIFEXITED(message->number) || WIFSIGNALED(message->number)) || take_slot(rank, message))
        return -1;
    output_end(head->output, message->rank);
    rank->running = 0;
    rank->wait_status = message->number;
    rank->in_order = message->id != 0;
    head->n_running--;
    head_judge(head, message->rank);
    return 0;
}

/*
 * Our own code aborts with an exit status. Open MPI does so with -1 where its connection to a
 * process breaks, which is most often the death of that process: a rank that tells of it is no
 * first cause.
 */
static int take_abort(struct launch_head *head, int node, const struct message *message)
{
    struct head_rank *rank = rank_of(head, node, message);
    int is_status = message->number > 0 && message->number <= 255;
    int status = is_status ? message->number : ERR_PEER;
    char text[1200];

    if (!rank || take_slot(rank, message))
        return -1;
    rank->has_aborted = 1;
    snprintf(text, sizeof text, "failed with status %d: %.1023s", message->number, message->text);
    head_set_cause(head, status == ERR_PEER ? WEIGHT_PEER : WEIGHT_OWN, message->rank, status,
                   text);
    return 0;
}

static int take_output(struct launch_head *head, int node, const struct message *message)
{
    if (!rank_of(head, node, message) || (message->number != 1 && message->number != 2))
        return -1;
    output_take(head->output, message->rank, message->number, message->data, message->n_bytes);
    head->nodes[node].uncredited_bytes += (uint32_t)message->n_bytes;
    return 0;
}

void head_send_credit(struct launch_head *head)
{
    if (screen_is_full(head->console->screen))
        return;
    for (int i = 0; i < head->n_nodes; i++) {
        struct head_node *node = &head->nodes[i];

        if (node->uncredited_bytes < CREDIT_STEP_BYTES)
            continue;
        link_send(&node->link,
                  &(struct message){ .kind = MESSAGE_CREDIT, .id = node->uncredited_bytes });
        node->uncredited_bytes = 0;
    }
}

static int take_progress(struct launch_head *head, int node, const struct message *message)
{
    struct head_rank *rank = rank_of(head, node, message);

    if (!rank || take_slot(rank, message))
        return -1;
    head->watched[message->rank].stopped = message->number == 1;
    return 0;
}

static void take_failed(struct launch_head *head, int node, const struct message *message)
{
    enum err_code code = (enum err_code)message->number;

    if (head->start_err.code != ERR_NONE)
        return;
    if (code < ERR_FAILED || code > ERR_PEER)
        code = ERR_FAILED;
    err_set(&head->start_err, code, "%.1900s", message->text);
    if (head->nodes[node].host_index >= 0)
        err_add(&head->start_err, "host %s", head->nodes[node].host);
}

/* Returns -1 if that cannot be. */
static int take_message(struct launch_head *head, int node, const struct message *message)
{
    if (message->kind == MESSAGE_HELLO)
        return take_hello(head, node, message);
    if (message->kind == MESSAGE_BEAT)
        return 0;
    if (!head->is_started)
        return -1;
    switch (message->kind) {
    case MESSAGE_STARTED:
        return take_started(head, node, message);
    case MESSAGE_ENDED:
        return take_ended(head, node, message);
    case MESSAGE_ABORT:
        return take_abort(head, node, message);
    case MESSAGE_FAILED:
        take_failed(head, node, message);
        return 0;
    case MESSAGE_OUTPUT:
        return take_output(head, node, message);
    case MESSAGE_PROGRESS:
        return take_progress(head, node, message);
    case MESSAGE_REPORT:
        log_warn("node %s: %.500s", head->nodes[node].host, message->text);
        return 0;
    case MESSAGE_FENCE:
        return head_take_fence(head, node, message);
    case MESSAGE_ASK:
        return head_take_ask(head, node, message);
    case MESSAGE_ANSWER:
        return head_take_answer(head, node, message);
    default:
        return -1;
    }
}

void head_take_messages(struct launch_head *head, int node)
{
    struct link *link = &head->nodes[node].link;
    struct message message;
    struct err err, nonsense;
    int closed = link_receive(link, &err), found;

    while ((found = link_next(link, &message, &nonsense)) > 0) {
        if (take_message(head, node, &message)) {
            err_set(&nonsense, ERR_PEER, "its daemon sent an unexpected message (kind %d)",
                    (int)message.kind);
            found = -1;
            break;
        }
    }
    if (found < 0)
        head_lose_node(head, node, nonsense.text);
    else if (closed)
        head_lose_node(head, node, err.text);
}
