/*
 * message_test.c - every message there and back, and bytes that are not one
 *
 * The examples are made from MESSAGES: a new message is tested without a change here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "launch/message_impl.h"
#include "progress/progress.h"

/* ---- an example of every kind: each field has a value that no other field has ---- */

static unsigned char slot_bytes[sizeof(struct progress_slot)];

#define EXAMPLE_number (-1000 - ++n)
#define EXAMPLE_count (UINT32_MAX - (uint32_t)++n)
#define EXAMPLE_flag true
#define EXAMPLE_outcome OUTCOME_NOT_FOUND
#define EXAMPLE_text (++n % 2 ? "device is full" : "0,3")
#define EXAMPLE_bytes ((struct message_bytes){ "\0\1\2", (size_t)(++n % 3) + 1 })
#define EXAMPLE_slot slot_bytes

#define FILL_FIELD(type, field) body->field = EXAMPLE_##type;
#define FILL(KIND, name, fields) \
    case MESSAGE_##KIND: { \
        struct message_##name *body = &message.name; \
        (void)body; \
        fields break; \
    }

static struct message example(enum message_kind kind)
{
    struct message message = { .kind = kind };
    int n = 0;

    for (size_t i = 0; i < sizeof slot_bytes; i++)
        slot_bytes[i] = (unsigned char)(i * 7);
    switch (kind) {
        MESSAGES(FILL, FILL_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        break;
    }
    (void)n;
    return message;
}

/* ---- comparing ---- */

#define CHECK_number(x, y) assert_int_equal(x, y)
#define CHECK_count(x, y) assert_int_equal(x, y)
#define CHECK_flag(x, y) assert_int_equal(x, y)
#define CHECK_outcome(x, y) assert_int_equal(x, y)
#define CHECK_text(x, y) assert_string_equal(x, y)
#define CHECK_bytes(x, y) \
    assert_int_equal((x).n_bytes, (y).n_bytes); \
    assert_memory_equal((x).data, (y).data, (y).n_bytes)
#define CHECK_slot(x, y) assert_memory_equal(x, y, sizeof(struct progress_slot))

#define COMPARE_FIELD(type, field) CHECK_##type(x->field, y->field);
#define COMPARE(KIND, name, fields) \
    case MESSAGE_##KIND: { \
        const struct message_##name *x = &a->name, *y = &b->name; \
        (void)x; \
        (void)y; \
        fields break; \
    }

static void assert_same(const struct message *a, const struct message *b)
{
    assert_int_equal(a->kind, b->kind);
    switch (a->kind) {
        MESSAGES(COMPARE, COMPARE_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        fail();
    }
}

/* ---- within bounds: what a decoded message points to ---- */

#define BOUND_number(x)
#define BOUND_count(x)
#define BOUND_flag(x)
#define BOUND_outcome(x) assert_in_range(x, OUTCOME_DONE, OUTCOME_NOT_FOUND)
#define BOUND_text(x) assert_true((x) >= first && (x) + strlen(x) < end)
#define BOUND_bytes(x) \
    assert_true((const char *)(x).data >= first && (const char *)(x).data + (x).n_bytes <= end)
#define BOUND_slot(x) \
    assert_true((const char *)(x) >= first && \
                (const char *)(x) + sizeof(struct progress_slot) <= end)

#define BOUND_FIELD(type, field) BOUND_##type(body->field);
#define BOUND(KIND, name, fields) \
    case MESSAGE_##KIND: { \
        const struct message_##name *body = &message->name; \
        (void)body; \
        fields break; \
    }

static void assert_within(const struct message *message, const char *first, const char *end)
{
    switch (message->kind) {
        MESSAGES(BOUND, BOUND_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        fail();
    }
}

/* ---- the tests ---- */

static void test_there_and_back(void **state)
{
    struct str bytes = { 0 };
    struct message found;
    struct err err;

    (void)state;
    for (enum message_kind kind = MESSAGE_NONE + 1; kind < MESSAGE_KINDS; kind++) {
        struct message message = example(kind);

        str_clear(&bytes);
        message_encode(&message, &bytes);
        assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), 0);
        assert_same(&found, &message);
    }

    /* What is left out is 0, "" and no bytes. */
    str_clear(&bytes);
    message_encode(&(struct message){ .kind = MESSAGE_FENCE }, &bytes);
    assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), 0);
    assert_string_equal(found.fence.members, "");
    assert_int_equal(found.fence.data.n_bytes, 0);
    str_release(&bytes);
}

/* Messages that are cut, followed by a byte, or have one byte changed: refused, or within
 * bounds. */
static void check_broken(enum message_kind kind)
{
    struct message message = example(kind), found = { .kind = MESSAGE_KINDS };
    struct str bytes = { 0 };
    struct err err;

    message_encode(&message, &bytes);
    for (size_t n = 0; n < bytes.length; n++)
        assert_int_equal(message_decode(bytes.data, n, &found, &err), -1);
    str_add_char(&bytes, 'x');
    assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_int_equal(found.kind, MESSAGE_KINDS);
    bytes.length--;
    /* The bytes of a slot are not looked at: the first few stand for all of them. */
    size_t n_changed = bytes.length < 128 ? bytes.length : 128;
    for (size_t i = 0; i < n_changed; i++) {
        for (int change = 1; change < 256; change++) {
            bytes.data[i] = (char)(bytes.data[i] ^ change);
            if (!message_decode(bytes.data, bytes.length, &found, &err))
                assert_within(&found, bytes.data, bytes.data + bytes.length);
            bytes.data[i] = (char)(bytes.data[i] ^ change);
        }
    }
    str_release(&bytes);
}

static void test_broken(void **state)
{
    (void)state;
    for (enum message_kind kind = MESSAGE_NONE + 1; kind < MESSAGE_KINDS; kind++)
        check_broken(kind);
}

static void check_refused(const char *bytes, size_t n_bytes, const char *words)
{
    struct message found;
    struct err err = { 0 };

    assert_int_equal(message_decode(bytes, n_bytes, &found, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    if (!strstr(err.text, words))
        fail_msg("%s", err.text);
}

/* Values that no sender writes: kinds, flags and outcomes that do not exist. */
static void test_values(void **state)
{
    struct str bytes = { 0 };
    struct message message = { .kind = MESSAGE_SIGNAL, .signal = { .signal = 15 } };

    (void)state;
    check_refused("\0\0\0\0", 4, "the unknown kind 0");
    check_refused("\xff\xff\xff\xff", 4, "the unknown kind 4294967295");
    message_encode(&message, &bytes);
    bytes.data[8] = 2;
    check_refused(bytes.data, bytes.length, "broken");
    str_clear(&bytes);
    message_encode(&(struct message){ .kind = MESSAGE_CARD, .card.outcome = OUTCOME_NOT_FOUND },
                   &bytes);
    bytes.data[8] = OUTCOME_NOT_FOUND + 1;
    check_refused(bytes.data, bytes.length, "broken");
    str_release(&bytes);
}

static void assert_broken_text(const char *bytes, size_t n_bytes)
{
    struct message_reader reader = { .at = (const unsigned char *)bytes };

    reader.end = reader.at + n_bytes;
    assert_string_equal(message_read_text(&reader), "");
    assert_true(reader.broken);
    assert_int_equal(message_read_number(&reader), 0);
}

static void test_texts(void **state)
{
    (void)state;
    assert_broken_text("\3\0\0\0abc", 7);    /* not ended */
    assert_broken_text("\3\0\0\0a\0c\0", 8); /* ended before its end */
    assert_broken_text("\3\0\0\0abcd\0", 9); /* ended after it */
    assert_broken_text("\xff\xff\xff\xff"
                       "abc\0",
                       8); /* longer than all there is */
    assert_broken_text("\0\0", 2);
    assert_broken_text("\0\0\0\0", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
