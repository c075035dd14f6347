/*
 * message_fuzz.c - what heads and daemons send each other: messages, job specs, frames
 *
 * The first byte selects one: the bytes of a message, of a job spec, a stream of frames that comes
 * through a socket in pieces, or the values of a message's fields, of the kind that the second byte
 * selects. What is decoded must encode to the same bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/job_spec_message_impl.h"
#include "launch/remote/link_impl.h"
#include "progress/progress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_bytes(struct str *bytes, const void *data, size_t n_bytes)
{
    CHECK(bytes->length == n_bytes);
    CHECK(!memcmp(str_text(bytes), data, n_bytes));
    str_release(bytes);
}

static void take_message(const void *data, size_t n_bytes)
{
    struct message message;
    struct str bytes = { 0 };
    struct err err = { 0 };

    if (message_decode(data, n_bytes, &message, &err) < 0) {
        CHECK(err.code == ERR_PEER);
        return;
    }
    message_encode(&message, &bytes);
    check_bytes(&bytes, data, n_bytes);
}

static void take_spec(const void *data, size_t n_bytes)
{
    struct job_spec spec;
    struct arena arena = { 0 };
    struct str bytes = { 0 };
    struct err err = { 0 };

    if (job_spec_decode(&spec, data, n_bytes, &arena, &err) < 0) {
        CHECK(err.code == ERR_PEER);
    } else {
        int n = 0;

        CHECK(0 <= spec.node && spec.node < spec.n_nodes);
        for (int i = 0; i < spec.n_nodes; i++) {
            CHECK(spec.nodes[i].first_rank == n);
            n += spec.nodes[i].n_ranks;
        }
        CHECK(n == spec.n_ranks);
        job_spec_encode(&spec, &bytes);
        check_bytes(&bytes, data, n_bytes);
    }
    arena_release(&arena);
}

/* ---- a message of any kind, its fields filled from the input ---- */

struct source {
    const unsigned char *at, *end;
};

static uint32_t next_number(struct source *source)
{
    uint32_t number = 0;

    for (int i = 0; i < 4 && source->at < source->end; i++)
        number = number << 8 | *source->at++;
    return number;
}

static struct message_bytes next_bytes(struct source *source)
{
    size_t n = next_number(source) % 300, left = (size_t)(source->end - source->at);

    n = n < left ? n : left;
    source->at += n;
    return (struct message_bytes){ source->at - n, n };
}

static const char *next_text(struct source *source, struct arena *arena)
{
    struct message_bytes bytes = next_bytes(source);

    return arena_strndup(arena, bytes.data, strnlen(bytes.data, bytes.n_bytes));
}

static const void *next_slot(struct source *source, struct arena *arena)
{
    size_t n_bytes = sizeof(struct progress_slot);

    return memset(arena_alloc(arena, n_bytes), (int)(next_number(source) % 256), n_bytes);
}

#define NEXT_number ((int)next_number(&source))
#define NEXT_count next_number(&source)
#define NEXT_flag (next_number(&source) % 2 != 0)
#define NEXT_outcome ((enum launch_outcome)(next_number(&source) % (OUTCOME_NOT_FOUND + 1)))
#define NEXT_text next_text(&source, arena)
#define NEXT_bytes next_bytes(&source)
#define NEXT_slot next_slot(&source, arena)

#define FILL_FIELD(type, name) body->name = NEXT_##type;
#define FILL(KIND, name, fields) \
    case MESSAGE_##KIND: { \
        struct message_##name *body = &message.name; \
        (void)body; \
        fields break; \
    }

static struct message make_message(struct source source, struct arena *arena)
{
    uint32_t kind = source.at < source.end ? *source.at++ : 0u;
    struct message message = { .kind = (enum message_kind)(1 + kind % (MESSAGE_KINDS - 1)) };

    switch (message.kind) {
        MESSAGES(FILL, FILL_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        break;
    }
    return message;
}

static void send_message(const unsigned char *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct message message = make_message((struct source){ data, data + n_bytes }, &arena), found;
    struct str bytes = { 0 }, again = { 0 };
    struct err err = { 0 };

    message_encode(&message, &bytes);
    CHECK(message_decode(str_text(&bytes), bytes.length, &found, &err) == 0);
    CHECK(found.kind == message.kind);
    message_encode(&found, &again);
    check_bytes(&again, str_text(&bytes), bytes.length);
    str_release(&bytes);
    arena_release(&arena);
}

/* All whole frames come out, in whatever pieces they came in. */
static void take_stream(const unsigned char *data, size_t n_bytes)
{
    struct link link;
    struct message message;
    struct err err = { 0 };
    int ends[2], status = 1;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    link_open(&link, ends[0], 10);
    size_t piece = n_bytes > 0 ? 1 + data[0] % 64u : 1;
    for (size_t at = 0; at < n_bytes && status >= 0; at += piece) {
        size_t n = n_bytes - at < piece ? n_bytes - at : piece;

        CHECK(write(ends[1], data + at, n) == (ssize_t)n);
        if (link_receive(&link, &err) < 0)
            break;
        while ((status = link_next(&link, &message, &err)) == 1)
            CHECK(message.kind >= 1 && message.kind < MESSAGE_KINDS);
    }
    CHECK(status >= 0 || err.code == ERR_PEER);
    link_close(&link);
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 1)
        return 0;
    /* A copy of just its size, so that a byte read behind the end is seen. */
    unsigned char *copy = malloc(n_bytes == 1 ? 1 : n_bytes - 1);
    CHECK(copy);
    memcpy(copy, data + 1, n_bytes - 1);
    if (data[0] % 4 == 0)
        take_message(copy, n_bytes - 1);
    else if (data[0] % 4 == 1)
        take_spec(copy, n_bytes - 1);
    else if (data[0] % 4 == 2)
        take_stream(copy, n_bytes - 1);
    else
        send_message(copy, n_bytes - 1);
    free(copy);
    return 0;
}
