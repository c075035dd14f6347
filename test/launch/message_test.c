/*
 * message_test.c - messages there and back, and what is none
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "launch/message_impl.h"

static const struct message example = { .kind = MESSAGE_ABORT,
                                        .rank = -1,
                                        .node = 3,
                                        .number = INT32_MIN,
                                        .id = UINT32_MAX,
                                        .text = "device is full",
                                        .data = "\0\1\2",
                                        .n_bytes = 3 };

static void test_there_and_back(void **state)
{
    struct str bytes = { 0 };
    struct message found;
    struct err err;

    (void)state;
    message_encode(&example, &bytes);
    assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), 0);
    assert_int_equal(found.kind, example.kind);
    assert_int_equal(found.rank, example.rank);
    assert_int_equal(found.node, example.node);
    assert_int_equal(found.number, example.number);
    assert_int_equal(found.id, example.id);
    assert_string_equal(found.text, example.text);
    assert_int_equal(found.n_bytes, 3);
    assert_memory_equal(found.data, example.data, 3);

    str_clear(&bytes);
    message_encode(&(struct message){ .kind = MESSAGE_BEAT }, &bytes);
    assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), 0);
    assert_string_equal(found.text, "");
    assert_int_equal(found.n_bytes, 0);
    str_release(&bytes);
}

/* Every shorter one, a longer one, and each byte changed: refused, or a message within bounds. */
static void test_broken(void **state)
{
    struct str bytes = { 0 };
    struct message found = { .rank = 77 };
    struct err err;

    (void)state;
    message_encode(&example, &bytes);
    for (size_t n = 0; n < bytes.length; n++)
        assert_int_equal(message_decode(bytes.data, n, &found, &err), -1);
    str_add_char(&bytes, 'x');
    assert_int_equal(message_decode(bytes.data, bytes.length, &found, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_int_equal(found.rank, 77);
    bytes.length--;
    for (size_t i = 0; i < bytes.length; i++) {
        for (int change = 1; change < 256; change++) {
            bytes.data[i] = (char)(bytes.data[i] ^ change);
            if (!message_decode(bytes.data, bytes.length, &found, &err)) {
                const char *end = bytes.data + bytes.length;

                assert_true(found.kind >= 1 && found.kind < MESSAGE_KINDS);
                assert_true(found.text >= bytes.data && found.text + strlen(found.text) < end);
                assert_ptr_equal((const char *)found.data + found.n_bytes, end);
            }
            bytes.data[i] = (char)(bytes.data[i] ^ change);
        }
    }
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
        cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
