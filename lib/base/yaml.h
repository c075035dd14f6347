/*
 * yaml.h - a YAML file as a tree that knows where everything stood
 *
 * The part of YAML that people write in job files: maps, lists and scalars. A scalar stays text;
 * its type is decided by the reader of the tree, so that "no" is never silently false. Anchors,
 * aliases, tags, merge keys, duplicate keys and several documents are errors: each of them makes a
 * file say something else than what one line of it shows. Trees live in an arena and may be changed
 * by their owner. Limits: 1 MiB of text, 32 levels, 100,000 nodes.
 */
#ifndef BASE_YAML_H
#define BASE_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"

#define YAML_MAX_BYTES ((size_t)1 << 20)
#define YAML_MAX_DEPTH 32
#define YAML_MAX_NODES 100000

enum yaml_kind { YAML_SCALAR, YAML_LIST, YAML_MAP };

struct yaml_node {
    enum yaml_kind kind;
    bool plain;         /* scalar: written without quotes */
    bool unexpanded;    /* scalar: the reader of the tree has refused the text already */
    const char *text;   /* scalar: its text, UTF-8 without zero bytes */
    const char *source; /* the file's name, or what the caller called the text */
    int line, column;   /* from 1; both 0 if the text is one value without a place */
    const char *key;    /* in a map: the key of this value, else NULL */
    int key_line, key_column;
    struct yaml_node *first; /* list or map: its values in the order of the file */
    struct yaml_node *last;
    struct yaml_node *next; /* the value after this one in its list or map */
};

/*
 * The tree of a text that messages call source ("SOURCE:LINE:COLUMN: ..."). Text without a value
 * (empty, only comments) is a null scalar. Returns NULL and ERR_CONFIG if it is no YAML or more
 * than the above.
 */
struct yaml_node *yaml_parse(const char *text, size_t n_bytes, const char *source,
                             struct arena *arena, struct err *err);

/* yaml_parse for one value from a command line: its nodes have no line, messages say "SOURCE: ...".
 */
struct yaml_node *yaml_parse_value(const char *text, const char *source, struct arena *arena,
                                   struct err *err);

/* yaml_parse of a file. */
struct yaml_node *yaml_read(const char *path, struct arena *arena, struct err *err);

/* The value of a key in a map, or NULL; NULL too if the node is not a map. */
struct yaml_node *yaml_get(const struct yaml_node *map, const char *key);

/* Whether a node is a scalar that says "no value": empty, null or ~ without quotes. */
bool yaml_is_null(const struct yaml_node *node);

/* Put a value behind the others of a list or map; key NULL in a list. */
void yaml_append(struct yaml_node *parent, struct yaml_node *child);

#endif
