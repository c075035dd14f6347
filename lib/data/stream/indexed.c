/*
 * indexed.c - reading Megatron's .bin/.idx
 *
 * Layout of .idx, little-endian and unaligned (the header is 34 bytes):
 *     "MMIDIDX\0\0"  u64 version = 1  u8 type  u64 n_sequences  u64 n_document_indices
 *     i32 length[n_sequences]  i64 byte_offset[n_sequences]  i64 first_sequence[n_document_indices]
 *     optional i8 mode[n_sequences] (multimodal; not used here)
 */
#include "data/stream/indexed.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/str.h"
#include "data/stream/indexed_impl.h"

#define MAGIC "MMIDIDX\0" /* and the literal's own 0: nine bytes */
#define MAGIC_BYTES 9
#define HEADER_BYTES 34
#define FINGERPRINT_BYTES ((size_t)1 << 20)
#define WHOLE_SEQUENCES ((int64_t)1 << 21) /* 40 MiB of index, some 10 ms */
#define N_SPOTS 16                         /* reads of three pages each, where storage is far */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, ".bin/.idx are read in place");

static int64_t load_i64(const unsigned char *p)
{
    int64_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static uint64_t load_u64(const unsigned char *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

const char *indexed_type_name(enum indexed_type type)
{
    static const char *const names[] = {
        NULL, "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"
    };

    if ((size_t)type >= sizeof names / sizeof *names)
        return NULL;
    return names[type];
}

static size_t type_bytes(enum indexed_type type)
{
    switch (type) {
    case INDEXED_U8:
    case INDEXED_I8:
        return 1;
    case INDEXED_I16:
    case INDEXED_U16:
        return 2;
    case INDEXED_I32:
        return 4;
    case INDEXED_I64:
        return 8;
    default:
        return 0;
    }
}

/* Header and sizes of .idx: after this, lengths, offsets and documents lie within the mapping. */
static int check_header(struct indexed *indexed, const unsigned char **lengths, struct err *err)
{
    const struct file_map *idx = &indexed->idx;
    const char *prefix = indexed->prefix;

    if (idx->n_bytes < HEADER_BYTES || memcmp(idx->data, MAGIC, MAGIC_BYTES) != 0)
        return err_set(err, ERR_DATA,
                       "%s.idx is not a token index (it does not begin with MMIDIDX)", prefix);
    uint64_t version = load_u64(idx->data + 9);
    if (version != INDEXED_VERSION)
        return err_set(err, ERR_DATA, "%s.idx has version %llu, but only version 1 is supported",
                       prefix, (unsigned long long)version);
    indexed->type = (enum indexed_type)idx->data[17];
    indexed->token_bytes = type_bytes(indexed->type);
    if (indexed->token_bytes == 0) {
        const char *name = indexed_type_name(indexed->type);

        return err_set(err, ERR_DATA, "%s.idx has element type %d (%s), which holds no tokens",
                       prefix, (int)indexed->type, name ? name : "unknown");
    }

    uint64_t n_sequences = load_u64(idx->data + 18), n_starts = load_u64(idx->data + 26);
    uint64_t body = idx->n_bytes - HEADER_BYTES;
    if (n_sequences > body / 12 || n_starts > body / 8 || n_starts < 1 ||
        (body != n_sequences * 12 + n_starts * 8 && body != n_sequences * 13 + n_starts * 8))
        return err_set(
            err, ERR_DATA,
            "%s.idx has %zu bytes, which does not match its %llu sequences and %llu document "
            "indices",
            prefix, idx->n_bytes, (unsigned long long)n_sequences, (unsigned long long)n_starts);
    indexed->n_sequences = (int64_t)n_sequences;
    indexed->n_documents = (int64_t)n_starts - 1;
    *lengths = idx->data + HEADER_BYTES;
    indexed->offsets = *lengths + n_sequences * 4;
    indexed->documents = indexed->offsets + n_sequences * 8;
    return 0;
}

/* Sequence i lies behind *end, where the one before ends; *end becomes its own. */
static int check_sequence(const struct indexed *indexed, const unsigned char *lengths, int64_t i,
                          int64_t *end, struct err *err)
{
    int64_t offset = load_i64(indexed->offsets + i * 8);
    int32_t length;

    memcpy(&length, lengths + i * 4, sizeof length);
    if (length < 0)
        return err_set(err, ERR_DATA, "%s.idx: sequence %lld has length %d", indexed->prefix,
                       (long long)i, length);
    if (offset != *end)
        return err_set(err, ERR_DATA,
                       "%s.idx: sequence %lld starts at byte %lld, the one before ends at %lld",
                       indexed->prefix, (long long)i, (long long)offset, (long long)*end);
    if (__builtin_add_overflow(*end, (int64_t)length * (int64_t)indexed->token_bytes, end))
        return err_set(err, ERR_DATA, "%s.idx: more than 2^63 bytes of tokens", indexed->prefix);
    return 0;
}

/* All of .bin belongs to sequences, which end at byte `end`. */
static int check_end(struct indexed *indexed, int64_t end, struct err *err)
{
    if ((uint64_t)end != indexed->bin.n_bytes)
        return err_set(err, ERR_DATA, "%s.bin has %zu bytes, but its .idx requires %lld",
                       indexed->prefix, indexed->bin.n_bytes, (long long)end);
    indexed->n_tokens = end / (int64_t)indexed->token_bytes;
    return 0;
}

/* Sequences lie back to back from byte 0 to the end of .bin. */
static int check_sequences(struct indexed *indexed, const unsigned char *lengths, struct err *err)
{
    int64_t end = 0;

    for (int64_t i = 0; i < indexed->n_sequences; i++)
        if (check_sequence(indexed, lengths, i, &end, err) < 0)
            return -1;
    return check_end(indexed, end, err);
}

static int check_document(const struct indexed *indexed, int64_t i, int64_t *last, struct err *err)
{
    int64_t start = load_i64(indexed->documents + i * 8);

    if (start < *last || start > indexed->n_sequences || (i == 0 && start != 0))
        return err_set(err, ERR_DATA,
                       "%s.idx: document %lld starts at sequence %lld, not in %lld..%lld",
                       indexed->prefix, (long long)i, (long long)start, (long long)*last,
                       (long long)(i == 0 ? 0 : indexed->n_sequences));
    *last = start;
    return 0;
}

static int check_documents(const struct indexed *indexed, struct err *err)
{
    int64_t last = 0;

    for (int64_t i = 0; i <= indexed->n_documents; i++)
        if (check_document(indexed, i, &last, err) < 0)
            return -1;
    if (last != indexed->n_sequences)
        return err_set(err, ERR_DATA, "%s.idx: its documents hold %lld of its %lld sequences",
                       indexed->prefix, (long long)last, (long long)indexed->n_sequences);
    return 0;
}

int indexed_check(struct indexed *indexed, struct err *err)
{
    const unsigned char *lengths = NULL;

    if (check_header(indexed, &lengths, err) < 0 || check_sequences(indexed, lengths, err) < 0)
        return -1;
    return check_documents(indexed, err);
}

/* Pairs of neighbours among n sequences, spread evenly, the first and the last ones among them. */
static int check_spots(struct indexed *indexed, const unsigned char *lengths, struct err *err)
{
    int64_t n = indexed->n_sequences, end = 0;

    for (int spot = 0; spot < N_SPOTS; spot++) {
        int64_t i = (int64_t)((__int128)(n - 2) * spot / (N_SPOTS - 1));

        end = spot == 0 ? 0 : load_i64(indexed->offsets + i * 8);
        if (check_sequence(indexed, lengths, i, &end, err) < 0 ||
            check_sequence(indexed, lengths, i + 1, &end, err) < 0)
            return -1;
    }
    return check_end(indexed, end, err);
}

int indexed_check_tokens(struct indexed *indexed, int64_t whole_sequences, struct err *err)
{
    const unsigned char *lengths = NULL;

    CHECK(whole_sequences >= 1);
    if (check_header(indexed, &lengths, err) < 0)
        return -1;
    if (indexed->n_sequences <= whole_sequences && indexed->n_documents <= whole_sequences)
        return indexed_check(indexed, err);
    int rc = indexed->n_sequences >= 2 ? check_spots(indexed, lengths, err)
                                       : check_sequences(indexed, lengths, err);
    indexed->documents = NULL; /* not checked: must not be asked for */
    return rc;
}

static int map_beside(struct file_map *map, const char *prefix, const char *suffix, struct err *err)
{
    struct str path = { 0 };

    str_printf(&path, "%s%s", prefix, suffix);
    int rc = file_map_open(map, str_text(&path), err);
    str_release(&path);
    if (rc < 0)
        err->code = ERR_DATA;
    return rc;
}

/* Whether PREFIX.idx is there; length: of the prefix. */
static bool is_there(const char *prefix, size_t length)
{
    char path[4096];

    snprintf(path, sizeof path, "%.*s.idx", (int)length, prefix);
    return file_exists(path);
}

void indexed_hint(const char *prefix, char *buffer, size_t size)
{
    size_t length = strlen(prefix);

    if (length > 4 && is_there(prefix, length - 4) &&
        (str_ends_with(prefix, ".bin") || str_ends_with(prefix, ".idx")))
        snprintf(buffer, size, "the prefix alone: %.*s", (int)length - 4, prefix);
    else if (file_is_folder(prefix))
        snprintf(
            buffer, size,
            "it is a folder, but a prefix is expected: %s/NAME for NAME.bin and NAME.idx in it",
            prefix);
    else if (file_exists(prefix))
        snprintf(buffer, size,
                 "not a token file: make one with lmtrain data tokenize %s --tokenizer DIR --out "
                 "PREFIX, and give PREFIX; finetune and lora read rows directly",
                 prefix);
    else
        snprintf(buffer, size,
                 "lmtrain data tokenize --out PREFIX makes PREFIX.bin and PREFIX.idx");
}

/* all: every sequence and document is checked. */
static int open_pair(struct indexed *out, const char *prefix, bool all, struct err *err)
{
    struct indexed indexed = { .prefix = strdup(prefix) };
    char hint[1024];

    if (!indexed.prefix)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", prefix);
    if (!is_there(prefix, strlen(prefix))) {
        indexed_hint(prefix, hint, sizeof hint);
        err_set(err, ERR_DATA, "there is no %s.idx (hint: %s)", prefix, hint);
        goto fail;
    }
    if (map_beside(&indexed.idx, prefix, ".idx", err) < 0)
        goto fail;
    if (map_beside(&indexed.bin, prefix, ".bin", err) < 0)
        goto fail;
    if (!all && indexed.idx.n_bytes > WHOLE_SEQUENCES * 20)
        madvise((void *)(uintptr_t)indexed.idx.data, indexed.idx.n_bytes, MADV_RANDOM);
    if ((all ? indexed_check(&indexed, err)
             : indexed_check_tokens(&indexed, WHOLE_SEQUENCES, err)) < 0)
        goto fail;
    *out = indexed;
    return 0;
fail:
    indexed_close(&indexed);
    return -1;
}

int indexed_open(struct indexed *out, const char *prefix, struct err *err)
{
    return open_pair(out, prefix, true, err);
}

int indexed_open_tokens(struct indexed *out, const char *prefix, struct err *err)
{
    return open_pair(out, prefix, false, err);
}

void indexed_close(struct indexed *indexed)
{
    file_map_close(&indexed->bin);
    file_map_close(&indexed->idx);
    free(indexed->prefix);
    *indexed = (struct indexed){ 0 };
}

/* One token, whatever its type, widened. */
static int64_t load_token(enum indexed_type type, const unsigned char *p)
{
    uint16_t u16;
    int16_t i16;
    int32_t i32;

    switch (type) {
    case INDEXED_U8:
        return *p;
    case INDEXED_I8:
        return (signed char)*p;
    case INDEXED_I16:
        memcpy(&i16, p, sizeof i16);
        return i16;
    case INDEXED_U16:
        memcpy(&u16, p, sizeof u16);
        return u16;
    case INDEXED_I32:
        memcpy(&i32, p, sizeof i32);
        return i32;
    default:
        return load_i64(p);
    }
}

int indexed_read(const struct indexed *indexed, int64_t first, int64_t n, int vocab_size,
                 int32_t *out, struct err *err)
{
    CHECK(first >= 0);
    CHECK(n >= 0);
    CHECK(first <= indexed->n_tokens - n);
    if (n == 0)
        return 0;
    const unsigned char *p = indexed->bin.data + (size_t)first * indexed->token_bytes;

    for (int64_t i = 0; i < n; i++, p += indexed->token_bytes) {
        int64_t token = load_token(indexed->type, p);

        if (token < 0 || token >= vocab_size)
            return err_set(
                err, ERR_DATA,
                "%s.bin: token %lld at position %lld is not in 0..%d (hint: was it made with "
                "another tokenizer?)",
                indexed->prefix, (long long)token, (long long)(first + i), vocab_size - 1);
        out[i] = (int32_t)token;
    }
    return 0;
}

int64_t indexed_document_start(const struct indexed *indexed, int64_t document)
{
    CHECK(document >= 0);
    CHECK(document <= indexed->n_documents);
    CHECK(indexed->documents);
    int64_t sequence = load_i64(indexed->documents + document * 8);

    if (sequence == indexed->n_sequences)
        return indexed->n_tokens;
    return load_i64(indexed->offsets + sequence * 8) / (int64_t)indexed->token_bytes;
}

uint64_t indexed_fingerprint(const struct indexed *indexed)
{
    size_t n_bytes = indexed->bin.n_bytes;
    size_t part = n_bytes < FINGERPRINT_BYTES ? n_bytes : FINGERPRINT_BYTES;
    uint64_t words[6] = { (uint64_t)indexed->type,
                          (uint64_t)indexed->n_tokens,
                          (uint64_t)indexed->n_sequences,
                          (uint64_t)indexed->n_documents,
                          0,
                          0 };

    if (part > 0) {
        words[4] = XXH64(indexed->bin.data, part, 0);
        words[5] = XXH64(indexed->bin.data + n_bytes - part, part, 0);
    }
    return XXH64(words, sizeof words, 0);
}
