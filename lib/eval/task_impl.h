/*
 * task_impl.h - reading descriptions of tasks: task.c (parts, data), task_style.c (values, styles)
 *
 * All that return int: 0, or -1 and ERR_CONFIG with the place in the description.
 */
#ifndef EVAL_TASK_IMPL_H
#define EVAL_TASK_IMPL_H

#include "base/yaml.h"
#include "eval/task.h"

/* -1, with err: "FILE:LINE: KEY WHAT". */
int task_wrong(const struct yaml_node *node, const char *what, struct err *err);

/* -1, with err: the key is none of names [n]; the nearest of them as a hint. */
int task_unknown(const struct yaml_node *node, const char *const *names, int n, struct err *err);

/* Texts are the description's memory. */
int task_read_text(const struct yaml_node *node, const char **out, struct err *err);
int task_read_int(const struct yaml_node *node, int *out, struct err *err);
/* A text, or a list of them. */
int task_read_texts(struct task *t, const struct yaml_node *node, struct task_texts *out,
                    struct err *err);
int task_read_template(struct task *t, const struct yaml_node *node, struct text_template **out,
                       struct err *err);

/* The part of that name; NULL: there is none. */
struct task_part *task_find_part(struct task *t, const char *name);

/* Fill t->way with the named style, and the exceptions of parts. */
int task_read_style(struct task *t, const struct yaml_node *styles, const char *style,
                    struct err *err);

#endif
