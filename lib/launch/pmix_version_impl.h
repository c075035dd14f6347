/*
 * pmix_version_impl.h - what two versions of PMIx mean for a rank that cannot join
 *
 * A server puts its version into the environment of ranks (PMIX_VERSION, since PMIx 2.1). Versions
 * of the same major number understand each other; others may not, and a container with a PMIx of
 * its own is where they meet. Pure.
 */
#ifndef LAUNCH_PMIX_VERSION_IMPL_H
#define LAUNCH_PMIX_VERSION_IMPL_H

#include "base/err.h"

/*
 * Say that a rank cannot join: call failed with `reason`. server: the server's version, or NULL if
 * it is not known; client: that of our library, as PMIx_Get_version() has it. Returns -1 and
 * ERR_CONFIG if the major versions differ, else ERR_PEER.
 */
int pmix_version_refuse(const char *call, const char *reason, const char *server,
                        const char *client, struct err *err);

#endif
