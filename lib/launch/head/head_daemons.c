/*
 * head_daemons.c - daemons that are stopped or silent
 *
 * The head sees ranks through their daemon alone. While a daemon sends nothing, its ranks are not
 * reported as hanging; the daemon is. A daemon of another host that is silent for too long is lost
 * with its node.
 */
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

static struct death describe_blindness(const struct head_node *node, double now)
{
    return (struct death){ .kind = node->daemon ? DEATH_DAEMON_STOPPED : DEATH_DAEMON_SILENT,
                           .host = node->host,
                           .pid = (int)node->daemon,
                           .seconds = now - node->blind_since };
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
            node->blindness_told = false;
        }
        for (int k = 0; k < node->n_ranks; k++)
            hang_watch_restart_rank(&head->hang, node->first_rank + k, now);
        struct death death = describe_blindness(node, now);
        double seconds = death.seconds;
        if (options->hang_seconds > 0 && seconds >= options->hang_seconds &&
            !node->blindness_told) {
            log_warn("%s", death_sentence(&death, text, sizeof text));
            node->blindness_told = true;
        }
        if (options->hang_abort_seconds > 0 && seconds >= options->hang_abort_seconds)
            head_set_cause(head, &death);
    }
}

void head_watch_links(struct launch_head *head, double now)
{
    for (int i = 0; i < head->n_nodes; i++) {
        struct head_node *node = &head->nodes[i];

        if (node->daemon || node->is_lost)
            continue;
        if (now - node->link.sent_at >= head->lost_seconds / 4)
            link_send(&node->link, &(struct message){ .kind = MESSAGE_BEAT });
        if (now - node->link.heard_at < 3 * head->lost_seconds)
            continue;
        head_lose_node(head, i, NULL);
    }
}
