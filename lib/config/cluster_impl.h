/*
 * cluster_impl.h - what clusters of a device and those of files have in common
 */
#ifndef CONFIG_CLUSTER_IMPL_H
#define CONFIG_CLUSTER_IMPL_H

#include "base/yaml.h"
#include "config/cluster.h"

/* Links and software, where nothing else is said. */
void cluster_set_defaults(struct cluster *cluster);

/* The share of its line that each island's NIC reaches: that of the file, else its network's. */
void cluster_settle(struct cluster *cluster);

/* A device from its map of keys. Returns 0, or -1 and ERR_CONFIG. */
int device_take(struct device_spec *device, const struct yaml_node *root, struct arena *arena,
                struct err *err);

#endif
