/*
 * sweep_space.h - what differs between the trials of a sweep: sweep.parameters of a job
 *
 * Either parameters, each with a range or a list of values, from which trials are drawn or which
 * span a grid (sweep/space.h), or rows, each of which is a trial's settings. Values are YAML text,
 * for --set KEY=VALUE. All is in the job's arena.
 */
#ifndef CONFIG_SWEEP_SPACE_H
#define CONFIG_SWEEP_SPACE_H

#include <stdbool.h>

enum { SWEEP_TRIALS_MAX = 10000, SWEEP_RUNGS_MAX = 1000 };

enum sweep_range { SWEEP_VALUES, SWEEP_UNIFORM, SWEEP_LOG };

struct sweep_parameter {
    const char *key; /* "optimizer.lr": of a job's field, or "model" */
    enum sweep_range range;
    const char *const *values; /* SWEEP_VALUES: [n_values], YAML */
    int n_values;
    double low, high; /* of the others, low < high; SWEEP_LOG: low > 0 */
    bool is_whole;    /* the field is a whole number: so are low, high, and what is between */
    int points;       /* of a grid, from low to high; 0: not given */
};

/* KEY=VALUE of one trial. */
struct sweep_setting {
    const char *key, *value;
};

struct sweep_row {
    const struct sweep_setting *settings;
    int n;
};

struct sweep_space {
    const struct sweep_parameter *parameters;
    int n_parameters;
    const struct sweep_row *rows;
    int n_rows;
};

static inline bool sweep_space_is_empty(const struct sweep_space *space)
{
    return !space->n_parameters && !space->n_rows;
}

/* The trials of the grid that the parameters span, at most SWEEP_TRIALS_MAX + 1; a range without
 * points that has no whole numbers counts as one. */
int sweep_space_grid(const struct sweep_space *space);

/* How many points a parameter has on a grid; 0: it is a range that does not say. */
int sweep_parameter_points(const struct sweep_parameter *parameter);

#endif
