/*
 * sandbox.c - the helper that runs programs, and how it is talked to
 *
 * The helper is forked while this process is nothing yet, and is told each program over a socket
 * pair. A program's child is the helper's: when that child ends, or its time is over, all that it
 * started ends with it (the pid namespace, else its process group and the limit of processes).
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
#include "eval/sandbox_impl.h"

#define PROGRAM_MAX ((size_t)4 << 20)
#define OUTPUT_MAX ((size_t)1 << 20) /* bytes read of a program; more is thrown away */
#define NONCE_BYTES 16

struct sandbox {
    int fd; /* to the helper */
    pid_t helper;
    int layers;
    struct str enforced;
};

struct request {
    double deadline;
    uint64_t n_bytes;
};

/*
 * The interpreter's part. It reads the nonce and the program from its standard input, and runs the
 * program in a thread that begins in C: no frame leads from the program to the one that has the
 * nonce, nor to the list that shows that the program came to its end. What would list all frames or
 * objects, run in another thread, or read memory, is taken away; an audit hook, which nothing in
 * Python can take off, keeps modules away that could read memory, and code made of bytes.
 */
static const char driver[] =
    "import sys, os, gc, time, types, _thread, builtins\n"
    "def run():\n"
    "    nonce = sys.stdin.buffer.read(32)\n"
    "    text = sys.stdin.buffer.read().decode()\n"
    "    sys.stdin.close()\n"
    "    out, null = os.dup(1), os.open('/dev/null', os.O_RDWR)\n"
    "    for fd in range(3): os.dup2(null, fd)\n"
    "    sys.stdin = open(0)\n"
    "    write, leave, sleep, count = os.write, os._exit, time.sleep, _thread._count\n"
    "    for name in ('ctypes', '_ctypes', 'faulthandler', 'tracemalloc', '_testcapi'):\n"
    "        sys.modules[name] = None\n"
    "    for name in ('get_objects', 'get_referrers', 'get_referents', 'callbacks'):\n"
    "        delattr(gc, name)\n"
    "    for name in ('_current_frames', '_current_exceptions', '_settraceallthreads',\n"
    "                 '_setprofileallthreads', 'monitoring'):\n"
    "        if hasattr(sys, name): delattr(sys, name)\n"
    "    refused = frozenset(('ctypes', '_ctypes', 'cffi', '_cffi_backend', 'faulthandler',\n"
    "                         'tracemalloc', '_testcapi', '_testinternalcapi', 'numpy',\n"
    "                         '_xxsubinterpreters', '_interpreters'))\n"
    "    def guard(event, arguments):\n"
    "        if event == 'import' and arguments[0].partition('.')[0] in refused:\n"
    "            raise ImportError(arguments[0])\n"
    "        if event == 'code.__new__':\n"
    "            raise ValueError(event)\n"
    "    sys.addaudithook(guard)\n"
    "    module = sys.modules['__main__'] = types.ModuleType('__main__')\n"
    "    try:\n"
    "        code = compile(text, 'program', 'exec', dont_inherit=True)\n"
    "    except BaseException:\n"
    "        leave(1)\n"
    "    done, waiting = [], [None, code]\n"
    "    codes = iter(waiting.pop, None)\n"
    "    _thread.start_new_thread(done.extend, (map(exec, codes, [module.__dict__]),))\n"
    "    while len(waiting) == 2 or not done and count() > 0:\n"
    "        sleep(0.002)\n"
    "    if done == [None]:\n"
    "        write(out, nonce)\n"
    "        leave(0)\n"
    "    leave(1)\n"
    "run()\n";

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

/* In the process that becomes the interpreter; does not return. */
static void become_python(int layers, const char *scratch, int in, int out, int deadline)
{
    static char *environment[] = { "PATH=/usr/bin:/bin",     "LANG=C.UTF-8",
                                   "PYTHONHASHSEED=0",       "OMP_NUM_THREADS=1",
                                   "OPENBLAS_NUM_THREADS=1", NULL };
    char *arguments[] = { "python3", "-I", "-S", "-B", "-c", (char *)(uintptr_t)driver, NULL };
    const char *python = find_python();

    if (!python || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(120);
    sandbox_close_files(3);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0)
        _exit(120);
    if (chdir((layers & SANDBOX_NAMESPACES) ? "/scratch" : scratch) < 0)
        _exit(121);
    if (sandbox_limit(deadline, (layers & SANDBOX_NAMESPACES) != 0) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        _exit(122);
    if ((layers & SANDBOX_LANDLOCK) &&
        sandbox_landlock((layers & SANDBOX_NAMESPACES) ? "/scratch" : scratch) < 0)
        _exit(123);
    if ((layers & SANDBOX_SECCOMP) && sandbox_seccomp() < 0)
        _exit(124);
    execve(python, arguments, environment);
    _exit(125);
}

/* With namespaces: the first process in them, which is their end. */
static void be_first(int layers, const char *scratch, int in, int out, int deadline)
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
            close(in);
            close(out);
            while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                continue;
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
    }
    become_python(layers, scratch, in, out, deadline);
}

static void close_once(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Nonce and program into the pipe; reads what comes until the end, the limit or the deadline. */
static int talk(int *to, int from, const char *text, size_t n_bytes, double end, struct str *output)
{
    size_t sent = 0, got = 0;
    char buffer[1 << 14];

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

/* The child's exit status, after its end or the deadline; all that it started is ended. */
static int end_child(pid_t child, double end)
{
    int status = -1;
    pid_t ended = 0;

    while (!(ended = waitpid(child, &status, WNOHANG)) && clock_seconds() < end)
        poll(NULL, 0, 2);
    if (ended != child) {
        kill(-child, SIGKILL);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    kill(-child, SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static enum sandbox_outcome run_program(int layers, const char *scratch, const char *program,
                                        size_t n_bytes, double deadline)
{
    double end = clock_seconds() + deadline;
    struct str text = { 0 }, output = { 0 };
    char nonce[2 * NONCE_BYTES + 1];
    int in[2], out[2];

    make_nonce(nonce);
    str_add(&text, nonce);
    str_add_bytes(&text, program, n_bytes);
    if (pipe2(in, O_CLOEXEC) < 0)
        return SANDBOX_FAILED;
    if (pipe2(out, O_CLOEXEC) < 0) {
        close(in[0]);
        close(in[1]);
        return SANDBOX_FAILED;
    }
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        close(in[1]);
        close(out[0]);
        be_first(layers, scratch, in[0], out[1], (int)deadline + 1);
    }
    if (child > 0)
        setpgid(child, child);
    close(in[0]);
    close(out[1]);
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    int late = child < 0 ? 0 : talk(&in[1], out[0], str_text(&text), text.length, end, &output) < 0;
    int status = child < 0 ? -1 : end_child(child, late ? 0 : end);
    close(out[0]);
    close_once(&in[1]);
    /* The nonce and nothing else: output of the program's own goes elsewhere. */
    int passed = !late && status == 0 && output.length == strlen(nonce) &&
                 !memcmp(output.data, nonce, output.length);
    str_release(&text);
    str_release(&output);
    return passed ? SANDBOX_PASSED : late ? SANDBOX_TIMED_OUT : SANDBOX_FAILED;
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

/* Which layers hold, by running something that passes in all of them. */
static int try_layers(const char *scratch, int wanted)
{
    static const char empty[] = "assert 1 + 1 == 2\n";
    static const int layers[] = { SANDBOX_NAMESPACES, SANDBOX_LANDLOCK, SANDBOX_SECCOMP };
    int held = 0;

    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if ((wanted & layers[i]) &&
            run_program(held | layers[i], scratch, empty, strlen(empty), 20) == SANDBOX_PASSED)
            held |= layers[i];
    return held;
}

static void serve(int fd, int wanted)
{
    char scratch[] = "/tmp/lmtrain-sandbox-XXXXXX";
    struct request request;
    struct err err;
    int layers = 0;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* the terminal's: the end of the pipe is ours */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (mkdtemp(scratch) && !sandbox_give_away(scratch))
        layers = try_layers(scratch, wanted);
    int status = file_write_all(fd, &layers, sizeof layers) ? -1 : 0;
    while (!status && !read_all(fd, &request, sizeof request) && request.n_bytes <= PROGRAM_MAX) {
        char *program = calloc(1, request.n_bytes + 1);
        enum sandbox_outcome outcome = SANDBOX_FAILED;

        if (!program || read_all(fd, program, request.n_bytes) < 0)
            break;
        outcome = run_program(layers, scratch, program, request.n_bytes, request.deadline);
        free(program);
        if (!(layers & SANDBOX_NAMESPACES)) { /* what a program left is not the next one's */
            file_remove_tree(scratch, &err);
            status = file_make_folder(scratch, &err) < 0 ? -1 : sandbox_give_away(scratch);
        }
        if (file_write_all(fd, &outcome, sizeof outcome))
            break;
    }
    file_remove_tree(scratch, &err);
    _exit(0);
}

static void describe(struct sandbox *s)
{
    if (s->layers & SANDBOX_NAMESPACES)
        str_add(&s->enforced, "namespaces (user, mount, pid, net, ipc, uts; a root of its own); ");
    if (s->layers & SANDBOX_LANDLOCK)
        str_add(&s->enforced, "Landlock (files read-only but for a scratch folder); ");
    if (s->layers & SANDBOX_SECCOMP)
        str_add(&s->enforced, "seccomp (no sockets, processes, signals or tracing); ");
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
                       "programs are not run: this machine has neither user namespaces nor "
                       "Landlock with seccomp to keep them in");
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

int sandbox_run(struct sandbox *s, const char *program, double deadline,
                enum sandbox_outcome *outcome, struct err *err)
{
    struct request request = { deadline, strlen(program) };

    if (request.n_bytes > PROGRAM_MAX) {
        *outcome = SANDBOX_FAILED;
        return 0;
    }
    if (send(s->fd, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
        file_write_all(s->fd, program, request.n_bytes) ||
        read_all(s->fd, outcome, sizeof *outcome) < 0)
        return err_set(err, ERR_FAILED, "the sandbox's helper is gone");
    return 0;
}

const char *sandbox_outcome_name(enum sandbox_outcome outcome)
{
    static const char *const names[] = { "passed", "failed", "timed out" };

    return names[outcome];
}
