/*
 * rectangles.h - where what a rank has of a parameter lies in the whole of it
 *
 * A rank's part is made of pieces of rows or columns of the whole (program.h), and
 * where states are sharded a rank keeps some elements of that part. Initial values and checkpoints
 * know the whole alone.
 */
#ifndef WEIGHTS_RECTANGLES_H
#define WEIGHTS_RECTANGLES_H

#include "ckpt/store.h"
#include "program/program.h"

/* As a checkpoint has it: a vector is n x 1. Element numbers are those of a 1 x n as well. */
struct tensor_rectangle {
    int64_t row, col;   /* of the whole, where it begins */
    int64_t rows, cols; /* extents, never 0 */
    int64_t local;      /* its first element in the rank's part, */
    int64_t stride;     /* and elements from row to row there */
};

/* The whole parameter's extents, a vector's as n x 1. */
void rectangles_whole(const struct program *program, int parameter, int64_t *rows, int64_t *cols);

/* Extents of the rank's part, padding included, likewise. */
void rectangles_part(const struct program *program, int parameter, int64_t *rows, int64_t *cols);

/*
 * Elements [begin, end) of the part of the parameter that the rank at a place of the mesh has,
 * rectangle by rectangle and without padding:
 *
 *     struct tensor_rectangle r;
 *     struct rectangle_walk walk = rectangle_walk(program, parameter, place, begin, end);
 *     while (rectangle_next(&walk, &r)) ...
 */
struct rectangle_walk {
    const struct program *program;
    int parameter;
    struct mesh_place place;
    int64_t begin, end; /* what is left */
    int next;           /* of the piece that begins there: ranges of rows times ranges of columns */
};
struct rectangle_walk rectangle_walk(const struct program *program, int parameter,
                                     const struct mesh_place *place, int64_t begin, int64_t end);
int rectangle_next(struct rectangle_walk *walk, struct tensor_rectangle *rectangle);

/* The slice is of this rectangle; its data and their stride stay. */
void rectangle_to_slice(const struct tensor_rectangle *rectangle, struct store_slice *slice);

#endif
