/*
 * plan_memory.c - the table of segments
 */
#include "plan_memory.h"

#include <string.h>

#include "kernels/gpu_sizes.h"
#include "program/passes.h"
#include "report/table.h"
#include "report/waterfall.h"
#include "run/run.h"

#define N_ROWS_MAX (N_SEGMENTS + 1)
#define MEMORY_BAR 16 /* characters */

/* An estimate, beside what is planned; what the last run measured here is the doctor's. */
static void add_vendor_row(const struct plan *plan, struct report_table *table)
{
    size_t vendor = plan_library_bytes(plan, ASSUMED_GPU_BYTES) + GPU_CONTEXT_BYTES;
    char text[32], library[32];

    report_table_row(table,
                     "vendor\t%s\t%zu\t\testimate, in addition: cuDNN's workspace of %s, the CUDA "
                     "context, modules and graphs",
                     str_bytes(text, sizeof text, vendor), vendor,
                     str_bytes(library, sizeof library, vendor - GPU_CONTEXT_BYTES));
}

static void add_row(struct report_table *table, const char *name, size_t n_bytes, const char *bar,
                    const char *what)
{
    char text[32];

    report_table_row(table, "%s\t%s\t%zu\t%s\t%s", name, str_bytes(text, sizeof text, n_bytes),
                     n_bytes, bar, what);
}

/* All but what is in the file, and the buffers of copies there; whole: of all of it. */
static void add_segments(const struct program *p, size_t whole, struct report_table *table)
{
    struct memory_row rows[N_ROWS_MAX];
    int n = program_memory_table(p, rows, N_ROWS_MAX);
    struct waterfall waterfall = { .whole = (double)whole, .width = MEMORY_BAR };
    struct str bar = { 0 };
    size_t buffers = run_file_buffer_bytes(p);

    for (int i = 0; i < n; i++) {
        if (rows[i].space == SPACE_FILE)
            continue;
        waterfall_next(&waterfall, (double)rows[i].n_bytes, &bar);
        add_row(table, rows[i].name, rows[i].n_bytes, str_text(&bar), rows[i].what);
        if (p->pages.pool && !strcmp(rows[i].name, segment_name(SEGMENT_STASH)))
            add_row(table, "  pages", program_value_bytes(p, p->pages.pool), "",
                    "of it for rows of experts, of which there may be more: moe.stash_factor");
    }
    waterfall_next(&waterfall, (double)buffers, &bar);
    if (buffers)
        add_row(table, "file buffers", buffers, str_text(&bar),
                "through which copies to the file and from there go, in the host's memory");
    str_release(&bar);
}

static void add_totals(const struct program *p, size_t whole, struct report_table *table)
{
    size_t device = program_space_bytes(p, SPACE_DEVICE), file = program_space_bytes(p, SPACE_FILE);
    char text[32];

    report_table_total(table, "total\t%s\t%zu\t\tallocated at start; nothing is allocated later",
                       str_bytes(text, sizeof text, whole), whole);
    if (whole == device)
        return;
    add_row(table, "  device", device, "", "of it in the device's memory");
    add_row(table, "  host", whole - device, "", "of it in the host's");
    if (file)
        add_row(table, "file", file, "", "no memory: on a disk, reserved at start");
}

void plan_print_memory(const struct plan *plan, struct str *out)
{
    const struct program *p = &plan->programs[plan->shown];
    size_t whole = program_memory_bytes(p) + run_file_buffer_bytes(p);
    struct report_table table;

    report_table_init(&table, "lrrll");
    if (plan->job->parallel.pp > 1)
        report_table_heading(&table, "memory of pipeline rank %d\tsize\tbytes\t\twhat",
                             plan->shown);
    else
        report_table_heading(&table, "memory of a rank\tsize\tbytes\t\twhat");
    add_segments(p, whole, &table);
    add_totals(p, whole, &table);
    if (kernels_are_gpu(plan->kernels))
        add_vendor_row(plan, &table);
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

void plan_add_memory(const struct plan *plan, cJSON *json)
{
    const struct program *p = &plan->programs[plan->shown];
    cJSON *memory = cJSON_AddObjectToObject(json, "memory_bytes");
    struct memory_row rows[N_ROWS_MAX];
    int n = program_memory_table(p, rows, N_ROWS_MAX);
    size_t buffers = run_file_buffer_bytes(p);

    for (int i = 0; i < n; i++)
        cJSON_AddNumberToObject(memory, rows[i].name, (double)rows[i].n_bytes);
    cJSON_AddNumberToObject(json, "total_bytes", (double)(program_memory_bytes(p) + buffers));
    cJSON_AddNumberToObject(json, "device_bytes", (double)program_space_bytes(p, SPACE_DEVICE));
    cJSON_AddNumberToObject(json, "host_bytes", (double)program_space_bytes(p, SPACE_HOST));
    cJSON_AddNumberToObject(json, "file_bytes", (double)program_space_bytes(p, SPACE_FILE));
    cJSON_AddNumberToObject(json, "file_buffer_bytes", (double)buffers);
    if (kernels_are_gpu(plan->kernels))
        cJSON_AddNumberToObject(
            json, "vendor_bytes",
            (double)(plan_library_bytes(plan, ASSUMED_GPU_BYTES) + GPU_CONTEXT_BYTES));
}
