/*
 * op_facts.c - see the header
 */
#include <stdio.h>
#include <string.h>

#include "support/ops/op_family.h"

#define TABLE(family) family##_facts,
static const struct op_facts *const families[] = { OP_FAMILIES(TABLE) };
#undef TABLE

const struct op_facts *op_facts(enum op_kind kind)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i][kind].example)
            return &families[i][kind];
    fprintf(stderr, "%s has no row in a table of test/support/ops\n", op_name(kind));
    CHECK(!"each kind has facts");
    return NULL;
}

const char *op_example(enum op_kind kind)
{
    return op_facts(kind)->example;
}

void reference_run(const struct op_shape *op, enum run_turn turn)
{
    const struct op_info *info = op_info(op->kind);

    for (int i = 0; turn == RUN_FIRST && i < info->n_outputs; i++)
        if (info->outputs[i].flags & OPERAND_ACCUMULATED)
            start(&op->out[i]);
    if (!op_facts(op->kind)->reference)
        fprintf(stderr, "%s has no reference in test/support/ops\n", info->name);
    CHECK(op_facts(op->kind)->reference);
    op_facts(op->kind)->reference(op);
}
