/*
 * programs.c - what test/oracle/eval.py has run in the sandbox
 *
 * Standard input: of each program four texts (program, given, test, entry), each ended by a zero
 * byte. A line of outcome for each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "eval/sandbox.h"

#define INPUT_MAX ((size_t)64 << 20)
#define DEADLINE 30

static const char *next_text(const char **at, const char *end)
{
    const char *text = *at;

    *at = text < end ? text + strlen(text) + 1 : end;
    return text < end ? text : "";
}

static int run_all(struct sandbox *sandbox, const char *programs, size_t n_bytes, struct err *err)
{
    for (const char *p = programs, *end = programs + n_bytes; p < end;) {
        struct sandbox_program program;
        enum sandbox_outcome outcome;

        program.program = next_text(&p, end);
        program.given = next_text(&p, end);
        program.test = next_text(&p, end);
        program.entry = next_text(&p, end);
        if (sandbox_run(sandbox, &program, DEADLINE, &outcome, err) < 0)
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
