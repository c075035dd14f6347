/*
 * launch_context_test.c - what the environments of launchers are taken for
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "launch/launch_context_impl.h"

/* "NAME=VALUE NAME=VALUE" */
static const char *from_text(const void *context, const char *name)
{
    static char values[8][128]; /* what was handed out last stays for a while */
    static int turn;
    char *value = values[turn++ % 8];
    size_t length = strlen(name);

    for (const char *word = context; *word; word += strspn(word, " ")) {
        size_t n = strcspn(word, " ");

        if (n > length && !strncmp(word, name, length) && word[length] == '=') {
            snprintf(value, sizeof values[0], "%.*s", (int)(n - length - 1), word + length + 1);
            return value;
        }
        word += n;
    }
    return NULL;
}

/* As the launchers were seen to set them. */
static const struct {
    const char *what, *variables, *stepd;
    enum context_verdict verdict;
} places[] = {
    { "nothing", "HOME=/root", NULL, VERDICT_PLAIN },
    { "our supervisor", "PMIX_NAMESPACE=lmtrain-1-2 PMIX_RANK=0", NULL, VERDICT_RANK },
    { "mpirun", "PMIX_NAMESPACE=12@1 PMIX_RANK=1 OMPI_COMM_WORLD_SIZE=2", NULL, VERDICT_RANK },
    { "a namespace without a rank", "PMIX_NAMESPACE=x", NULL, VERDICT_PLAIN },
    { "empty variables", "PMIX_NAMESPACE= PMIX_RANK=", NULL, VERDICT_PLAIN },
    { "srun --mpi=pmix",
      "SLURM_JOB_ID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=1",
      NULL, VERDICT_RANK },
    { "the same, below its daemon",
      "SLURM_JOB_ID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=1",
      "slurmstepd: [3.0]", VERDICT_RANK },
    { "our supervisor's rank in an allocation",
      "SLURM_JOB_ID=3 SLURM_NTASKS=4 PMIX_NAMESPACE=lmtrain-1-2 PMIX_RANK=0", NULL, VERDICT_RANK },
    { "and in a step",
      "SLURM_JOB_ID=3 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1 PMIX_NAMESPACE=lmtrain-1-2 "
      "PMIX_RANK=0",
      "slurmstepd: [3.1]", VERDICT_RANK },
    { "the only rank that slurm_run starts",
      "SLURM_JOB_ID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=0 LMTRAIN_ATTEMPT=0",
      "slurmstepd: [3.0]", VERDICT_RANK },
    { "srun --pty bash where pmix is the default",
      "SLURM_JOB_ID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=0",
      "slurmstepd: [3.0]", VERDICT_PLAIN },
    { "sbatch from there",
      "SLURM_JOB_ID=4 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=0",
      "slurmstepd: [4.batch]", VERDICT_ALLOCATION },
    { "the same where no daemon is to be seen",
      "SLURM_JOB_ID=4 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 PMIX_NAMESPACE=slurm.pmix.3.0 "
      "PMIX_RANK=0",
      NULL, VERDICT_ALLOCATION },
    { "sbatch from a step without PMIx",
      "SLURM_JOB_ID=14 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0",
      "slurmstepd: [14.batch]", VERDICT_ALLOCATION },
    { "salloc", "SLURM_JOB_ID=2 SLURM_JOBID=2 SLURM_NTASKS=4", NULL, VERDICT_ALLOCATION },
    { "an old Slurm's salloc", "SLURM_JOBID=2", NULL, VERDICT_ALLOCATION },
    { "salloc with an interactive step",
      "SLURM_JOB_ID=2 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0",
      "slurmstepd: [2.interactive]", VERDICT_ALLOCATION },
    { "the same where no daemon is to be seen",
      "SLURM_JOB_ID=2 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1", NULL, VERDICT_ALLOCATION },
    { "the same where pmix is the default",
      "SLURM_JOB_ID=2 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 "
      "PMIX_NAMESPACE=slurm.pmix.2.4294967290 PMIX_RANK=0",
      NULL, VERDICT_ALLOCATION },
    { "a batch script", "SLURM_JOB_ID=4 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASK_PID=43",
      "slurmstepd: [4.batch]", VERDICT_ALLOCATION },
    { "srun -n 1", "SLURM_JOB_ID=4 SLURM_STEP_ID=7 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=8",
      "slurmstepd: [4.7]", VERDICT_PLAIN },
    { "srun -n 2", "SLURM_JOB_ID=4 SLURM_STEP_ID=7 SLURM_STEP_NUM_TASKS=2", "slurmstepd: [4.7]",
      VERDICT_STEP },
    { "srun -n 2, an old Slurm", "SLURM_JOB_ID=4 SLURM_STEP_ID=7 SLURM_NTASKS=2", NULL,
      VERDICT_STEP },
    { "srun --mpi=pmi2",
      "SLURM_JOB_ID=4 SLURM_STEP_ID=7 SLURM_STEP_NUM_TASKS=2 PMI_SIZE=2 PMI_RANK=0", NULL,
      VERDICT_STEP },
    { "mpiexec of MPICH", "PMI_SIZE=4 PMI_RANK=1", NULL, VERDICT_PMI },
    { "the same in an allocation", "PMI_SIZE=4 PMI_RANK=1 SLURM_JOB_ID=4", NULL, VERDICT_PMI },
    { "mpiexec of Intel MPI", "PMI_FD=9 PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
      NULL, VERDICT_PMI },
    { "mpirun_rsh of MVAPICH", "MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_RANK=0", NULL, VERDICT_PMI },
    { "the same of old", "MPIRUN_NPROCS=2 MPIRUN_RANK=1", NULL, VERDICT_PMI },
    { "a rank that does not know of how many", "PMI_FD=9 PMI_RANK=0", NULL, VERDICT_PMI },
    { "the same by its place on the node", "MPI_LOCALRANKID=0", NULL, VERDICT_PMI },
    { "one process of a node", "MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", NULL, VERDICT_PLAIN },
    { "mpiexec of MPICH, one process", "PMI_SIZE=1 PMI_RANK=0 SLURM_JOB_ID=4", NULL,
      VERDICT_PLAIN },
    { "numbers that are none", "SLURM_JOB_ID=4 SLURM_STEP_ID=x PMI_SIZE=many", NULL,
      VERDICT_ALLOCATION },
};

static void every_place_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct context_view view = { from_text, places[i].variables, places[i].stepd };
        enum context_verdict verdict = context_decide(&view);

        if (verdict != places[i].verdict)
            fail_msg("%s: %d, not %d", places[i].what, verdict, places[i].verdict);
    }
}

static void a_refusal_says_what_to_do(void **state)
{
    struct context_view step = { from_text,
                                 "SLURM_JOB_ID=4 SLURM_STEP_ID=7 SLURM_STEP_NUM_TASKS=12", NULL };
    struct context_view pmi = { from_text, "PMI_SIZE=4 PMI_RANK=1", NULL };
    struct err err;

    (void)state;
    assert_int_equal(context_refuse(&step, VERDICT_STEP, "MPI plugin types are...\n\tpmix\n", &err),
                     -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "one of 12 tasks"));
    assert_non_null(strstr(err.text, "srun --mpi=pmix"));
    assert_null(strstr(err.text, "lacks"));

    /* Not said what it has: then it is not said what it lacks. */
    context_refuse(&step, VERDICT_STEP, NULL, &err);
    assert_null(strstr(err.text, "lacks"));

    context_refuse(&step, VERDICT_STEP, "MPI plugin types are...\n\tnone\n\tpmi2\n", &err);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "lacks the plugin"));
    assert_non_null(strstr(err.text, "--hosts"));

    context_refuse(&pmi, VERDICT_PMI, NULL, &err);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "PMI_SIZE is 4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_place_is_told),
        cmocka_unit_test(a_refusal_says_what_to_do),
    };

    return cmocka_run_group_tests_name("where", tests, NULL, NULL);
}
