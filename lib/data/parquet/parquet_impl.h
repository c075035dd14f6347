/*
 * parquet_impl.h - the parts of the parquet reader: Thrift, metadata, codecs, encodings, columns
 */
#ifndef DATA_PARQUET_PARQUET_IMPL_H
#define DATA_PARQUET_PARQUET_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "data/parquet/parquet.h"

#define PARQUET_DEPTH_MAX 16 /* of schemas */
#define PARQUET_NODES_MAX 10000
#define PARQUET_PAGE_VALUES_MAX (1 << 24)
#define PARQUET_PAGE_BYTES_MAX ((size_t)INT32_MAX)
/* Pages have about 1 MB. Larger ones may hold at most so many times what they are stored in. */
#define PARQUET_PAGE_BYTES_FREE ((size_t)64 << 20)
#define PARQUET_PAGE_RATIO_MAX 256

/* ---- Thrift's compact protocol (parquet_thrift.c) ---- */

enum thrift_type {
    THRIFT_STOP = 0,
    THRIFT_TRUE = 1,
    THRIFT_FALSE = 2,
    THRIFT_BYTE = 3,
    THRIFT_I16 = 4,
    THRIFT_I32 = 5,
    THRIFT_I64 = 6,
    THRIFT_DOUBLE = 7,
    THRIFT_BINARY = 8,
    THRIFT_LIST = 9,
    THRIFT_SET = 10,
    THRIFT_MAP = 11,
    THRIFT_STRUCT = 12,
};

/* A reader that fails once and for all: what is read after is 0. */
struct thrift {
    const unsigned char *at, *end;
    bool failed;
};

struct thrift_field {
    enum thrift_type type;
    int id;
};

/* The next field of a struct that began with *id 0; 0 at its end or on failure. */
int thrift_next(struct thrift *t, struct thrift_field *field, int *id);
/* Values; of another type than the field has they fail. */
int64_t thrift_int(struct thrift *t, enum thrift_type type);
int thrift_bool(struct thrift *t, enum thrift_type type);
const unsigned char *thrift_bytes(struct thrift *t, enum thrift_type type, size_t *n_bytes);
/* How many elements a list has, each of at least one byte. */
int64_t thrift_list(struct thrift *t, enum thrift_type type, enum thrift_type *element);
void thrift_begin_struct(struct thrift *t, enum thrift_type type);
/* Pass over a value, however deep (at most 64). */
void thrift_skip(struct thrift *t, enum thrift_type type);
uint64_t thrift_varint(struct thrift *t);

/* ---- metadata (parquet_meta.c) ---- */

enum parquet_type {
    PARQUET_BOOLEAN,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTES,
    PARQUET_FIXED,
    PARQUET_GROUP, /* not in files: a node without a type */
};

enum parquet_repetition { PARQUET_REQUIRED, PARQUET_OPTIONAL, PARQUET_REPEATED };

/* What a value means beyond its physical type, as far as it is distinguished here. */
enum parquet_meaning {
    MEANING_NONE,
    MEANING_LIST,
    MEANING_MAP,
    MEANING_UNSIGNED,
    MEANING_DECIMAL,
    MEANING_FLOAT16,
};

struct parquet_node {
    const char *name; /* in the arena */
    enum parquet_type type;
    enum parquet_repetition repetition;
    enum parquet_meaning meaning;
    int type_length, scale;
    int parent, n_children;
    int first_child, next; /* 0: none */
    int max_def, max_rep;
    int first_leaf, n_leaves; /* below it, or itself */
};

struct parquet_chunk {
    int codec;
    int64_t n_values;
    int64_t start, n_bytes; /* in the file: all its pages */
};

struct parquet_group {
    int64_t n_rows;
    struct parquet_chunk *chunks; /* [n_leaves] */
};

struct parquet_meta {
    struct parquet_node *nodes; /* nodes[0] is the root; in preorder */
    int n_nodes;
    int *leaves; /* [n_leaves] nodes */
    int n_leaves;
    struct parquet_group *groups;
    int64_t n_groups, n_rows;
};

/* The footer of a file; everything lives in the arena. 0, or -1 and ERR_DATA. */
int parquet_read_meta(struct parquet_meta *meta, const unsigned char *bytes, size_t n_bytes,
                      struct arena *arena, struct err *err);

enum parquet_page_kind { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

struct parquet_page {
    enum parquet_page_kind kind;
    int64_t n_bytes, n_compressed;
    bool has_crc;
    uint32_t crc;
    int64_t n_values;
    int encoding, def_encoding, rep_encoding;
    int64_t n_def_bytes, n_rep_bytes; /* v2 */
    bool is_compressed;
};

/* The page header at *at; *at goes behind it. 0, or -1 and ERR_DATA. */
int parquet_read_page(struct parquet_page *page, const unsigned char **at, const unsigned char *end,
                      struct err *err);

/* ---- compression (parquet_codec.c) ---- */

/* NULL if the codec is none of those that can be read; then its name is in *name. */
int parquet_codec_known(int codec, const char **name);

/* Exactly n_out bytes of in; out is made large enough (*capacity, heap). 0, or -1 and ERR_DATA. */
int parquet_decompress(int codec, const unsigned char *in, size_t n_in, unsigned char **out,
                       size_t *capacity, size_t n_out, struct err *err);

/* Snappy's raw format. 0, or -1 if in is not exactly n_out bytes compressed. */
int snappy_decompress(const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out);

/* ---- encodings (parquet_decode.c) ---- */

enum parquet_encoding {
    ENCODING_PLAIN = 0,
    ENCODING_PLAIN_DICTIONARY = 2,
    ENCODING_RLE = 3,
    ENCODING_BIT_PACKED = 4,
    ENCODING_DELTA_BINARY = 5,
    ENCODING_DELTA_LENGTH = 6,
    ENCODING_DELTA_BYTES = 7,
    ENCODING_RLE_DICTIONARY = 8,
    ENCODING_STREAM_SPLIT = 9,
};

struct parquet_slice {
    const unsigned char *at;
    size_t n;
};

/* Values of one page, or of a dictionary: numbers for what has a fixed width of up to 8 bytes (as
 * their bits), slices for the rest. */
struct parquet_values {
    uint64_t *numbers; /* heap */
    struct parquet_slice *slices;
    int64_t n, capacity;
    unsigned char *made; /* heap: bytes of slices that stand nowhere in the page */
    size_t made_capacity;
};

void parquet_values_release(struct parquet_values *values);

struct parquet_bytes {
    const unsigned char *at, *end;
};

/*
 * RLE and bit-packed runs of n values of so many bits (0..32), from *in on; out gets them. 0, or -1
 * if the bytes end before.
 */
int parquet_decode_runs(struct parquet_bytes *in, int n_bits, uint32_t *out, int64_t n);

/* The same for levels, at most max; *n_full counts those that are max. */
int parquet_decode_levels(struct parquet_bytes *in, int max, uint8_t *out, int64_t n,
                          int64_t *n_full);

/*
 * n values of a page of a column of this node into values, by encoding. dictionary: where the
 * encoding is one. 0, or -1 and ERR_DATA.
 */
int parquet_decode_values(struct parquet_values *values, const struct parquet_node *node,
                          int encoding, struct parquet_bytes in, int64_t n,
                          const struct parquet_values *dictionary, struct err *err);

bool parquet_is_slices(const struct parquet_node *node);

/* ---- columns (parquet_column.c) ---- */

/* One leaf's values, one after the other through pages and row groups. */
struct parquet_column {
    const struct parquet_node *node;
    const unsigned char *file;
    /* Of the row group at hand: */
    const struct parquet_chunk *chunk;
    const unsigned char *at, *end; /* pages that are left */
    int64_t n_left;                /* values in them */
    struct parquet_values dictionary, values;
    bool has_dictionary;
    unsigned char *page_buffer, *dictionary_buffer; /* heap: decompressed */
    size_t page_capacity, dictionary_capacity;
    uint8_t *def, *rep; /* heap: of the page at hand */
    int64_t level_capacity;
    int64_t n, i;    /* values (nulls too) of the page, and the one at hand */
    int64_t i_value; /* the next that is not null, in values */
    bool has_nulls;  /* else def is max_def all over and not written */
};

void parquet_column_start(struct parquet_column *column, const struct parquet_node *node,
                          const unsigned char *file, const struct parquet_chunk *chunk);
void parquet_column_release(struct parquet_column *column);

/* See to it that there is a value at hand. 1, 0 at the end of the row group, -1 and ERR_DATA. */
int parquet_column_load(struct parquet_column *column, struct err *err);

/* Levels of the value at hand. */
static inline int parquet_column_def(const struct parquet_column *c)
{
    return c->has_nulls ? c->def[c->i] : c->node->max_def;
}

static inline int parquet_column_rep(const struct parquet_column *c)
{
    return c->node->max_rep ? c->rep[c->i] : 0;
}

/* Go on behind the value at hand. */
static inline void parquet_column_next(struct parquet_column *c)
{
    c->i_value += parquet_column_def(c) == c->node->max_def;
    c->i++;
}

/* ---- one value as JSON (parquet_value.c) ---- */

void parquet_print_value(const struct parquet_node *node, const struct parquet_values *values,
                         int64_t i, struct str *out);

#endif
