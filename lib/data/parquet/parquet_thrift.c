/*
 * parquet_thrift.c - Thrift's compact protocol, as far as parquet's headers use it
 */
#include "data/parquet/parquet_impl.h"

#define SKIP_DEPTH_MAX 64

static unsigned next_byte(struct thrift *t)
{
    if (t->at == t->end)
        t->failed = true;
    if (t->failed)
        return 0;
    return *t->at++;
}

uint64_t thrift_varint(struct thrift *t)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        unsigned byte = next_byte(t);

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return t->failed ? 0 : value;
    }
    t->failed = true;
    return 0;
}

static int64_t zigzag(uint64_t value)
{
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

int thrift_next(struct thrift *t, struct thrift_field *field, int *id)
{
    unsigned byte = next_byte(t);

    if (t->failed || byte == THRIFT_STOP)
        return 0;
    int64_t next = byte >> 4 ? *id + (int)(byte >> 4) : zigzag(thrift_varint(t));
    if ((byte & 15) > THRIFT_STRUCT || next < INT16_MIN || next > INT16_MAX)
        t->failed = true;
    *id = (int)next;
    *field = (struct thrift_field){ (enum thrift_type)(byte & 15), *id };
    return !t->failed;
}

static void expect(struct thrift *t, bool is_so)
{
    if (!is_so)
        t->failed = true;
}

int64_t thrift_int(struct thrift *t, enum thrift_type type)
{
    expect(t, type >= THRIFT_BYTE && type <= THRIFT_I64);
    if (type == THRIFT_BYTE)
        return (signed char)next_byte(t);
    return t->failed ? 0 : zigzag(thrift_varint(t));
}

int thrift_bool(struct thrift *t, enum thrift_type type)
{
    expect(t, type == THRIFT_TRUE || type == THRIFT_FALSE);
    return type == THRIFT_TRUE;
}

const unsigned char *thrift_bytes(struct thrift *t, enum thrift_type type, size_t *n_bytes)
{
    *n_bytes = 0;
    expect(t, type == THRIFT_BINARY);
    uint64_t n = t->failed ? 0 : thrift_varint(t);
    expect(t, n <= (size_t)(t->end - t->at));
    if (t->failed)
        return t->end;
    const unsigned char *bytes = t->at;
    t->at += n;
    *n_bytes = (size_t)n;
    return bytes;
}

int64_t thrift_list(struct thrift *t, enum thrift_type type, enum thrift_type *element)
{
    expect(t, type == THRIFT_LIST || type == THRIFT_SET);
    unsigned head = next_byte(t);
    uint64_t n = head >> 4 == 15 ? thrift_varint(t) : head >> 4;

    *element = (enum thrift_type)(head & 15);
    expect(t, (head & 15) <= THRIFT_STRUCT && n <= (size_t)(t->end - t->at));
    return t->failed ? 0 : (int64_t)n;
}

void thrift_begin_struct(struct thrift *t, enum thrift_type type)
{
    expect(t, type == THRIFT_STRUCT);
}

static void skip_bytes(struct thrift *t, uint64_t n)
{
    expect(t, n <= (size_t)(t->end - t->at));
    if (!t->failed)
        t->at += n;
}

/* Values of two kinds in turn (of maps), or of one, that are still to be passed over; or fields. */
struct thrift_skip {
    enum thrift_type types[2];
    uint64_t n; /* of a list or map; of a struct it is not used */
    bool is_struct;
    int id;
};

/* Pass over a value, but of containers only their head, and open them. */
static void skip_head(struct thrift *t, enum thrift_type type, bool is_element,
                      struct thrift_skip *stack, int *depth)
{
    struct thrift_skip inner = { .is_struct = type == THRIFT_STRUCT };
    size_t n_bytes;

    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        if (is_element)
            next_byte(t);
        return;
    case THRIFT_BYTE:
        next_byte(t);
        return;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        thrift_varint(t);
        return;
    case THRIFT_DOUBLE:
        skip_bytes(t, 8);
        return;
    case THRIFT_BINARY:
        thrift_bytes(t, type, &n_bytes);
        return;
    case THRIFT_LIST:
    case THRIFT_SET:
        inner.n = (uint64_t)thrift_list(t, type, &inner.types[0]);
        inner.types[1] = inner.types[0];
        break;
    case THRIFT_MAP: {
        uint64_t n = thrift_varint(t);
        unsigned types = n > 0 ? next_byte(t) : 0;

        expect(t, n <= (size_t)(t->end - t->at) && types >> 4 <= THRIFT_STRUCT &&
                      (types & 15) <= THRIFT_STRUCT);
        inner.n = 2 * n;
        inner.types[0] = (enum thrift_type)(types & 15);
        inner.types[1] = (enum thrift_type)(types >> 4);
        break;
    }
    case THRIFT_STRUCT:
        break;
    default:
        t->failed = true;
    }
    expect(t, *depth < SKIP_DEPTH_MAX);
    if (!t->failed)
        stack[(*depth)++] = inner;
}

void thrift_skip(struct thrift *t, enum thrift_type type)
{
    struct thrift_skip stack[SKIP_DEPTH_MAX];
    int depth = 0;

    skip_head(t, type, false, stack, &depth);
    while (depth > 0 && !t->failed) {
        struct thrift_skip *top = &stack[depth - 1];
        struct thrift_field field;

        if (top->is_struct) {
            if (thrift_next(t, &field, &top->id))
                skip_head(t, field.type, false, stack, &depth);
            else
                depth--;
        } else if (top->n == 0) {
            depth--;
        } else {
            /* Of a map, 2n is counted down: an even rest means that a key comes. */
            bool is_key = top->n % 2 == 0;

            top->n--;
            skip_head(t, top->types[is_key], true, stack, &depth);
        }
    }
}
