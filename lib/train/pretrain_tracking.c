/*
 * pretrain_tracking.c - a run in MLflow: the job as parameters, and TensorBoard's scalars. Rank 0
 * alone
 */
#include <stdlib.h>
#include <string.h>

#include "progress/progress.h"
#include "report/mlflow.h"
#include "train/pretrain_impl.h"
#include "train/signals.h"

static const double wait_seconds = 30;  /* of a run that is done, for the server */
static const double signal_seconds = 5; /* of one that is ended early */

/* The last part of the run folder's path. */
static const char *default_name(struct pretrain *p)
{
    char *path = realpath(p->job->output, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = arena_strdup(&p->arena, slash && slash[1] ? slash + 1 : p->job->output);

    free(path);
    return name;
}

int pretrain_tracking_open(struct pretrain *p, struct err *err)
{
    const struct job *job = p->job;
    struct job_value *values;

    if (!p->is_first || !job->tracking.mlflow)
        return 0;
    int n = job_list_values(job, &values, &p->arena);
    struct mlflow_param *params = arena_array(&p->arena, struct mlflow_param, n);
    for (int i = 0; i < n; i++)
        params[i] = (struct mlflow_param){ values[i].key, values[i].text };
    const char *name = job->tracking.run_name ? job->tracking.run_name : default_name(p);

    return mlflow_open(&p->mlflow,
                       &(struct mlflow_options){
                           .url = job->tracking.mlflow,
                           .experiment = job->tracking.experiment,
                           .run_name = name,
                           .run_file = arena_printf(&p->arena, "%s/mlflow.json", job->output),
                           .params = params,
                           .n_params = n },
                       err);
}

void pretrain_tracking_line(struct pretrain *p)
{
    int n;
    const struct events_scalar *scalars = metrics_scalars(p->metrics, &n);

    mlflow_put(p->mlflow, trainer_step_number(p->trainer), scalars, n);
}

static bool may_wait(void *context)
{
    struct pretrain *p = context;

    progress_beat(p->progress);
    return !p->upload_is_last || !signals_pending();
}

void pretrain_tracking_close(struct pretrain *p, const struct err *why)
{
    enum mlflow_status status = !why                       ? MLFLOW_FINISHED
                                : why->code == ERR_REQUEUE ? MLFLOW_KILLED
                                                           : MLFLOW_FAILED;

    p->upload_is_last = !why;
    progress_phase(p->progress, "sending metrics to MLflow");
    mlflow_close(p->mlflow, status, why ? signal_seconds : wait_seconds, may_wait, p);
    p->mlflow = NULL;
}
