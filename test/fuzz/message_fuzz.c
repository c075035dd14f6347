/*
 * message_fuzz.c - what heads and daemons send each other: messages, job specs, frames
 *
 * The first byte says which: one message, one job spec, or a stream of frames that comes through a
 * socket in pieces. What is taken must encode to the very bytes that it was taken from.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/job_spec_message_impl.h"
#include "launch/remote/link_impl.h"

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
    if (data[0] % 3 == 0)
        take_message(copy, n_bytes - 1);
    else if (data[0] % 3 == 1)
        take_spec(copy, n_bytes - 1);
    else
        take_stream(copy, n_bytes - 1);
    free(copy);
    return 0;
}
