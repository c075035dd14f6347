/*
 * head_fences.c - what ranks of different nodes exchange through PMIx
 *
 * A fence over two nodes, in time order:
 *
 *     1. Ranks 0 and 1 call PMIx_Fence. PMIx on node A calls its daemon once both of its ranks are
 *        there (pmix_server.c, on_fence), with what they have published as one blob.
 *     2. A's daemon sends FENCE (id 7 of its own, members "*", the blob). The head makes a fence
 *        under the name "*" and notes id 7 for node A.
 *     3. The same on node B, with an id of B's. The head appends B's blob. No node is missing any
 *        more.
 *     4. The head sends FENCE_END to A (id 7) and to B (its id), with all blobs. Each daemon
 *        completes the call of PMIx that it has kept under that id.
 *
 * Where a rank dies between 2 and 4, the head ends all fences with OUTCOME_DEAD; a FENCE that was
 * sent before its daemon knew of the death arrives later and is answered with OUTCOME_DEAD as well.
 * Two fences of the same members cannot be under way at once, so their list is a sufficient name.
 *
 * A request for a rank's card goes to the node of that rank, and the reply to the node that sent
 * the request; the head keeps no state of it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "launch/head/head_impl.h"

enum { FENCES_MAX = 1024, BLOBS_MAX = LINK_FRAME_MAX - MESSAGE_TEXT_MAX - 64 };

struct head_fence {
    struct head_fence *next;
    char *members;
    int n_missing;
    double due; /* 1e300: never */
    struct str blobs;
    uint32_t *ids; /* by node: its name for the fence; 0: has not come */
    bool *takes;   /* by node: whether it takes part */
};

static void destroy(struct head_fence *fence)
{
    free(fence->members);
    free(fence->ids);
    free(fence->takes);
    str_release(&fence->blobs);
    free(fence);
}

static void answer(struct launch_head *head, int node, uint32_t id, enum launch_outcome outcome,
                   const struct str *blobs)
{
    struct message message = { .kind = MESSAGE_FENCE_END,
                               .fence_end = { .id = id, .outcome = outcome } };

    if (blobs)
        message.fence_end.data = (struct message_bytes){ str_text(blobs), blobs->length };
    link_send(&head->nodes[node].link, &message);
}

/* Answer all who have come, and forget the fence, which *at points to. */
static void settle(struct launch_head *head, struct head_fence **at, enum launch_outcome outcome)
{
    struct head_fence *fence = *at;

    *at = fence->next;
    for (int node = 0; node < head->n_nodes; node++)
        if (fence->ids[node])
            answer(head, node, fence->ids[node], outcome,
                   outcome == OUTCOME_DONE ? &fence->blobs : NULL);
    destroy(fence);
}

void head_fail_fences(struct launch_head *head)
{
    while (head->fences)
        settle(head, &head->fences, OUTCOME_DEAD);
}

double head_check_fences(struct launch_head *head, double now)
{
    double next = 1e300;

    for (struct head_fence **at = &head->fences; *at;) {
        if (now >= (*at)->due) {
            settle(head, at, OUTCOME_TIMEOUT);
            continue;
        }
        if ((*at)->due < next)
            next = (*at)->due;
        at = &(*at)->next;
    }
    return next;
}

/* Mark the nodes of "*" or "0,3" in takes; returns how many, or -1 for nonsense. */
static int mark_members(const struct launch_head *head, const char *members, bool *takes)
{
    int n = 0;

    if (!strcmp(members, "*")) {
        for (int node = 0; node < head->n_nodes; node++)
            takes[node] = true;
        return head->n_nodes;
    }
    while (*members) {
        char *end;
        long rank = strtol(members, &end, 10);

        if (end == members || rank < 0 || rank >= head->n_ranks || (*end && *end != ','))
            return -1;
        n += !takes[head->ranks[rank].node];
        takes[head->ranks[rank].node] = true;
        members = *end ? end + 1 : end;
    }
    return n;
}

static struct head_fence *make_fence(struct launch_head *head, const char *members)
{
    struct head_fence *fence = calloc(1, sizeof *fence);

    CHECK(fence);
    fence->members = strdup(members);
    fence->ids = calloc((size_t)head->n_nodes, sizeof *fence->ids);
    fence->takes = calloc((size_t)head->n_nodes, sizeof *fence->takes);
    CHECK(fence->members);
    CHECK(fence->ids);
    CHECK(fence->takes);
    fence->due = 1e300;
    fence->n_missing = mark_members(head, members, fence->takes);
    if (fence->n_missing <= 0) {
        destroy(fence);
        return NULL;
    }
    return fence;
}

int head_take_fence(struct launch_head *head, int node, const struct message_fence *message)
{
    struct head_fence **at = &head->fences;
    int n_fences = 0;

    if (!message->id)
        return -1;
    if (head->a_rank_died || head->phase != RUNNING) {
        answer(head, node, message->id, OUTCOME_DEAD, NULL);
        return 0;
    }
    for (; *at && strcmp((*at)->members, message->members); at = &(*at)->next)
        n_fences++;
    if (!*at && n_fences < FENCES_MAX)
        *at = make_fence(head, message->members);
    struct head_fence *fence = *at;
    if (!fence || !fence->takes[node] || fence->ids[node])
        return -1;
    fence->ids[node] = message->id;
    fence->n_missing--;
    if (message->seconds > 0 && fence->due >= 1e300)
        fence->due = clock_seconds() + message->seconds;
    if (message->data.n_bytes > BLOBS_MAX - fence->blobs.length) {
        settle(head, at, OUTCOME_NOT_FOUND);
        return 0;
    }
    str_add_bytes(&fence->blobs, message->data.data, message->data.n_bytes);
    if (!fence->n_missing)
        settle(head, at, OUTCOME_DONE);
    return 0;
}

/* Answer a card request, as far as its node is still there. */
static void send_card(struct launch_head *head, int node, const struct message_card *card)
{
    if (!head->nodes[node].is_lost)
        link_send(&head->nodes[node].link,
                  &(struct message){ .kind = MESSAGE_CARD, .card = *card });
}

int head_take_card_request(struct launch_head *head, int node,
                           const struct message_card_request *request)
{
    if (request->rank < 0 || request->rank >= head->n_ranks)
        return -1;
    int owner = head->ranks[request->rank].node;

    if (head->nodes[owner].is_lost)
        send_card(head, node,
                  &(struct message_card){ .id = request->id, .outcome = OUTCOME_NOT_FOUND });
    else
        link_send(&head->nodes[owner].link,
                  &(struct message){
                      .kind = MESSAGE_CARD_QUERY,
                      .card_query = { .rank = request->rank, .node = node, .id = request->id } });
    return 0;
}

int head_take_card_reply(struct launch_head *head, const struct message_card_reply *reply)
{
    if (reply->node < 0 || reply->node >= head->n_nodes)
        return -1;
    send_card(
        head, reply->node,
        &(struct message_card){ .id = reply->id, .outcome = reply->outcome, .data = reply->data });
    return 0;
}
