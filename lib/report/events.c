/*
 * events.c - TensorBoard's event files
 */
#include "report/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/str.h"
#include "report/append.h"

struct events {
    int fd;
    char *path;
    struct arena arena;
    struct str record, event, value; /* kept for their memory */
};

uint32_t events_crc32c_table(const void *data, size_t n_bytes)
{
    /* Of four bits each: 64 bytes are enough where the instruction is missing. */
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;

    while (n_bytes--) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(const void *data, size_t n_bytes)
{
    const unsigned char *p = data;
    uint64_t crc = 0xffffffffu;

    for (; n_bytes >= 8; n_bytes -= 8, p += 8) {
        uint64_t word;

        memcpy(&word, p, sizeof word);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    while (n_bytes--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
    return ~(uint32_t)crc;
}
#endif

uint32_t events_crc32c(const void *data, size_t n_bytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(data, n_bytes);
#endif
    return events_crc32c_table(data, n_bytes);
}

/* A CRC of data that hold CRCs is weak, hence the mask (tensorflow/core/lib/hash/crc32c.h). */
static uint32_t masked_crc(const void *data, size_t n_bytes)
{
    uint32_t crc = events_crc32c(data, n_bytes);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_little_endian(struct str *out, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        str_add_char(out, (char)(value >> (8 * i) & 0xff));
}

static void add_varint(struct str *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        str_add_char(out, (char)((value & 0x7f) | 0x80));
    str_add_char(out, (char)value);
}

/* Fields of a message: a varint, 4 or 8 raw bytes, or bytes with their length in front. */
static void add_field_varint(struct str *out, int field, uint64_t value)
{
    add_varint(out, (uint64_t)field << 3 | 0);
    add_varint(out, value);
}

static void add_field_double(struct str *out, int field, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    add_varint(out, (uint64_t)field << 3 | 1);
    add_little_endian(out, bits, 8);
}

static void add_field_float(struct str *out, int field, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    add_varint(out, (uint64_t)field << 3 | 5);
    add_little_endian(out, bits, 4);
}

static void add_field_bytes(struct str *out, int field, const void *bytes, size_t n_bytes)
{
    add_varint(out, (uint64_t)field << 3 | 2);
    add_varint(out, n_bytes);
    str_add_bytes(out, bytes, n_bytes);
}

/* Put events->event into the file as a record. */
static int write_record(struct events *events, struct err *err)
{
    struct str *record = &events->record;

    str_clear(record);
    add_little_endian(record, events->event.length, 8);
    add_little_endian(record, masked_crc(record->data, 8), 4);
    str_add_bytes(record, events->event.data, events->event.length);
    add_little_endian(record, masked_crc(events->event.data, events->event.length), 4);
    return append_whole(events->fd, events->path, record->data, record->length, err);
}

/* Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. */
static void begin_event(struct events *events, int64_t step)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    str_clear(&events->event);
    add_field_double(&events->event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    if (step)
        add_field_varint(&events->event, 2, (uint64_t)step);
}

static int write_opening(struct events *events, int64_t first_step, struct err *err)
{
    static const char version[] = "brain.Event:2";

    begin_event(events, 0);
    add_field_bytes(&events->event, 3, version, sizeof version - 1);
    if (write_record(events, err) < 0)
        return -1;
    /* SessionLog: 1 status, of which 1 is START. */
    begin_event(events, first_step);
    str_clear(&events->value);
    add_field_varint(&events->value, 1, 1);
    add_field_bytes(&events->event, 7, events->value.data, events->value.length);
    return write_record(events, err);
}

int events_open(struct events **events, const char *folder, int64_t first_step, struct err *err)
{
    struct events *made = calloc(1, sizeof *made);
    char host[256] = "localhost";

    if (!made)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", folder);
    if (gethostname(host, sizeof host - 1) < 0 || strchr(host, '/'))
        host[0] = '\0';
    /* Files are read in the order of their names: the number counts up where a second holds
     * several. */
    for (int number = 0; number < 1000; number++) {
        made->path = arena_printf(&made->arena, "%s/events.out.tfevents.%lld.%s.%ld.%d", folder,
                                  (long long)time(NULL), host, (long)getpid(), number);
        made->fd = file_open_write(made->path, O_WRONLY | O_EXCL, err);
        if (made->fd >= 0 || errno != EEXIST)
            break;
    }
    if (made->fd < 0 || write_opening(made, first_step, err) < 0) {
        events_close(made);
        return -1;
    }
    *events = made;
    return 0;
}

int events_scalars(struct events *events, int64_t step, const struct events_scalar *scalars, int n,
                   struct err *err)
{
    struct str summary = { 0 };

    /* Summary: 1 value, repeated; Value: 1 tag, 2 simple_value. */
    for (int i = 0; i < n; i++) {
        str_clear(&events->value);
        add_field_bytes(&events->value, 1, scalars[i].tag, strlen(scalars[i].tag));
        add_field_float(&events->value, 2, (float)scalars[i].value);
        add_field_bytes(&summary, 1, events->value.data, events->value.length);
    }
    begin_event(events, step);
    add_field_bytes(&events->event, 5, str_text(&summary), summary.length);
    str_release(&summary);
    return write_record(events, err);
}

/* ---- summaries of plugins ---- */

/* SummaryMetadata: 1 plugin_data (1 plugin_name, 2 content), 4 data_class, of which 2 is tensor. */
static void add_metadata(struct str *value, const char *plugin, const struct str *content)
{
    struct str data = { 0 }, metadata = { 0 };

    add_field_bytes(&data, 1, plugin, strlen(plugin));
    if (content)
        add_field_bytes(&data, 2, str_text(content), content->length);
    add_field_bytes(&metadata, 1, str_text(&data), data.length);
    add_field_varint(&metadata, 4, 2);
    add_field_bytes(value, 9, str_text(&metadata), metadata.length);
    str_release(&data);
    str_release(&metadata);
}

/* TensorProto: 1 dtype (1 float, 7 string), 2 tensor_shape (2 dim, of which 1 is its size), 8
 * string_val. text NULL: no element. */
static void add_tensor(struct str *value, const char *text)
{
    struct str dim = { 0 }, shape = { 0 }, tensor = { 0 };

    if (text)
        add_field_varint(&dim, 1, 1);
    add_field_bytes(&shape, 2, str_text(&dim), dim.length);
    add_field_varint(&tensor, 1, text ? 7 : 1);
    add_field_bytes(&tensor, 2, str_text(&shape), shape.length);
    if (text)
        add_field_bytes(&tensor, 8, text, strlen(text));
    add_field_bytes(value, 8, str_text(&tensor), tensor.length);
    str_release(&dim);
    str_release(&shape);
    str_release(&tensor);
}

/* One value of a plugin, at step 0. */
static int write_plugin(struct events *events, const char *plugin, const char *tag,
                        const struct str *content, const char *text, struct err *err)
{
    struct str summary = { 0 };

    str_clear(&events->value);
    add_field_bytes(&events->value, 1, tag, strlen(tag));
    add_tensor(&events->value, text);
    add_metadata(&events->value, plugin, content);
    add_field_bytes(&summary, 1, events->value.data, events->value.length);
    begin_event(events, 0);
    add_field_bytes(&events->event, 5, str_text(&summary), summary.length);
    str_release(&summary);
    return write_record(events, err);
}

int events_text(struct events *events, const char *tag, const char *text, struct err *err)
{
    return write_plugin(events, "text", tag, NULL, text, err);
}

/* google.protobuf.Value: 2 number_value, 3 string_value, 4 bool_value. */
static void add_hparam_value(struct str *out, const char *text)
{
    double number;

    if (!strcmp(text, "true") || !strcmp(text, "false"))
        add_field_varint(out, 4, *text == 't');
    else if (str_to_f64(text, &number) == 0)
        add_field_double(out, 2, number);
    else
        add_field_bytes(out, 3, text, strlen(text));
}

/* HParamsPluginData: 1 version, 0 and left out; 3 session_start_info: 1 hparams, a map of entries
 * (1 key, 2 value), 5 start_time_secs. */
int events_hparams(struct events *events, const struct events_hparam *hparams, int n,
                   struct err *err)
{
    struct str info = { 0 }, content = { 0 };

    for (int i = 0; i < n; i++) {
        struct str value = { 0 }, entry = { 0 };

        add_hparam_value(&value, hparams[i].value);
        add_field_bytes(&entry, 1, hparams[i].key, strlen(hparams[i].key));
        add_field_bytes(&entry, 2, str_text(&value), value.length);
        add_field_bytes(&info, 1, str_text(&entry), entry.length);
        str_release(&value);
        str_release(&entry);
    }
    add_field_double(&info, 5, (double)time(NULL));
    add_field_bytes(&content, 3, str_text(&info), info.length);
    int status =
        write_plugin(events, "hparams", "_hparams_/session_start_info", &content, NULL, err);
    str_release(&info);
    str_release(&content);
    return status;
}

/* 4 session_end_info: 1 status (1 success, 2 failure), 2 end_time_secs. */
int events_end(struct events *events, bool is_success, struct err *err)
{
    struct str info = { 0 }, content = { 0 };

    add_field_varint(&info, 1, is_success ? 1 : 2);
    add_field_double(&info, 2, (double)time(NULL));
    add_field_bytes(&content, 4, str_text(&info), info.length);
    int status = write_plugin(events, "hparams", "_hparams_/session_end_info", &content, NULL, err);
    str_release(&info);
    str_release(&content);
    return status;
}

void events_close(struct events *events)
{
    if (!events)
        return;
    if (events->fd >= 0)
        close(events->fd);
    str_release(&events->record);
    str_release(&events->event);
    str_release(&events->value);
    arena_release(&events->arena);
    free(events);
}
