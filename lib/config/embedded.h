/*
 * embedded.h - the files of configs/, and the sandbox's Python, carried inside the binary
 *
 * scripts/embed makes the table when lmtrain is built. A file of the same name on disk comes first
 * (job_read for models, commands for jobs).
 */
#ifndef CONFIG_EMBEDDED_H
#define CONFIG_EMBEDDED_H

struct embedded_file {
    const char *path; /* "configs/models/gpt2.yaml" */
    const char *text;
};

extern const struct embedded_file embedded_files[];
extern const int n_embedded_files;

/* The file by its path, or NULL. */
const struct embedded_file *embedded_find(const char *path);

#endif
