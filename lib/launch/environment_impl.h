/*
 * environment_impl.h - the environment that a rank gets
 *
 * A heap array of heap strings, ended by NULL, as PMIx wants it.
 */
#ifndef LAUNCH_ENVIRONMENT_IMPL_H
#define LAUNCH_ENVIRONMENT_IMPL_H

char **environment_copy(char *const *environment);
void environment_free(char **environment);

/* Set name to value; unless force, what the user has set stays. */
void environment_set(char ***environment, const char *name, const char *value, int force);

#endif
