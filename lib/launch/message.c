/*
 * message.c - messages to bytes and back
 *
 * kind, rank, node, number, id (4 bytes each), text (length, bytes, a 0), data (length, bytes).
 */
#include "launch/message_impl.h"

#include <string.h>

void message_add_number(struct str *bytes, uint32_t number)
{
    const unsigned char four[4] = { (unsigned char)number, (unsigned char)(number >> 8),
                                    (unsigned char)(number >> 16), (unsigned char)(number >> 24) };

    str_add_bytes(bytes, four, sizeof four);
}

void message_add_text(struct str *bytes, const char *text)
{
    size_t length = strlen(text);

    CHECK(length <= MESSAGE_TEXT_MAX);
    message_add_number(bytes, (uint32_t)length);
    str_add_bytes(bytes, text, length + 1);
}

uint32_t message_read_number(struct message_reader *reader)
{
    if (reader->broken || reader->end - reader->at < 4) {
        reader->broken = 1;
        return 0;
    }
    const unsigned char *at = reader->at;

    reader->at += 4;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

const char *message_read_text(struct message_reader *reader)
{
    size_t length = message_read_number(reader), left = (size_t)(reader->end - reader->at);
    const char *text = (const char *)reader->at;

    /* Ended by its 0, which is the only one in it. */
    if (reader->broken || length > MESSAGE_TEXT_MAX || length >= left ||
        memchr(text, 0, length + 1) != text + length) {
        reader->broken = 1;
        return "";
    }
    reader->at += length + 1;
    return text;
}

void message_encode(const struct message *message, struct str *bytes)
{
    CHECK(message->n_bytes < LINK_FRAME_MAX);
    message_add_number(bytes, (uint32_t)message->kind);
    message_add_number(bytes, (uint32_t)message->rank);
    message_add_number(bytes, (uint32_t)message->node);
    message_add_number(bytes, (uint32_t)message->number);
    message_add_number(bytes, message->id);
    message_add_text(bytes, message->text ? message->text : "");
    message_add_number(bytes, (uint32_t)message->n_bytes);
    str_add_bytes(bytes, message->data, message->n_bytes);
}

int message_decode(const void *bytes, size_t n_bytes, struct message *message, struct err *err)
{
    struct message_reader reader = { .at = bytes, .end = (const unsigned char *)bytes + n_bytes };
    uint32_t kind = message_read_number(&reader);
    struct message found = { .rank = (int32_t)message_read_number(&reader) };

    found.node = (int32_t)message_read_number(&reader);
    found.number = (int32_t)message_read_number(&reader);
    found.id = message_read_number(&reader);
    found.text = message_read_text(&reader);
    found.n_bytes = message_read_number(&reader);
    if (reader.broken || found.n_bytes != (size_t)(reader.end - reader.at))
        return err_set(err, ERR_PEER, "a message of %zu bytes is broken", n_bytes);
    if (kind < 1 || kind >= MESSAGE_KINDS)
        return err_set(err, ERR_PEER, "a message has the unknown kind %u", kind);
    found.kind = (enum message_kind)kind;
    found.data = reader.at;
    *message = found;
    return 0;
}
