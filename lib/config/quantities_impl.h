/*
 * quantities_impl.h - numbers with units, and keys of device and cluster files that have them
 *
 * A quantity is a text such as "20 GiB" and its number in the quantity's own unit. Fields of a job
 * read and print quantities, too (fields_impl.h); keys of files are put into a struct's members.
 */
#ifndef CONFIG_QUANTITIES_IMPL_H
#define CONFIG_QUANTITIES_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "base/yaml.h"

/* int; double in (0, 1]; double above 0; bool; int64_t bytes; double bytes/s; the same, or the name
 * of a NIC or of a link to the host (networks_impl.h); double FLOP/s; int64_t ns. */
enum quantity {
    COUNT,
    SHARE,
    FACTOR,
    FLAG,
    BYTES,
    RATE,
    NIC_RATE,
    HOST_RATE,
    FLOP_RATE,
    TIME,
    N_QUANTITIES
};

/* The number that a text says, or -1: it is none of this kind, or not above 0. */
double quantity_parse(const char *text, enum quantity quantity);

/* Append the number, of BYTES or RATE and 1 at least, so that the text reads back to it: with the
 * largest unit that has it exactly; bytes that no unit has are a plain whole number. */
void quantity_print(double number, enum quantity quantity, struct str *out);

/* Append the units with this between them. */
void quantity_list_units(enum quantity quantity, const char *between, struct str *out);

/* What was probably meant by a text of BYTES or RATE with a wrong unit, in *out ("20 GiB" for
 * "20 gi"). Returns whether there is such a text. */
bool quantity_suggest(const char *text, enum quantity quantity, struct str *out);

struct quantity_key {
    const char *group, *name; /* group NULL: at the top */
    enum quantity quantity;
    size_t offset; /* of the member */
    bool is_optional;
};

struct quantity_keys {
    const struct quantity_key *keys;
    int n;
    const char *example; /* a file of this form, for messages */
};

/*
 * The map of FOLDER/NAME.yaml (on disk, else in the binary), or of the file NAME if it has a '/'.
 * what: "device", for messages. NULL and ERR_CONFIG on failure; an unknown name lists those there
 * are.
 */
const struct yaml_node *quantity_read_file(const char *folder, const char *what, const char *name,
                                           struct arena *arena, struct err *err);

/* The value of one key into the member. Returns 0, or -1 and ERR_CONFIG with its place. */
int quantity_take(void *target, const struct quantity_key *key, const struct yaml_node *node,
                  struct err *err);

/* The same for a key of this group that is looked up; unknown ones are refused. */
int quantity_take_key(void *target, const struct quantity_keys *keys, const char *group,
                      const struct yaml_node *node, struct err *err);

/* All keys of a map and of the maps in it. */
int quantity_take_map(void *target, const struct quantity_keys *keys, const struct yaml_node *map,
                      struct err *err);

/* "FILE:LINE:COLUMN: unknown key" */
int quantity_refuse_key(const struct quantity_keys *keys, const struct yaml_node *node,
                        struct err *err);

/* Whether all keys are there that must be. */
int quantity_check(const struct quantity_keys *keys, const struct yaml_node *root, struct err *err);

#endif
