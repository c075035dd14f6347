/*
 * parquet_meta.c - the footer: schema, row groups, where columns lie; and the headers of pages
 *
 * Field numbers are those of parquet.thrift in github.com/apache/parquet-format.
 */
#include <string.h>

#include "data/parquet/parquet_impl.h"

#define COLUMN_VALUES_MAX ((int64_t)1 << 40)

struct parquet_meta_reader {
    struct thrift thrift;
    struct parquet_meta *meta;
    struct arena *arena;
    size_t file_bytes;
    struct err *err;
    bool is_set; /* err says what is wrong */
};

static void wrong(struct parquet_meta_reader *r, const char *what)
{
    if (!r->is_set && !r->thrift.failed)
        err_set(r->err, ERR_DATA, "%s", what);
    r->is_set |= !r->thrift.failed;
    r->thrift.failed = true;
}

/* ---- schema ---- */

static void read_integer_type(struct thrift *t, struct parquet_node *node)
{
    struct thrift_field field;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        if (field.id == 2)
            node->meaning = thrift_bool(t, field.type) ? MEANING_NONE : MEANING_UNSIGNED;
        else
            thrift_skip(t, field.type);
    }
}

static void read_decimal_type(struct thrift *t, struct parquet_node *node)
{
    struct thrift_field field;
    int id = 0;

    node->meaning = MEANING_DECIMAL;
    while (thrift_next(t, &field, &id)) {
        if (field.id == 1)
            node->scale = (int)thrift_int(t, field.type);
        else
            thrift_skip(t, field.type);
    }
}

static void read_logical_type(struct thrift *t, enum thrift_type type, struct parquet_node *node)
{
    struct thrift_field field;
    int id = 0;

    thrift_begin_struct(t, type);
    while (!t->failed && thrift_next(t, &field, &id)) {
        if (field.id == 5 && field.type == THRIFT_STRUCT) {
            read_decimal_type(t, node);
        } else if (field.id == 10 && field.type == THRIFT_STRUCT) {
            read_integer_type(t, node);
        } else {
            if (field.id == 2 || field.id == 3)
                node->meaning = field.id == 3 ? MEANING_LIST : MEANING_MAP;
            if (field.id == 15)
                node->meaning = MEANING_FLOAT16;
            thrift_skip(t, field.type);
        }
    }
}

static void set_converted_type(struct parquet_node *node, int64_t converted)
{
    if (converted == 1 || converted == 2)
        node->meaning = MEANING_MAP;
    else if (converted == 3)
        node->meaning = MEANING_LIST;
    else if (converted == 5)
        node->meaning = MEANING_DECIMAL;
    else if (converted >= 11 && converted <= 14)
        node->meaning = MEANING_UNSIGNED;
}

static void read_element(struct parquet_meta_reader *r, struct parquet_node *node)
{
    struct thrift *t = &r->thrift;
    struct thrift_field field;
    const unsigned char *name;
    size_t n_name;
    int64_t number;
    int id = 0;

    node->type = PARQUET_GROUP;
    node->name = "";
    while (thrift_next(t, &field, &id)) {
        switch (field.id) {
        case 1:
            number = thrift_int(t, field.type);
            if (number < PARQUET_BOOLEAN || number > PARQUET_FIXED)
                wrong(r, "a column of an invalid type");
            node->type = (enum parquet_type)number;
            break;
        case 2:
            node->type_length = (int)thrift_int(t, field.type);
            break;
        case 3:
            number = thrift_int(t, field.type);
            if (number < PARQUET_REQUIRED || number > PARQUET_REPEATED)
                wrong(r, "a column of an invalid repetition");
            node->repetition = (enum parquet_repetition)number;
            break;
        case 4:
            name = thrift_bytes(t, field.type, &n_name);
            node->name = arena_strndup(r->arena, (const char *)name, n_name);
            break;
        case 5:
            node->n_children = (int)thrift_int(t, field.type);
            break;
        case 6:
            set_converted_type(node, thrift_int(t, field.type));
            break;
        case 7:
            node->scale = (int)thrift_int(t, field.type);
            break;
        case 10:
            read_logical_type(t, field.type, node);
            break;
        default:
            thrift_skip(t, field.type);
        }
    }
}

static void check_node(struct parquet_meta_reader *r, const struct parquet_node *node)
{
    if (node->n_children < 0 || (node->type != PARQUET_GROUP && node->n_children > 0))
        wrong(r, "a column that must not have children has some");
    if (node->type == PARQUET_FIXED && (node->type_length < 1 || node->type_length > 1 << 20))
        wrong(r, "an invalid fixed width");
    if (node->scale < 0 || node->scale > 1000)
        wrong(r, "a decimal with an invalid scale");
}

/* Put node i into the tree: parents come before children, each with so many. */
static void link_node(struct parquet_meta_reader *r, int i, int *open, int *missing, int *depth)
{
    struct parquet_meta *m = r->meta;
    struct parquet_node *node = &m->nodes[i], *parent;

    while (*depth > 0 && missing[*depth - 1] == 0)
        --*depth;
    if (*depth == 0) {
        wrong(r, "a schema with disconnected nodes");
        return;
    }
    missing[*depth - 1]--;
    node->parent = open[*depth - 1];
    parent = &m->nodes[node->parent];
    node->max_def = parent->max_def + (node->repetition != PARQUET_REQUIRED);
    node->max_rep = parent->max_rep + (node->repetition == PARQUET_REPEATED);
    if (!parent->first_child) {
        parent->first_child = i;
    } else {
        int last = parent->first_child;

        while (m->nodes[last].next)
            last = m->nodes[last].next;
        m->nodes[last].next = i;
    }
}

static void read_schema(struct parquet_meta_reader *r, enum thrift_type type)
{
    struct parquet_meta *m = r->meta;
    int open[PARQUET_DEPTH_MAX], missing[PARQUET_DEPTH_MAX], depth = 0;
    enum thrift_type element;
    int64_t n = thrift_list(&r->thrift, type, &element);

    if (n < 1 || n > PARQUET_NODES_MAX || element != THRIFT_STRUCT || m->nodes) {
        wrong(r, "an invalid schema");
        return;
    }
    m->nodes = arena_array(r->arena, struct parquet_node, n);
    m->leaves = arena_array(r->arena, int, n);
    for (int i = 0; i < (int)n && !r->thrift.failed; i++) {
        struct parquet_node *node = &m->nodes[i];

        read_element(r, node);
        check_node(r, node);
        if (i == 0)
            node->repetition = PARQUET_REQUIRED; /* what the root says is without meaning */
        else if (!r->thrift.failed)
            link_node(r, i, open, missing, &depth);
        node->first_leaf = m->n_leaves;
        if (node->type != PARQUET_GROUP) {
            m->leaves[m->n_leaves++] = i;
            node->n_leaves = 1;
            for (int p = node->parent; !r->thrift.failed; p = m->nodes[p].parent) {
                m->nodes[p].n_leaves++;
                if (p == 0)
                    break;
            }
        } else if (depth == PARQUET_DEPTH_MAX) {
            wrong(r, "a schema that is nested too deeply");
        } else {
            open[depth] = i;
            missing[depth++] = node->n_children;
        }
    }
    m->n_nodes = (int)n;
}

/*
 * Every group must have a leaf below it: definition and repetition levels are stored with leaves.
 */
static void check_schema(struct parquet_meta_reader *r)
{
    const struct parquet_meta *m = r->meta;

    if (!m->nodes || m->nodes[0].type != PARQUET_GROUP)
        wrong(r, "no schema");
    for (int i = 0; i < m->n_nodes && !r->thrift.failed; i++)
        if (m->nodes[i].n_leaves == 0)
            wrong(r, "a group without columns");
}

/* ---- row groups ---- */

static void read_column_meta(struct parquet_meta_reader *r, struct parquet_chunk *chunk,
                             int64_t *type)
{
    struct thrift *t = &r->thrift;
    struct thrift_field field;
    int64_t data = 0, dictionary = 0;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        switch (field.id) {
        case 1:
            *type = thrift_int(t, field.type);
            break;
        case 4:
            chunk->codec = (int)thrift_int(t, field.type);
            break;
        case 5:
            chunk->n_values = thrift_int(t, field.type);
            break;
        case 7:
            chunk->n_bytes = thrift_int(t, field.type);
            break;
        case 9:
            data = thrift_int(t, field.type);
            break;
        case 11:
            dictionary = thrift_int(t, field.type);
            break;
        default:
            thrift_skip(t, field.type);
        }
    }
    chunk->start = dictionary > 0 && dictionary < data ? dictionary : data;
}

static void read_chunk(struct parquet_meta_reader *r, struct parquet_chunk *chunk,
                       const struct parquet_node *node)
{
    struct thrift *t = &r->thrift;
    struct thrift_field field;
    int64_t type = -1;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        if (field.id == 3 && field.type == THRIFT_STRUCT)
            read_column_meta(r, chunk, &type);
        else if (field.id == 1)
            wrong(r, "columns in other files");
        else
            thrift_skip(t, field.type);
    }
    if (type != (int64_t)node->type)
        wrong(r, "a column of another type than the schema says");
    int64_t file_bytes = (int64_t)r->file_bytes;
    if (chunk->start < 0 || chunk->n_bytes < 0 || chunk->start > file_bytes ||
        chunk->n_bytes > file_bytes - chunk->start || chunk->n_values < 0 ||
        chunk->n_values > COLUMN_VALUES_MAX)
        wrong(r, "a column that lies outside the file");
}

static void read_group(struct parquet_meta_reader *r, struct parquet_group *group)
{
    struct thrift *t = &r->thrift;
    const struct parquet_meta *m = r->meta;
    struct thrift_field field;
    int id = 0;

    group->n_rows = -1;
    while (thrift_next(t, &field, &id)) {
        enum thrift_type element;

        if (field.id == 3) {
            group->n_rows = thrift_int(t, field.type);
        } else if (field.id == 1 && !group->chunks) {
            int64_t n = thrift_list(t, field.type, &element);
            if (n != m->n_leaves || element != THRIFT_STRUCT) {
                wrong(r, "a row group with another number of columns than the schema");
                return;
            }
            group->chunks = arena_array(r->arena, struct parquet_chunk, n);
            for (int i = 0; i < m->n_leaves && !t->failed; i++)
                read_chunk(r, &group->chunks[i], &m->nodes[m->leaves[i]]);
        } else {
            thrift_skip(t, field.type);
        }
    }
    if (!group->chunks || group->n_rows < 0 || group->n_rows > COLUMN_VALUES_MAX)
        wrong(r, "a row group without columns or rows");
}

static void read_groups(struct parquet_meta_reader *r, enum thrift_type type)
{
    struct parquet_meta *m = r->meta;
    enum thrift_type element;
    int64_t n = thrift_list(&r->thrift, type, &element);

    if ((n > 0 && element != THRIFT_STRUCT) || m->groups) {
        wrong(r, "invalid row groups");
        return;
    }
    /* The schema comes before: fields are in the order of their numbers. */
    check_schema(r);
    m->groups = arena_array(r->arena, struct parquet_group, n);
    for (int64_t i = 0; i < n && !r->thrift.failed; i++) {
        read_group(r, &m->groups[i]);
        m->n_rows += m->groups[i].n_rows;
    }
    m->n_groups = n;
}

static void read_file_meta(struct parquet_meta_reader *r)
{
    struct thrift *t = &r->thrift;
    struct thrift_field field;
    int64_t n_rows = 0;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        if (field.id == 2)
            read_schema(r, field.type);
        else if (field.id == 3)
            n_rows = thrift_int(t, field.type);
        else if (field.id == 4)
            read_groups(r, field.type);
        else if (field.id == 8)
            wrong(r, "it is encrypted");
        else
            thrift_skip(t, field.type);
    }
    if (!r->meta->groups || n_rows != r->meta->n_rows)
        wrong(r, "row groups with another number of rows than the file");
}

static uint32_t load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int parquet_read_meta(struct parquet_meta *meta, const unsigned char *bytes, size_t n_bytes,
                      struct arena *arena, struct err *err)
{
    if (n_bytes < 12 || memcmp(bytes, "PAR1", 4) != 0)
        return err_set(err, ERR_DATA,
                       n_bytes >= 4 && !memcmp(bytes, "PARE", 4)
                           ? "it is encrypted"
                           : "it is not a parquet file: it does not begin with PAR1");
    const unsigned char *tail = bytes + n_bytes - 8;
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return err_set(err, ERR_DATA, "it does not end with PAR1 (hint: is the file complete?)");
    uint32_t length = load_u32(tail);
    if (length > n_bytes - 12)
        return err_set(err, ERR_DATA, "its footer has %lu bytes, more than the file",
                       (unsigned long)length);
    struct parquet_meta found = { 0 };
    struct parquet_meta_reader r = { .thrift = { tail - length, tail, 0 },
                                     .meta = &found,
                                     .arena = arena,
                                     .file_bytes = n_bytes,
                                     .err = err };
    read_file_meta(&r);
    if (r.thrift.failed)
        return r.is_set ? err_add(err, "its footer")
                        : err_set(err, ERR_DATA, "its footer is broken");
    *meta = found;
    return 0;
}

/* ---- page headers ---- */

static void read_data_header(struct thrift *t, struct parquet_page *page)
{
    struct thrift_field field;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        if (field.id < 1 || field.id > 4) {
            thrift_skip(t, field.type);
            continue;
        }
        int64_t number = thrift_int(t, field.type);
        if (field.id == 1)
            page->n_values = number;
        else if (field.id == 2)
            page->encoding = (int)number;
        else if (field.id == 3)
            page->def_encoding = (int)number;
        else
            page->rep_encoding = (int)number;
    }
}

static void read_dictionary_header(struct thrift *t, struct parquet_page *page)
{
    struct thrift_field field;
    int id = 0;

    while (thrift_next(t, &field, &id)) {
        if (field.id == 1)
            page->n_values = thrift_int(t, field.type);
        else if (field.id == 2)
            page->encoding = (int)thrift_int(t, field.type);
        else
            thrift_skip(t, field.type);
    }
}

static void read_data_header_v2(struct thrift *t, struct parquet_page *page)
{
    struct thrift_field field;
    int id = 0;

    page->def_encoding = page->rep_encoding = ENCODING_RLE;
    while (thrift_next(t, &field, &id)) {
        if (field.id == 1)
            page->n_values = thrift_int(t, field.type);
        else if (field.id == 4)
            page->encoding = (int)thrift_int(t, field.type);
        else if (field.id == 5)
            page->n_def_bytes = thrift_int(t, field.type);
        else if (field.id == 6)
            page->n_rep_bytes = thrift_int(t, field.type);
        else if (field.id == 7)
            page->is_compressed = thrift_bool(t, field.type);
        else
            thrift_skip(t, field.type);
    }
}

static void read_page_field(struct thrift *t, struct thrift_field field, struct parquet_page *page)
{
    switch (field.id) {
    case 1:
        page->kind = (enum parquet_page_kind)thrift_int(t, field.type);
        break;
    case 2:
        page->n_bytes = thrift_int(t, field.type);
        break;
    case 3:
        page->n_compressed = thrift_int(t, field.type);
        break;
    case 4:
        page->crc = (uint32_t)thrift_int(t, field.type);
        page->has_crc = true;
        break;
    case 5:
        thrift_begin_struct(t, field.type);
        read_data_header(t, page);
        break;
    case 7:
        thrift_begin_struct(t, field.type);
        read_dictionary_header(t, page);
        break;
    case 8:
        thrift_begin_struct(t, field.type);
        read_data_header_v2(t, page);
        break;
    default:
        thrift_skip(t, field.type);
    }
}

int parquet_read_page(struct parquet_page *out, const unsigned char **at, const unsigned char *end,
                      struct err *err)
{
    struct parquet_page page = { .kind = PAGE_INDEX, .n_values = -1, .is_compressed = true };
    struct thrift t = { *at, end, 0 };
    struct thrift_field field;
    int id = 0;

    while (thrift_next(&t, &field, &id))
        read_page_field(&t, field, &page);
    bool has_values = page.kind != PAGE_INDEX;
    if (t.failed || page.n_bytes < 0 || page.n_compressed < 0 || page.n_compressed > end - t.at ||
        (has_values && page.n_values < 0) || page.n_def_bytes < 0 || page.n_rep_bytes < 0 ||
        page.n_def_bytes > page.n_compressed || page.n_rep_bytes > page.n_compressed ||
        page.n_def_bytes + page.n_rep_bytes > page.n_compressed ||
        page.n_def_bytes + page.n_rep_bytes > page.n_bytes)
        return err_set(err, ERR_DATA, "the header of a page is broken");
    if (page.n_values > PARQUET_PAGE_VALUES_MAX)
        return err_set(err, ERR_DATA, "a page has %lld values, more than %d",
                       (long long)page.n_values, PARQUET_PAGE_VALUES_MAX);
    *at = t.at;
    *out = page;
    return 0;
}
