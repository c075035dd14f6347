/*
 * watcher.c - the ranks' side: the page, the fork, the logs
 */
#include "launch/watch/watcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/str.h"
#include "launch/job_folder_impl.h"
#include "launch/launch.h"
#include "launch/node/shm_space.h"
#include "launch/remote/hosts_impl.h"
#include "launch/watch/watcher_impl.h"

enum { LEAVE_MS = 1000, N_TRIES = 200, FENCE_SECONDS = 600, GET_SECONDS = 60 };

/* One a process, like the job it is a rank of. */
static struct {
    struct watch_page *page; /* NULL: no watcher, or our own supervisor monitors */
    char path[512];
    char *log_folder, *status_folder;
    char folder[512];      /* of this rank's own in shared memory; "": none */
    char (*segments)[256]; /* Open MPI's files that were in it before watcher_settle */
    int n_segments;
    pid_t child; /* the watcher, if it is ours, else 0 */
    int wake_fd;
} self;

/* ---- start ---- */

/* The watcher terminates this rank. */
static void end_at_once(int number)
{
    (void)number;
    _exit(ERR_PEER);
}

static void catch_end(void)
{
    struct sigaction action = { .sa_handler = end_at_once };

    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR2, &action, NULL);
}

static int own_rank(void)
{
    const char *text = getenv("PMIX_RANK");

    return text ? (int)strtol(text, NULL, 10) : 0;
}

static int fork_watcher(int lock_fd, const struct watcher_options *options, struct err *err)
{
    int ends[2];
    pid_t launcher = getppid();

    if (pipe2(ends, O_CLOEXEC))
        return err_set_errno(err, ERR_FAILED, "cannot make a pipe");
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        struct watcher_start start = { .page = self.page,
                                       .path = self.path,
                                       .lock_fd = lock_fd,
                                       .wake_fd = ends[0],
                                       .options = *options };
        start.options.log_folder = self.log_folder;
        start.options.status_folder = self.status_folder;
        start.launcher = launcher;
        watcher_run(&start);
    }
    close(ends[0]);
    if (child < 0) {
        close(ends[1]);
        return err_set_errno(err, ERR_FAILED, "cannot start a process");
    }
    self.child = child;
    self.wake_fd = ends[1];
    return 0;
}

/* A slot in a page that is watched; its maker gets the lock. */
static struct progress_slot *find_slot(int *lock_fd, struct err *err)
{
    for (int attempt = 0; attempt < N_TRIES; attempt++) {
        if (watch_page_open(self.path, &self.page, lock_fd, err))
            return NULL;
        struct progress_slot *slot = watch_page_claim(self.page, own_rank());
        if (slot)
            return slot;
        /* Its watcher is about to end and takes the name away, or there is no room. */
        bool closed = (atomic_load(&self.page->n_claimed) & WATCH_CLOSED) != 0;
        watch_page_close(self.page);
        self.page = NULL;
        if (!closed)
            break;
        usleep(10000);
    }
    err_set(err, ERR_FAILED, "%s has no slot for this rank", self.path);
    return NULL;
}

static int start_watching(const struct watcher_options *options, struct err *err)
{
    int lock_fd = -1;

    if (watch_page_path(self.path, sizeof self.path, err))
        return -1;
    watch_page_sweep(self.path);
    struct progress_slot *slot = find_slot(&lock_fd, err);
    if (!slot)
        return -1;
    if (lock_fd >= 0) {
        int status = fork_watcher(lock_fd, options, err);

        close(lock_fd);
        if (status) {
            watch_page_unlink(self.path, self.page);
            watch_page_close(self.page);
            self.page = NULL;
            return -1;
        }
    }
    progress_adopt(slot);
    progress_phase(slot, "joining the job");
    return 0;
}

/*
 * A folder for what Open MPI keeps in files, which it would leave in /dev/shm and /tmp where ranks
 * are killed. Ranks exchange the paths of their files, so each may have a folder of its own.
 */
static void make_folder(void)
{
    const char *parent = job_folder_parent();
    struct err why;

    job_folder_sweep(parent);
    if (job_folder_create(parent, self.folder, sizeof self.folder, &why)) {
        log_warn("a killed rank may leave files in shared memory: %s", why.text);
        self.folder[0] = '\0';
        return;
    }
    setenv("OMPI_MCA_btl_vader_backing_directory", self.folder, 0);
    setenv("OMPI_MCA_orte_tmpdir_base", self.folder, 0); /* mpirun has set it */
}

int watcher_start(const struct watcher_options *options, struct err *err)
{
    struct err why;

    if (!launch_is_rank() || getenv(PROGRESS_VARIABLE) || self.page)
        return 0;
    catch_end();
    if (options->log_folder)
        self.log_folder = strdup(options->log_folder);
    if (options->status_folder)
        self.status_folder = strdup(options->status_folder);
    if (!self.log_folder != !options->log_folder || !self.status_folder != !options->status_folder)
        return err_set(err, ERR_FAILED, "out of host memory");
    if (start_watching(options, &why))
        log_warn("this rank is not monitored for hangs: %s", why.text);
    make_folder(); /* after the fork: its lock is the rank's */
    return 0;
}

/* ---- join ---- */

/* Record where this job's part of the log begins, for the watcher. */
static void note_log(int log)
{
    struct stat stat;

    for (int i = 0; self.page && i < WATCH_RANKS_MAX; i++)
        if (progress_join(0) == &self.page->places[i].slot)
            atomic_store(&self.page->log_starts[i], fstat(log, &stat) ? -1 : stat.st_size);
}

/* From now on this rank's output goes to its log, and warnings and errors to the screen as well. */
static int redirect(int world_rank, struct err *err)
{
    char path[4096], prefix[32];
    int length = snprintf(path, sizeof path, "%s/rank-%d.log", self.log_folder, world_rank);

    if (length < 0 || (size_t)length >= sizeof path)
        return err_set(err, ERR_FAILED, "the path of the log folder is too long");
    if (file_make_folder(self.log_folder, err))
        return -1;
    log_file_bound(path);
    int log = file_open_write(path, O_WRONLY | O_APPEND, err);
    if (log < 0)
        return -1;
    note_log(log);
    int screen = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    fflush(NULL);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
    snprintf(prefix, sizeof prefix, "rank %d: ", world_rank);
    log_set_screen(screen, prefix);
    return 0;
}

/* A number for this launch, of all its nodes, that their watchers know it by. */
static int share_launch_id(const struct launch_rank *rank, struct err *err)
{
    uint64_t id = 0;
    size_t n_bytes = sizeof id;

    if (rank->world_rank == 0) {
        remote_random(&id, sizeof id);
        if (launch_put(WATCHER_ID_KEY, &id, sizeof id, err))
            return -1;
    }
    if (launch_fence(FENCE_SECONDS, err))
        return -1;
    if (rank->local_rank == 0 && launch_get(WATCHER_ID_KEY, 0, &id, &n_bytes, GET_SECONDS, err))
        return -1;
    if (rank->local_rank == 0 && self.page)
        atomic_store(&self.page->launch_id, id);
    return 0;
}

int watcher_join(const struct launch_rank *rank, struct err *err)
{
    if (!rank->under_pmix || getenv(PROGRESS_VARIABLE))
        return 0;
    if (rank->local_rank == 0 && shm_space_check(job_folder_parent(), rank->local_size, err))
        return -1;
    if (self.page) {
        atomic_store(&self.page->world_size, (uint32_t)rank->world_size);
        if ((int)atomic_fetch_add(&self.page->n_joined, 1) + 1 == rank->local_size)
            watch_page_unlink(self.path, self.page);
        progress_phase(progress_join(rank->local_rank), "starting");
    }
    if (self.log_folder && rank->world_size > rank->local_size && share_launch_id(rank, err))
        return -1;
    return rank->world_rank > 0 && self.log_folder ? redirect(rank->world_rank, err) : 0;
}

static void note_segments(void)
{
    DIR *folder = opendir(self.folder);

    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!str_starts_with(entry->d_name, "vader_segment"))
            continue;
        self.segments =
            realloc(self.segments, sizeof *self.segments * (size_t)(self.n_segments + 1));
        CHECK(self.segments);
        snprintf(self.segments[self.n_segments++], sizeof *self.segments, "%s", entry->d_name);
    }
    if (folder)
        closedir(folder);
}

void watcher_settle(void)
{
    struct err ignored;

    if (!self.folder[0])
        return;
    note_segments();
    file_remove_tree(self.folder, &ignored);
}

void watcher_unsettle(void)
{
    char path[sizeof self.folder + sizeof *self.segments];

    if (self.n_segments && mkdir(self.folder, 0700))
        return;
    for (int i = 0; i < self.n_segments; i++) {
        snprintf(path, sizeof path, "%s/%s", self.folder, self.segments[i]);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
    }
    free(self.segments);
    self.segments = NULL;
    self.n_segments = 0;
}

/* ---- leave ---- */

void watcher_leave(void)
{
    struct pollfd ended = { .events = POLLIN };
    siginfo_t info;

    watcher_settle(); /* if it never came to that */
    if (!self.child)
        return;
    if (write(self.wake_fd, "l", 1) == 1) {
        ended.fd = pidfd_open(self.child, 0);
        if (ended.fd >= 0 && poll(&ended, 1, LEAVE_MS) > 0)
            waitid(P_PID, (id_t)self.child, &info, WEXITED | WNOHANG);
        if (ended.fd >= 0)
            close(ended.fd);
    }
    close(self.wake_fd);
    self.child = 0;
}
