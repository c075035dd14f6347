/*
 * doctor_impl.h - the findings of `lmtrain doctor`, and its probes
 *
 * A probe looks at one part of the machine and adds findings: a name, what is there, and, where
 * that is not as it should be, what to do. A probe never fails: what cannot be determined is a
 * finding too. Only DOCTOR_PROBLEM says that training cannot work here.
 */
#ifndef DOCTOR_IMPL_H
#define DOCTOR_IMPL_H

#include "base/arena.h"
#include "base/options.h"
#include "base/str.h"

enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE,    /* good to know: something optional is absent */
    DOCTOR_WARNING, /* works, but slower or only just */
    DOCTOR_PROBLEM, /* cannot train */
    N_DOCTOR_STATES
};

struct doctor_finding {
    const char *part; /* "machine", "libraries", ... */
    const char *name;
    enum doctor_state state;
    const char *value;
    const char *advice; /* NULL where there is nothing to do */
};

struct doctor {
    struct arena *arena; /* holds all texts */
    const char *part;    /* of the findings that are added now */
    struct doctor_finding *findings;
    int n_findings, capacity;
};

/* Add a finding; value is copied, advice (may be NULL) is not: a literal, or text in the arena. */
void doctor_add(struct doctor *doctor, enum doctor_state state, const char *name,
                const char *advice, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Findings of this state. */
int doctor_count(const struct doctor *doctor, enum doctor_state state);

/* Add all findings to out, by part with a verdict at the end; or as one JSON object. */
void doctor_print(struct str *out, const struct doctor *doctor);
void doctor_print_json(struct str *out, const struct doctor *doctor);

/* doctor_machine.c: CPU, memory, and: */
void doctor_probe_machine(struct doctor *doctor);

/* doctor_gpu.c: GPUs, their driver and the libraries for them. */
void doctor_probe_gpus(struct doctor *doctor);

/* doctor_system.c: shared memory, limits, folders, loopback. */
void doctor_probe_system(struct doctor *doctor);

/* doctor_storage.c: the file system of a folder, and what a run does there. */
void doctor_probe_storage(struct doctor *doctor, const char *folder);

/* doctor_software.c: libraries and their versions, Slurm, mpirun. */
void doctor_probe_software(struct doctor *doctor);

/*
 * doctor_command.c: the start of what a command prints on both streams, in the arena; NULL if it is
 * not in the PATH, fails, or is not done after timeout_seconds (it is then killed). argv ends with
 * NULL.
 */
const char *doctor_command(struct doctor *doctor, char *const *argv, double timeout_seconds);

/* The file that a shell would run for this name, in the arena, or NULL. */
const char *doctor_find_in_path(struct doctor *doctor, const char *name);

/* doctor_cluster.c: `lmtrain doctor --cluster`. */
struct doctor_cluster {
    struct option_list sets;
    const char *hosts;
    int ranks;
    bool is_full, as_json;
};

/* Check the ranks of a job, path NULL: of none. Returns the command's exit status. */
int doctor_cluster(const struct doctor_cluster *request, const char *path, struct arena *arena);

#endif
