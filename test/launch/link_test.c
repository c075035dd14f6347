/*
 * link_test.c - frames over a stream: in pieces, many, large, hostile, and to nobody
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "launch/remote/link_impl.h"

struct pair {
    struct link a, b;
};

static void open_pair(struct pair *pair)
{
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    link_open(&pair->a, ends[0], 10);
    link_open(&pair->b, ends[1], 10);
}

static void close_pair(struct pair *pair)
{
    link_close(&pair->a);
    link_close(&pair->b);
    link_close(&pair->b);
}

static void test_order(void **state)
{
    struct pair pair;
    struct message message;
    struct err err;

    (void)state;
    open_pair(&pair);
    assert_int_equal(link_receive(&pair.b, &err), 0);
    assert_int_equal(link_next(&pair.b, &message, &err), 0);
    for (int i = 0; i < 100; i++)
        link_send(&pair.a, &(struct message){ .kind = MESSAGE_SIGNAL, .signal.signal = i });
    assert_int_equal(link_receive(&pair.b, &err), 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(link_next(&pair.b, &message, &err), 1);
        assert_int_equal(message.kind, MESSAGE_SIGNAL);
        assert_int_equal(message.signal.signal, i);
    }
    assert_int_equal(link_next(&pair.b, &message, &err), 0);

    /* What came before the end is still there after it. */
    link_send(&pair.a, &(struct message){ .kind = MESSAGE_KILL });
    link_close(&pair.a);
    assert_int_equal(link_receive(&pair.b, &err), -1);
    assert_non_null(strstr(err.text, "its link closed"));
    assert_int_equal(link_next(&pair.b, &message, &err), 1);
    assert_int_equal(message.kind, MESSAGE_KILL);
    close_pair(&pair);
}

/* Byte by byte there is nothing until the last. */
static void test_pieces(void **state)
{
    struct str bytes = { 0 };
    struct pair pair;
    struct message message;
    struct err err;

    (void)state;
    open_pair(&pair);
    message_encode(&(struct message){ .kind = MESSAGE_HELLO, .hello.host = "host" }, &bytes);
    struct str frame = { 0 };
    message_add_number(&frame, (uint32_t)bytes.length);
    str_add_bytes(&frame, bytes.data, bytes.length);
    for (size_t i = 0; i < frame.length; i++) {
        assert_int_equal(link_next(&pair.b, &message, &err), 0);
        assert_int_equal(write(pair.a.fd, frame.data + i, 1), 1);
        assert_int_equal(link_receive(&pair.b, &err), 0);
    }
    assert_int_equal(link_next(&pair.b, &message, &err), 1);
    assert_string_equal(message.hello.host, "host");
    str_release(&bytes);
    str_release(&frame);
    close_pair(&pair);
}

/* More than a socket holds: it is kept and sent as the other side reads. */
static void test_large(void **state)
{
    enum { N = 20 << 20 };
    unsigned char *data = malloc(N);
    struct pair pair;
    struct message message;
    struct err err;
    int found = 0, n_turns = 0;

    (void)state;
    open_pair(&pair);
    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)(i * 7 + (i >> 10));
    for (int i = 0; i < 2; i++)
        link_send(&pair.a,
                  &(struct message){ .kind = MESSAGE_FENCE,
                                     .fence = { .id = (uint32_t)i, .data = { data, N } } });
    assert_true(link_poll(&pair.a).events & POLLOUT);
    for (int n = 0; n < 2 && n_turns < 100000; n_turns++) {
        link_flush(&pair.a);
        assert_int_equal(link_receive(&pair.b, &err), 0);
        found = link_next(&pair.b, &message, &err);
        assert_true(found >= 0);
        if (!found)
            continue;
        assert_int_equal(message.fence.id, n);
        assert_int_equal(message.fence.data.n_bytes, N);
        assert_memory_equal(message.fence.data.data, data, N);
        n++;
    }
    assert_int_equal(found, 1);
    assert_int_equal(link_poll(&pair.a).events, POLLIN);
    /* And the memory is given back. */
    link_receive(&pair.b, &err);
    assert_true(pair.a.out.capacity <= 1 << 20);
    assert_true(pair.b.in.capacity <= 1 << 20);
    free(data);
    close_pair(&pair);
}

static void check_refused(const char *bytes, size_t n_bytes, const char *words)
{
    struct pair pair;
    struct message message;
    struct err err;

    open_pair(&pair);
    assert_int_equal(write(pair.a.fd, bytes, n_bytes), n_bytes);
    assert_int_equal(link_receive(&pair.b, &err), 0);
    assert_int_equal(link_next(&pair.b, &message, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_non_null(strstr(err.text, words));
    assert_int_equal(link_next(&pair.b, &message, &err), -1);
    assert_true(pair.b.in.capacity < 4096);
    close_pair(&pair);
}

static void test_hostile(void **state)
{
    (void)state;
    check_refused("\xff\xff\xff\xff", 4, "a frame of 4294967295 bytes");
    check_refused("\1\0\0\4", 4, "a frame of 67108865 bytes");
    check_refused("\0\0\0\0", 4, "broken");
    check_refused("\4\0\0\0abcd", 8, "unknown kind");
    check_refused("\4\0\0\0\1\0\0\0", 8, "broken");
}

/* Nobody reads any more: no SIGPIPE, and reading tells. */
static void test_gone(void **state)
{
    struct pair pair;
    struct message message;
    struct err err;

    (void)state;
    open_pair(&pair);
    link_close(&pair.b);
    for (int i = 0; i < 10; i++)
        link_send(&pair.a, &(struct message){ .kind = MESSAGE_BEAT });
    assert_int_equal(link_receive(&pair.a, &err), -1);
    assert_int_equal(link_next(&pair.a, &message, &err), 0);
    link_close(&pair.a);
    link_send(&pair.a, &(struct message){ .kind = MESSAGE_BEAT });
    link_flush(&pair.a);
    assert_int_equal(link_poll(&pair.a).fd, -1);
    assert_int_equal(link_receive(&pair.a, &err), -1);
    close_pair(&pair);

    /* Who is killed before it has read all closed its link, too. */
    open_pair(&pair);
    link_send(&pair.a, &(struct message){ .kind = MESSAGE_BEAT });
    link_close(&pair.b);
    assert_int_equal(link_receive(&pair.a, &err), -1);
    assert_non_null(strstr(err.text, "its link closed"));
    close_pair(&pair);
}

static void test_lost_seconds(void **state)
{
    static const struct {
        const char *text;
        double seconds;
    } cases[] = { { "3", 3 }, { "0.5", 10 }, { "x", 10 }, { "4000", 10 }, { "2.5", 2.5 } };

    (void)state;
    unsetenv("LMTRAIN_LINK_SECONDS");
    assert_true(link_lost_seconds() == 10);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("LMTRAIN_LINK_SECONDS", cases[i].text, 1);
        assert_true(link_lost_seconds() == cases[i].seconds);
    }
    unsetenv("LMTRAIN_LINK_SECONDS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_large), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_gone),  cmocka_unit_test(test_lost_seconds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
