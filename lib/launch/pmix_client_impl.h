/*
 * pmix_client_impl.h - a rank's calls to its PMIx server
 */
#ifndef LAUNCH_PMIX_CLIENT_IMPL_H
#define LAUNCH_PMIX_CLIENT_IMPL_H

#include "launch/launch.h"

int launch_client_join(struct launch_rank *rank, struct err *err);
void launch_client_leave(void);
void launch_client_abort(int status, const char *text);
int launch_client_put(const char *key, const void *value, size_t n_bytes, struct err *err);
int launch_client_fence(double timeout_seconds, struct err *err);
int launch_client_local_peers(int *ranks, int local_size, struct err *err);
int launch_client_get(const char *key, int rank, void *value, size_t *n_bytes,
                      double timeout_seconds, struct err *err);

#endif
