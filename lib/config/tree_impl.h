/*
 * tree_impl.h - a job file's tree before its fields are read: overrides and ${VAR}
 */
#ifndef CONFIG_TREE_IMPL_H
#define CONFIG_TREE_IMPL_H

#include "base/yaml.h"
#include "config/mistakes_impl.h"

/*
 * Put "a.b=VALUE" into the tree, in place of what stands there. Where a.b's group is a scalar it
 * becomes a map: a model's name stays as model.from, so that --set model.n_layers=2 varies it.
 * Mistakes are put down under "--set a.b". Returns 0 or -1.
 */
int tree_override(struct yaml_node *root, const char *override, struct mistakes *mistakes);

/*
 * Replace ${VAR} in every scalar value by the environment's; "$${" gives "${". Returns 0 or -1; a value
 * that could not be filled in is marked as unexpanded.
 */
int tree_expand(struct yaml_node *root, struct mistakes *mistakes);

#endif
