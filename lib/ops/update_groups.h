/*
 * update_groups.h - parameters that the update treats otherwise than the rest, by their names
 *
 * A parameter is of the first group whose pattern (fnmatch's: *, ?, [...]) matches its name, else
 * of none. So a group is known from the name alone, and all ranks and layouts agree. Pure.
 */
#ifndef OPS_UPDATE_GROUPS_H
#define OPS_UPDATE_GROUPS_H

#define UPDATE_GROUPS_MAX 16

struct update_group {
    const char *match;
    double lr_scale;     /* of the learning rate of each step; 1: as it is */
    double weight_decay; /* of vectors, too; < 0: as of parameters in no group */
};

struct update_groups {
    const struct update_group *list;
    int n; /* at most UPDATE_GROUPS_MAX */
};

/* The number of the parameter's group, or -1. */
int update_groups_find(const struct update_groups *groups, const char *name);

#endif
