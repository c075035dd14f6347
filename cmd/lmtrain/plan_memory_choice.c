/*
 * plan_memory_choice.c - what memory_fit.h chose, by pipeline rank: layers, cells, times
 *
 * Bytes are those of the compiled programs; times are what the solver of the choice expects.
 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "plan/keep_sets.h"
#include "plan/memory_fit.h"
#include "plan/step_time.h"
#include "plan_memory.h"
#include "program/passes.h"
#include "report/table.h"
#include "run/run.h"

/* Layers of a pipeline rank that are alike, keep the same, and of it send the same away. */
struct kept_group {
    int front;
    const struct keep_point *point; /* of the front */
    const int64_t *away;            /* [N_OP_KINDS] bytes of a layer and micro-batch */
    int n_layers;
    const char *which; /* "0-3, 8" */
};

struct kept_groups {
    struct kept_group *items;
    int n;
};

/* What a pipeline rank has of a kind of contents, in each memory. */
struct placed {
    const char *name;
    int64_t device, host, file;
};

enum {
    PLACED_WEIGHTS,
    PLACED_GRADIENTS,
    PLACED_STATES,
    PLACED_KEPT,
    PLACED_SCRATCH,
    PLACED_REST,
    N_PLACED
};

/* Time that the choice adds to a step of a pipeline rank. */
struct added {
    const char *name, *key;
    int64_t ns;
};

enum { N_ADDED = 2 + N_MEMORY_PASSES };

/* ---- layers ---- */

static const struct keep_point *point_of(const struct keep_front *front, const struct keep_set *set)
{
    int i = 0;

    while (i < front->n_points && (front->points[i].set.full != set->full ||
                                   (!set->full && memcmp(&front->points[i].set.dropped,
                                                         &set->dropped, sizeof set->dropped))))
        i++;
    CHECK(i < front->n_points);
    return &front->points[i];
}

static int64_t sum_away(const struct kept_group *of)
{
    int64_t n_bytes = 0;

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        n_bytes += of->away[kind];
    return n_bytes;
}

static int64_t kept_bytes(const struct kept_group *of)
{
    return max_i64(0, of->point->slot_bytes - sum_away(of));
}

/* By layer of the model: NULL where the rank has none of it, else the bytes [N_OP_KINDS] of what
 * its forward writes and the compiled program keeps elsewhere. */
static int64_t **find_away(const struct plan *plan, int pp_rank, struct arena *arena)
{
    const struct program *p = &plan->programs[pp_rank];
    int64_t **away = arena_array(arena, int64_t *, plan->job->model.n_layers);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            if (op->layer < 0 || op->layer >= plan->job->model.n_layers)
                continue;
            if (!away[op->layer])
                away[op->layer] = arena_array(arena, int64_t, N_OP_KINDS);
            for (int k = 0; k < OPS_MAX_OUTPUTS && op->phase == PHASE_F; k++) {
                const struct value *v = &p->values[program_base(p, op->out[k])];
                enum op_kind kind = recompute_kind_of(op, k);

                if (op->out[k] && v->role == ROLE_NONE && v->home && kind != N_OP_KINDS)
                    away[op->layer][kind] += (int64_t)program_value_bytes(p, v->home);
            }
        }
    return away;
}

/* "0-3, 8" */
static const char *list_ranges(const int *item_of_layer, int item, int n_layers,
                               struct arena *arena)
{
    struct str text = { 0 };

    for (int i = 0; i < n_layers; i++) {
        int end = i;

        while (item_of_layer[i] == item && end + 1 < n_layers && item_of_layer[end + 1] == item)
            end++;
        if (item_of_layer[i] == item)
            str_printf(&text, end > i ? "%s%d-%d" : "%s%d", text.length ? ", " : "", i, end);
        i = end;
    }
    const char *which = arena_strdup(arena, str_text(&text));
    str_release(&text);
    return which;
}

static bool is_alike(const struct kept_group *a, const struct kept_group *b)
{
    return a->front == b->front && a->point == b->point &&
           !memcmp(a->away, b->away, N_OP_KINDS * sizeof *a->away);
}

static struct kept_groups list_layers(const struct plan *plan, int pp_rank, struct arena *arena)
{
    const struct memory_fit *fit = plan->memory;
    int n_layers = plan->job->model.n_layers;
    int64_t *const *away = find_away(plan, pp_rank, arena);
    struct kept_groups list = { arena_array(arena, struct kept_group, n_layers), 0 };
    int *item_of_layer = arena_array(arena, int, n_layers);

    /* None where recompute_layers says what each keeps. */
    for (int layer = 0; layer < n_layers && fit->keep_sets.set_of_layer; layer++) {
        int front = fit->fronts->front_of_layer[layer], i = 0;
        const struct keep_set *set = &fit->keep_sets.sets[fit->keep_sets.set_of_layer[layer]];

        item_of_layer[layer] = -1;
        if (!away[layer])
            continue;
        struct kept_group of = { .front = front,
                                 .point = point_of(&fit->fronts->fronts[front], set),
                                 .away = away[layer] };
        while (i < list.n && !is_alike(&list.items[i], &of))
            i++;
        if (i == list.n)
            list.items[list.n++] = of;
        list.items[i].n_layers++;
        item_of_layer[layer] = i;
    }
    for (int i = 0; i < list.n; i++)
        list.items[i].which = list_ranges(item_of_layer, i, n_layers, arena);
    return list;
}

static bool is_remade(const struct keep_set *set, int kind)
{
    return !set->full && bitset_has(&set->dropped, kind);
}

/* "rmsnorm, swiglu", or "-" */
static void print_remade(const struct keep_set *set, struct str *out)
{
    size_t begin = out->length;

    if (set->full)
        str_add(out, "all but the layer's input");
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (is_remade(set, kind))
            str_printf(out, "%s%s", out->length > begin ? ", " : "",
                       op_info((enum op_kind)kind)->name);
    if (out->length == begin)
        str_add(out, "-");
}

static void print_away(const struct kept_group *of, struct str *out)
{
    size_t begin = out->length;
    char text[32];

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (of->away[kind])
            str_printf(out, "%s%s %s", out->length > begin ? ", " : "",
                       op_info((enum op_kind)kind)->name,
                       str_bytes(text, sizeof text, (uint64_t)of->away[kind]));
    if (out->length == begin)
        str_add(out, "-");
}

static void print_layers(const struct plan *plan, int pp_rank, struct str *out)
{
    struct arena arena = { 0 };
    struct kept_groups list = list_layers(plan, pp_rank, &arena);
    struct report_table table;
    char text[32];

    if (!list.n) {
        str_add(out, "layers keep what recompute_layers says\n");
        arena_release(&arena);
        return;
    }
    report_table_init(&table, "lrrll");
    report_table_heading(&table, "layers\tcount\tkept on the device\tcomputed again\tsent away");
    for (int i = 0; i < list.n; i++) {
        const struct kept_group *of = &list.items[i];
        const struct keep_set *set = &of->point->set;
        struct str remade = { 0 }, away = { 0 };

        print_remade(set, &remade);
        print_away(of, &away);
        report_table_row(&table, "%s\t%d\t%s\t%s\t%s", of->which, of->n_layers,
                         str_bytes(text, sizeof text, (uint64_t)kept_bytes(of)), str_text(&remade),
                         str_text(&away));
        str_release(&remade);
        str_release(&away);
    }
    report_table_print(&table, 0, out);
    str_add(out, "(bytes of a layer and micro-batch)\n\n");
    report_table_release(&table);
    arena_release(&arena);
}

/* ---- where bytes are ---- */

static int placed_of_role(enum cell_role role)
{
    switch (role) {
    case ROLE_WEIGHT:
        return PLACED_WEIGHTS;
    case ROLE_GRADIENT:
        return PLACED_GRADIENTS;
    case ROLE_MASTER:
    case ROLE_MOMENT1:
    case ROLE_MOMENT2:
    case ROLE_SCALE:
    case ROLE_EMA:
        return PLACED_STATES;
    default:
        return PLACED_REST;
    }
}

/* Homes of cells by what they are homes of. */
static void add_homes(const struct program *p, struct placed *placed)
{
    for (int v = 1; v < p->n_values; v++) {
        const struct value *value = &p->values[v];
        int home = value->home;

        if (!home || p->values[home].role != ROLE_HOME)
            continue;
        struct placed *to = &placed[placed_of_role(value->role)];
        int64_t n_bytes = round_up((int64_t)program_value_bytes(p, home), (int64_t)PLACE_ALIGNMENT);

        *(p->values[home].space == SPACE_FILE ? &to->file : &to->host) += n_bytes;
    }
}

/* Of the compiled program: each column's sum is that of the memory's segments. */
static void find_placed(const struct program *p, struct placed placed[N_PLACED])
{
    const size_t *bytes = p->segment_bytes;
    struct placed rest = { .device = (int64_t)program_space_bytes(p, SPACE_DEVICE),
                           .host = (int64_t)program_space_bytes(p, SPACE_HOST),
                           .file = (int64_t)program_space_bytes(p, SPACE_FILE) };

    placed[PLACED_WEIGHTS] =
        (struct placed){ .name = "weights", .device = (int64_t)bytes[SEGMENT_WEIGHTS] };
    placed[PLACED_GRADIENTS] =
        (struct placed){ .name = "gradients", .device = (int64_t)bytes[SEGMENT_GRADIENTS] };
    placed[PLACED_STATES] =
        (struct placed){ .name = "states", .device = (int64_t)bytes[SEGMENT_STATES] };
    placed[PLACED_KEPT] =
        (struct placed){ "kept for the backward", (int64_t)bytes[SEGMENT_STASH],
                         (int64_t)bytes[SEGMENT_HOST_STASH], (int64_t)bytes[SEGMENT_FILE_STASH] };
    placed[PLACED_SCRATCH] = (struct placed){ "within a pass", (int64_t)bytes[SEGMENT_SCRATCH],
                                              (int64_t)bytes[SEGMENT_HOST_SCRATCH],
                                              (int64_t)bytes[SEGMENT_FILE_SCRATCH] };
    add_homes(p, placed);
    for (int i = 0; i < PLACED_REST; i++) {
        rest.device -= placed[i].device;
        rest.host -= placed[i].host;
        rest.file -= placed[i].file;
    }
    rest.name = "other";
    placed[PLACED_REST] = rest;
}

static void add_bytes(int64_t n_bytes, struct str *out)
{
    char text[32];

    str_printf(out, "\t%s",
               n_bytes ? str_bytes(text, sizeof text, (uint64_t)max_i64(n_bytes, 0)) : "-");
}

static void print_placed(const struct plan *plan, int pp_rank, struct str *out)
{
    const struct program *p = &plan->programs[pp_rank];
    struct placed placed[N_PLACED];
    struct report_table table;
    char limit[32], host[32];
    const struct memory_fit *fit = plan->memory;
    int64_t bytes = fit->ranks[pp_rank].limit_bytes;

    find_placed(p, placed);
    report_table_init(&table, "lrrr");
    report_table_heading(&table, "contents\ton the device\tin host memory\tin the file");
    for (int i = 0; i < N_PLACED; i++) {
        struct str row = { 0 };

        add_bytes(placed[i].device, &row);
        add_bytes(placed[i].host, &row);
        add_bytes(placed[i].file, &row);
        report_table_row(&table, "%s%s", placed[i].name, str_text(&row));
        str_release(&row);
    }
    report_table_total(&table, "peak, bytes\t%zu\t%zu\t%zu", program_space_bytes(p, SPACE_DEVICE),
                       program_space_bytes(p, SPACE_HOST), program_space_bytes(p, SPACE_FILE));
    report_table_row(
        &table, "limit\t%s\t%s", bytes ? str_bytes(limit, sizeof limit, (uint64_t)bytes) : "none",
        fit->host_limit_bytes ? str_bytes(host, sizeof host, (uint64_t)fit->host_limit_bytes)
                              : "none");
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

/* ---- times ---- */

static void list_added(const struct memory_choice *choice, struct added added[N_ADDED])
{
    const int64_t *stall = choice->stall_ns;

    added[0] = (struct added){ "values computed again", "recompute_ns", choice->recompute_ns };
    added[1] =
        (struct added){ "forward waits for copies", "forward_stall_ns", stall[MEMORY_FORWARD] };
    added[2] =
        (struct added){ "backward waits for copies", "backward_stall_ns", stall[MEMORY_BACKWARD] };
    added[3] = (struct added){ "update waits for copies", "update_stall_ns", stall[MEMORY_UPDATE] };
    added[4] = (struct added){ "update on the host", "host_update_ns", choice->host_ns };
}

/* NULL: the optimizer's states are where it runs. */
static const char *update_place(const struct program *p)
{
    struct placed placed[N_PLACED];

    if (program_has_host_ops(p))
        return "host";
    find_placed(p, placed);
    return placed[PLACED_STATES].host + placed[PLACED_STATES].file ? "streamed" : "device";
}

static const char *update_words(const struct program *p)
{
    const char *place = update_place(p);

    return !strcmp(place, "host") ? "on the host, where its states are"
           : !strcmp(place, "device")
               ? "on the device"
               : "on the device, through which its states are streamed in pieces";
}

static void print_added(const struct plan *plan, int pp_rank, struct str *out)
{
    const struct memory_choice *choice = &plan->memory->ranks[pp_rank].choice;
    struct added added[N_ADDED];
    char moved[32];

    list_added(choice, added);
    str_printf(out, "optimizer: %s\n", update_words(&plan->programs[pp_rank]));
    str_printf(out, "added to a step: %.1f ms", (double)choice->ns / 1e6);
    for (int i = 0, n = 0; i < N_ADDED; i++)
        if (added[i].ns)
            str_printf(out, "%s%s %.1f ms", n++ ? ", " : ": ", added[i].name,
                       (double)added[i].ns / 1e6);
    str_printf(out, "; %s over the link in a step%s\n",
               str_bytes(moved, sizeof moved, (uint64_t)choice->moved_bytes),
               choice->is_thinned ? " (not all choices were tried)" : "");
}

/* ---- a step with the choice, and without ---- */

struct step_pair {
    struct step_time with, without;
};

/* Without: everything is kept, on the device. */
static int predict_pair(struct step_pair *pair, const struct plan *plan,
                        const struct cluster *cluster, struct arena *arena, struct err *err)
{
    struct job *job = arena_new(arena, struct job);
    struct plan other;

    *job = *plan->job;
    job->keep_sets = (struct layer_keep_sets){ NULL, NULL };
    job->offload = NULL;
    job->memory.offload = OFFLOAD_NONE;
    job->memory.device_bytes = 0;
    if (job->recompute == RECOMPUTE_AUTO)
        job->recompute = RECOMPUTE_NONE;
    int status = plan_open_with(&other, job, plan->kernels, err);
    if (!status)
        status = step_time_predict(&pair->without, &other, cluster, arena, err);
    if (!status)
        status = step_time_predict(&pair->with, plan, cluster, arena, err);
    plan_close(&other);
    return status;
}

static int print_pair(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err)
{
    struct arena arena = { 0 };
    struct step_pair pair;
    int status = predict_pair(&pair, plan, cluster, &arena, err);

    if (!status)
        str_printf(out,
                   "a step: %.3f s, %.0f tokens/s; %.3f s, %.0f tokens/s if everything were kept "
                   "on the device (%+.1f %%)\n",
                   (double)pair.with.ns / 1e9, pair.with.tokens_per_second,
                   (double)pair.without.ns / 1e9, pair.without.tokens_per_second,
                   100 * ((double)pair.with.ns / (double)pair.without.ns - 1));
    arena_release(&arena);
    return status;
}

static void print_placement(const struct memory_fit *fit, struct str *out)
{
    if (fit->placement && !fit->solved_ns)
        str_printf(out, "placement: %s's; the solver's does not fit\n", fit->placement);
    else if (fit->placement)
        str_printf(
            out,
            "placement: %s's, with which a step is simulated to take %.3f s; %.3f s with the "
            "solver's\n",
            fit->placement, (double)fit->simulated_ns / 1e9, (double)fit->solved_ns / 1e9);
}

int plan_print_choice(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err)
{
    int pp = plan->job->parallel.pp;

    if (!plan->memory)
        return 0;
    for (int rank = 0; rank < pp; rank++) {
        str_add(out, "\nwhat is kept, computed again and sent away");
        str_printf(out, pp > 1 ? ", pipeline rank %d\n\n" : "\n\n", rank);
        print_layers(plan, rank, out);
        print_placed(plan, rank, out);
        print_added(plan, rank, out);
    }
    print_placement(plan->memory, out);
    return cluster ? print_pair(plan, cluster, out, err) : 0;
}

/* ---- JSON ---- */

static void add_layers(const struct plan *plan, int pp_rank, cJSON *json)
{
    struct arena arena = { 0 };
    struct kept_groups list = list_layers(plan, pp_rank, &arena);
    cJSON *array = cJSON_AddArrayToObject(json, "layers");

    for (int i = 0; i < list.n; i++) {
        const struct kept_group *of = &list.items[i];
        const struct keep_set *set = &of->point->set;
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "layers", of->which);
        cJSON_AddNumberToObject(item, "n_layers", of->n_layers);
        cJSON_AddNumberToObject(item, "kept_bytes", (double)kept_bytes(of));
        cJSON_AddBoolToObject(item, "full", set->full);
        cJSON *remade = cJSON_AddArrayToObject(item, "recomputed");
        for (int kind = 0; kind < N_OP_KINDS; kind++)
            if (is_remade(set, kind))
                cJSON_AddItemToArray(remade, cJSON_CreateString(op_info((enum op_kind)kind)->name));
        cJSON *away = cJSON_AddObjectToObject(item, "away_bytes");
        for (int kind = 0; kind < N_OP_KINDS; kind++)
            if (of->away[kind])
                cJSON_AddNumberToObject(away, op_info((enum op_kind)kind)->name,
                                        (double)of->away[kind]);
        cJSON_AddItemToArray(array, item);
    }
    arena_release(&arena);
}

static void add_placed(const struct program *p, cJSON *json)
{
    struct placed placed[N_PLACED];
    cJSON *contents = cJSON_AddObjectToObject(json, "contents");

    find_placed(p, placed);
    for (int i = 0; i < N_PLACED; i++) {
        cJSON *item = cJSON_AddObjectToObject(contents, placed[i].name);

        cJSON_AddNumberToObject(item, "device_bytes", (double)placed[i].device);
        cJSON_AddNumberToObject(item, "host_bytes", (double)placed[i].host);
        cJSON_AddNumberToObject(item, "file_bytes", (double)placed[i].file);
    }
    cJSON_AddNumberToObject(json, "device_bytes", (double)program_space_bytes(p, SPACE_DEVICE));
    cJSON_AddNumberToObject(json, "host_bytes", (double)program_space_bytes(p, SPACE_HOST));
    cJSON_AddNumberToObject(json, "file_bytes", (double)program_space_bytes(p, SPACE_FILE));
    cJSON_AddNumberToObject(json, "file_buffer_bytes", (double)run_file_buffer_bytes(p));
}

static void add_added(const struct memory_choice *choice, cJSON *json)
{
    struct added added[N_ADDED];

    list_added(choice, added);
    cJSON_AddNumberToObject(json, "added_ns", (double)choice->ns);
    for (int i = 0; i < N_ADDED; i++)
        cJSON_AddNumberToObject(json, added[i].key, (double)added[i].ns);
    cJSON_AddNumberToObject(json, "moved_bytes", (double)choice->moved_bytes);
    cJSON_AddBoolToObject(json, "thinned", choice->is_thinned);
}

static int add_pair(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err)
{
    struct arena arena = { 0 };
    struct step_pair pair;
    int status = predict_pair(&pair, plan, cluster, &arena, err);

    if (!status) {
        cJSON_AddNumberToObject(json, "step_ns", (double)pair.with.ns);
        cJSON_AddNumberToObject(json, "step_ns_if_all_is_kept", (double)pair.without.ns);
    }
    arena_release(&arena);
    return status;
}

int plan_add_choice(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err)
{
    if (!plan->memory)
        return 0;
    cJSON *object = cJSON_AddObjectToObject(json, "memory_choice");
    cJSON_AddNumberToObject(object, "device_limit_bytes", (double)plan->memory->limit_bytes);
    cJSON_AddNumberToObject(object, "host_limit_bytes", (double)plan->memory->host_limit_bytes);
    if (plan->memory->placement)
        cJSON_AddStringToObject(object, "placement", plan->memory->placement);
    cJSON *stages = cJSON_AddArrayToObject(object, "pipeline_ranks");
    for (int rank = 0; rank < plan->job->parallel.pp; rank++) {
        const struct program *p = &plan->programs[rank];
        cJSON *stage = cJSON_CreateObject();

        add_layers(plan, rank, stage);
        add_placed(p, stage);
        cJSON_AddStringToObject(stage, "update", update_place(p));
        add_added(&plan->memory->ranks[rank].choice, stage);
        cJSON_AddItemToArray(stages, stage);
    }
    return cluster ? add_pair(plan, cluster, object, err) : 0;
}
