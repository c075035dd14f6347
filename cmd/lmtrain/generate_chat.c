/*
 * generate_chat.c - turns read from stdin, answers to stdout, and the conversation kept
 *
 * The generator keeps what it has computed: each turn costs its own tokens only, unless the
 * template writes earlier turns in another way once there are later ones.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "chat_line.h"
#include "generation.h"

struct talk {
    struct generation *g;
    struct chat_message *messages;
    int n, capacity;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static int add(struct talk *t, const char *role, const char *content, struct err *err)
{
    if (t->n == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 16;
        struct chat_message *more = realloc(t->messages, sizeof *more * (size_t)capacity);

        if (!more)
            return err_set(err, ERR_DEVICE, "out of host memory");
        t->messages = more;
        t->capacity = capacity;
    }
    char *copy = strdup(content);
    if (!copy)
        return err_set(err, ERR_DEVICE, "out of host memory");
    t->messages[t->n++] = (struct chat_message){ role, copy, NULL };
    return 0;
}

static void drop(struct talk *t, int n_kept)
{
    while (t->n > n_kept)
        free((void *)(uintptr_t)t->messages[--t->n].content);
}

static int begin(struct talk *t, struct err *err)
{
    drop(t, 0);
    return t->g->q->system ? add(t, "system", t->g->q->system, err) : 0;
}

static int show(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    generate_write(bytes, n_bytes);
    return interrupted || ferror(stdout);
}

static int answer(struct talk *t, struct err *err)
{
    struct generate_text text = { .name = (uint64_t)t->n };
    int status = generate_encode_messages(t->g, t->messages, t->n, &text.tokens, NULL, err);

    if (!status)
        status = generator_run(t->g->generator, &text, 1, show, NULL, err);
    if (!status) {
        printf("\n");
        fflush(stdout);
        struct str shown = { 0 };
        str_add_utf8(&shown, str_text(&text.text), text.text.length);
        status = add(t, "assistant", str_text(&shown), err);
        str_release(&shown);
    }
    generate_text_release(&text);
    return status;
}

/* A line that begins with '/': 1 if it was a command, 2 to end. */
static int command(struct talk *t, const char *line, struct err *err)
{
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        return 2;
    if (!strcmp(line, "/clear"))
        return begin(t, err) < 0 ? -1 : 1;
    if (!strcmp(line, "/help")) {
        fprintf(stderr, "/clear starts a new conversation, /quit exits; Ctrl-C stops an answer\n");
        return 1;
    }
    return 0;
}

static int turn(struct talk *t, const char *line, struct err *err)
{
    const unsigned char *bytes = (const unsigned char *)line;
    size_t n_bytes = strlen(line);

    for (size_t at = 0; at < n_bytes;) {
        int length = str_utf8_length(bytes + at, n_bytes - at);

        if (!length)
            return err_set(err, ERR_DATA,
                           "standard input: byte %zu of a message (0x%02x) is not valid UTF-8", at,
                           bytes[at]);
        at += (size_t)length;
    }
    return add(t, "user", line, err) < 0 || answer(t, err) < 0 ? -1 : 0;
}

static int converse(struct talk *t, struct chat_line *line, struct err *err)
{
    int status = begin(t, err);
    const char *text;

    while (!status) {
        interrupted = 0;
        double begin = clock_seconds();
        enum chat_line_state state = chat_line_read(line, &text);
        t->g->typing_s += clock_seconds() - begin;
        if (state == CHAT_LINE_END)
            break;
        if (state == CHAT_LINE_INTERRUPTED || !*text)
            continue;
        int is_command = *text == '/' ? command(t, text, err) : 0;
        if (is_command == 2)
            break;
        status = is_command < 0 ? -1 : is_command ? 0 : turn(t, text, err);
    }
    return status;
}

int generate_talk(struct generation *g, struct err *err)
{
    struct talk t = { .g = g };
    struct sigaction action = { .sa_handler = on_interrupt };
    bool is_terminal = isatty(0) && isatty(1);
    struct chat_line *line;

    if (chat_line_open(&line, is_terminal, err))
        return -1;
    if (is_terminal) {
        sigaction(SIGINT, &action, NULL);
        fprintf(stderr, "/quit or Ctrl-D exits, /help shows all commands\n");
    }
    int status = converse(&t, line, err);
    chat_line_close(line);
    drop(&t, 0);
    free(t.messages);
    return status;
}
