/*
 * environment_impl.h - the environment that a rank gets
 *
 * A heap array of heap strings, ended by NULL, as PMIx wants it.
 */
#ifndef LAUNCH_ENVIRONMENT_IMPL_H
#define LAUNCH_ENVIRONMENT_IMPL_H

/* Where ranks learn which attempt of the job they are (launch_attempt), and where Slurm tells. */
#define ATTEMPT_VARIABLE "LMTRAIN_ATTEMPT"
#define SLURM_REQUEUES_VARIABLE "SLURM_RESTART_COUNT"

/* Where ranks of our daemons learn how the head calls their host (launch_host in excluded.h). */
#define HOST_VARIABLE "LMTRAIN_HOST"

/* What our own environment says of a count: 0 if it says nothing or nonsense. */
int environment_count(const char *name);

char **environment_copy(char *const *environment);
void environment_free(char **environment);

/* The value of name, or NULL. */
const char *environment_get(char *const *environment, const char *name);

/* Set name to value, whether or not it is set already. */
void environment_set(char ***environment, const char *name, const char *value);

/* The same, unless the user has set it. */
void environment_set_default(char ***environment, const char *name, const char *value);

#endif
