/*
 * zero3_programs.h - programs of zero 3, for tests of when weights are gathered
 */
#ifndef TEST_PROGRAM_ZERO3_PROGRAMS_H
#define TEST_PROGRAM_ZERO3_PROGRAMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"

static inline void compile(struct program *p, const struct compile_train *options)
{
    struct err err;

    if (compile_train(p, options, &err) < 0)
        fail_msg("%s", err.text);
}

static inline struct compile_train zero_3(const struct model_spec *spec, int dp_size,
                                          enum zero3_gather hold)
{
    struct compile_train options = tiny_compile(spec, dp_size);

    options.gradients.zero = 3;
    options.gradients.early = 1;
    options.gradients.zero3 = hold;
    options.gradients.bucket_bytes = (size_t)32 << 20;
    return options;
}

static inline int is_gather(const struct program *p, const struct op *op)
{
    return op->kind == OP_ALL_GATHER && p->values[op->out[0]].bucket;
}

/* The first op that reads of what ops[gather] has gathered. */
static inline int first_reader(const struct program *p, const struct function *f, int gather)
{
    int base = program_base(p, f->ops[gather].out[0]);

    for (int i = gather + 1; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (f->ops[i].in[k] && program_base(p, f->ops[i].in[k]) == base)
                return i;
    fail_msg("%s: ops[%d] gathers what nobody reads", f->name, gather);
    return -1;
}

/* Two stages of a rank's four chunks, breadth-first, in eight micro-batches. */
static inline struct compile_train four_chunks(struct model_spec *spec, enum pipeline_kind kind)
{
    struct compile_train options;

    *spec = tiny_spec("llama");
    spec->n_layers = 8;
    options = zero_3(spec, 2, ZERO3_GATHER_RUN);
    options.mesh.size[AXIS_PP] = 2;
    options.pipeline.kind = kind;
    options.pipeline.n_chunks = 4;
    options.n_micro_batches = 8;
    return options;
}

static inline void must_refuse(const struct program *p, const char *value, const char *why)
{
    struct err err = { 0 };

    assert_int_equal(verify(p, &err), -1);
    if (!strstr(err.text, value) || !strstr(err.text, why))
        fail_msg("\"%s\" says nothing of %s, %s", err.text, value, why);
}

#endif
