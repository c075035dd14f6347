/*
 * sandbox_test.c - honest programs pass, hostile ones fail and leave nothing behind, under each
 * layer that the machine has
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "eval/sandbox.h"
#include "support/temporary.h"

#define DEADLINE 10

static enum sandbox_outcome run(struct sandbox *sandbox, const char *program, double deadline)
{
    enum sandbox_outcome outcome;
    struct err err;

    if (sandbox_run(sandbox, program, deadline, &outcome, &err) < 0)
        fail_msg("%s", err.text);
    return outcome;
}

/* NULL, and a line that says why, where the machine doesn't have these layers. */
static struct sandbox *open_layers(int layers)
{
    struct sandbox *sandbox;
    struct err err;

    if (sandbox_open(&sandbox, layers, &err) < 0) {
        print_message("layers %d: %s\n", layers, err.text);
        return NULL;
    }
    if (sandbox_layers(sandbox) != layers) {
        print_message("layers %d: there is but %s\n", layers, sandbox_enforced(sandbox));
        sandbox_close(sandbox);
        return NULL;
    }
    return sandbox;
}

static void honest(void **state)
{
    struct sandbox *sandbox;
    struct err err;

    (void)state;
    if (sandbox_open(&sandbox, SANDBOX_ALL, &err) < 0) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    print_message("%s\n", sandbox_enforced(sandbox));
    assert_int_equal(run(sandbox,
                         "import math, re, itertools, collections, string\n"
                         "def f(x):\n    return math.sqrt(x)\n"
                         "def check(f):\n    print('hello')\n    assert f(4) == 2\n"
                         "check(f)\n",
                         DEADLINE),
                     SANDBOX_PASSED);
    assert_int_equal(run(sandbox, "assert 1 == 2\n", DEADLINE), SANDBOX_FAILED);
    assert_int_equal(run(sandbox, "def f(:\n", DEADLINE), SANDBOX_FAILED);
    assert_int_equal(run(sandbox, "while True: pass\n", 0.3), SANDBOX_TIMED_OUT);
    assert_int_equal(run(sandbox, "open('file', 'w').write('mine')\n", DEADLINE), SANDBOX_PASSED);
    assert_int_equal(run(sandbox, "assert open('file').read() == 'mine'\n", DEADLINE),
                     SANDBOX_FAILED); /* the last one's scratch is gone */
    sandbox_close(sandbox);
}

/*
 * What each does ends it as failed: by an exception of what it tries, or because what it says of
 * itself is no nonce. @ becomes a folder outside with a file `secret`, # our process id.
 */
static const char *const hostile[] = {
    /* forging success */
    "import sys\nsys.exit(0)\n",
    "import os\nos._exit(0)\n",
    "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'0' * 32)\n    except OSError: "
    "pass\nos._exit(0)\n",
    "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)\n",
    "import __main__\nassert __main__.nonce\n",
    "import sys\nf = sys._getframe()\nwhile f:\n    assert 'nonce' in f.f_locals\n    f = "
    "f.f_back\n"
    "raise ValueError\n",
    "import os\nfor fd in range(0, 64):\n    try:\n        text = os.read(fd, 64)\n        assert "
    "not "
    "text\n    except OSError: pass\nraise ValueError\n",
    "import gc\nassert gc.callbacks is not None\n",
    "def f(): pass\nf.__code__.replace(co_consts=())\n",
    "import sys\ndel sys.modules['ctypes']\nimport ctypes\n",
    "import sys\ndel sys.modules['_ctypes']\nimport _ctypes\n",
    "import sys\nsys.path.append('/usr/lib/python3/dist-packages')\nimport numpy\n",
    "import threading\nassert threading.main_thread().ident\nimport sys\n"
    "sys._current_frames()\n",
    "open('/proc/self/maps').read()\n",
    "import _thread, sys\n_thread.interrupt_main()\nsys.exit(0)\n",
    "import builtins\nbuiltins.AssertionError = int\nraise SystemExit\n",
    /* endless output, memory, disk, threads */
    "import sys\nwhile True: sys.stdout.write('x' * 65536)\n",
    "x = bytearray(8 << 30)\n",
    "f = open('big', 'wb')\nfor i in range(64): f.write(bytes(1 << 20))\nf.flush()\n",
    /* files outside */
    "print(open('@/secret').read())\nassert open('@/secret').read()\n",
    "open('@/written', 'w').write('x')\n",
    "import os\nos.unlink('@/secret')\n",
    "import os\nos.symlink('@', 'way')\nopen('way/written', 'w').write('x')\n",
    "import os\nassert os.listdir(os.path.expanduser('~'))\nassert os.listdir('/root') or "
    "os.listdir('/home')\n",
    "import os\nos.chmod('@/secret', 0o777)\n",
    "import os\nos.utime('@/secret', (1, 1))\n",
    "import os\nos.truncate('@/secret', 0)\n",
    "import os\nos.link('@/secret', 'near')\nopen('near', 'a').write('x')\n",
    "import os\nopen('mine', 'w').close()\nos.rename('mine', '@/secret')\n",
    "import shutil\nshutil.rmtree('@')\n",
    "import os\nos.mkfifo('@/written')\n",
    "open('/etc/passwd').read()\n",
    "open('/proc/1/environ', 'rb').read()\n",
    "open('/usr/written', 'w').write('x')\n",
    /* processes */
    "import os\nos.kill(os.getppid(), 9)\nraise ValueError\n",
    "import os, signal\nfor pid in range(2, 40000):\n    try: os.kill(pid, 9)\n    except OSError: "
    "pass\nraise ValueError\n",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    open('@/written', 'w').write('x')\nraise "
    "ValueError\n",
    "import threading, time\nfor i in range(9999): threading.Thread(target=time.sleep, args=(0.2,))"
    ".start()\nraise ValueError\n",
    /* sleeping on */
    "import time\ntime.sleep(1000)\n",
};

/* The network: refused, or one of its own with nobody in it. % becomes a port that we listen at. */
static const char *const talkative[] = {
    "from socket import *\ncreate_connection(('127.0.0.1', %), 1)\n",
    "from socket import *\ns = socket(AF_INET, SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', %))\n",
    "from socket import *\nsocket(AF_UNIX).connect('@/secret')\n",
    "from socket import *\nsocket(AF_NETLINK, SOCK_RAW).connect((1, 1))\n",
};

static const char fork_bomb[] = "import os\nwhile True: os.fork()\n";

/* It passes where nothing limits processes, as nothing does root's. */
static const char many_processes[] = "import os, time\n"
                                     "for i in range(500):\n"
                                     "    if os.fork() == 0: time.sleep(100)\n";

static void fill_in(const char *text, const char *folder, int port, struct str *out)
{
    str_clear(out);
    for (; *text; text++) {
        if (*text == '@')
            str_add(out, folder);
        else if (*text == '#')
            str_printf(out, "%d", (int)getpid());
        else if (*text == '%')
            str_printf(out, "%d", port);
        else
            str_add_char(out, *text);
    }
}

static void attack(struct sandbox *sandbox, const char *const *programs, size_t n, size_t step,
                   const char *folder, int port)
{
    struct str program = { 0 };

    for (size_t i = 0; i < n; i += step) {
        fill_in(programs[i], folder, port, &program);
        double deadline = strstr(programs[i], "1000") || strstr(programs[i], "65536") ? 0.3 : 5;
        if (run(sandbox, str_text(&program), deadline) == SANDBOX_PASSED)
            fail_msg("layers %d, passed:\n%s", sandbox_layers(sandbox), str_text(&program));
    }
    str_release(&program);
}

/* Both kinds of socket at one port of the loopback. */
static int listen_at(int *stream, int *datagrams)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;

    *stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    *datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(*stream, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(*stream, 4), 0);
    assert_int_equal(getsockname(*stream, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(bind(*datagrams, (struct sockaddr *)&address, size), 0);
    return ntohs(address.sin_port);
}

/* Every step-th program: each takes the start of an interpreter. */
static void under(int layers, size_t step)
{
    char folder[128], secret[160], written[160];
    struct stat before, after;
    struct sandbox *sandbox = open_layers(layers);
    struct err err;

    if (!sandbox)
        skip();
    int stream, datagrams, port = listen_at(&stream, &datagrams);
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    snprintf(secret, sizeof secret, "%s/secret", folder);
    snprintf(written, sizeof written, "%s/written", folder);
    assert_int_equal(file_write(secret, "s", 1, &err), 0);
    assert_int_equal(chmod(secret, 0644), 0);
    assert_int_equal(stat(secret, &before), 0);
    attack(sandbox, hostile, sizeof hostile / sizeof *hostile, step, folder, 0);
    attack(sandbox, talkative, sizeof talkative / sizeof *talkative, 1, folder, port);
    assert_int_equal(run(sandbox, many_processes, DEADLINE), SANDBOX_FAILED);
    assert_int_not_equal(run(sandbox, fork_bomb, 0.3), SANDBOX_PASSED);
    char byte;
    assert_int_equal(accept(stream, NULL, NULL), -1);
    assert_int_equal(recv(datagrams, &byte, 1, 0), -1);
    close(stream);
    close(datagrams);
    assert_int_equal(stat(secret, &after), 0);
    assert_int_equal(before.st_mode, after.st_mode);
    assert_int_equal(before.st_size, after.st_size);
    assert_int_equal(before.st_mtime, after.st_mtime);
    assert_int_equal(before.st_nlink, after.st_nlink);
    assert_false(file_exists(written));
    assert_int_equal(run(sandbox, "assert 1 + 1 == 2\n", DEADLINE), SANDBOX_PASSED);
    sandbox_close(sandbox);
    assert_int_equal(file_remove_tree(folder, &err), 0);
}

static void under_all(void **state)
{
    (void)state;
    under(SANDBOX_ALL, 4);
}

static void under_namespaces(void **state)
{
    (void)state;
    under(SANDBOX_NAMESPACES, 1);
}

static void under_landlock_and_seccomp(void **state)
{
    (void)state;
    under(SANDBOX_LANDLOCK | SANDBOX_SECCOMP, 1);
}

/* Landlock alone keeps files in, and nothing else: it isn't enough. */
static void refused(void **state)
{
    static const int layers[] = { 0, SANDBOX_LANDLOCK, SANDBOX_SECCOMP };
    struct sandbox *sandbox;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        assert_int_equal(sandbox_open(&sandbox, layers[i], &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(honest),           cmocka_unit_test(under_all),
        cmocka_unit_test(under_namespaces), cmocka_unit_test(under_landlock_and_seccomp),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
