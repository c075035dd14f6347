/*
 * programs.c - what test/oracle/eval.py has run in the sandbox
 *
 * Python programs on standard input, each ended by a zero byte; a line of outcome for each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "eval/sandbox.h"

#define INPUT_MAX ((size_t)64 << 20)

static int run_all(struct sandbox *sandbox, const char *programs, size_t n_bytes, struct err *err)
{
    for (const char *p = programs; p < programs + n_bytes; p += strlen(p) + 1) {
        enum sandbox_outcome outcome;

        if (sandbox_run(sandbox, p, 30, &outcome, err) < 0)
            return -1;
        printf("%s\n", sandbox_outcome_name(outcome));
    }
    return 0;
}

int main(void)
{
    struct sandbox *sandbox = NULL;
    struct err err;
    char *programs = NULL;
    size_t n_bytes = 0;

    int status = sandbox_open(&sandbox, SANDBOX_ALL, &err);
    if (!status) {
        fprintf(stderr, "%s\n", sandbox_enforced(sandbox));
        status = file_read("/dev/stdin", INPUT_MAX, ERR_DATA, &programs, &n_bytes, &err);
    }
    if (!status)
        status = run_all(sandbox, programs, n_bytes, &err);
    if (status < 0)
        fprintf(stderr, "%s\n", err.text);
    free(programs);
    sandbox_close(sandbox);
    return status < 0;
}
