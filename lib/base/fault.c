/*
 * fault.c - the rules of LMTRAIN_FAULT, and what they do
 */
#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"

enum { N_RULES_MAX = 64, PLACE_BYTES = 128 };

enum fault_action {
    ACTION_SIGKILL,
    ACTION_SIGTERM,
    ACTION_SEGV,
    ACTION_ABORT,
    ACTION_EXIT,
    ACTION_STOP,
    ACTION_STALL,
    ACTION_SLEEP,
    ACTION_NAN,
    ACTION_FLIP,
    ACTION_FLIPS,
    ACTION_SPIKE,
    ACTION_SKEW,
    ACTION_SLOW,
    N_ACTIONS
};

static const char *const action_names[N_ACTIONS] = {
    [ACTION_SIGKILL] = "sigkill", [ACTION_SIGTERM] = "sigterm", [ACTION_SEGV] = "segv",
    [ACTION_ABORT] = "abort",     [ACTION_EXIT] = "exit",       [ACTION_STOP] = "stop",
    [ACTION_STALL] = "stall",     [ACTION_NAN] = "nan",         [ACTION_FLIP] = "flip",
    [ACTION_FLIPS] = "flips",     [ACTION_SPIKE] = "spike",     [ACTION_SKEW] = "skew",
    [ACTION_SLOW] = "slow",       [ACTION_SLEEP] = "sleep",
};

static const char *const places[] = {
    "start",
    "joined",
    "preflight",
    "preflight:repeat",
    "preflight:memory",
    "data",
    "step",
    "load",
    "evaluate",
    "gradients",
    "rerun",
    "trace",
    "save:begin",
    "save:writing",
    "save:before_rename",
    "save:renamed",
    "save:before_manifest",
    "save:before_commit",
    "save:committed",
    "convert:begun",
    "convert:writing",
    "convert:file",
    "convert:carried",
    "convert:sealed",
    "tokenize:writing",
    "tokenize:renamed",
    "merge:copied",
    "merge:renamed",
};

enum { N_PLACES = sizeof places / sizeof *places };

struct rule {
    char place[PLACE_BYTES];
    int64_t index; /* -1: any */
    int64_t rank, attempt;
    enum fault_action action;
    int64_t seconds; /* of sleep */
    atomic_int fired;
};

static struct rule rules[N_RULES_MAX];
static int n_rules; /* of this rank and attempt */
static int watches_ops, own_rank;

/* ---- reading rules ---- */

static int refuse(const char *rule, const char *why, struct err *err)
{
    struct str text = { 0 };

    for (int i = 0; i < N_PLACES; i++)
        str_printf(&text, "%s%s", i ? ", " : "", places[i]);
    str_add(&text, ", op:TEXT; actions are ");
    for (int i = 0; i < N_ACTIONS; i++)
        str_printf(&text, "%s%s%s", i ? ", " : "", action_names[i], i == ACTION_SLEEP ? "N" : "");
    err_set(err, ERR_CONFIG,
            "LMTRAIN_FAULT: %s in '%s', which is [attemptN:]rankR:PLACE[:N][:ACTION] (hint: places "
            "are %s)",
            why, rule, str_text(&text));
    str_release(&text);
    return -1;
}

/* "NAME<number>:" at *text: past it and 1, else 0. */
static int take_number(const char **text, const char *name, int64_t *number)
{
    char digits[16] = "";
    size_t n = strlen(name);

    if (strncmp(*text, name, n) != 0)
        return 0;
    size_t n_digits = strspn(*text + n, "0123456789");
    if (!n_digits || n_digits >= sizeof digits || (*text)[n + n_digits] != ':')
        return 0;
    memcpy(digits, *text + n, n_digits);
    *text += n + n_digits + 1;
    return str_to_i64(digits, number) == 0;
}

/* The seconds of "sleepN"; -1: it is another text. */
static int64_t read_sleep(const char *text)
{
    const char *name = action_names[ACTION_SLEEP];
    int64_t seconds;

    if (!str_starts_with(text, name) || !text[strlen(name)] ||
        str_to_i64(text + strlen(name), &seconds) < 0 || seconds > 1000000)
        return -1;
    return seconds;
}

/* Cut ":ACTION" off the end of the rule's place, if one is there. */
static void cut_action(struct rule *rule)
{
    char *colon = strrchr(rule->place, ':');

    if (!colon)
        return;
    for (int i = 0; i < N_ACTIONS; i++)
        if (i == ACTION_SLEEP ? (rule->seconds = read_sleep(colon + 1)) >= 0
                              : !strcmp(colon + 1, action_names[i])) {
            rule->action = (enum fault_action)i;
            *colon = '\0';
            return;
        }
}

/* Cut ":N" off the end of place, or the N of "stepN". */
static void cut_index(char *place, int64_t *index)
{
    char *colon = strrchr(place, ':');
    char *digits = colon ? colon + 1 : str_starts_with(place, "step") ? place + 4 : NULL;

    if (!digits || !*digits || digits[strspn(digits, "0123456789")] ||
        str_to_i64(digits, index) < 0)
        return;
    *(colon ? colon : digits) = '\0';
}

static bool is_place(const char *place)
{
    if (str_starts_with(place, "op:"))
        return place[3] != '\0';
    for (int i = 0; i < N_PLACES; i++)
        if (!strcmp(place, places[i]))
            return true;
    return false;
}

static int read_rule(struct rule *rule, const char *text, struct err *err)
{
    const char *rest = text;

    *rule = (struct rule){ .index = -1 };
    take_number(&rest, "attempt", &rule->attempt);
    if (!take_number(&rest, "rank", &rule->rank))
        return refuse(text, "no rank", err);
    if (strlen(rest) >= sizeof rule->place)
        return refuse(text, "too long a place", err);
    memcpy(rule->place, rest, strlen(rest) + 1);
    cut_action(rule);
    cut_index(rule->place, &rule->index);
    if (!is_place(rule->place))
        return refuse(text, "an unknown place or action", err);
    if (rule->action == ACTION_NAN && strcmp(rule->place, "gradients") != 0)
        return refuse(text, "nan, which is for gradients:N,", err);
    if (rule->action == ACTION_SPIKE && strcmp(rule->place, "gradients") != 0)
        return refuse(text, "spike, which is for gradients:N,", err);
    if (rule->action == ACTION_FLIP && strcmp(rule->place, "gradients") != 0 &&
        strcmp(rule->place, "step") != 0 && !str_starts_with(rule->place, "preflight") &&
        !str_starts_with(rule->place, "op:"))
        return refuse(text, "flip, which is for step:N, gradients:N, preflight and op:TEXT,", err);
    if (rule->action == ACTION_FLIPS && !str_starts_with(rule->place, "op:"))
        return refuse(text, "flips, which is for op:TEXT,", err);
    if (rule->action == ACTION_SKEW && strcmp(rule->place, "trace") != 0)
        return refuse(text, "skew, which is for trace:N,", err);
    if (rule->action == ACTION_SLOW && strcmp(rule->place, "step") != 0 &&
        strcmp(rule->place, "load") != 0 && strcmp(rule->place, "preflight") != 0)
        return refuse(text, "slow, which is for step:N, load:N and preflight,", err);
    return 0;
}

int fault_init(int world_rank, int attempt, struct err *err)
{
    const char *text = getenv("LMTRAIN_FAULT");
    char *copy = text ? strdup(text) : NULL, *rest = copy, *word;
    int status = 0;

    n_rules = 0;
    watches_ops = 0;
    own_rank = world_rank;
    while (!status && rest && (word = strsep(&rest, ","))) {
        struct rule *rule = &rules[n_rules];

        if (!*word)
            continue;
        if (n_rules == N_RULES_MAX) {
            status = err_set(err, ERR_CONFIG, "LMTRAIN_FAULT has more than %d rules for a rank",
                             N_RULES_MAX);
            break;
        }
        status = read_rule(rule, word, err);
        if (status || rule->rank != world_rank || rule->attempt != attempt)
            continue;
        watches_ops |= str_starts_with(rule->place, "op:");
        n_rules++;
    }
    if (status)
        n_rules = 0;
    free(copy);
    return status;
}

/* ---- doing what they say ---- */

static void die_of(int signal_number)
{
    signal(signal_number, SIG_DFL);
    kill(getpid(), signal_number);
    for (;;)
        pause();
}

static void sleep_for(int64_t seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

static enum fault perform(const struct rule *rule)
{
    switch (rule->action) {
    case ACTION_SIGKILL:
        die_of(SIGKILL);
        break;
    case ACTION_SEGV:
        die_of(SIGSEGV);
        break;
    case ACTION_SIGTERM:
        kill(getpid(), SIGTERM);
        break;
    case ACTION_ABORT:
        abort();
    case ACTION_EXIT:
        _exit(1);
    case ACTION_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case ACTION_STALL:
        for (;;)
            pause();
    case ACTION_SLEEP:
        sleep_for(rule->seconds);
        break;
    case ACTION_NAN:
        return FAULT_NAN;
    case ACTION_FLIP:
    case ACTION_FLIPS:
        return FAULT_FLIP;
    case ACTION_SPIKE:
        return FAULT_SPIKE;
    case ACTION_SKEW:
        return FAULT_SKEW;
    case ACTION_SLOW:
        return FAULT_SLOW;
    case N_ACTIONS:
        break;
    }
    return FAULT_NONE;
}

/* Whether the rule is to be heeded now: what lasts always is, from its step on. */
static bool is_on(struct rule *rule, int64_t index, int lasting_alone)
{
    if (rule->action == ACTION_FLIPS)
        return index >= rule->index;
    return !lasting_alone && (rule->index < 0 || rule->index == index) &&
           !atomic_load(&rule->fired);
}

/* prefix and place are the rule's place. */
static enum fault at(const char *prefix, const char *place, int64_t index, int lasting_alone)
{
    enum fault fault = FAULT_NONE;
    size_t n = strlen(prefix);
    char number[24];

    for (int i = 0; i < n_rules; i++) {
        struct rule *rule = &rules[i];

        if (strncmp(rule->place, prefix, n) != 0 || strcmp(rule->place + n, place) != 0 ||
            !is_on(rule, index, lasting_alone))
            continue;
        if (atomic_exchange(&rule->fired, 1)) {
            if (rule->action == ACTION_FLIPS)
                fault = FAULT_FLIP;
            continue;
        }
        snprintf(number, sizeof number, ":%lld", (long long)index);
        log_warn("LMTRAIN_FAULT: rank %d at %s%s%s: %s", own_rank, prefix, place,
                 index < 0 ? "" : number, action_names[rule->action]);
        enum fault wanted = perform(rule);
        if (wanted)
            fault = wanted;
    }
    return fault;
}

enum fault fault_at(const char *place, int64_t index)
{
    return n_rules ? at("", place, index, 0) : FAULT_NONE;
}

int fault_watches_ops(void)
{
    return watches_ops;
}

enum fault fault_at_op(const char *text, int64_t step, int is_recheck)
{
    return watches_ops ? at("op:", text, step, is_recheck) : FAULT_NONE;
}
