/*
 * records.h - the rows of a part of a task, whatever form they are published in
 */
#ifndef EVAL_RECORDS_H
#define EVAL_RECORDS_H

#include "eval/task.h"

struct records {
    const char **items; /* JSON objects; in the arena they were read into */
    int64_t n;
    const char *path; /* the file, the first of several */
    int n_files;
};

/*
 * Read the first form of which there are files. variables: a JSON object for templates. limit > 0:
 * only so many. Returns 1, or 0 if there is no file, with `looked` naming those that were looked
 * for, in DATA/TASK and in DATA, or -1 and ERR_DATA.
 */
int records_read(struct records *records, const struct task_forms *forms, const char *data,
                 const char *task, const char *part, const char *variables, int64_t limit,
                 struct arena *arena, struct str *looked, struct err *err);

/* The first of some file patterns that is there, as one text; 1, 0 or -1 as above. path may be
 * NULL. */
int records_find_text(const struct task_texts *files, const char *data, const char *task,
                      const char *part, struct arena *arena, char **text, const char **path,
                      struct str *looked, struct err *err);

#endif
