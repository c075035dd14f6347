/*
 * fields.c - the table of a job's fields: every field, once
 *
 * The rows of a section of the job file are in fields_SECTION.inc.
 */
#include "config/fields_impl.h"

#include <string.h>

#include "base/dtype_choices.h"
#include "ops/newton_schulz_choices.h"
#include "ops/op_info.h"
#include "ops/optimizers.h"

#define AT(member) offsetof(struct job, member)
#define N_MAX 1000000000.0
#define N_STEPS_MAX 1e15
#define SCALE_MAX 1073741824.0 /* 2^30 */

/* Ops that a forward may have, by their names in the catalogue. */
static int list_forward_ops(struct choice ops[FIELD_ITEMS_MAX + 1])
{
    int n = 0;

    _Static_assert(N_OP_KINDS <= FIELD_ITEMS_MAX, "a list may have all kinds");
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (op_info((enum op_kind)kind)->feature != FEATURE_NO_FORWARD)
            ops[n++] = (struct choice){ op_name((enum op_kind)kind), kind };
    ops[n] = (struct choice){ 0 };
    return n;
}

/* Fold3D is breadth-first with late sums of gradients, which derive.c sees to. */
static const struct choice schedule_synonyms[] = { { SCHEDULE_FOLD3D, PIPELINE_BREADTH_FIRST },
                                                   { 0 } };

static const struct choice schedules_choices[] = { { "auto", 0 }, { 0 } };

static int list_schedules(struct choice kinds[FIELD_ITEMS_MAX + 1])
{
    int n = 0;

    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        kinds[n++] = (struct choice){ pipeline_name((enum pipeline_kind)kind), kind };
    kinds[n] = (struct choice){ 0 };
    return n;
}

static int list_offload_kinds(struct choice kinds[FIELD_ITEMS_MAX + 1])
{
    memcpy(kinds, offload_kind_choices, (N_OFFLOAD_KINDS + 1) * sizeof *kinds);
    return N_OFFLOAD_KINDS;
}

/* What a field is of the numerics: the rule at a resume, the place of its line (0: it is a part of
 * another's), and further members of struct field_numerics. */
#define NUMERICS(rule, place_of_line, ...) \
    .numerics = { .change = NUMERICS_##rule, .place = place_of_line, ##__VA_ARGS__ }

/* In the order of --explain, the manual and the printed job. */
/* clang-format off */
const struct field job_fields[] = {
#include "config/fields_model.inc"
#include "config/fields_data.inc"
#include "config/fields_train.inc"
#include "config/fields_lora.inc"
#include "config/fields_eval.inc"
#include "config/fields_optimizer.inc"
#include "config/fields_launch.inc"
#include "config/fields_parallel.inc"
#include "config/fields_search.inc"
#include "config/fields_memory.inc"
#include "config/fields_moe.inc"
#include "config/fields_checkpoint.inc"
#include "config/fields_metrics.inc"
#include "config/fields_sweep.inc"
#include "config/fields_output.inc"
};
/* clang-format on */

const int n_job_fields = (int)(sizeof job_fields / sizeof *job_fields);
