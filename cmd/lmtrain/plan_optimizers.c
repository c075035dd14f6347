/*
 * plan_optimizers.c - a row for each optimizer, dtype of states and form of masters
 */
#include "plan_optimizers.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "report/table.h"

struct optimizer_view {
    const struct job *job;
    double n_parameters;
    struct report_table *table; /* or */
    cJSON *list;
};

/* Whether the job has this choice. */
static bool is_own(const struct job *job, enum optimizer_rule rule, enum dtype states, bool split)
{
    return job->optimizer.name == rule && job->optimizer.states == states &&
           (job->optimizer.masters == MASTERS_SPLIT) == split;
}

static void add_row(const struct optimizer_view *v, enum optimizer_rule rule, enum dtype states,
                    bool split)
{
    const struct optimizer_row *row = optimizer_row(rule);
    enum dtype weight = v->job->train.dtype;
    double each = optimizer_bytes(row, weight, states, split),
           held = each + (double)dtype_bytes(weight);
    bool has_master = weight != DTYPE_F32 && states != DTYPE_BF16;
    const char *name = choice_word(optimizer_choices, (int)rule);
    const char *kept = choice_word(optimizer_states_choices, (int)states);
    const char *masters = !has_master ? "none" : split ? "split" : "whole";
    bool own = is_own(v->job, rule, states, split);
    char text[32];

    if (v->table) {
        report_table_row(v->table, "%s%s\t%s\t%s\t%.4g\t%.4g\t%s", name, own ? " *" : "", kept,
                         masters, each, held,
                         str_bytes(text, sizeof text, (size_t)(held * v->n_parameters)));
        return;
    }
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", name);
    cJSON_AddStringToObject(item, "states", kept);
    cJSON_AddStringToObject(item, "masters", masters);
    cJSON_AddNumberToObject(item, "optimizer_bytes_per_parameter", each);
    cJSON_AddNumberToObject(item, "bytes_per_parameter", held);
    cJSON_AddBoolToObject(item, "is_job", own);
    cJSON_AddItemToArray(v->list, item);
}

/* Masters may be split beside bf16 weights; states of bf16 have none, and want a wider range than
 * fp16 weights leave. */
static void add_rows(const struct optimizer_view *v)
{
    enum dtype weight = v->job->train.dtype;

    for (int rule = 0; rule < N_OPTIMIZER_RULES; rule++)
        for (const struct choice *c = optimizer_states_choices; c->word; c++) {
            enum dtype states = (enum dtype)c->value;

            if (!optimizer_allows(optimizer_row((enum optimizer_rule)rule), states) ||
                (states == DTYPE_BF16 && weight == DTYPE_F16))
                continue;
            add_row(v, (enum optimizer_rule)rule, states, false);
            if (weight == DTYPE_BF16 && states != DTYPE_BF16 && rule != RULE_MUON)
                add_row(v, (enum optimizer_rule)rule, states, true);
        }
}

void plan_optimizers(const struct job *job, bool as_json, struct str *out)
{
    struct report_table table;
    struct optimizer_view v = { .job = job,
                                .n_parameters = (double)model_spec_n_parameters(&job->model) };

    if (as_json) {
        cJSON *json = cJSON_CreateObject();

        v.list = cJSON_AddArrayToObject(json, "optimizers");
        add_rows(&v);
        char *text = cJSON_Print(json);
        str_printf(out, "%s\n", text);
        free(text);
        cJSON_Delete(json);
        return;
    }
    report_table_init(&table, "lllrrr");
    report_table_heading(&table, "optimizer\tstates\tmasters\tbytes a parameter\twith its weight\t"
                                 "of the model");
    v.table = &table;
    add_rows(&v);
    report_table_print(&table, 0, out);
    report_table_release(&table);
    str_printf(
        out,
        "\nWeights are %s; parameters of vectors are fp32 and have no masters. Gradients come "
        "on top. ZeRO divides this among data-parallel ranks. * the job's\n",
        dtype_name(job->train.dtype));
}
