/*
 * head_daemons.c - daemons that are stopped or silent
 *
 * Ranks are seen through their daemon alone. While it shows nothing of them they are not blamed for
 * standing still, but it is. One on another host that says nothing for long is lost with its node.
 */
#include <stdio.h>

#include "base/log.h"
#include "launch/head/head_impl.h"
#include "launch/proc_impl.h"

int head_is_blind(const struct launch_head *head, const struct head_node *node, double now)
{
    struct proc_stat stat;

    if (node->is_lost)
        return 0;
    if (!node->daemon)
        return now - node->link.heard_at > head->lost_seconds / 2;
    return !proc_stat(node->daemon, &stat) && (stat.state == 'T' || stat.state == 't');
}

static void describe_blindness(const struct head_node *node, double now, char *text, size_t size)
{
    double seconds = now - node->blind_since;

    if (node->daemon)
        snprintf(text, size,
                 "the daemon of node %s (pid %d) has been stopped by a signal for %.0f s: its "
                 "ranks cannot be monitored (hint: kill -CONT %d)",
                 node->host, (int)node->daemon, seconds, (int)node->daemon);
    else
        snprintf(
            text, size,
            "no heartbeat from the daemon of node %s for %.0f s: its ranks cannot be monitored",
            node->host, seconds);
}

void head_watch_daemons(struct launch_head *head, double now)
{
    const struct supervise_options *options = head->options;
    char text[512];

    for (int i = 0; i < head->n_nodes; i++) {
        struct head_node *node = &head->nodes[i];

        if (!head_is_blind(head, node, now)) {
            node->blind_since = 0;
            continue;
        }
        if (node->blind_since <= 0) {
            node->blind_since = now;
            node->blindness_told = 0;
        }
        for (int k = 0; k < node->n_ranks; k++)
            hang_watch_restart_rank(&head->hang, node->first_rank + k, now);
        double seconds = now - node->blind_since;
        describe_blindness(node, now, text, sizeof text);
        if (options->hang_seconds > 0 && seconds >= options->hang_seconds &&
            !node->blindness_told) {
            log_warn("%s", text);
            node->blindness_told = 1;
        }
        if (options->hang_abort_seconds > 0 && seconds >= options->hang_abort_seconds)
            head_set_cause(head, WEIGHT_OWN, -1, ERR_PEER, text);
    }
}

void head_watch_links(struct launch_head *head, double now)
{
    for (int i = 0; i < head->n_nodes; i++) {
        struct head_node *node = &head->nodes[i];
        char why[64];

        if (node->daemon || node->is_lost)
            continue;
        if (now - node->link.sent_at >= head->lost_seconds / 4)
            link_send(&node->link, &(struct message){ .kind = MESSAGE_BEAT });
        if (now - node->link.heard_at < 3 * head->lost_seconds)
            continue;
        snprintf(why, sizeof why, "no heartbeat from its daemon for %.0f s",
                 now - node->link.heard_at);
        head_lose_node(head, i, why);
    }
}
