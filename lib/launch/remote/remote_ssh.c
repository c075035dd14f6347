/*
 * remote_ssh.c - `ssh HOST lmtrain daemon`, and why it ended
 *
 * The stderr of ssh and the remote daemon goes to a file in memory: they never block on it, and its
 * last line is the reason when they end.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "launch/remote/hosts_impl.h"

enum { WORDS_MAX = 64, TAIL_BYTES = 4096 };

/* For TCP alone: longer than a few lost packets take. */
static const int connect_seconds = 10;

/* ---- the command ---- */

/* This binary's path, quoted for the remote shell. */
static int quoted_binary(struct str *out, struct err *err)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n < 0)
        return err_set_errno(err, ERR_FAILED, "cannot determine the path of this binary");
    path[n] = '\0';
    if (str_ends_with(path, " (deleted)"))
        return err_set(err, ERR_FAILED, "this binary was replaced or removed while it ran: %s",
                       path);
    if (!path[strspn(path,
                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+")]) {
        str_add(out, path);
        return 0;
    }
    str_add_char(out, '\'');
    for (const char *c = path; *c; c++)
        if (*c == '\'')
            str_add(out, "'\\''");
        else
            str_add_char(out, *c);
    str_add_char(out, '\'');
    return 0;
}

/* $LMTRAIN_SSH cut at blanks (no shell), our options, the host, the command. words is cut up. */
static int make_argv(char *words, const char *host, const char *timeout, const char *binary,
                     char const *argv[WORDS_MAX], struct err *err)
{
    static const char *const options[] = { "BatchMode=yes", "ForwardX11=no", "ForwardAgent=no",
                                           "ClearAllForwardings=yes", "RequestTTY=no" };
    enum { N_OPTIONS = (int)(sizeof options / sizeof *options) };
    char *save = NULL;
    int n = 0;

    for (char *word = strtok_r(words, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        if (n == WORDS_MAX - 2 * N_OPTIONS - 6)
            return err_set(err, ERR_CONFIG, "LMTRAIN_SSH has more than %d words", n);
        argv[n++] = word;
    }
    if (!n)
        argv[n++] = "ssh";
    for (int i = 0; i < N_OPTIONS; i++) {
        argv[n++] = "-o";
        argv[n++] = options[i];
    }
    argv[n++] = "-o";
    argv[n++] = timeout;
    argv[n++] = host;
    argv[n++] = binary;
    argv[n++] = "daemon";
    argv[n] = NULL;
    return 0;
}

/* ---- the process ---- */

/* Only calls that are safe after the fork of a process with threads. */
static void run_child(pid_t head, const char *const *argv, int stdin_fd, int words_fd)
{
    static const char failed[] = "lmtrain: cannot run ";
    static const char hint[] = " (hint: is ssh installed? $LMTRAIN_SSH names another)\n";
    sigset_t none;
    int null = open("/dev/null", O_WRONLY);

    /* No terminal: Ctrl-C goes to the head alone, and ssh cannot ask for passwords. */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != head)
        _exit(127);
    if (null < 0 || dup2(stdin_fd, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        dup2(words_fd, STDERR_FILENO) < 0)
        _exit(127);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], (char *const *)argv);
    if (write(STDERR_FILENO, failed, sizeof failed - 1) < 0 ||
        write(STDERR_FILENO, argv[0], strlen(argv[0])) < 0 ||
        write(STDERR_FILENO, hint, sizeof hint - 1) < 0)
        _exit(126);
    _exit(127);
}

static int spawn(struct host_link *link, const char *const *argv, struct err *err)
{
    pid_t head = getpid();
    int fds[2];
    int words_fd = memfd_create("lmtrain-ssh", MFD_CLOEXEC);

    if (words_fd < 0)
        return err_set_errno(err, ERR_FAILED, "memfd_create");
    if (pipe2(fds, O_CLOEXEC)) {
        close(words_fd);
        return err_set_errno(err, ERR_FAILED, "pipe");
    }
    fcntl(words_fd, F_SETFL, O_APPEND);
    pid_t pid = fork();
    if (!pid)
        run_child(head, argv, fds[0], words_fd);
    close(fds[0]);
    if (pid < 0) {
        err_set_errno(err, ERR_FAILED, "cannot start a process");
        close(fds[1]);
        close(words_fd);
        return -1;
    }
    link->ssh = pid;
    link->stdin_fd = fds[1];
    link->words_fd = words_fd;
    return 0;
}

int remote_ssh_start(struct host_link *link, double timeout_seconds, struct err *err)
{
    const char *ssh = getenv("LMTRAIN_SSH"), *argv[WORDS_MAX];
    char timeout[64], *words = strdup(ssh && *ssh ? ssh : "ssh");
    struct str binary = { 0 };

    CHECK(words);
    /* Shorter than our own timeout, so that ssh can report it; logging in may take longer. */
    double patience = timeout_seconds * 0.8;
    snprintf(timeout, sizeof timeout, "ConnectTimeout=%d",
             patience > connect_seconds ? connect_seconds : (int)patience + 1);
    int status = quoted_binary(&binary, err) ||
                 make_argv(words, link->host, timeout, str_text(&binary), argv, err) ||
                 spawn(link, argv, err);
    str_release(&binary);
    free(words);
    return status ? -1 : 0;
}

/* ---- reasons ---- */

static int read_tail(const struct host_link *link, char text[TAIL_BYTES])
{
    off_t size = link->words_fd < 0 ? 0 : lseek(link->words_fd, 0, SEEK_END);
    off_t from = size > TAIL_BYTES - 1 ? size - (TAIL_BYTES - 1) : 0;
    ssize_t n = size <= 0 ? 0 : pread(link->words_fd, text, TAIL_BYTES - 1, from);

    text[n > 0 ? n : 0] = '\0';
    for (ssize_t i = 0; i < n; i++)
        if (text[i] != '\n' && !isprint((unsigned char)text[i]))
            text[i] = text[i] == '\r' ? '\n' : '?';
    return n > 0;
}

/* The last line that is not empty, or the last that begins with prefix; NULL if there is none. */
static const char *last_line(const char *text, const char *prefix, char line[256])
{
    const char *found = NULL;

    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (*at != '\n' && str_starts_with(at, prefix))
            found = at;
    if (!found)
        return NULL;
    snprintf(line, 256, "%.*s", (int)strcspn(found, "\n"), found);
    return line;
}

const char *hosts_link_words(const struct host_link *link, char words[256])
{
    char text[TAIL_BYTES];

    if (!read_tail(link, text))
        return NULL;
    return last_line(text, "", words);
}

static const char *hint_of(const char *words, int status)
{
    static const struct {
        const char *part, *hint;
    } hints[] = {
        { "Host key verification failed",
          " (hint: run `ssh HOST` once by hand to check and accept its key)" },
        { "Permission denied (",
          " (hint: `ssh -o BatchMode=yes HOST true` must work without a password prompt: use a key "
          "in an agent, or one without a passphrase)" },
        { "error while loading shared libraries",
          " (hint: libraries that are installed here are missing on that host)" },
    };

    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strstr(words, hints[i].part))
            return hints[i].hint;
    if (status == 127 || strstr(words, "No such file") || strstr(words, "not found"))
        return " (hint: lmtrain must be installed on all hosts under the same path)";
    if (status == 126)
        return " (hint: lmtrain must exist under the same path and be executable)";
    return "";
}

void remote_ssh_reason(const struct host_link *link, const siginfo_t *ended, const char *build,
                       char reason[512])
{
    char text[TAIL_BYTES] = "", line[256];
    int exited = ended->si_code == CLD_EXITED, status = ended->si_status;
    const char *words;

    read_tail(link, text);
    words = last_line(text, REMOTE_OTHER_BUILD, line);
    if (words) {
        snprintf(reason, 512,
                 "host %s has lmtrain %s, but this host has %s (hint: install the same build on "
                 "all hosts)",
                 link->host, words + strlen(REMOTE_OTHER_BUILD), build ? build : "another");
        return;
    }
    words = last_line(text, "lmtrain: ", line);
    if (words)
        words += strlen("lmtrain: ");
    else
        words = last_line(text, "", line);
    if (words)
        snprintf(reason, 512, "host %s: %s%s", link->host, words,
                 exited ? hint_of(words, status) : "");
    else if (exited)
        snprintf(reason, 512, "host %s: ssh exited with status %d and no message%s", link->host,
                 status, hint_of("", status));
    else
        snprintf(reason, 512, "host %s: ssh was killed by signal %d (%s)", link->host, status,
                 strsignal(status));
}
