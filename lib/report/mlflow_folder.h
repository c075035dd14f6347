/*
 * mlflow_folder.h - MLflow's store of files, written without a server
 *
 * Takes the requests of the REST API that mlflow.c makes and does what a server of
 * `--backend-store-uri FOLDER` would: FOLDER/EXPERIMENT/RUN with meta.yaml, params/KEY, metrics/KEY
 * (a line "TIME_MS VALUE STEP" each) and tags/KEY, as mlflow.store.tracking.file_store has them.
 * For machines that reach no server: `mlflow ui --backend-store-uri FOLDER` shows them (MLflow 3.17
 * with MLFLOW_ALLOW_FILE_STORE=true), `mlflow migrate-filestore` brings them into a database.
 */
#ifndef REPORT_MLFLOW_FOLDER_H
#define REPORT_MLFLOW_FOLDER_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

/* Whether tracking.mlflow is a folder, rather than the URL of a server. */
bool mlflow_is_folder(const char *url);

/*
 * path: "experiments/get-by-name?experiment_name=NAME" (escaped, without a body),
 * "experiments/create", "runs/create", "runs/log-batch" or "runs/update", each with its body.
 * Returns the status (200, 400, 404), with the answer in *reply; or -1 and ERR_FAILED where a file
 * cannot be written. The folder is made. Of several processes each sees whole experiments.
 */
int mlflow_folder_request(const char *folder, const char *path, const char *body, struct str *reply,
                          struct err *err);

#endif
