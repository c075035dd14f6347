/*
 * mlflow.h - a run in MLflow, by its tracking server's REST API (api/2.0/mlflow), or in a folder
 *
 * A thread finds the experiment by its name, or creates it, creates the run, and sends parameters
 * and metrics in batches of at most a second; a run that is gone on with is the one whose id is in
 * run_file. What fails is tried again, with pauses of 1 to 60 seconds, as long as the run lives.
 * Training only puts metrics into a queue of at most MLFLOW_WAITING_MAX; what comes on top is left
 * out and counted. The first failure is a warning, and so is what was lost at the end. Token, user
 * and password come from MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME and
 * MLFLOW_TRACKING_PASSWORD.
 */
#ifndef REPORT_MLFLOW_H
#define REPORT_MLFLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "report/events.h"

enum { MLFLOW_WAITING_MAX = 100000 };

struct mlflow_param {
    const char *key, *value;
};

struct mlflow_options {
    const char *url;        /* http://localhost:5000; else a folder (mlflow_folder.h) */
    const char *experiment; /* its name */
    const char *run_name;
    const char *run_file; /* holds the run's id and experiment for restarts */
    const struct mlflow_param *params;
    int n_params;
};

struct mlflow;

/* All is copied. ERR_CONFIG without libcurl, ERR_DEVICE if there can be no thread. The server is
 * not waited for. */
int mlflow_open(struct mlflow **mlflow, const struct mlflow_options *options, struct err *err);

/* Metrics of a step, with the time of now; values that are not finite are left out. Returns at
 * once. NULL is fine. */
void mlflow_put(struct mlflow *mlflow, int64_t step, const struct events_scalar *scalars, int n);

enum mlflow_status { MLFLOW_FINISHED, MLFLOW_FAILED, MLFLOW_KILLED };

/*
 * Send what waits and the run's end, at most for `seconds` and while may_wait, called several times
 * a second, says so. NULL is fine.
 */
void mlflow_close(struct mlflow *mlflow, enum mlflow_status status, double seconds,
                  bool (*may_wait)(void *context), void *context);

#endif
