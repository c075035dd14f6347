/*
 * manifest_merge.c - many ranks' tables into one, and whether that is complete
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"

/* One part's entry for a tensor; sorting brings the entries of a tensor together. */
struct part_entry {
    const struct manifest_tensor *tensor;
    int part;
};

static int compare_entries(const void *a, const void *b)
{
    const struct part_entry *left = a, *right = b;
    int order = strcmp(left->tensor->whole.name, right->tensor->whole.name);

    return order ? order : left->part - right->part;
}

static int compare_slices(const void *a, const void *b)
{
    const struct manifest_slice *left = a, *right = b;

    if (left->row_begin != right->row_begin)
        return left->row_begin < right->row_begin ? -1 : 1;
    return (left->col_begin > right->col_begin) - (left->col_begin < right->col_begin);
}

static int same_kind(const struct store_slice *a, const struct store_slice *b)
{
    return a->dtype == b->dtype && a->n_dims == b->n_dims && a->rows == b->rows &&
           a->cols == b->cols;
}

/* The n entries of one tensor as one, with the slices of all. */
static int join_entries(struct manifest_tensor *out, const struct part_entry *entries, int n,
                        struct arena *arena, struct err *err)
{
    int n_slices = 0;

    for (int i = 0; i < n; i++) {
        if (!same_kind(&entries[i].tensor->whole, &entries[0].tensor->whole))
            return err_set(err, ERR_DATA, "tensor %.200s: ranks %d and %d differ in dtype or shape",
                           entries[0].tensor->whole.name, entries[0].part, entries[i].part);
        n_slices += entries[i].tensor->n_slices;
        if (n_slices > MANIFEST_SLICES_MAX)
            return err_set(err, ERR_DATA, "tensor %.200s has more than %d slices",
                           entries[0].tensor->whole.name, MANIFEST_SLICES_MAX);
    }
    *out = (struct manifest_tensor){ .whole = entries[0].tensor->whole };
    out->slices = arena_array(arena, struct manifest_slice, n_slices);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < entries[i].tensor->n_slices; j++) {
            out->slices[out->n_slices] = entries[i].tensor->slices[j];
            out->slices[out->n_slices++].file = entries[i].part;
        }
    if (n_slices)
        qsort(out->slices, (size_t)n_slices, sizeof *out->slices, compare_slices);
    return 0;
}

int manifest_merge(struct manifest *whole, const struct manifest *parts, int n_parts,
                   struct arena *arena, struct err *err)
{
    int64_t n_entries = 0;
    int n = 0;

    for (int part = 0; part < n_parts; part++)
        n_entries += parts[part].n_tensors;
    if (n_entries > INT32_MAX / 2)
        return err_set(err, ERR_DATA, "%lld tensors in all", (long long)n_entries);
    struct part_entry *entries = arena_array(arena, struct part_entry, n_entries);
    whole->files = arena_array(arena, struct manifest_file, n_parts);
    whole->n_files = n_parts;
    for (int part = 0; part < n_parts; part++) {
        CHECK(parts[part].n_files == 1);
        whole->files[part] = parts[part].files[0];
        for (int i = 0; i < parts[part].n_tensors; i++)
            entries[n++] = (struct part_entry){ &parts[part].tensors[i], part };
    }
    if (n)
        qsort(entries, (size_t)n, sizeof *entries, compare_entries);
    whole->tensors = arena_array(arena, struct manifest_tensor, n);
    whole->n_tensors = 0;
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n; end++)
            if (strcmp(entries[first].tensor->whole.name, entries[end].tensor->whole.name))
                break;
        if (join_entries(&whole->tensors[whole->n_tensors++], entries + first, end - first, arena,
                         err) < 0)
            return -1;
    }
    return 0;
}

/*
 * Whether slices tile a tensor. In order of their first row they are laid on a skyline: the height
 * to which each range of columns is filled. In an exact tiling each slice finds its columns filled
 * exactly to its first row, and at the end all are filled to the last. Ranges of equal height are
 * joined, so the work follows the number of slices and not of columns.
 */
struct skyline_segment {
    struct skyline_segment *next;
    int64_t col_begin, height; /* up to next->col_begin, or the last column */
};

struct skyline {
    struct skyline_segment *first, *unused;
    int64_t cols;
};

static int64_t segment_end(const struct skyline *skyline, const struct skyline_segment *segment)
{
    return segment->next ? segment->next->col_begin : skyline->cols;
}

/* Make a segment begin at column, inside or at an edge of segment; returns the one that does. */
static struct skyline_segment *split(struct skyline *skyline, struct skyline_segment *segment,
                                     int64_t column)
{
    if (segment->col_begin == column)
        return segment;
    struct skyline_segment *tail = skyline->unused;
    skyline->unused = tail->next;
    *tail = (struct skyline_segment){ segment->next, column, segment->height };
    segment->next = tail;
    return tail;
}

/* Lay one slice; -1 if it does not lie exactly on what is there. `from` begins at or before it. */
static int lay(struct skyline *skyline, struct skyline_segment *from,
               const struct manifest_slice *slice, struct skyline_segment **laid)
{
    struct skyline_segment *segment = from;

    while (segment && segment_end(skyline, segment) <= slice->col_begin)
        segment = segment->next;
    if (!segment || segment->height != slice->row_begin)
        return -1;
    struct skyline_segment *start = split(skyline, segment, slice->col_begin);
    while (segment_end(skyline, start) < slice->col_end) {
        struct skyline_segment *next = start->next;

        if (!next || next->height != slice->row_begin)
            return -1;
        start->next = next->next;
        next->next = skyline->unused;
        skyline->unused = next;
    }
    if (segment_end(skyline, start) > slice->col_end)
        split(skyline, start, slice->col_end);
    start->height = slice->row_end;
    *laid = start;
    return 0;
}

/* Join neighbours of one height, all along. */
static void join_level(struct skyline *skyline)
{
    for (struct skyline_segment *segment = skyline->first; segment->next;) {
        struct skyline_segment *next = segment->next;

        if (segment->height != next->height) {
            segment = next;
            continue;
        }
        segment->next = next->next;
        next->next = skyline->unused;
        skyline->unused = next;
    }
}

static int tiles(const struct manifest_tensor *tensor, struct skyline_segment *segments)
{
    int n_segments = 2 * tensor->n_slices + 2;
    struct skyline skyline = { &segments[0], &segments[1], tensor->whole.cols };
    struct skyline_segment *cursor = skyline.first;

    segments[0] = (struct skyline_segment){ 0 };
    for (int i = 1; i < n_segments; i++)
        segments[i] =
            (struct skyline_segment){ .next = i + 1 < n_segments ? &segments[i + 1] : NULL };
    for (int i = 0; i < tensor->n_slices; i++) {
        const struct manifest_slice *slice = &tensor->slices[i];

        if (i > 0 && slice->row_begin != slice[-1].row_begin) {
            join_level(&skyline);
            cursor = skyline.first;
        }
        if (lay(&skyline, cursor, slice, &cursor) < 0)
            return 0;
    }
    join_level(&skyline);
    return !skyline.first->next && skyline.first->height == tensor->whole.rows;
}

int manifest_check_complete(const struct manifest *manifest, const char *path, struct err *err)
{
    int most = 0, result = 0;

    for (int i = 0; i < manifest->n_tensors; i++)
        most = manifest->tensors[i].n_slices > most ? manifest->tensors[i].n_slices : most;
    struct skyline_segment *segments = calloc(2 * (size_t)most + 2, sizeof *segments);
    if (!segments)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", path);
    for (int i = 0; i < manifest->n_tensors && result == 0; i++)
        if (!tiles(&manifest->tensors[i], segments))
            result = err_set(err, ERR_DATA,
                             "%s: tensor %.200s: its %d slices do not cover it exactly once", path,
                             manifest->tensors[i].whole.name, manifest->tensors[i].n_slices);
    free(segments);
    return result;
}
