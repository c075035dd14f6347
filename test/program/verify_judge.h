/*
 * verify_judge.h - a program is accepted, or refused in words that name what is wrong
 *
 * For the tests of verify; those of verify_ranks have whole fleets to judge (rank_programs.h).
 */
#ifndef TEST_PROGRAM_VERIFY_JUDGE_H
#define TEST_PROGRAM_VERIFY_JUDGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "program/passes.h"

static inline void check_accepted(const struct program *program)
{
    struct err err;

    if (verify(program, &err) < 0)
        fail_msg("%s", err.text);
}

/* parts: up to three texts that the message must contain. */
static inline void check_refused(const struct program *program, const char *const parts[3])
{
    struct err err = { 0 };

    assert_int_equal(verify(program, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    for (int i = 0; i < 3; i++)
        if (parts[i] && !strstr(err.text, parts[i]))
            fail_msg("\"%s\" is not in \"%s\"", parts[i], err.text);
}

#define REFUSED(program, ...) check_refused(program, (const char *const[3]){ __VA_ARGS__ })

#endif
