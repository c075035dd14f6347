/*
 * events_test.c - event files, decoded by their format's definition; test/oracle/tensorboard.py
 * reads them with the real library
 */
#include "report_fixture.h"

#include <math.h>
#include <sys/stat.h>

#include "report/events.h"

/* Bit by bit, the definition. */
static uint32_t crc_by_definition(const unsigned char *data, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void crc_of_known_and_of_all_lengths(void **state)
{
    unsigned char data[300];

    (void)state;
    assert_int_equal(events_crc32c("123456789", 9), 0xe3069283u); /* RFC 3720's check value */
    for (int i = 0; i < 300; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    for (size_t start = 0; start < 8; start++)
        for (size_t n = 0; n < 290; n++) {
            uint32_t wanted = crc_by_definition(data + start, n);

            assert_int_equal(events_crc32c(data + start, n), wanted);
            assert_int_equal(events_crc32c_table(data + start, n), wanted);
        }
}

/* A place in bytes being decoded. */
struct cursor {
    const unsigned char *at, *end;
};

static uint64_t take_fixed(struct cursor *cursor, int n_bytes)
{
    uint64_t value = 0;

    assert_true(cursor->end - cursor->at >= n_bytes);
    for (int i = n_bytes - 1; i >= 0; i--)
        value = value << 8 | cursor->at[i];
    cursor->at += n_bytes;
    return value;
}

static uint64_t take_varint(struct cursor *cursor)
{
    uint64_t value = 0;

    for (int shift = 0;; shift += 7) {
        assert_true(cursor->at < cursor->end && shift < 64);
        value |= (uint64_t)(*cursor->at & 0x7f) << shift;
        if (!(*cursor->at++ & 0x80))
            return value;
    }
}

static struct cursor take_bytes(struct cursor *cursor, uint64_t n)
{
    struct cursor bytes = { cursor->at, cursor->at + n };

    assert_true((uint64_t)(cursor->end - cursor->at) >= n);
    cursor->at += n;
    return bytes;
}

struct value {
    char tag[64];
    float value;
};

struct event {
    double wall_time;
    int64_t step;
    char version[64];
    int session_status;
    int n_values;
    struct value values[8];
};

static void copy_text(char *out, struct cursor bytes)
{
    snprintf(out, 64, "%.*s", (int)(bytes.end - bytes.at), (const char *)bytes.at);
}

static void decode_summary(struct event *event, struct cursor summary)
{
    while (summary.at < summary.end) {
        assert_int_equal(take_varint(&summary), 1 << 3 | 2);
        struct cursor value = take_bytes(&summary, take_varint(&summary));
        struct value *out = &event->values[event->n_values++];

        assert_int_equal(take_varint(&value), 1 << 3 | 2);
        copy_text(out->tag, take_bytes(&value, take_varint(&value)));
        assert_int_equal(take_varint(&value), 2 << 3 | 5);
        uint32_t bits = (uint32_t)take_fixed(&value, 4);
        memcpy(&out->value, &bits, sizeof bits);
        assert_ptr_equal(value.at, value.end);
    }
}

static struct event decode_event(struct cursor data)
{
    struct event event = { .wall_time = -1 };

    while (data.at < data.end) {
        uint64_t key = take_varint(&data), bits;

        if (key == (1 << 3 | 1)) {
            bits = take_fixed(&data, 8);
            memcpy(&event.wall_time, &bits, sizeof bits);
        } else if (key == (2 << 3 | 0)) {
            event.step = (int64_t)take_varint(&data);
        } else if (key == (3 << 3 | 2)) {
            copy_text(event.version, take_bytes(&data, take_varint(&data)));
        } else if (key == (5 << 3 | 2)) {
            decode_summary(&event, take_bytes(&data, take_varint(&data)));
        } else {
            assert_int_equal(key, 7 << 3 | 2);
            struct cursor session = take_bytes(&data, take_varint(&data));
            assert_int_equal(take_varint(&session), 1 << 3 | 0);
            event.session_status = (int)take_varint(&session);
        }
    }
    return event;
}

static uint32_t masked(struct cursor data)
{
    uint32_t crc = crc_by_definition(data.at, (size_t)(data.end - data.at));

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* All events of a file; their number. */
static int decode_file(const char *path, struct event *events, int n_max)
{
    size_t n_bytes;
    const unsigned char *data = (const unsigned char *)fixture_read(path, &n_bytes);
    struct cursor file = { data, data + n_bytes };
    int n = 0;

    while (file.at < file.end) {
        struct cursor length_bytes = { file.at, file.at + 8 };
        uint64_t length = take_fixed(&file, 8);

        assert_int_equal(take_fixed(&file, 4), masked(length_bytes));
        struct cursor record = take_bytes(&file, length);
        assert_int_equal(take_fixed(&file, 4), masked(record));
        assert_true(n < n_max);
        events[n++] = decode_event(record);
    }
    return n;
}

static void scalars_come_back(void **state)
{
    const struct events_scalar some[] = { { "train/loss", 5.25 }, { "train/lr", 3e-4 } };
    const struct events_scalar odd[] = { { "a", NAN }, { "b", -INFINITY } };
    const struct events_scalar one = { "eval/loss", -0.5 };
    struct event decoded[8];
    struct events *events;
    struct err err = { 0 };
    struct stat status;

    assert_ok(events_open(&events, *state, 7, &err), &err);
    assert_ok(events_scalars(events, 7, some, 2, &err), &err);
    assert_ok(events_scalars(events, INT64_C(1) << 40, odd, 2, &err), &err);
    assert_ok(events_scalars(events, 0, &one, 1, &err), &err);
    const char *path = fixture_find(*state, "events.out.tfevents.", 0);
    assert_non_null(path);
    /* Each call is in the file at once: TensorBoard reads along. */
    assert_int_equal(decode_file(path, decoded, 8), 5);
    events_close(events);
    assert_string_equal(decoded[0].version, "brain.Event:2");
    assert_true(decoded[0].wall_time > 1.7e9);
    assert_int_equal(decoded[1].session_status, 1);
    assert_int_equal(decoded[1].step, 7);
    assert_int_equal(decoded[2].n_values, 2);
    assert_int_equal(decoded[2].step, 7);
    assert_string_equal(decoded[2].values[0].tag, "train/loss");
    assert_true(decoded[2].values[0].value == 5.25f);
    assert_string_equal(decoded[2].values[1].tag, "train/lr");
    assert_true(decoded[2].values[1].value == 3e-4f);
    assert_int_equal(decoded[3].step, INT64_C(1) << 40);
    assert_true(isnan(decoded[3].values[0].value));
    assert_true(decoded[3].values[1].value == -INFINITY);
    assert_int_equal(decoded[4].step, 0);
    assert_true(decoded[4].values[0].value == -0.5f);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}

/* ---- plugins ---- */

/* The bytes of the only field of that number; fails if there is none. */
static struct cursor field_of(struct cursor message, int field)
{
    while (message.at < message.end) {
        uint64_t key = take_varint(&message);
        struct cursor bytes = message;

        switch (key & 7) {
        case 0:
            take_varint(&message);
            break;
        case 1:
            take_fixed(&message, 8);
            break;
        default:
            assert_int_equal(key & 7, 2);
            bytes = take_bytes(&message, take_varint(&message));
        }
        if (key >> 3 == (uint64_t)field)
            return bytes;
    }
    fail_msg("field %d is missing", field);
    return message;
}

static bool is_text(struct cursor bytes, const char *text)
{
    return (size_t)(bytes.end - bytes.at) == strlen(text) && !memcmp(bytes.at, text, strlen(text));
}

/* The value of the index-th event of the file: Event.summary (5), Summary.value (1). */
static struct cursor plugin_value(const char *path, int index)
{
    size_t n_bytes;
    const unsigned char *data = (const unsigned char *)fixture_read(path, &n_bytes);
    struct cursor file = { data, data + n_bytes };

    for (;; index--) {
        uint64_t length = take_fixed(&file, 8);

        take_fixed(&file, 4);
        struct cursor record = take_bytes(&file, length);
        if (!index)
            return field_of(field_of(record, 5), 1);
        take_fixed(&file, 4);
    }
}

/* What a plugin's value has for it, by tensorboard/compat/proto/summary.proto. */
static struct cursor plugin_content(struct cursor value, const char *tag, const char *plugin)
{
    struct cursor metadata = field_of(value, 9), data = field_of(metadata, 1);
    struct cursor class = field_of(metadata, 4);

    assert_true(is_text(field_of(value, 1), tag));
    assert_int_equal(take_varint(&class), 2); /* a tensor */
    assert_true(is_text(field_of(data, 1), plugin));
    return data;
}

/* The value of a hparam: a map's entry is a field 1 with key (1) and google.protobuf.Value (2). */
static struct cursor hparam_of(struct cursor info, const char *key)
{
    while (info.at < info.end) {
        uint64_t tag = take_varint(&info);

        if (tag == (5 << 3 | 1)) {
            take_fixed(&info, 8);
            continue;
        }
        assert_int_equal(tag, 1 << 3 | 2);
        struct cursor entry = take_bytes(&info, take_varint(&info));
        if (is_text(field_of(entry, 1), key))
            return field_of(entry, 2);
    }
    fail_msg("no hparam %s", key);
    return info;
}

static double double_at(struct cursor bytes)
{
    uint64_t bits = take_fixed(&bytes, 8);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void hparams_and_texts_come_back(void **state)
{
    static const struct events_hparam fields[] = { { "optimizer.lr", "3.0e-4" },
                                                   { "train.dtype", "bf16" },
                                                   { "model.bias", "true" },
                                                   { "model.tied", "false" } };
    struct events *events;
    struct err err = { 0 };

    assert_ok(events_open(&events, *state, 0, &err), &err);
    assert_ok(events_hparams(events, fields, 4, &err), &err);
    assert_ok(events_text(events, "job", "# a\n\xc3\xa9", &err), &err);
    assert_ok(events_end(events, true, &err), &err);
    assert_ok(events_end(events, false, &err), &err);
    events_close(events);
    const char *path = fixture_find(*state, "events.out.tfevents.", 0);

    struct cursor data =
        plugin_content(plugin_value(path, 2), "_hparams_/session_start_info", "hparams");
    struct cursor info = field_of(field_of(data, 2), 3);
    assert_true(double_at(field_of(info, 5)) > 1.7e9);
    assert_true(double_at(field_of(hparam_of(info, "optimizer.lr"), 2)) == 3e-4);
    assert_true(is_text(field_of(hparam_of(info, "train.dtype"), 3), "bf16"));
    struct cursor flag = field_of(hparam_of(info, "model.bias"), 4);
    assert_int_equal(take_varint(&flag), 1);
    flag = field_of(hparam_of(info, "model.tied"), 4);
    assert_int_equal(take_varint(&flag), 0);

    struct cursor value = plugin_value(path, 3), tensor = field_of(value, 8);
    plugin_content(value, "job", "text");
    struct cursor dtype = field_of(tensor, 1);
    assert_int_equal(take_varint(&dtype), 7); /* DT_STRING */
    assert_true(is_text(field_of(tensor, 8), "# a\n\xc3\xa9"));

    for (int i = 0; i < 2; i++) {
        data = plugin_content(plugin_value(path, 4 + i), "_hparams_/session_end_info", "hparams");
        struct cursor status = field_of(field_of(field_of(data, 2), 4), 1);
        assert_int_equal(take_varint(&status), 1 + i);
    }
}

/* A run may restart within a second and in the same process: no file is written twice. */
static void each_opening_makes_a_file(void **state)
{
    struct events *events;
    struct err err = { 0 };

    for (int i = 0; i < 3; i++) {
        assert_ok(events_open(&events, *state, i, &err), &err);
        events_close(events);
    }
    assert_non_null(fixture_find(*state, "events.out.tfevents.", 2));
    events_close(NULL);
}

static void a_missing_folder_is_an_error(void **state)
{
    struct events *events;
    struct err err = { 0 };

    assert_int_equal(events_open(&events, fixture_path(*state, "none"), 0, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "none/events.out.tfevents"));
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(crc_of_known_and_of_all_lengths), TEST(scalars_come_back),
        TEST(hparams_and_texts_come_back),     TEST(each_opening_makes_a_file),
        TEST(a_missing_folder_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
