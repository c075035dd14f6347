/*
 * doctor_software.c - libraries and their versions, and the launchers that could start the ranks
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <yaml.h>
#include <zstd.h>

#include <pmix.h>

#include "base/str.h"
#include "doctor_impl.h"
#include "launch/launch_context.h"

/* The first line of text, cut before any of these characters too: "Open MPI v4.1.4". */
static const char *head_of(struct doctor *doctor, const char *text, const char *cut)
{
    size_t line = strcspn(text, "\n"), length = strcspn(text, cut);

    return arena_strndup(doctor->arena, text, length < line ? length : line);
}

#if LMTRAIN_MPI
/* Only lib/comm may know mpi.h, and this function may be called before MPI_Init. */
int MPI_Get_library_version(char *version, int *length);

static void probe_mpi(struct doctor *doctor)
{
    char version[4096] = "";
    int length = 0;

    MPI_Get_library_version(version, &length);
    /* The launcher's settings for its ranks are Open MPI's. */
    if (str_starts_with(version, "Open MPI"))
        doctor_add(doctor, DOCTOR_OK, "MPI", NULL, "%s", head_of(doctor, version, ","));
    else
        doctor_add(doctor, DOCTOR_WARNING, "MPI", "build with Open MPI 4: others are untried", "%s",
                   head_of(doctor, version, ","));
}
#else
static void probe_mpi(struct doctor *doctor)
{
    doctor_add(doctor, DOCTOR_NOTE, "MPI", NULL, "not built in: ranks talk over sockets");
}
#endif

static void probe_libraries(struct doctor *doctor)
{
    unsigned hash = XXH_versionNumber();

    doctor_add(doctor, DOCTOR_OK, "PMIx", NULL, "%s", head_of(doctor, PMIx_Get_version(), "("));
    probe_mpi(doctor);
    doctor_add(doctor, DOCTOR_OK, "libyaml", NULL, "%s", yaml_get_version_string());
    doctor_add(doctor, DOCTOR_OK, "cJSON", NULL, "%s", cJSON_Version());
    doctor_add(doctor, DOCTOR_OK, "xxHash", NULL, "%u.%u.%u", hash / 10000, hash / 100 % 100,
               hash % 100);
    doctor_add(doctor, DOCTOR_OK, "zstd", NULL, "%s", ZSTD_versionString());
}

/* Without Slurm all is well: our own launcher starts the ranks. A Slurm without PMIx can't. */
static void probe_slurm(struct doctor *doctor)
{
    char *const ask[] = { "srun", "--mpi=list", NULL };
    const char *srun = doctor_find_in_path(doctor, "srun");

    if (srun == NULL) {
        doctor_add(doctor, DOCTOR_NOTE, "Slurm", NULL, "no srun in the PATH");
        return;
    }
    const char *list = doctor_command(doctor, ask, 5.0);
    const char *job = getenv("SLURM_JOB_ID");
    if (list == NULL)
        doctor_add(doctor, DOCTOR_WARNING, "Slurm", "run it by hand: the controller may be down",
                   "%s --mpi=list fails or hangs", srun);
    else if (!context_lists_pmix(list))
        doctor_add(doctor, DOCTOR_WARNING, "Slurm",
                   "install slurm-wlm's PMIx plugin, or train inside one node",
                   "%s has no PMIx: ranks cannot be started on other nodes", srun);
    else
        doctor_add(doctor, DOCTOR_OK, "Slurm", NULL, "%s, with PMIx%s%s", srun,
                   job == NULL ? "" : "; in allocation ", job == NULL ? "" : job);
}

static void probe_mpirun(struct doctor *doctor)
{
    char *const ask[] = { "mpirun", "--version", NULL };
    const char *mpirun = doctor_find_in_path(doctor, "mpirun");
    const char *version = mpirun == NULL ? NULL : doctor_command(doctor, ask, 5.0);

    if (mpirun == NULL)
        doctor_add(doctor, DOCTOR_NOTE, "mpirun", NULL, "none in the PATH, and none is needed");
    else if (version == NULL)
        doctor_add(doctor, DOCTOR_NOTE, "mpirun", "not needed: lmtrain starts its ranks itself",
                   "%s does not run", mpirun);
    else
        doctor_add(doctor, DOCTOR_OK, "mpirun", NULL, "%s: %s", mpirun,
                   head_of(doctor, version, ","));
}

/*
 * A process that is a rank of another job never starts ranks of its own, which is worth a finding.
 */
static void probe_job(struct doctor *doctor)
{
    const char *name = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");

    if (name != NULL && rank != NULL)
        doctor_add(doctor, DOCTOR_NOTE, "PMIx job", NULL, "this process is rank %s of %s", rank,
                   name);
}

void doctor_probe_software(struct doctor *doctor)
{
    doctor->part = "libraries";
    probe_libraries(doctor);
    doctor->part = "launchers";
    probe_slurm(doctor);
    probe_mpirun(doctor);
    probe_job(doctor);
}
