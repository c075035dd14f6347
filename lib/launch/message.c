/*
 * message.c - messages to bytes and back
 *
 * There is one add_TYPE and one read_TYPE for each type of field; both ways of every message are
 * rows of MESSAGES, expanded with these.
 */
#include "launch/message_impl.h"

#include <string.h>

#include "progress/progress.h"

/* ---- types of fields ---- */

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
        reader->broken = true;
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

    /* It ends with a 0, and contains no other. */
    if (reader->broken || length > MESSAGE_TEXT_MAX || length >= left ||
        memchr(text, 0, length + 1) != text + length) {
        reader->broken = true;
        return "";
    }
    reader->at += length + 1;
    return text;
}

static void add_number(struct str *bytes, int number)
{
    message_add_number(bytes, (uint32_t)number);
}

static int read_number(struct message_reader *reader)
{
    return (int)(int32_t)message_read_number(reader);
}

static void add_count(struct str *bytes, uint32_t count)
{
    message_add_number(bytes, count);
}

static uint32_t read_count(struct message_reader *reader)
{
    return message_read_number(reader);
}

/* A number from 0 to max. */
static uint32_t read_choice(struct message_reader *reader, uint32_t max)
{
    uint32_t choice = message_read_number(reader);

    if (choice > max)
        reader->broken = true;
    return reader->broken ? 0 : choice;
}

static void add_flag(struct str *bytes, bool flag)
{
    message_add_number(bytes, flag);
}

static bool read_flag(struct message_reader *reader)
{
    return read_choice(reader, 1) != 0;
}

static void add_outcome(struct str *bytes, enum launch_outcome outcome)
{
    message_add_number(bytes, (uint32_t)outcome);
}

static enum launch_outcome read_outcome(struct message_reader *reader)
{
    return (enum launch_outcome)read_choice(reader, OUTCOME_NOT_FOUND);
}

static void add_text(struct str *bytes, const char *text)
{
    message_add_text(bytes, text ? text : "");
}

static const char *read_text(struct message_reader *reader)
{
    return message_read_text(reader);
}

static void add_bytes(struct str *bytes, struct message_bytes added)
{
    CHECK(added.n_bytes < LINK_FRAME_MAX);
    message_add_number(bytes, (uint32_t)added.n_bytes);
    str_add_bytes(bytes, added.data, added.n_bytes);
}

static const void *skip_bytes(struct message_reader *reader, size_t n_bytes)
{
    const unsigned char *at = reader->at;

    if (reader->broken || (size_t)(reader->end - at) < n_bytes) {
        reader->broken = true;
        return NULL;
    }
    reader->at += n_bytes;
    return at;
}

static struct message_bytes read_bytes(struct message_reader *reader)
{
    size_t n_bytes = message_read_number(reader);
    const void *data = skip_bytes(reader, n_bytes);

    return (struct message_bytes){ .data = data, .n_bytes = data ? n_bytes : 0 };
}

static void add_slot(struct str *bytes, const void *slot)
{
    CHECK(slot);
    str_add_bytes(bytes, slot, sizeof(struct progress_slot));
}

static const void *read_slot(struct message_reader *reader)
{
    return skip_bytes(reader, sizeof(struct progress_slot));
}

/* ---- messages ---- */

#define ADD_FIELD(type, name) add_##type(bytes, body->name);
#define ENCODE(KIND, name, fields) \
    static void encode_##name(const struct message_##name *body, struct str *bytes) \
    { \
        (void)body; \
        (void)bytes; \
        fields \
    }

MESSAGES(ENCODE, ADD_FIELD)

#define READ_FIELD(type, name) body->name = read_##type(reader);
#define DECODE(KIND, name, fields) \
    static void decode_##name(struct message_##name *body, struct message_reader *reader) \
    { \
        (void)body; \
        (void)reader; \
        fields \
    }

MESSAGES(DECODE, READ_FIELD)

#define ENCODE_CASE(KIND, name, fields) \
    case MESSAGE_##KIND: \
        encode_##name(&message->name, bytes); \
        return;
#define DECODE_CASE(KIND, name, fields) \
    case MESSAGE_##KIND: \
        decode_##name(&message->name, reader); \
        return 0;

void message_encode(const struct message *message, struct str *bytes)
{
    message_add_number(bytes, (uint32_t)message->kind);
    switch (message->kind) {
        MESSAGES(ENCODE_CASE, MESSAGE_NO_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        CHECK(message->kind != MESSAGE_NONE);
        CHECK(message->kind != MESSAGE_KINDS);
    }
}

/* Returns -1 for a kind that does not exist. */
static int decode(struct message *message, struct message_reader *reader)
{
    switch (message->kind) {
        MESSAGES(DECODE_CASE, MESSAGE_NO_FIELD)
    case MESSAGE_NONE:
    case MESSAGE_KINDS:
        break;
    }
    return -1;
}

int message_decode(const void *bytes, size_t n_bytes, struct message *message, struct err *err)
{
    struct message_reader reader = { .at = bytes, .end = (const unsigned char *)bytes + n_bytes };
    uint32_t kind = message_read_number(&reader);
    struct message found = { .kind =
                                 kind < MESSAGE_KINDS ? (enum message_kind)kind : MESSAGE_NONE };

    if (!reader.broken && decode(&found, &reader))
        return err_set(err, ERR_PEER, "a message has the unknown kind %u", kind);
    if (reader.broken || reader.at != reader.end)
        return err_set(err, ERR_PEER, "a message of %zu bytes is broken", n_bytes);
    *message = found;
    return 0;
}
