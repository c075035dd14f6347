/*
 * srun_messages.c - what srun reports of its tasks and nodes
 *
 * srun's own status is the highest of its tasks', so that the tasks which it kills itself (143,
 * 137) hide the one that ended first. Its messages show it: "srun: error: n1: task 1: Exited with
 * exit code 3", a form that has not changed for many years. Lines of another form are ignored.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/str.h"
#include "launch/death_impl.h"
#include "launch/slurm/slurm_impl.h"

/* "n1: task 1: Killed", behind "srun: error: ". */
static int task_status(const char *text)
{
    const char *task = strstr(text, ": task");
    const char *how = task ? strstr(task + 2, ": ") : NULL;

    /* The node's name has no blank. */
    if (!how || strcspn(text, " ") < (size_t)(task - text))
        return 0;
    return death_status_of_srun_task(how + 2);
}

static void note_lost(struct srun_messages *messages, const char *name)
{
    size_t length = strcspn(name, ":, \n");

    if (!length)
        return;
    if (messages->lost.length)
        str_add_char(&messages->lost, ',');
    str_add_bytes(&messages->lost, name, length);
}

static void read_line(struct srun_messages *messages)
{
    static const char error[] = "srun: error: ", failure[] = "Node failure on ",
                      launch[] = "Task launch for ", on[] = " failed on node ",
                      signalled[] = ": User defined signal 1";
    const char *text = messages->line + strlen(error), *node;
    int status;

    if (str_starts_with(messages->line, "srun: Cancelled pending job step"))
        messages->was_too_early = true;
    if (!str_starts_with(messages->line, error))
        return;
    messages->was_too_early |= task_status(text) && strstr(text, signalled);
    if (str_starts_with(text, failure))
        note_lost(messages, text + strlen(failure));
    else if (str_starts_with(text, launch) && (node = strstr(text, on)))
        note_lost(messages, node + strlen(on));
    else if ((status = task_status(text)) &&
             (!messages->first_status || messages->first_status == ERR_REQUEUE))
        messages->first_status = status;
}

void srun_messages_read(struct srun_messages *messages, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] != '\n') {
            if (messages->length < sizeof messages->line - 1)
                messages->line[messages->length++] = text[i];
            continue;
        }
        messages->line[messages->length] = '\0';
        read_line(messages);
        messages->length = 0;
    }
}

int slurm_status(int wait_status, const struct srun_messages *messages)
{
    return death_status_of_srun(wait_status, messages->first_status, messages->lost.length > 0);
}

int slurm_was_too_early(int wait_status, const struct srun_messages *messages)
{
    int number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;

    if (death_would_recur(messages->first_status))
        return 0;
    return messages->was_too_early || number == SIGUSR1 || number == SIGINT;
}

/* ---- nodes ---- */

static int stands_in(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (; list && *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
        if (!strncmp(list, name, length) && (!list[length] || list[length] == ','))
            return 1;
    return 0;
}

/*
 * A node that is being drained still runs what it has. The '*' of one that does not answer stands
 * for a while also behind a node whose step was just killed, so it says nothing; whether such a
 * node is gone shows when a step is launched on it.
 */
static int is_gone_state(const char *state)
{
    static const char *const gone[] = { "down", "unknown", "power", "reboot", "fail" };

    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (str_starts_with(state, gone[i]))
            return 1;
    return 0;
}

static int state_is_gone(const char *states, const char *name)
{
    size_t length = strlen(name);

    while (*states) {
        size_t line = strcspn(states, "\n");

        if (line > length && !strncmp(states, name, length) && states[length] == ' ')
            return is_gone_state(states + length + 1);
        states += line + (states[line] == '\n');
    }
    return 0;
}

int slurm_find_gone(const char *states, const char *lost, char *const *names, int n, bool *is_gone)
{
    int n_gone = 0;

    for (int i = 0; i < n; i++) {
        is_gone[i] = state_is_gone(states, names[i]) || stands_in(lost, names[i]);
        n_gone += is_gone[i];
    }
    return n_gone;
}
