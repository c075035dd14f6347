/*
 * head_messages.c - messages of a node's daemon, checked against the state
 *
 * A daemon is trusted with its own ranks only. A message that the state does not allow (of a rank
 * of another node, an end before the start) is treated as a lost link.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/log.h"
#include "launch/head/head_impl.h"

/* Credit is sent in steps of this many bytes. */
enum { CREDIT_STEP_BYTES = 64 << 10 };

/* The rank of that number, if it is one of the node's; else NULL. */
static struct head_rank *rank_of(struct launch_head *head, int node, int rank)
{
    if (rank < 0 || rank >= head->n_ranks || head->ranks[rank].node != node)
        return NULL;
    return &head->ranks[rank];
}

static void take_slot(struct head_rank *rank, const void *slot)
{
    memcpy(&rank->slot, slot, sizeof rank->slot);
    if (rank->first_step < 0 && atomic_load(&rank->slot.beat))
        rank->first_step = atomic_load(&rank->slot.step);
}

static int take_hello(struct launch_head *head, int node, const struct message_hello *hello)
{
    struct head_node *mine = &head->nodes[node];
    char name[200];

    if (mine->said_hello)
        return -1;
    if (hello->protocol != MESSAGE_PROTOCOL || hello->slot_bytes != sizeof(struct progress_slot)) {
        err_set(&head->start_err, ERR_CONFIG,
                "host %s has a different version of lmtrain (hint: install the same version on all "
                "hosts)",
                mine->host);
        return 0;
    }
    /* PMIx identifies nodes by name, and a comma ends a name in its lists. */
    snprintf(name, sizeof name, "%s", hello->host);
    for (char *c = name; *c; c++)
        if (strchr(",;[]() \t\r\n/", *c))
            *c = '-';
    snprintf(mine->name, sizeof mine->name, "%s", *name ? name : "node");
    for (int i = 0; i < head->n_nodes; i++)
        if (i != node && !strcmp(head->nodes[i].name, mine->name))
            snprintf(mine->name, sizeof mine->name, "%s-%d", name, node);
    mine->said_hello = true;
    if (++head->n_hellos == head->n_nodes && head->phase == RUNNING)
        head_send_specs(head);
    return 0;
}

static int take_started(struct launch_head *head, int node, const struct message_started *started)
{
    struct head_rank *rank = rank_of(head, node, started->rank);

    if (!rank || rank->pid || started->pid <= 1)
        return -1;
    rank->pid = started->pid;
    return 0;
}

static int take_ended(struct launch_head *head, int node, const struct message_ended *ended)
{
    struct head_rank *rank = rank_of(head, node, ended->rank);
    int status = ended->wait_status;

    if (!rank || !rank->running || !rank->pid || !(WIFEXITED(status) || WIFSIGNALED(status)))
        return -1;
    take_slot(rank, ended->slot);
    output_end(head->output, ended->rank);
    rank->running = false;
    rank->wait_status = status;
    rank->in_order = ended->in_order;
    head->n_running--;
    head_judge(head, ended->rank);
    return 0;
}

static int take_abort(struct launch_head *head, int node, const struct message_abort *abort)
{
    struct head_rank *rank = rank_of(head, node, abort->rank);

    if (!rank)
        return -1;
    take_slot(rank, abort->slot);
    rank->has_aborted = true;
    head_set_cause(head, &(struct death){ .kind = DEATH_ABORT,
                                          .rank = abort->rank,
                                          .status = abort->status,
                                          .text = abort->reason });
    return 0;
}

static int take_output(struct launch_head *head, int node, const struct message_output *output)
{
    if (!rank_of(head, node, output->rank))
        return -1;
    output_take(head->output, output->rank, output->is_stderr ? OUTPUT_STDERR : OUTPUT_STDOUT,
                output->bytes.data, output->bytes.n_bytes);
    head->nodes[node].uncredited_bytes += (uint32_t)output->bytes.n_bytes;
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
        link_send(&node->link, &(struct message){ .kind = MESSAGE_CREDIT,
                                                  .credit.n_bytes = node->uncredited_bytes });
        node->uncredited_bytes = 0;
    }
}

static int take_progress(struct launch_head *head, int node,
                         const struct message_progress *progress)
{
    struct head_rank *rank = rank_of(head, node, progress->rank);

    if (!rank)
        return -1;
    take_slot(rank, progress->slot);
    head->watched[progress->rank].stopped = progress->is_stopped;
    return 0;
}

static void take_failed(struct launch_head *head, int node, const struct message_failed *failed)
{
    enum err_code code = (enum err_code)failed->code;

    if (head->start_err.code != ERR_NONE)
        return;
    if (code < ERR_FAILED || code > ERR_PEER)
        code = ERR_FAILED;
    err_set(&head->start_err, code, "%.1900s", failed->reason);
    if (head->nodes[node].host_index >= 0)
        err_add(&head->start_err, "host %s", head->nodes[node].host);
}

/* Returns -1 for a message that the state does not allow. */
static int take_message(struct launch_head *head, int node, const struct message *message)
{
    if (message->kind == MESSAGE_HELLO)
        return take_hello(head, node, &message->hello);
    if (message->kind == MESSAGE_BEAT)
        return 0;
    if (!head->is_started)
        return -1;
    switch (message->kind) {
    case MESSAGE_STARTED:
        return take_started(head, node, &message->started);
    case MESSAGE_ENDED:
        return take_ended(head, node, &message->ended);
    case MESSAGE_ABORT:
        return take_abort(head, node, &message->abort);
    case MESSAGE_FAILED:
        take_failed(head, node, &message->failed);
        return 0;
    case MESSAGE_OUTPUT:
        return take_output(head, node, &message->output);
    case MESSAGE_PROGRESS:
        return take_progress(head, node, &message->progress);
    case MESSAGE_REPORT:
        log_warn("node %s: %.500s", head->nodes[node].host, message->report.line);
        return 0;
    case MESSAGE_FENCE:
        return head_take_fence(head, node, &message->fence);
    case MESSAGE_CARD_REQUEST:
        return head_take_card_request(head, node, &message->card_request);
    case MESSAGE_CARD_REPLY:
        return head_take_card_reply(head, &message->card_reply);
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
