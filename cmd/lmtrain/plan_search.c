/*
 * plan_search.c - the best layouts, and what others lack
 */
#include "plan_search.h"

#include <stdio.h>

#include "plan_layout.h"
#include "report/table.h"

/* ---- rows ---- */

/* Why a row is not the first. */
static void print_reason(const struct search_result *result, const struct search_row *row,
                         double within, struct str *out)
{
    const struct search_row *first = &result->rows[0];
    double slower = search_cost(row) / search_cost(first) - 1;
    bool is_time = result->objective == OBJECTIVE_TIME;

    str_clear(out);
    if (row == first)
        str_add(out, "the best");
    else if (slower < 0.0005 && slower > -0.0005)
        str_printf(out, "as %s, but less simple", is_time ? "fast" : "cheap");
    else if (slower < 0)
        str_printf(out, "%.1f %% %s, which counts as equal (within %g %%), but less simple",
                   -100 * slower, is_time ? "faster" : "less device time", 100 * within);
    else
        str_printf(out, "%.1f %% %s", 100 * slower, is_time ? "slower" : "more device time");
}

/* Orders of ranks are said where they differ. */
static bool has_orders(const struct search_result *result)
{
    for (int i = 0; i < result->n_rows; i++)
        if (result->rows[i].layout.order != ORDER_STAGES)
            return true;
    return false;
}

/* And over how many ranks experts are divided, where any are. */
static bool has_divided_experts(const struct search_result *result)
{
    for (int i = 0; i < result->n_rows; i++)
        if (result->rows[i].layout.ep > 1)
            return true;
    return false;
}

/* A column more, or none. */
static const char *optional(bool is_shown, const char *text)
{
    return is_shown ? text : "";
}

/* "full"; of what is chosen for each layer, "auto: 1.2 %, 3.1 GiB moved" of a step. */
static const char *recompute_text(const struct search_row *row, char *buffer, size_t size)
{
    const char *word = choice_word(recompute_choices, (int)row->layout.recompute);
    char moved[32];

    if (!row->recompute_ns && !row->moved_bytes)
        return word;
    snprintf(buffer, size, "%s: %.1f %%%s%s%s", word,
             100 * (double)row->recompute_ns / (double)row->ns, row->moved_bytes ? ", " : "",
             row->moved_bytes ? str_bytes(moved, sizeof moved, (size_t)row->moved_bytes) : "",
             row->moved_bytes ? " moved" : "");
    return buffer;
}

static void print_rows(const struct search_result *result, double within, struct str *out)
{
    struct report_table table;
    struct str reason = { 0 };
    char bytes[32], align[20];

    bool orders = has_orders(result), experts = has_divided_experts(result);

    snprintf(align, sizeof align, "rrrr%srrlr%srlrrrrl", optional(experts, "r"),
             optional(orders, "l"));
    report_table_init(&table, align);
    report_table_heading(&table,
                         "#\ttp\tpp\tdp\t%szero\tbucket\tschedule\tchunks\t%smicro-batch\t"
                         "recompute\tstep\tMFU\tmemory\tbubble\twhy",
                         optional(experts, "ep\t"), optional(orders, "order\t"));
    for (int i = 0; i < result->n_rows; i++) {
        const struct search_row *row = &result->rows[i];
        const struct layout *l = &row->layout;
        char zero[32], bucket[32], recompute[64], ep[16] = "";

        if (l->zero_group)
            snprintf(zero, sizeof zero, "%d/%d", l->zero, l->zero_group);
        else
            snprintf(zero, sizeof zero, "%d", l->zero);
        snprintf(bucket, sizeof bucket, l->dp > 1 ? "%d MiB" : "-", l->bucket_mb);
        if (experts)
            snprintf(ep, sizeof ep, "%d\t", l->ep);
        print_reason(result, row, within, &reason);
        report_table_row(
            &table,
            "%d\t%d\t%d\t%d\t%s%s\t%s\t%s\t%d\t%s%s%d\t%s\t%.1f ms\t%.1f %%\t%s\t%.1f %%\t%s",
            i + 1, l->tp, l->pp, l->dp, ep, zero, bucket,
            l->pp > 1 ? pipeline_name(l->schedule) : "-", l->chunks,
            orders ? choice_word(rank_order_choices, (int)l->order) : "", orders ? "\t" : "",
            l->micro_batch, recompute_text(row, recompute, sizeof recompute), (double)row->ns / 1e6,
            100 * row->mfu, str_bytes(bytes, sizeof bytes, row->bytes), 100 * row->bubble,
            str_text(&reason));
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
    str_release(&reason);
}

/* ---- what is not there ---- */

static void print_value(const struct search_other *other, struct str *out)
{
    const char *word = layout_value_word(other->key, other->value);

    str_printf(out, "%s ", layout_word(other->key));
    if (word)
        str_add(out, word);
    else
        str_printf(out, "%d", other->value);
}

static double estimate_cost(const struct search_row *row)
{
    return (double)row->estimate_ns * row->weight;
}

static void print_other(const struct search_result *result, const struct search_other *other,
                        struct str *out)
{
    const struct search_row *first = &result->rows[0];
    char over[32];

    print_value(other, out);
    if (!other->fits)
        str_printf(out, " does not fit, by %s or more",
                   str_bytes(over, sizeof over, other->bytes - result->available));
    else
        str_printf(out,
                   result->objective == OBJECTIVE_TIME ? " is slower, by %.1f %% or more"
                                                       : " takes %.1f %% more device time or more",
                   100 * ((double)other->bound_ns / estimate_cost(first) - 1));
}

static bool is_slower(const struct search_result *result, const struct search_other *other)
{
    return (double)other->bound_ns > estimate_cost(&result->rows[0]);
}

static void print_others(const struct search_result *result, struct str *out)
{
    int n = 0;

    for (int i = 0; i < result->n_others; i++) {
        const struct search_other *other = &result->others[i];

        if (other->fits && !is_slower(result, other))
            continue;
        str_add(out, n++ ? ";\n    " : "why others are not here:\n    ");
        print_other(result, other, out);
    }
    if (n)
        str_add(out, "\n");
}

void plan_print_search(const struct search_result *result, double within, struct str *out)
{
    str_printf(out,
               "\nbest of %d layouts (%d do not fit, %d were ruled out by their bounds, %d "
               "estimated, %d compiled whole)\n",
               result->n_layouts, result->n_misfits, result->n_bounded, result->n_estimated,
               result->n_predicted);
    print_rows(result, within, out);
    print_others(result, out);
}

/* ---- JSON ---- */

/* Values that no row has: the least bytes of those that do not fit, the least time of others. */
static void add_others(const struct search_result *result, cJSON *search)
{
    cJSON *others = cJSON_AddArrayToObject(search, "others");

    for (int i = 0; i < result->n_others; i++) {
        const struct search_other *other = &result->others[i];
        const char *word = layout_value_word(other->key, other->value);
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "key", layout_word(other->key));
        if (word)
            cJSON_AddStringToObject(item, "value", word);
        else
            cJSON_AddNumberToObject(item, "value", other->value);
        cJSON_AddBoolToObject(item, "fits", other->fits);
        if (other->fits)
            cJSON_AddNumberToObject(item, "bound_ns", (double)other->bound_ns);
        else
            cJSON_AddNumberToObject(item, "needed_bytes", (double)other->bytes);
        cJSON_AddItemToArray(others, item);
    }
}

void plan_add_search(const struct search_result *result, cJSON *json)
{
    cJSON *search = cJSON_AddObjectToObject(json, "search"), *rows;

    cJSON_AddNumberToObject(search, "n_devices", result->n_ranks);
    cJSON_AddNumberToObject(search, "n_layouts", result->n_layouts);
    cJSON_AddNumberToObject(search, "n_misfits", result->n_misfits);
    cJSON_AddNumberToObject(search, "n_bounded", result->n_bounded);
    cJSON_AddNumberToObject(search, "n_estimated", result->n_estimated);
    cJSON_AddNumberToObject(search, "n_predicted", result->n_predicted);
    cJSON_AddNumberToObject(search, "n_compiled", result->n_compiled);
    cJSON_AddNumberToObject(search, "available_bytes", (double)result->available);
    rows = cJSON_AddArrayToObject(search, "layouts");
    for (int i = 0; i < result->n_rows; i++) {
        const struct search_row *row = &result->rows[i];
        cJSON *item = cJSON_CreateObject();

        plan_add_layout_keys(&row->layout, item);
        cJSON_AddNumberToObject(item, "step_ns", (double)row->ns);
        cJSON_AddNumberToObject(item, "estimate_ns", (double)row->estimate_ns);
        cJSON_AddNumberToObject(item, "bound_ns", (double)row->bound_ns);
        cJSON_AddNumberToObject(item, "mfu", row->mfu);
        cJSON_AddNumberToObject(item, "tokens_per_second", row->tokens_per_second);
        cJSON_AddNumberToObject(item, "needed_bytes", (double)row->bytes);
        cJSON_AddNumberToObject(item, "estimate_bytes", (double)row->estimate_bytes);
        cJSON_AddNumberToObject(item, "bubble", row->bubble);
        cJSON_AddNumberToObject(item, "recompute_ns", (double)row->recompute_ns);
        cJSON_AddNumberToObject(item, "moved_bytes", (double)row->moved_bytes);
        cJSON_AddItemToArray(rows, item);
    }
    add_others(result, search);
}
