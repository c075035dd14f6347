/*
 * tuned_test.c - several processes of a job make its tokenizer at once
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "support/temporary.h"
#include "tokenizer/tokenizer.h"
#include "tuned.h"

enum { N_PROCESSES = 8, N_ROUNDS = 20 };

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int drop_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static const char *at(struct arena *arena, const char *name)
{
    return arena_printf(arena, "%s/%s", folder, name);
}

/* A folder with the tokenizer of the tests. */
static void put_tokenizer(struct arena *arena, const char *to)
{
    char *text;
    size_t n_bytes;
    struct err err;

    assert_int_equal(
        file_read("test/tokenizer/golden/small.json", 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    assert_int_equal(file_make_folders(to, &err), 0);
    assert_int_equal(file_write(arena_printf(arena, "%s/tokenizer.json", to), text, n_bytes, &err),
                     0);
    free(text);
}

/* What a rank does: its tokenizer, which it can read and has the token. The exit status. */
static int prepare(struct job *job)
{
    struct arena arena = { 0 };
    struct tokenizer *tokenizer;
    struct err err;

    if (tuned_tokenizer(job, &arena, &err) < 0 ||
        tokenizer_open(&tokenizer, job->data.tokenizer, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return tokenizer_find(tokenizer, "<new>") < 0;
}

/* How many of the processes made the tokenizer. */
static int n_made(void)
{
    struct arena arena = { 0 };
    size_t n_bytes;
    struct err err;
    char *text;
    int n = 0;

    assert_int_equal(file_read(at(&arena, "said"), 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    for (const char *s = text; (s = strstr(s, "are new to the tokenizer")); s++)
        n++;
    if (n != 1)
        fprintf(stderr, "%s", text);
    free(text);
    arena_release(&arena);
    return n;
}

/* Once in a process of its own, with what it says behind the others'. */
static int prepare_aside(struct job *job)
{
    struct arena arena = { 0 };
    int fd = open(at(&arena, "said"), O_WRONLY | O_CREAT | O_APPEND, 0600);

    return fd >= 0 && dup2(fd, STDERR_FILENO) >= 0 ? prepare(job) : 2;
}

/* All begin when the pipe is closed. Returns how many fail. */
static int race(struct job *job)
{
    int ends[2], n_failed = 0;
    pid_t children[N_PROCESSES];

    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < N_PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            char byte;

            close(ends[1]);
            _exit(read(ends[0], &byte, 1) == 0 ? prepare_aside(job) : 2);
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < N_PROCESSES; i++) {
        int status;

        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        n_failed += status != 0;
    }
    return n_failed;
}

/* Nothing but the tokenizer and the folder of samples is left. */
static void check_output(struct arena *arena, const char *output)
{
    struct err err;

    assert_true(file_exists(arena_printf(arena, "%s/tokenizer/tokenizer.json", output)));
    assert_int_equal(file_remove_tree(arena_printf(arena, "%s/tokenizer", output), &err), 0);
    assert_int_equal(file_remove_tree(arena_printf(arena, "%s/samples", output), &err), 0);
    assert_int_equal(rmdir(output), 0);
}

/* has_old: the run has a tokenizer already, without the token: it was added to the job since. */
static void make_together(int has_old)
{
    const char *tokens[] = { "<new>" };
    struct arena arena = { 0 };
    struct err err;
    int n_failed;

    for (int i = 0; i < N_ROUNDS; i++) {
        struct job job = { .kind = JOB_FINETUNE, .output = at(&arena, "run") };

        job.data.tokenizer = at(&arena, "from");
        job.data.added_tokens = (struct job_texts){ .n = 1, .values = tokens };
        put_tokenizer(&arena, job.data.tokenizer);
        if (has_old)
            put_tokenizer(&arena, at(&arena, "run/tokenizer"));
        assert_int_equal(file_remove_tree(at(&arena, "said"), &err), 0);
        n_failed = race(&job);
        assert_int_equal(n_made(), 1);
        assert_int_equal(n_failed, 0);
        check_output(&arena, job.output);
    }
    arena_release(&arena);
}

static void a_new_one(void **state)
{
    (void)state;
    make_together(0);
}

static void one_that_replaces_another(void **state)
{
    (void)state;
    make_together(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_one),
        cmocka_unit_test(one_that_replaces_another),
    };

    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
