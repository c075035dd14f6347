/*
 * slurm_test.c - allocations, the srun that follows from them, and what srun says
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "launch/slurm/slurm_impl.h"

/* An environment as getenv sees it: strings, ended by NULL. */
static const char *from_strings(const void *context, const char *name)
{
    size_t length = strlen(name);

    for (const char *const *entry = context; *entry; entry++)
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

static int read_allocation(struct slurm_allocation *allocation, const char *const *environment,
                           struct arena *arena, struct err *err)
{
    struct context_view view = { from_strings, environment, NULL };

    return slurm_allocation_read(allocation, &view, arena, err);
}

static char *join(char **strings)
{
    static char line[2048];
    size_t n = 0;

    for (int i = 0; strings[i]; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%s", i ? " " : "", strings[i]);
    return line;
}

/* ---- allocations and command lines ---- */

#define START "srun --mpi=pmix --kill-on-bad-exit=0 --disable-status --export=ALL --input=none "
#define END " --overlap -- /bin/lmtrain pretrain job.yaml"

static const struct {
    const char *environment[8];
    int n_ranks, has_smt;
    const char *command; /* or, without START, what the error says */
} cases[] = {
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=4(x2)", "SLURM_NTASKS=4" },
      4,
      0,
      START "--nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpus-per-task=2" END },
    /* Whole nodes, cores of two threads: even shares. */
    { { "SLURM_JOB_NUM_NODES=3", "SLURM_JOB_CPUS_PER_NODE=64(x3)" },
      18,
      1,
      START
      "--nodes=3 --ntasks=18 --ntasks-per-node=6 --distribution=block --cpus-per-task=10" END },
    { { "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_CPUS_PER_NODE=1" },
      1,
      1,
      START "--nodes=1 --ntasks=1 --ntasks-per-node=1 --distribution=block --cpus-per-task=1" END },
    /* Said by the user. */
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=64(x2)", "SLURM_CPUS_PER_TASK=3" },
      4,
      1,
      START "--nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpus-per-task=3" END },
    /* Fewer ranks than nodes. */
    { { "SLURM_JOB_NUM_NODES=4", "SLURM_JOB_CPUS_PER_NODE=8(x4)", "SLURM_NTASKS=4" },
      2,
      0,
      START "--nodes=2 --ntasks=2 --ntasks-per-node=1 --distribution=block --cpus-per-task=8" END },
    /* Parts of nodes: three tasks here, one there. */
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=3,1", "SLURM_NTASKS=4" },
      4,
      0,
      START "--nodes=2 --ntasks=4 --distribution=block --cpus-per-task=1" END },
    { { "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_CPUS_PER_NODE=8", "SLURM_NTASKS=2" },
      3,
      0,
      "3 ranks are requested, but this Slurm allocation has 2 tasks" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x2)", "SLURM_NTASKS_PER_NODE=2" },
      5,
      0,
      "5 ranks are requested, but this Slurm allocation has 4 tasks" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8,4" },
      13,
      0,
      "13 ranks are requested, but this Slurm allocation has room for 12" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8,4", "SLURM_CPUS_PER_TASK=3" },
      4,
      0,
      "4 ranks are requested, but this Slurm allocation has room for 3" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8" }, 1, 0, "does not match" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x3)" }, 1, 0, "does not match" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x2" }, 1, 0, "does not match" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=a(x2)" }, 1, 0, "does not match" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=1(x999999999999)" },
      1,
      0,
      "does not match" },
    { { "SLURM_JOB_NUM_NODES=2" }, 1, 0, "are not set or invalid" },
};

static void an_allocation_becomes_a_command(void **state)
{
    static char *const words[] = { "lmtrain", "pretrain", "job.yaml", NULL };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = { 0 };
        struct slurm_allocation allocation;
        struct slurm_step step;
        struct err err;
        const char *got;

        if (read_allocation(&allocation, cases[i].environment, &arena, &err) ||
            slurm_fit(&step, &allocation, cases[i].n_ranks, cases[i].has_smt, &err))
            got = err.text;
        else
            got = join(slurm_argv(
                &step,
                &(struct slurm_command){ .major = 22, .binary = "/bin/lmtrain", .words = words },
                &arena));
        if (!strncmp(cases[i].command, "srun ", 5))
            assert_string_equal(got, cases[i].command);
        else if (!strstr(got, cases[i].command))
            fail_msg("case %zu: %s", i, got);
        arena_release(&arena);
    }
}

static void old_slurms_know_no_overlap(void **state)
{
    static char *const words[] = { "lmtrain", NULL };
    const struct slurm_command command = {
        .major = 20, .excluded = "n2,n3", .binary = "/bin/lmtrain", .words = words
    };
    struct slurm_step step = { 2, 1, 2, 1 };
    struct arena arena = { 0 };

    (void)state;
    char *line = join(slurm_argv(&step, &command, &arena));
    assert_null(strstr(line, "--overlap"));
    assert_non_null(strstr(line, " --exclude=n2,n3 -- /bin/lmtrain"));
    arena_release(&arena);
    assert_int_equal(slurm_major("slurm-wlm 22.05.8"), 22);
    assert_int_equal(slurm_major("slurm 20.11.9\n"), 20);
    assert_int_equal(slurm_major(""), 0);
}

static void further_arguments_stand_behind_ours(void **state)
{
    static char *const words[] = { "lmtrain", "pretrain", NULL };
    static const char *const args[] = { "--container-image=a b.sqsh", "-v" };
    const struct slurm_command command = { .major = 22,
                                           .excluded = "n2",
                                           .srun_args = args,
                                           .n_srun_args = 2,
                                           .binary = "/bin/lmtrain",
                                           .words = words };
    struct slurm_step step = { 2, 1, 2, 1 };
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(slurm_check_args(args, 2, "job.yaml", &err), 0);
    assert_non_null(strstr(join(slurm_argv(&step, &command, &arena)),
                           " --exclude=n2 --container-image=a b.sqsh -v -- /bin/lmtrain pretrain"));
    arena_release(&arena);
}

/* What the allocation has by now. */
static void nodes_of_a_job_are_read(void **state)
{
    struct arena arena = { 0 };
    int n_cpus;

    (void)state;
    assert_string_equal(slurm_job_nodes("JobId=7 JobName=x ReqNodeList=(null) ExcNodeList=(null) "
                                        "NodeList=n[1-3] BatchHost=n1 NumNodes=3 NumCPUs=12 X=1\n",
                                        &n_cpus, &arena),
                        "n[1-3]");
    assert_int_equal(n_cpus, 12);
    assert_null(slurm_job_nodes("JobId=7 NodeList=(null) NumCPUs=1", &n_cpus, &arena));
    assert_null(slurm_job_nodes("JobId=7 ReqNodeList=n1", &n_cpus, &arena));
    assert_int_equal(n_cpus, 0);
    assert_null(slurm_job_nodes("", &n_cpus, &arena));
    assert_null(slurm_job_nodes("JobId=7 NodeList= BatchHost=x", &n_cpus, &arena));
    arena_release(&arena);
}

/* Every count that fits is dealt out so that no node gets more tasks than it has CPUs. */
static void shares_fit_their_nodes(void **state)
{
    (void)state;
    for (int n_nodes = 1; n_nodes <= 4; n_nodes++)
        for (int cpus = 1; cpus <= 9; cpus++)
            for (int n_ranks = 1; n_ranks <= n_nodes * cpus; n_ranks++) {
                int all[] = { cpus, cpus, cpus, cpus };
                struct slurm_allocation allocation = { .n_nodes = n_nodes, .n_cpus = all };
                struct slurm_step step;
                struct err err;

                assert_int_equal(slurm_fit(&step, &allocation, n_ranks, n_ranks % 2, &err), 0);
                assert_in_range(step.n_nodes, 1, n_nodes);
                assert_true(step.n_ranks_per_node * step.n_nodes >= n_ranks);
                assert_in_range(step.n_cpus_per_rank, 1, cpus);
                assert_true(step.n_cpus_per_rank * step.n_ranks_per_node <= cpus);
            }
}

static void gpus_are_counted(void **state)
{
    static const struct {
        const char *variable;
        int n_gpus;
    } kinds[] = {
        { "SLURM_GPUS=8", 8 },          { "SLURM_GPUS=a100:8", 8 },
        { "SLURM_GPUS_PER_NODE=4", 8 }, { "SLURM_GPUS_PER_NODE=a100:1,v100:2", 6 },
        { "SLURM_GPUS_ON_NODE=2", 4 },  { "SLURM_JOB_GPUS=0,1,3", 6 },
        { "SLURM_GPUS=none", 0 },       { "SLURM_JOB_GPUS=", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *environment[] = { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=4(x2)",
                                      kinds[i].variable, NULL };
        struct arena arena = { 0 };
        struct slurm_allocation allocation;
        struct err err;

        assert_int_equal(read_allocation(&allocation, environment, &arena, &err), 0);
        assert_int_equal(allocation.n_gpus, kinds[i].n_gpus);
        arena_release(&arena);
    }
    assert_int_equal(slurm_count_gpus("JobId=1 A=b TRES=cpu=8,node=2,gres/gpu=6 X=gres/gpu=9"), 6);
    assert_int_equal(slurm_count_gpus("JobId=1 A=b TRES=cpu=8,node=2 X=gres/gpu=9"), 0);
    assert_int_equal(slurm_count_gpus("JobId=1"), 0);
}

static void a_lost_node_takes_its_cpus(void **state)
{
    int cpus[] = { 4, 8, 2 };
    const bool is_gone[] = { false, true, false };
    struct slurm_allocation allocation = {
        .n_nodes = 3, .n_cpus = cpus, .n_tasks = 6, .n_gpus = 12
    };
    struct arena arena = { 0 };

    (void)state;
    struct slurm_allocation left = slurm_allocation_without(&allocation, is_gone, &arena);
    assert_int_equal(left.n_nodes, 2);
    assert_int_equal(left.n_cpus[0], 4);
    assert_int_equal(left.n_cpus[1], 2);
    assert_int_equal(left.n_tasks, 0);
    assert_int_equal(left.n_gpus, 8);
    struct slurm_allocation share = slurm_allocation_share(&allocation, is_gone, &arena);
    assert_int_equal(share.n_nodes, 2);
    assert_int_equal(share.n_cpus[1], 2);
    assert_int_equal(share.n_tasks, 4);
    assert_int_equal(share.n_gpus, 8);
    assert_int_equal(slurm_list_count("n1,n12"), 2);
    assert_int_equal(slurm_list_count(NULL), 0);
    assert_true(slurm_list_has("n1,n12", "n12"));
    assert_true(slurm_list_has("n1,n12", "n1"));
    assert_false(slurm_list_has("n1,n12", "n2"));
    assert_false(slurm_list_has(NULL, "n1"));
    arena_release(&arena);
}

static void contradictions_are_kept_from_srun(void **state)
{
    static char *environment[] = {
        "HOME=/root",        "SLURM_JOB_ID=4",      "SLURM_NTASKS=4",
        "SLURM_NTASKSX=1",   "SLURM_CPU_BIND=none", "PMIX_RANK=1",
        "PMIX_MCA_gds=hash", "SLURM_STEP_ID=0",     "LMTRAIN_ATTEMPT=9",
        "OMPI_MCA_btl=tcp",  "SLURM_CONF=/x",       "OMPI_COMM_WORLD_RANK=2",
        "NOVALUE",           "SLURM_MPI_TYPE=pmi2", NULL,
    };
    struct arena arena = { 0 };

    (void)state;
    assert_string_equal(join(slurm_environment(environment, 3, &arena)),
                        "HOME=/root SLURM_JOB_ID=4 SLURM_NTASKSX=1 PMIX_MCA_gds=hash "
                        "OMPI_MCA_btl=tcp SLURM_CONF=/x NOVALUE LMTRAIN_ATTEMPT=3");
    arena_release(&arena);
}

/* ---- what srun says ---- */

static const struct {
    const char *text;
    int srun, status; /* what it ends with, and what that means */
    const char *lost;
} srun_cases[] = {
    { "", 0, 0, "" },
    { "", 137, ERR_PEER, "" },
    { "", 134, 134, "" },
    { "", 3, 3, "" },
    { "srun: error: n1: tasks 0-3: Exited with exit code 75\n", 75, ERR_REQUEUE, "" },
    { "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 3\n", 137,
      ERR_PEER, "" },
    { "srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Killed\n", 137, 3,
      "" },
    { "srun: error: n2: task 1: Aborted (core dumped)\nsrun: error: n1: task 0: Killed\n", 137, 134,
      "" },
    { "srun: error: n2: task 1: Segmentation fault\n", 139, ERR_PEER, "" },
    { "srun: error: n2: task 1: Exited with exit code 75\nsrun: error: n1: task 0: Killed\n", 137,
      ERR_PEER, "" },
    /* One aborted with 4; the others were killed for it. */
    { "srun: error: n1: task 0: Killed\nsrun: error: n2: task 1: Exited with exit code 4\n", 4, 4,
      "" },
    { "srun: error: Node failure on n2\nsrun: error: n2: task 1: Killed\n", 137, ERR_PEER, "n2" },
    { "srun: error: Task launch for StepId=5.0 failed on node n2: Communication connection "
      "failure\nsrun: error: Task launch for StepId=5.0 failed on node n3: x\n",
      1, ERR_PEER, "n2,n3" },
    { "srun: error: Unable to create step for job 5: More processors requested\n", 1, 1, "" },
    { "lmtrain: error: n2: task 1: Killed\nsrun: error: a word: task 1: Killed\n", 1, 1, "" },
    { "srun: error: n2: task 1: Exited with exit code 2", 143, ERR_PEER, "" }, /* no whole line */
};

static void the_first_death_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof srun_cases / sizeof *srun_cases; i++)
        for (size_t piece = 1; piece <= 64; piece *= 4) {
            struct srun_messages messages = { 0 };
            size_t length = strlen(srun_cases[i].text);

            for (size_t at = 0; at < length; at += piece)
                srun_messages_read(&messages, srun_cases[i].text + at,
                                   length - at < piece ? length - at : piece);
            int status = slurm_status(srun_cases[i].srun << 8, &messages);
            if (status != srun_cases[i].status)
                fail_msg("case %zu: %d, not %d", i, status, srun_cases[i].status);
            assert_string_equal(str_text(&messages.lost), srun_cases[i].lost);
            str_release(&messages.lost);
        }
    struct srun_messages none = { 0 };
    assert_int_equal(slurm_status(9, &none), ERR_PEER); /* srun itself was killed */
}

static void long_lines_are_cut(void **state)
{
    struct srun_messages messages = { 0 };
    char line[4096];

    (void)state;
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    srun_messages_read(&messages, line, sizeof line);
    srun_messages_read(&messages, "srun: error: n1: task 0: Killed\n", 32);
    assert_int_equal(messages.first_status, ERR_PEER);
}

static void nodes_that_are_gone_are_found(void **state)
{
    char *names[] = { "n1", "n10", "n2", "n3", "n4", "n5" };
    bool is_gone[6];

    (void)state;
    assert_int_equal(
        slurm_find_gone("n1 mixed*\nn10 down*\nn2 draining\nn2 draining\nn3 allocated\n"
                        "n4 powered_down\n",
                        "n5", names, 6, is_gone),
        3);
    assert_false(is_gone[0]); /* a node that is slow to answer */
    assert_true(is_gone[1]);
    assert_false(is_gone[2]); /* it may finish what it has */
    assert_false(is_gone[3]);
    assert_true(is_gone[4]);
    assert_true(is_gone[5]);
    assert_int_equal(slurm_find_gone("", NULL, names, 6, is_gone), 0);
}

/* ---- with a stand-in for srun ---- */

static const double deadline_seconds = 60;

struct rig {
    char folder[256];
    pid_t head;
    int errors; /* what it shows is read here */
};

static const char *path_in(const struct rig *rig, const char *name)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/%s", rig->folder, name);
    return path;
}

/* Start slurm_run in a process of its own, with an srun that notes its start and does as script. */
static void rig_open(struct rig *rig, const char *script)
{
    static char *const command[] = { "lmtrain", NULL };
    const struct supervise_options options = { .n_ranks = 1, .argv = command, .n_restarts = 1 };
    char text[2048], path[4096];
    struct err err;
    int ends[2];

    const char *parent = getenv("TMPDIR");
    snprintf(rig->folder, sizeof rig->folder, "%s/lmtrain-slurm.XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(rig->folder));
    snprintf(text, sizeof text,
             "#!/bin/sh\ncase $1 in --version) echo slurm-wlm 22.05.8 && exit ;; --mpi=list) echo "
             "pmix && exit ;; esac\ncd '%s'\necho >>started\n%s",
             rig->folder, script);
    assert_int_equal(file_write(path_in(rig, "srun"), text, strlen(text), &err), 0);
    assert_int_equal(chmod(path_in(rig, "srun"), 0700), 0);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    rig->head = fork();
    assert_true(rig->head >= 0);
    if (!rig->head) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        snprintf(path, sizeof path, "%s:%s", rig->folder, getenv("PATH"));
        setenv("PATH", path, 1);
        setenv("SLURM_JOB_ID", "1", 1);
        setenv("SLURM_JOB_NUM_NODES", "1", 1);
        setenv("SLURM_JOB_CPUS_PER_NODE", "1", 1);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        int status = slurm_run(&options, &err);
        _exit(status < 0 ? 100 : status);
    }
    close(ends[1]);
    rig->errors = ends[0];
}

static void await_file(const struct rig *rig, const char *name)
{
    double deadline = clock_seconds() + deadline_seconds;

    while (access(path_in(rig, name), F_OK)) {
        if (clock_seconds() > deadline)
            fail_msg("no file %s", name);
        usleep(1000);
    }
}

/* Read what it shows until its end; check its status, and that srun was started n times. */
static void rig_check_end(struct rig *rig, int status, int n_starts)
{
    double deadline = clock_seconds() + deadline_seconds;
    int wait_status = -1;
    char bytes[65536];
    struct err err;

    if (rig->errors >= 0)
        fcntl(rig->errors, F_SETFL, O_NONBLOCK);
    while (!waitpid(rig->head, &wait_status, WNOHANG)) {
        assert_true(clock_seconds() < deadline);
        if (rig->errors >= 0 && read(rig->errors, bytes, sizeof bytes) < 0)
            assert_int_equal(errno, EAGAIN);
        usleep(1000);
    }
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != status)
        fail_msg("wait status %#x, not status %d", (unsigned)wait_status, status);
    assert_int_equal(file_size(path_in(rig, "started")), n_starts);
    if (rig->errors >= 0)
        close(rig->errors);
    file_remove_tree(rig->folder, &err);
}

/* Two requests may come as one signal, so each stands where the next one cannot hide it. */
static void a_stop_waits_for_srun(void **state)
{
    static const char *const scripts[] = {
        /* Takes signals only after a while. */
        "sleep 0.5\ntrap ': >told; exit 75' USR1\nwhile :; do sleep 0.02; done\n",
        /* The first finds no task yet and is lost. */
        "trap 'test -e lost && exit 75; : >lost' USR1\nwhile :; do sleep 0.02; done\n",
        /* Or one that does not catch it yet. */
        "trap 'echo srun: error: n1: task 0: User defined signal 1 >&2; exit 138' USR1\n"
        "while :; do sleep 0.02; done\n",
        "trap 'echo srun: Cancelled pending job step with signal 10 >&2; exit 1' USR1\n"
        "while :; do sleep 0.02; done\n",
    };
    static const int signals[] = { SIGTERM, SIGUSR1 };
    struct rig rig;

    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        for (int k = 0; k < 2; k++) {
            rig_open(&rig, scripts[i]);
            await_file(&rig, "started");
            kill(rig.head, signals[k]);
            if (i == 0)
                await_file(&rig, "told");
            rig_check_end(&rig, ERR_REQUEUE, 1);
        }
}

/* A rank that dies when the time is nearly up, whoever said so: no restart. */
static void who_is_asked_to_stop_does_not_start_again(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, "trap 'echo srun: error: n1: task 0: Killed >&2; exit 137' USR1\n"
                   ": >ready\nwhile :; do sleep 0.02; done\n");
    await_file(&rig, "ready");
    kill(rig.head, SIGUSR1);
    rig_check_end(&rig, ERR_PEER, 1);
}

/* A job goes on without those who have read what it says. */
static void a_reader_that_is_gone_ends_nothing(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, "while ! test -e gone; do sleep 0.02; done\n"
                   "echo something >&2\nsleep 0.1\necho more >&2\n");
    await_file(&rig, "started");
    close(rig.errors);
    rig.errors = -1;
    fclose(fopen(path_in(&rig, "gone"), "w"));
    rig_check_end(&rig, 0, 1);
}

/* Behind a terminal that stands still ranks are ended all the same. */
static void a_reader_that_waits_stops_nothing(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, "trap ': >ended; exit 143' TERM\n"
                   "head -c 150000 /dev/zero | tr '\\0' '\\n' >&2\n"
                   "echo srun: error: n1: task 1: Exited with exit code 2 >&2\n"
                   "while :; do sleep 0.02; done\n");
    await_file(&rig, "ended"); /* nothing has been read until now */
    rig_check_end(&rig, 2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_becomes_a_command),
        cmocka_unit_test(old_slurms_know_no_overlap),
        cmocka_unit_test(further_arguments_stand_behind_ours),
        cmocka_unit_test(nodes_of_a_job_are_read),
        cmocka_unit_test(shares_fit_their_nodes),
        cmocka_unit_test(gpus_are_counted),
        cmocka_unit_test(a_lost_node_takes_its_cpus),
        cmocka_unit_test(contradictions_are_kept_from_srun),
        cmocka_unit_test(the_first_death_counts),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(nodes_that_are_gone_are_found),
        cmocka_unit_test(a_stop_waits_for_srun),
        cmocka_unit_test(who_is_asked_to_stop_does_not_start_again),
        cmocka_unit_test(a_reader_that_is_gone_ends_nothing),
        cmocka_unit_test(a_reader_that_waits_stops_nothing),
    };

    return cmocka_run_group_tests_name("slurm", tests, NULL, NULL);
}
