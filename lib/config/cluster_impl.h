/*
 * cluster_impl.h - what clusters of a device and those of files have in common
 */
#ifndef CONFIG_CLUSTER_IMPL_H
#define CONFIG_CLUSTER_IMPL_H

#include "config/cluster.h"

/* Links and software, where nothing else is said. */
void cluster_set_defaults(struct cluster *cluster);

#endif
