/*
 * sandbox.c - the helper that runs programs, and the protocol between it and this process
 *
 * The helper is forked before this process has any state, and gets each program over a socket pair.
 *
 *     this process --- helper ---+--- judge      (the test; writes the nonce when it has passed)
 *                                |      |  calls and results, as JSON over two pipes
 *                                +--- program    (what the model wrote)
 *
 * Both interpreters (sandbox_driver.py) run under every layer, each in namespaces of its own. The
 * judge alone has the nonce and the pipe that it is written to. When the judge ends, or the time is
 * over, both and all that they started are ended (the pid namespace, else the process group, which
 * seccomp doesn't let them leave).
 */
#include "eval/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "config/embedded.h"
#include "eval/sandbox_impl.h"

#define PROGRAM_MAX ((size_t)4 << 20)
#define OUTPUT_MAX ((size_t)1 << 20) /* bytes read of a program; more is thrown away */
#define NONCE_BYTES 16
#define START_SECONDS 60 /* for both interpreters, on a machine with much else to do */
#define END_SECONDS 5    /* for the judge to be gone, once it has closed its pipe */

struct sandbox {
    int fd; /* to the helper */
    pid_t helper;
    int layers;
    struct str enforced;
};

/* The texts of a program, in the order of sandbox_driver.py. */
enum { TEXT_PROGRAM, TEXT_GIVEN, TEXT_TEST, TEXT_ENTRY, N_TEXTS };

struct sandbox_request {
    double deadline;
    uint64_t n_bytes[N_TEXTS];
};

/* ---- the child of one program ---- */

static const char *find_python(void)
{
    static const char *const places[] = { "/usr/bin/python3", "/usr/local/bin/python3",
                                          "/bin/python3" };

    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!access(places[i], X_OK))
            return places[i];
    return NULL;
}

/* An interpreter to start: its role in sandbox_driver.py, and the files that become 0, 1, 3, 4. */
struct role {
    const char *name;
    int files[4];
    int n_files;
};

/* Files in place, all others closed; standard error is /dev/null. */
static int place_files(const struct role *role)
{
    static const int places[] = { 0, 1, 3, 4 };
    int kept[4], null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int i = 0; i < role->n_files; i++) {
        kept[i] = fcntl(role->files[i], F_DUPFD_CLOEXEC, 16);
        if (kept[i] < 0)
            return -1;
    }
    if (null < 0 || dup2(null, 2) < 0)
        return -1;
    for (int i = 0; i < role->n_files; i++)
        if (dup2(kept[i], places[i]) < 0)
            return -1;
    sandbox_close_files(role->n_files > 2 ? 5 : 3);
    return 0;
}

/* In the process that becomes the interpreter; does not return. */
static void become_python(int layers, const char *scratch, const struct role *role, int deadline)
{
    static char *environment[] = { "PATH=/usr/bin:/bin",     "LANG=C.UTF-8",
                                   "PYTHONHASHSEED=0",       "OMP_NUM_THREADS=1",
                                   "OPENBLAS_NUM_THREADS=1", NULL };
    const char *python = find_python();
    const struct embedded_file *driver = embedded_find("lib/eval/sandbox_driver.py");
    bool has_namespaces = (layers & SANDBOX_NAMESPACES) != 0;
    struct sandbox_filter filter;
    char *arguments[] = { "python3",
                          "-I",
                          "-S",
                          "-B",
                          "-c",
                          (char *)(uintptr_t)driver->text,
                          (char *)(uintptr_t)role->name,
                          NULL };

    if (!python || place_files(role) < 0)
        _exit(120);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0)
        _exit(120);
    if (chdir(has_namespaces ? "/scratch" : scratch) < 0)
        _exit(121);
    if ((layers & SANDBOX_SECCOMP) && sandbox_seccomp_build(&filter) < 0)
        _exit(124);
    if (sandbox_limit(deadline, has_namespaces) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        _exit(122);
    /* Without a file system of its own, which has a size, a program writes no files. */
    if ((layers & SANDBOX_LANDLOCK) && sandbox_landlock(has_namespaces ? "/scratch" : NULL) < 0)
        _exit(123);
    if ((layers & SANDBOX_SECCOMP) && sandbox_seccomp_load(&filter) < 0)
        _exit(124);
    execve(python, arguments, environment);
    _exit(125);
}

/* With namespaces: the first process in them, which is their end. */
static void be_first(int layers, const char *scratch, const struct role *role, int deadline)
{
    int status;

    if (sandbox_leave_root() < 0)
        _exit(118);
    if (layers & SANDBOX_NAMESPACES) {
        pid_t child;

        if (sandbox_enter_namespaces(scratch) < 0)
            _exit(119);
        child = fork(); /* the first of the pid namespace */
        if (child < 0)
            _exit(119);
        if (child > 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            sandbox_close_files(0);
            while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                continue;
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
    }
    become_python(layers, scratch, role, deadline);
}

static pid_t start(int layers, const char *scratch, const struct role *role, double deadline)
{
    pid_t child = fork();

    if (child == 0) {
        setpgid(0, 0);
        be_first(layers, scratch, role, (int)deadline + 1);
    }
    if (child > 0)
        setpgid(child, child);
    return child;
}

static void close_once(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/*
 * Nonce and texts into the pipe; reads what comes until the end, the limit (0) or the deadline
 * (-1), which begins with the first byte: how long interpreters take to start is not the program's
 * doing.
 */
static int talk(int *to, int from, const char *text, size_t n_bytes, double deadline,
                struct str *output)
{
    size_t sent = 0, got = 0;
    char buffer[1 << 14];
    double end = clock_seconds() + START_SECONDS;

    for (;;) {
        struct pollfd files[2] = { { .fd = from, .events = POLLIN },
                                   { .fd = *to, .events = POLLOUT } };
        double left = end - clock_seconds();

        if (left <= 0)
            return -1;
        if (poll(files, 2, (int)(left * 1000) + 1) < 0 && errno != EINTR)
            return 0;
        if (files[1].revents & POLLOUT) {
            ssize_t n = write(*to, text + sent, n_bytes - sent);

            sent = n > 0 ? sent + (size_t)n : n_bytes;
            if (sent == n_bytes)
                close_once(to);
        } else if (files[1].revents) {
            close_once(to);
        }
        if (files[0].revents) {
            ssize_t n = read(from, buffer, sizeof buffer);

            if (n <= 0)
                return 0;
            if (!got)
                end = clock_seconds() + deadline;
            got += (size_t)n;
            if (got > OUTPUT_MAX)
                return 0;
            str_add_bytes(output, buffer, (size_t)n);
        }
    }
}

static void make_nonce(char *hex)
{
    unsigned char bytes[NONCE_BYTES];

    CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
    for (int i = 0; i < NONCE_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static void end_group(pid_t child)
{
    if (child <= 0)
        return;
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
}

/* The judge's exit status, after its end or the deadline; all that both started is ended. */
static int end_children(pid_t judge, pid_t program, double end)
{
    int status = -1;
    pid_t ended = 0;

    while (judge > 0 && !(ended = waitpid(judge, &status, WNOHANG)) && clock_seconds() < end)
        poll(NULL, 0, 2);
    end_group(program);
    if (judge > 0) {
        end_group(judge);
        if (ended != judge)
            waitpid(judge, &status, 0);
    }
    if (program > 0)
        waitpid(program, NULL, 0);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    return judge > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The pipes of a run; [0] is read from, [1] written to. */
enum { PIPE_TEXTS, PIPE_VERDICT, PIPE_REQUESTS, PIPE_ANSWERS, N_PIPES };

static int open_pipes(int pipes[N_PIPES][2])
{
    for (int i = 0; i < N_PIPES; i++)
        pipes[i][0] = pipes[i][1] = -1;
    for (int i = 0; i < N_PIPES; i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            return -1;
    return 0;
}

static void close_pipes(int pipes[N_PIPES][2])
{
    for (int i = 0; i < N_PIPES; i++)
        for (int k = 0; k < 2; k++)
            close_once(&pipes[i][k]);
}

/* Closes this process's copies of what the children have. */
static void start_both(int layers, const char *scratch, double deadline, int pipes[N_PIPES][2],
                       pid_t *judge, pid_t *program)
{
    const struct role judges = { "judge",
                                 { pipes[PIPE_TEXTS][0], pipes[PIPE_VERDICT][1],
                                   pipes[PIPE_REQUESTS][1], pipes[PIPE_ANSWERS][0] },
                                 4 };
    const struct role runs = { "program", { pipes[PIPE_REQUESTS][0], pipes[PIPE_ANSWERS][1] }, 2 };

    *program = start(layers, scratch, &runs, deadline);
    *judge = *program < 0 ? -1 : start(layers, scratch, &judges, deadline);
    close_once(&pipes[PIPE_TEXTS][0]);
    close_once(&pipes[PIPE_VERDICT][1]);
    for (int k = 0; k < 2; k++) {
        close_once(&pipes[PIPE_REQUESTS][k]);
        close_once(&pipes[PIPE_ANSWERS][k]);
    }
}

/* texts: nonce, lengths and texts, as the judge reads them. */
static enum sandbox_outcome run_texts(int layers, const char *scratch, const struct str *texts,
                                      const char *nonce, double deadline)
{
    struct str output = { 0 };
    int pipes[N_PIPES][2], late = 0, status = -1;
    pid_t judge = -1, program = -1;

    if (open_pipes(pipes) == 0) {
        start_both(layers, scratch, deadline, pipes, &judge, &program);
        fcntl(pipes[PIPE_TEXTS][1], F_SETFL, O_NONBLOCK);
        if (judge > 0)
            late = talk(&pipes[PIPE_TEXTS][1], pipes[PIPE_VERDICT][0], str_text(texts),
                        texts->length, deadline, &output) < 0;
        status = end_children(judge, program, late ? 0 : clock_seconds() + END_SECONDS);
    }
    close_pipes(pipes);
    int passed = !late && status == 0 && output.length == 1 + strlen(nonce) &&
                 output.data[0] == 'r' && !memcmp(output.data + 1, nonce, strlen(nonce));
    str_release(&output);
    return passed ? SANDBOX_PASSED : late ? SANDBOX_TIMED_OUT : SANDBOX_FAILED;
}

/* texts: all of the request's, one behind the other. */
static enum sandbox_outcome run_program(int layers, const char *scratch,
                                        const struct sandbox_request *request, const char *texts)
{
    struct str all = { 0 };
    char nonce[2 * NONCE_BYTES + 1];
    size_t n_bytes = 0;

    make_nonce(nonce);
    str_add(&all, nonce);
    for (int i = 0; i < N_TEXTS; i++) {
        str_printf(&all, "%s%llu", i ? " " : "", (unsigned long long)request->n_bytes[i]);
        n_bytes += request->n_bytes[i];
    }
    str_add_char(&all, '\n');
    str_add_bytes(&all, texts, n_bytes);
    enum sandbox_outcome outcome = run_texts(layers, scratch, &all, nonce, request->deadline);
    str_release(&all);
    return outcome;
}

/* ---- the helper ---- */

static int read_all(int fd, void *data, size_t n_bytes)
{
    for (size_t got = 0; got < n_bytes;) {
        ssize_t n = read(fd, (char *)data + got, n_bytes - got);

        if (n <= 0 && !(n < 0 && errno == EINTR))
            return -1;
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A helper that is gone is an error and no SIGPIPE. */
static int send_all(int fd, const char *data, size_t n_bytes)
{
    for (size_t sent = 0; sent < n_bytes;) {
        ssize_t n = send(fd, data + sent, n_bytes - sent, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            return -1;
        sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Which layers hold, by running something that passes in all of them. */
static int try_layers(const char *scratch, int wanted)
{
    static const char texts[] = "f = abs\nassert f(-1) == 1\nf";
    static const struct sandbox_request request = { 20, { 8, 0, 18, 1 } };
    static const int layers[] = { SANDBOX_NAMESPACES, SANDBOX_LANDLOCK, SANDBOX_SECCOMP };
    int held = 0;

    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if ((wanted & layers[i]) &&
            run_program(held | layers[i], scratch, &request, texts) == SANDBOX_PASSED)
            held |= layers[i];
    return held;
}

static size_t request_bytes(const struct sandbox_request *request)
{
    size_t n = 0;

    for (int i = 0; i < N_TEXTS; i++) {
        if (request->n_bytes[i] > PROGRAM_MAX)
            return SIZE_MAX;
        n += request->n_bytes[i];
    }
    return n;
}

static int serve_one(int fd, int layers, const char *scratch)
{
    struct sandbox_request request;

    if (read_all(fd, &request, sizeof request) < 0 || request_bytes(&request) == SIZE_MAX)
        return -1;
    char *texts = calloc(1, request_bytes(&request) + 1);
    if (!texts || read_all(fd, texts, request_bytes(&request)) < 0) {
        free(texts);
        return -1;
    }
    enum sandbox_outcome outcome = run_program(layers, scratch, &request, texts);
    free(texts);
    return file_write_all(fd, &outcome, sizeof outcome) ? -1 : 0;
}

static void serve(int fd, int wanted)
{
    char scratch[] = "/tmp/lmtrain-sandbox-XXXXXX";
    struct err err;
    int layers = 0;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* the terminal's: the end of the pipe is ours */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (mkdtemp(scratch) && !sandbox_give_away(scratch))
        layers = try_layers(scratch, wanted);
    int status = file_write_all(fd, &layers, sizeof layers) ? -1 : 0;
    while (!status)
        status = serve_one(fd, layers, scratch);
    file_remove_tree(scratch, &err);
    _exit(0);
}

static void describe(struct sandbox *s)
{
    if (s->layers & SANDBOX_NAMESPACES)
        str_add(&s->enforced, "namespaces (user, mount, pid, net, ipc, uts; a root of its own); ");
    if (s->layers & SANDBOX_LANDLOCK)
        str_add(&s->enforced, s->layers & SANDBOX_NAMESPACES
                                  ? "Landlock (files read-only but for a scratch folder); "
                                  : "Landlock (files read-only); ");
    if (s->layers & SANDBOX_SECCOMP)
        str_add(&s->enforced, "seccomp (system calls by an allow-list: no sockets, processes, "
                              "signals or tracing); ");
    str_add(&s->enforced, "limits of time, memory, processes, file sizes and output");
}

int sandbox_open(struct sandbox **out, int layers, struct err *err)
{
    struct sandbox *s;
    int fds[2];

    if (!find_python())
        return err_set(err, ERR_FAILED, "programs cannot be run: there is no python3");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return err_set_errno(err, ERR_FAILED, "a sandbox");
    s = calloc(1, sizeof *s);
    CHECK(s);
    s->helper = fork();
    if (s->helper == 0) {
        close(fds[0]);
        serve(fds[1], layers);
    }
    close(fds[1]);
    s->fd = fds[0];
    int status = s->helper < 0 ? -1 : read_all(s->fd, &s->layers, sizeof s->layers);
    int alone = SANDBOX_LANDLOCK | SANDBOX_SECCOMP;
    if (status < 0 || !((s->layers & SANDBOX_NAMESPACES) || (s->layers & alone) == alone)) {
        sandbox_close(s);
        return err_set(err, ERR_FAILED,
                       "programs are not run: this machine supports neither user namespaces nor "
                       "Landlock with seccomp as a sandbox");
    }
    describe(s);
    *out = s;
    return 0;
}

void sandbox_close(struct sandbox *s)
{
    if (!s)
        return;
    close(s->fd);
    if (s->helper > 0)
        waitpid(s->helper, NULL, 0);
    str_release(&s->enforced);
    free(s);
}

const char *sandbox_enforced(const struct sandbox *s)
{
    return str_text(&s->enforced);
}

int sandbox_layers(const struct sandbox *s)
{
    return s->layers;
}

int sandbox_run(struct sandbox *s, const struct sandbox_program *program, double deadline,
                enum sandbox_outcome *outcome, struct err *err)
{
    const char *texts[N_TEXTS] = { program->program, program->given, program->test,
                                   program->entry };
    struct sandbox_request request = { .deadline = deadline };
    struct str message = { 0 };
    int status = 0;

    for (int i = 0; i < N_TEXTS; i++)
        request.n_bytes[i] = texts[i] ? strlen(texts[i]) : 0;
    if (request_bytes(&request) == SIZE_MAX) {
        *outcome = SANDBOX_FAILED;
        return 0;
    }
    str_add_bytes(&message, &request, sizeof request);
    for (int i = 0; i < N_TEXTS; i++)
        str_add(&message, texts[i] ? texts[i] : "");
    if (send_all(s->fd, str_text(&message), message.length) < 0 ||
        read_all(s->fd, outcome, sizeof *outcome) < 0)
        status = err_set(err, ERR_FAILED, "the helper process of the sandbox has exited");
    str_release(&message);
    return status;
}

const char *sandbox_outcome_name(enum sandbox_outcome outcome)
{
    static const char *const names[] = { "passed", "failed", "timed out" };

    return names[outcome];
}
