/*
 * config_fixture.h - jobs from text, for the tests of config
 */
#ifndef TEST_CONFIG_CONFIG_FIXTURE_H
#define TEST_CONFIG_CONFIG_FIXTURE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/job.h"

/* The smallest job: model, data, steps. */
#define SMALL "{model: llama-tiny, data: {train: a}, train: {steps: 10}}"

static inline int read_job(struct job *job, const char *text, struct arena *arena, struct err *err)
{
    return job_read_text(job, text, strlen(text), "j.yaml", NULL, 0, arena, err);
}

static inline int read_job_with(struct job *job, const char *text, const char *override,
                                struct arena *arena, struct err *err)
{
    return job_read_text(job, text, strlen(text), "j.yaml", &override, 1, arena, err);
}

/* The text must be a good job. */
static inline void must_read(struct job *job, const char *text, struct arena *arena)
{
    struct err err = { 0 };

    if (read_job(job, text, arena, &err))
        fail_msg("%s", err.text);
}

/* A model by its name. */
static inline void read_named_model(struct model_spec *spec, const char *name)
{
    struct arena arena = { 0 };
    struct job job;
    const char *text =
        arena_printf(&arena, "{model: %s, data: {train: a}, train: {steps: 1}}", name);

    must_read(&job, text, &arena);
    *spec = job.model;
    arena_release(&arena);
}

static inline int has_note(const struct job *job, const char *part)
{
    for (int i = 0; i < job->n_notes; i++)
        if (strstr(job->notes[i], part))
            return 1;
    return 0;
}

#endif
