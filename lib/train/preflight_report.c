/*
 * preflight_report.c - the figures of all ranks as a table, and as JSON
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "report/table.h"
#include "train/preflight.h"

enum { N_LISTED_MAX = 64 }; /* ranks of a table: of more, those with findings */

static const char *const fault_names[] = { [PREFLIGHT_OK] = "ok",
                                           [PREFLIGHT_SLOW] = "slow",
                                           [PREFLIGHT_SUSPECT] = "suspect",
                                           [PREFLIGHT_WRONG] = "wrong bits" };

static const char *const what_names[PREFLIGHT_N_WHATS] = {
    [PREFLIGHT_PRODUCT] = "product",
    [PREFLIGHT_MEMORY] = "memory",
    [PREFLIGHT_DISK_WRITE] = "disk_write",
    [PREFLIGHT_DISK_READ] = "disk_read",
    [PREFLIGHT_NODE] = "node",
    [PREFLIGHT_LINK] = "link",
};

/* ---- for people ---- */

static bool has_finding(const struct preflight *p, int rank, int what)
{
    for (int i = 0; i < p->n_findings; i++)
        if (p->findings[i].rank == rank && (int)p->findings[i].what == what)
            return true;
    return false;
}

/* "43.1", "21.5 !"; "-" where it was not measured. */
static void add_cell(struct str *row, double speed, bool is_marked)
{
    if (speed > 0)
        str_printf(row, "\t%.3g", 1e-9 * speed);
    else
        str_add(row, "\t-");
    if (is_marked)
        str_add(row, " !");
}

static void add_rank(struct report_table *table, const struct preflight *p, int rank)
{
    const struct preflight_rank *r = &p->ranks[rank];
    enum preflight_fault fault = preflight_fault_of(p, rank);
    struct str row = { 0 };

    str_printf(&row, "%d\t%s\t%.40s", rank, r->host, *r->pci ? r->pci : r->device);
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        add_cell(&row, r->speed[what], has_finding(p, rank, what));
    str_printf(&row, "\t%s", fault_names[fault]);
    report_table_row(table, "%s", str_text(&row));
    str_release(&row);
}

/* Pairs that are slow between hosts whose other links are not. */
static void print_pairs(const struct preflight *p, struct str *out)
{
    for (int i = 0; i < p->n_pairs; i++) {
        const struct preflight_pair *pair = &p->pairs[i];

        if (preflight_pair_is_slow(p, i, p->min_ratio))
            str_printf(out, "note: from %s to %s %.3g GB/s, %.0f %% of the median %.3g GB/s\n",
                       p->ranks[pair->from].host, p->ranks[pair->to].host,
                       1e-9 * pair->bytes_per_second, 100 * pair->bytes_per_second / p->pair_median,
                       1e-9 * p->pair_median);
    }
}

void preflight_print(const struct preflight *p, struct str *out)
{
    struct report_table table;
    struct str row = { 0 };

    report_table_init(&table, "rllrrrrrrl");
    report_table_heading(&table, "%s",
                         "rank\thost\tdevice\tGFLOP/s\tmemory GB/s\twrite GB/s\tread GB/s\tnode "
                         "GB/s\tlink GB/s\tstate");
    for (int rank = 0; rank < p->n_ranks; rank++)
        if (p->n_ranks <= N_LISTED_MAX || preflight_fault_of(p, rank) != PREFLIGHT_OK)
            add_rank(&table, p, rank);
    str_add(&row, "\tmedian\t");
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        add_cell(&row, p->medians[0][what], false);
    report_table_total(&table, "%s", str_text(&row));
    report_table_print(&table, 0, out);
    for (int i = 0; i < p->n_findings; i++)
        str_printf(out, "%s\n", p->findings[i].text);
    print_pairs(p, out);
    str_release(&row);
    report_table_release(&table);
}

static int count_hosts(const struct preflight *p)
{
    int n = 0;

    for (int i = 0; i < p->n_ranks; i++) {
        int k = 0;

        while (k < i && strcmp(p->ranks[k].host, p->ranks[i].host) != 0)
            k++;
        n += k == i;
    }
    return n;
}

void preflight_print_summary(const struct preflight *p, struct str *out)
{
    char took[32];
    int n_hosts = count_hosts(p);

    str_printf(out, "%d rank%s on %d host%s in %s: ", p->n_ranks, str_s(p->n_ranks), n_hosts,
               str_s(n_hosts), str_duration(took, sizeof took, p->seconds));
    if (!p->n_findings)
        str_add(out, "no fault");
    for (int i = 0; i < p->n_findings; i++)
        str_printf(out, "%s%s", i ? "; " : "", p->findings[i].text);
}

/* ---- for programs ---- */

static cJSON *errors_to_json(const struct preflight_errors *e)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddNumberToObject(object, "product_elements", (double)e->n_exact);
    cJSON_AddNumberToObject(object, "product_repetitions", e->n_differing);
    cJSON_AddNumberToObject(object, "memory_words", (double)e->n_memory);
    cJSON_AddNumberToObject(object, "disk_pieces", e->n_disk);
    return object;
}

static cJSON *rank_to_json(const struct preflight *p, int rank)
{
    const struct preflight_rank *r = &p->ranks[rank];
    cJSON *object = cJSON_CreateObject();
    char hash[24];

    snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    cJSON_AddNumberToObject(object, "rank", rank);
    cJSON_AddStringToObject(object, "host", r->host);
    cJSON_AddStringToObject(object, "device", r->device);
    if (*r->pci)
        cJSON_AddStringToObject(object, "pci", r->pci);
    cJSON_AddStringToObject(object, "state", fault_names[preflight_fault_of(p, rank)]);
    cJSON_AddStringToObject(object, "hash", hash);
    cJSON_AddNumberToObject(object, "repetitions", r->n_repetitions);
    cJSON_AddNumberToObject(object, "tested_memory_bytes", (double)r->tested_bytes);
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        if (r->speed[what] > 0)
            cJSON_AddNumberToObject(object, what_names[what], r->speed[what]);
    if (r->link_seconds > 0)
        cJSON_AddNumberToObject(object, "link_seconds", r->link_seconds);
    cJSON_AddItemToObject(object, "wrong", errors_to_json(&r->errors));
    return object;
}

static cJSON *finding_to_json(const struct preflight *p, const struct preflight_finding *finding)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "state", fault_names[finding->fault]);
    cJSON_AddNumberToObject(object, "rank", finding->rank);
    cJSON_AddStringToObject(object, "host", p->ranks[finding->rank].host);
    cJSON_AddStringToObject(object, "what", what_names[finding->what]);
    cJSON_AddStringToObject(object, "text", finding->text);
    return object;
}

static cJSON *pair_to_json(const struct preflight *p, int i)
{
    const struct preflight_pair *pair = &p->pairs[i];
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "from", p->ranks[pair->from].host);
    cJSON_AddStringToObject(object, "to", p->ranks[pair->to].host);
    cJSON_AddNumberToObject(object, "bytes_per_second", pair->bytes_per_second);
    cJSON_AddNumberToObject(object, "latency_seconds", pair->seconds);
    cJSON_AddBoolToObject(object, "is_slow", preflight_pair_is_slow(p, i, p->min_ratio));
    return object;
}

void preflight_print_json(const struct preflight *p, struct str *out)
{
    cJSON *root = cJSON_CreateObject();

    cJSON_AddStringToObject(root, "state", fault_names[p->worst]);
    cJSON_AddNumberToObject(root, "seconds", p->seconds);
    cJSON *findings = cJSON_AddArrayToObject(root, "findings");
    for (int i = 0; i < p->n_findings; i++)
        cJSON_AddItemToArray(findings, finding_to_json(p, &p->findings[i]));
    cJSON *median = cJSON_AddObjectToObject(root, "median");
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        if (p->medians[0][what] > 0)
            cJSON_AddNumberToObject(median, what_names[what], p->medians[0][what]);
    cJSON *ranks = cJSON_AddArrayToObject(root, "ranks");
    for (int rank = 0; rank < p->n_ranks; rank++)
        cJSON_AddItemToArray(ranks, rank_to_json(p, rank));
    cJSON *pairs = cJSON_AddArrayToObject(root, "pairs");
    for (int i = 0; i < p->n_pairs; i++)
        cJSON_AddItemToArray(pairs, pair_to_json(p, i));
    char *text = cJSON_Print(root);
    CHECK(text);
    str_printf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
}
