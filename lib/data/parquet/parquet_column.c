/*
 * parquet_column.c - a leaf's pages, one at a time
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/num.h"
#include "data/parquet/parquet_impl.h"

void parquet_column_start(struct parquet_column *c, const struct parquet_node *node,
                          const unsigned char *file, const struct parquet_chunk *chunk)
{
    c->node = node;
    c->file = file;
    c->chunk = chunk;
    c->at = file + chunk->start;
    c->end = c->at + chunk->n_bytes;
    c->n_left = chunk->n_values;
    c->has_dictionary = false;
    c->n = c->i = c->i_value = 0;
}

void parquet_column_release(struct parquet_column *c)
{
    parquet_values_release(&c->dictionary);
    parquet_values_release(&c->values);
    free(c->page_buffer);
    free(c->dictionary_buffer);
    free(c->def);
    free(c->rep);
    *c = (struct parquet_column){ 0 };
}

static int check_crc(const struct parquet_page *page, const unsigned char *at, struct err *err)
{
    if (page->has_crc && (uint32_t)crc32(0, at, (unsigned)page->n_compressed) != page->crc)
        return err_set(err, ERR_DATA, "the checksum of a page does not match its bytes");
    return 0;
}

/* n_compressed bytes at `at` as n_bytes, in *buffer if they have to be made. */
static int open_bytes(struct parquet_column *c, const unsigned char *at, size_t n_compressed,
                      size_t n_bytes, bool is_compressed, unsigned char **buffer, size_t *capacity,
                      struct parquet_bytes *out, struct err *err)
{
    const char *name;

    if (!parquet_codec_known(c->chunk->codec, &name))
        return err_set(
            err, ERR_DATA,
            "it is compressed with %s, which is not supported (hint: write it with snappy, "
            "zstd, gzip or none)",
            name);
    if (c->chunk->codec == 0 || !is_compressed) {
        if (n_compressed != n_bytes)
            return err_set(err, ERR_DATA, "a page of %zu bytes claims to have %zu", n_compressed,
                           n_bytes);
        *out = (struct parquet_bytes){ at, at + n_bytes };
        return 0;
    }
    if (parquet_decompress(c->chunk->codec, at, n_compressed, buffer, capacity, n_bytes, err) < 0)
        return -1;
    *out = (struct parquet_bytes){ *buffer, *buffer + n_bytes };
    return 0;
}

static int load_dictionary(struct parquet_column *c, const struct parquet_page *page,
                           const unsigned char *at, struct err *err)
{
    struct parquet_bytes bytes;

    if (c->has_dictionary ||
        (page->encoding != ENCODING_PLAIN && page->encoding != ENCODING_PLAIN_DICTIONARY))
        return err_set(err, ERR_DATA, "an invalid dictionary");
    if (open_bytes(c, at, (size_t)page->n_compressed, (size_t)page->n_bytes, true,
                   &c->dictionary_buffer, &c->dictionary_capacity, &bytes, err) < 0 ||
        parquet_decode_values(&c->dictionary, c->node, ENCODING_PLAIN, bytes, page->n_values, NULL,
                              err) < 0)
        return -1;
    c->has_dictionary = true;
    return 0;
}

static int reserve_levels(struct parquet_column *c, int64_t n)
{
    if (n <= c->level_capacity && c->def)
        return 0;
    free(c->def);
    free(c->rep);
    c->level_capacity = 0;
    c->def = malloc((size_t)max_i64(n, 1));
    c->rep = malloc((size_t)max_i64(n, 1));
    if (!c->def || !c->rep)
        return -1;
    c->level_capacity = n;
    return 0;
}

/* Levels of a v1 page: their length stands in front. */
static int cut_levels(struct parquet_bytes *bytes, int max, struct parquet_bytes *levels)
{
    uint32_t length;

    *levels = (struct parquet_bytes){ bytes->at, bytes->at };
    if (max == 0)
        return 0;
    if (bytes->end - bytes->at < 4)
        return -1;
    memcpy(&length, bytes->at, 4);
    bytes->at += 4;
    if (length > (size_t)(bytes->end - bytes->at))
        return -1;
    *levels = (struct parquet_bytes){ bytes->at, bytes->at + length };
    bytes->at += length;
    return 0;
}

static int load_levels(struct parquet_column *c, int64_t n, struct parquet_bytes rep,
                       struct parquet_bytes def, int64_t *n_values, struct err *err)
{
    int64_t n_full;

    *n_values = n;
    c->has_nulls = false;
    if (reserve_levels(c, n) < 0)
        return err_set(err, ERR_DEVICE, "out of host memory for %lld levels", (long long)n);
    if (c->node->max_rep > 0 &&
        parquet_decode_levels(&rep, c->node->max_rep, c->rep, n, &n_full) < 0)
        return err_set(err, ERR_DATA, "the repetition levels of a page are broken");
    if (c->node->max_def > 0) {
        if (parquet_decode_levels(&def, c->node->max_def, c->def, n, n_values) < 0)
            return err_set(err, ERR_DATA, "the definition levels of a page are broken");
        c->has_nulls = *n_values < n;
    }
    return 0;
}

static int load_v1(struct parquet_column *c, const struct parquet_page *page,
                   const unsigned char *at, struct parquet_bytes *values, int64_t *n_values,
                   struct err *err)
{
    struct parquet_bytes rep, def;

    if ((c->node->max_def > 0 && page->def_encoding != ENCODING_RLE) ||
        (c->node->max_rep > 0 && page->rep_encoding != ENCODING_RLE))
        return err_set(err, ERR_DATA, "levels in an unsupported encoding (BIT_PACKED)");
    if (open_bytes(c, at, (size_t)page->n_compressed, (size_t)page->n_bytes, true, &c->page_buffer,
                   &c->page_capacity, values, err) < 0)
        return -1;
    if (cut_levels(values, c->node->max_rep, &rep) < 0 ||
        cut_levels(values, c->node->max_def, &def) < 0)
        return err_set(err, ERR_DATA, "the levels of a page are longer than it");
    return load_levels(c, page->n_values, rep, def, n_values, err);
}

/* Levels stand in front of what is compressed. */
static int load_v2(struct parquet_column *c, const struct parquet_page *page,
                   const unsigned char *at, struct parquet_bytes *values, int64_t *n_values,
                   struct err *err)
{
    size_t n_rep = (size_t)page->n_rep_bytes, n_def = (size_t)page->n_def_bytes;
    struct parquet_bytes rep = { at, at + n_rep }, def = { rep.end, rep.end + n_def };

    if (open_bytes(c, def.end, (size_t)page->n_compressed - n_rep - n_def,
                   (size_t)page->n_bytes - n_rep - n_def, page->is_compressed, &c->page_buffer,
                   &c->page_capacity, values, err) < 0)
        return -1;
    return load_levels(c, page->n_values, rep, def, n_values, err);
}

static int load_data(struct parquet_column *c, const struct parquet_page *page,
                     const unsigned char *at, struct err *err)
{
    struct parquet_bytes bytes;
    int64_t n_values;

    if (page->n_values > c->n_left)
        return err_set(err, ERR_DATA, "more values than the column says");
    if ((page->kind == PAGE_DATA_V2 ? load_v2 : load_v1)(c, page, at, &bytes, &n_values, err) < 0)
        return -1;
    if (parquet_decode_values(&c->values, c->node, page->encoding, bytes, n_values,
                              c->has_dictionary ? &c->dictionary : NULL, err) < 0)
        return -1;
    c->n = page->n_values;
    c->i = c->i_value = 0;
    c->n_left -= page->n_values;
    return 0;
}

int parquet_column_load(struct parquet_column *c, struct err *err)
{
    while (c->i == c->n) {
        struct parquet_page page;
        int rc = 0;

        if (c->n_left == 0)
            return 0;
        if (c->at == c->end)
            return err_set(err, ERR_DATA, "%lld values fewer than the column says",
                           (long long)c->n_left);
        if (parquet_read_page(&page, &c->at, c->end, err) < 0)
            return -1;
        const unsigned char *at = c->at;
        c->at += page.n_compressed;
        if (check_crc(&page, at, err) < 0)
            return -1;
        if (page.kind == PAGE_DICTIONARY)
            rc = load_dictionary(c, &page, at, err);
        else if (page.kind == PAGE_DATA || page.kind == PAGE_DATA_V2)
            rc = load_data(c, &page, at, err);
        if (rc < 0)
            return -1;
    }
    return 1;
}
