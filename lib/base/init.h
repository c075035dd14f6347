/*
 * init.h - how the elements of a parameter are filled at the very start
 */
#ifndef BASE_INIT_H
#define BASE_INIT_H

enum init_kind {
    INIT_NORMAL, /* of a given deviation */
    INIT_ONES,
    INIT_ZEROS,
    INIT_UNIFORM /* from minus a given bound to it */
};

#endif
