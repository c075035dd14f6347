/*
 * yaml_tree_impl.h - a job file's tree before its fields are read: overrides and ${VAR}
 */
#ifndef CONFIG_YAML_TREE_IMPL_H
#define CONFIG_YAML_TREE_IMPL_H

#include "base/yaml.h"
#include "config/diagnostics_impl.h"

/*
 * Put "a.b=VALUE" into the tree, in place of what stands there. Where a.b's group is a scalar it
 * becomes a map: a model's name stays as model.from, so that --set model.n_layers=2 varies it.
 * Mistakes are put down under "--set a.b". Returns 0 or -1.
 */
int yaml_tree_override(struct yaml_node *root, const char *override, struct diagnostics *mistakes);

/*
 * Of two keys of which a job has one (GROUP.NAME): where an override gives `key` a value and none
 * sets `other`, what the file says of `other` goes.
 */
void yaml_tree_drop_other(struct yaml_node *root, const char *key, const char *other,
                          const char *const *overrides, int n_overrides);

/*
 * Replace ${VAR} in every scalar value by the environment's; "$${" gives "${". Returns 0 or -1; a
 * value that could not be filled in is marked as unexpanded.
 */
int yaml_tree_expand(struct yaml_node *root, struct diagnostics *mistakes);

#endif
