/*
 * plan.c - lmtrain plan: what a job takes, before anything is allocated
 */
#include <cjson/cJSON.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "config/job.h"
#include "kernels/gpu_sizes.h"
#include "launch/cores.h"
#include "plan/plan.h"
#include "plan/programs.h"
#include "plan_calibrate.h"
#include "plan_codec.h"
#include "plan_context.h"
#include "plan_ladder.h"
#include "plan_layout.h"
#include "plan_memory.h"
#include "plan_nodes.h"
#include "plan_optimizers.h"
#include "plan_search.h"
#include "plan_sizes.h"
#include "plan_stages.h"
#include "plan_subject.h"
#include "plan_sweep.h"
#include "plan_time.h"
#include "report/table.h"
#include "timelines.h"

struct plan_request {
    struct plan_reading read;
    int world, rank; /* rank -1: the one that needs most memory */
    bool print_program, json, ladder, optimizers;
    const char *print_after; /* a pass; NULL: none */
    const char *trace;       /* a file for a timeline; NULL: none */
    const char *sweep;       /* "ranks=8,16"; NULL: none */
    const char *calibrated;  /* the measured seconds; NULL: none */
    double calibrate;
    bool weak;
};

/* As many threads as a rank will have here. */
static int open_plan(struct plan *plan, const struct job *job, int rank, struct err *err)
{
    struct rank_cores cores;

    *plan = (struct plan){ .job = job };
    if (launch_cores_of(0, job->world_size, &cores, err) < 0)
        return -1;
    return plan_open(plan, job, cores.n_cores, rank, err);
}

/* FLOPs with the prefix that fits: "4.51 EFLOP". */
static const char *flops_text(char *buffer, size_t size, double flops)
{
    static const char *const units[] = { "", "k", "M", "G", "T", "P", "E", "Z", "Y" };
    int unit = 0;

    while (flops >= 1000 && unit < 8) {
        flops /= 1000;
        unit++;
    }
    snprintf(buffer, size, "%.3g %sFLOP", flops, units[unit]);
    return buffer;
}

/* Round 1 of train/recheck.h; what is hashed, there and in the step; train/recheck_optimizer.h. */
static void add_recheck_row(const struct plan *plan, struct report_table *table)
{
    struct plan_recheck recheck = plan_count_recheck(plan);
    int every = plan->job->train.recheck_every;
    char text[32], hashed[32], device[32], host[32], update[160] = "";

    if (!every)
        return;
    if (recheck.device_bytes)
        snprintf(update, sizeof update,
                 ", and has %s of device memory and %s of host memory for updates of others",
                 str_bytes(device, sizeof device, recheck.device_bytes),
                 str_bytes(host, sizeof host, recheck.host_bytes));
    report_table_row(table,
                     "recheck\t%s\tin one of %d steps in addition: %.2g %% of all work; a rank "
                     "hashes %s of results in it%s",
                     flops_text(text, sizeof text, recheck.flops), every,
                     100 * recheck.flops / plan_count_flops(plan).executed / every,
                     str_bytes(hashed, sizeof hashed, recheck.hashed_bytes), update);
}

static void print_flops(const struct plan *plan, struct str *out)
{
    const struct job *job = plan->job;
    struct plan_flops flops = plan_count_flops(plan);
    struct report_table table;
    char text[32];

    report_table_init(&table, "lrl");
    report_table_heading(&table, "work of a step\tamount\tcounted as");
    report_table_row(&table, "executed\t%s\tall ops of the program, on all ranks",
                     flops_text(text, sizeof text, flops.executed));
    if (flops.newton_schulz > 0)
        report_table_row(&table,
                         "Newton-Schulz\t%s\tof these, what muon makes of matrices: %.2g %% of all",
                         flops_text(text, sizeof text, flops.newton_schulz),
                         100 * flops.newton_schulz / flops.executed);
    report_table_row(&table, "model\t%s\t6 N_matmul + 6 L d T per token%s: the FLOPs of MFU",
                     flops_text(text, sizeof text, flops.model),
                     job->model.window ? ", minus what sliding windows mask" : "");
    report_table_row(&table, "Megatron-LM\t%s\tformula of Narayanan et al. 2021, %s recomputation",
                     flops_text(text, sizeof text, flops.megatron),
                     job->recompute == RECOMPUTE_FULL ? "full" : "no");
    add_recheck_row(plan, &table);
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

/* "4", or "1, 2, 4, 4, 2, 1" */
static void print_sizes(const struct job *job, struct str *out)
{
    const struct job_counts *sizes = &job->parallel.micro_batches;

    for (int i = 0; i < sizes->n; i++)
        str_printf(out, i ? ", %d" : "%d", sizes->values[i]);
    if (!sizes->n)
        str_printf(out, "%d", job->train.micro_batch);
}

/* Each kind of devices that ranks are on. */
static void print_devices(const struct cluster *cluster, int n_ranks, struct str *out)
{
    char memory[32];

    if (cluster->title)
        str_printf(out, "cluster: %s\n", cluster->title);
    str_add(out, "device: ");
    for (int i = 0, first = 0; i < cluster->n_islands && first < n_ranks; i++) {
        const struct device_spec *device = cluster->islands[i].device;
        bool is_named = false;

        first += cluster->islands[i].n_nodes * cluster->islands[i].per_node;

        for (int j = 0; j < i && !is_named; j++)
            is_named = !strcmp(cluster->islands[j].device->name, device->name);
        if (is_named)
            continue;
        str_printf(out, "%s%s, %s%s", i ? "; " : "", device->name,
                   str_bytes(memory, sizeof memory, (size_t)device->memory),
                   device->is_planning_only ? " (planning only: lmtrain cannot run on it)" : "");
    }
    str_add(out, "\n");
}

/* cluster NULL: the job's own device. */
static void print_device(const struct plan *plan, const struct cluster *cluster, struct str *out)
{
    char memory[32];

    if (cluster)
        print_devices(cluster, plan->job->world_size, out);
    else if (kernels_are_gpu(plan->kernels))
        str_printf(out, "device: a GPU of %s, assumed (--device NAME: which one)\n",
                   str_bytes(memory, sizeof memory, ASSUMED_GPU_BYTES));
    else
        str_printf(out, "device: cpu, %d thread%s a rank\n", pool_n_threads(plan->pool),
                   str_s(pool_n_threads(plan->pool)));
}

/* subject: NULL, or what the plan is of. */
static void print_summary(const struct plan *plan, const struct cluster *cluster,
                          const struct plan_subject *subject, struct str *out)
{
    const struct job *job = plan->job;
    char count[40];
    const struct program *p = &plan->programs[plan->shown];
    int n_ops = 0;

    for (int f = 0; f < p->n_functions; f++)
        n_ops += p->functions[f].n_ops;
    str_printf(out, "model %s: %s parameters\n", job->model.name[0] ? job->model.name : "(inline)",
               str_count(count, sizeof count, model_spec_n_parameters(&job->model)));
    for (int i = 0; i < job->n_notes; i++)
        if (str_starts_with(job->notes[i], "model.vocab_size"))
            str_printf(out, "%s\n", job->notes[i]);
    str_printf(out, "%d rank%s (", job->world_size, str_s(job->world_size));
    plan_print_layout(job, out);
    str_printf(out, "), %d micro-batch%s of ", job->n_micro_batches, str_es(job->n_micro_batches));
    print_sizes(job, out);
    str_printf(out, " x %d token%s, %s, recompute ", job->data.seq_len, str_s(job->data.seq_len),
               dtype_name(job->train.dtype));
    plan_print_recompute(job, out);
    str_add(out, "\n");
    if (subject && subject->ranks_note)
        str_printf(out, "%s\n", subject->ranks_note);
    if (subject && subject->sizes.n)
        plan_print_sizes(&subject->sizes, out);
    print_device(plan, cluster, out);
    str_printf(out, "program: %d function%s, %d op%s, %d action%s a step\n", p->n_functions,
               str_s(p->n_functions), n_ops, str_s(n_ops), p->entries[ENTRY_STEP].n_actions,
               str_s(p->entries[ENTRY_STEP].n_actions));
    if (!job->train.steps)
        str_printf(out,
                   "steps: as many as %g epoch%s need, known once the data is read "
                   "(lmtrain %s JOB.yaml --dry-run)\n",
                   job->train.epochs, job->train.epochs == 1 ? " takes" : "s take",
                   choice_word(job_kind_choices, (int)job->kind));
    str_add(out, "\n");
}

/* Of a GPU that is not named. */
static void print_assumed_fit(const struct plan *plan, struct str *out)
{
    size_t vendor = plan_library_bytes(plan, ASSUMED_GPU_BYTES) + GPU_CONTEXT_BYTES;
    struct device_spec device = { .fast_domain = 8,
                                  .memory = (int64_t)ASSUMED_GPU_BYTES,
                                  .reserve = (int64_t)vendor };
    struct cluster cluster;
    struct arena arena = { 0 };

    cluster_of_device(&cluster, &device, plan->job->world_size, &arena);
    struct plan_fit fit = plan_judge(plan, &cluster, 0);
    arena_release(&arena);

    str_add(out, "\n");
    plan_print_fit(plan, &fit, "the assumed GPU", N_RANKS_MAX, out);
}

static void print_plan(const struct plan *plan, const struct cluster *cluster,
                       const struct plan_subject *subject, struct str *out)
{
    print_summary(plan, cluster, subject, out);
    if (plan->job->parallel.pp > 1)
        plan_print_stages(plan, out);
    plan_print_context(plan, out);
    plan_print_nodes(plan, out);
    plan_print_codec(plan, out);
    plan_print_memory(plan, out);
    str_add(out, "\n");
    print_flops(plan, out);
    if (!cluster && kernels_are_gpu(plan->kernels))
        print_assumed_fit(plan, out);
}

int cmd_plan_print(const struct job *job, struct str *out)
{
    struct plan plan;
    struct err err;
    int status = open_plan(&plan, job, -1, &err);

    if (!status)
        print_plan(&plan, NULL, NULL, out);
    plan_close(&plan);
    return status < 0 ? cmd_fail(&err) : 0;
}

/* Returns as plan_add_time. */
static int print_json(const struct plan *plan, const struct plan_subject *subject, struct str *out,
                      struct err *err)
{
    const struct job *job = plan->job;
    cJSON *json = cJSON_CreateObject();
    struct plan_flops flops = plan_count_flops(plan);

    cJSON_AddNumberToObject(json, "parameters", (double)model_spec_n_parameters(&job->model));
    cJSON_AddNumberToObject(json, "world_size", job->world_size);
    plan_add_layout(job, json);
    plan_add_stages(plan, json);
    plan_add_context(plan, json);
    plan_add_nodes(plan, json);
    plan_add_codec(plan, json);
    cJSON_AddNumberToObject(json, "n_micro_batches", job->n_micro_batches);
    if (job->parallel.micro_batches.n)
        cJSON_AddItemToObject(json, "micro_batches",
                              cJSON_CreateIntArray(job->parallel.micro_batches.values,
                                                   job->parallel.micro_batches.n));
    if (subject->sizes.n)
        plan_add_sizes(&subject->sizes, json);
    plan_add_memory(plan, json);
    cJSON_AddNumberToObject(json, "step_flops", flops.executed);
    cJSON_AddNumberToObject(json, "newton_schulz_flops", flops.newton_schulz);
    cJSON_AddNumberToObject(json, "model_flops", flops.model);
    cJSON_AddNumberToObject(json, "megatron_flops", flops.megatron);
    const struct cluster *cluster = subject->has_cluster ? &subject->cluster : NULL;
    int status = plan_add_choice(plan, cluster, json, err);
    if (cluster && !status)
        status = plan_add_time(plan, cluster, json, err);
    if (subject->search.n_rows)
        plan_add_search(&subject->search, json);
    char *text = cJSON_Print(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
    return status;
}

/* ---- the program after a pass ---- */

struct print_after {
    const char *pass;
    struct str *out;
    int n_printed;
};

static void print_if_wanted(void *context, const char *pass, const struct program *program)
{
    struct print_after *print = context;

    if (strcmp(print->pass, "all") != 0 && strcmp(print->pass, pass) != 0)
        return;
    str_printf(print->out, "%s# after %s\n", print->n_printed++ ? "\n" : "", pass);
    print_program(program, PRINT_ADDRESSES, print->out);
}

/* Compiles the shown rank's program again, and looks on. */
static int print_passes(const struct plan *plan, const char *pass, struct str *out, struct err *err)
{
    struct print_after print = { .pass = pass, .out = out };
    struct compile_watch watch = { print_if_wanted, &print };
    struct programs_request request = {
        .job = plan->job, .kernels = plan->kernels, .pp_rank = plan->shown, .watch = &watch
    };
    struct program program;
    int status = programs_compile(&program, &request, err);

    program_release(&program);
    return status;
}

static int check_pass(const char *pass, struct err *err)
{
    struct str names = { 0 };

    for (int i = 0; compile_pass_name(i); i++) {
        if (!strcmp(pass, compile_pass_name(i)))
            pass = "all";
        str_printf(&names, "%s, ", compile_pass_name(i));
    }
    if (strcmp(pass, "all") != 0)
        err_set(err, ERR_CONFIG, "--print-after is %s, wanted %sor all", pass, str_text(&names));
    str_release(&names);
    return strcmp(pass, "all") != 0 ? -1 : 0;
}

/* The predicted step of each stage's first rank. */
static int write_trace(const char *path, const struct plan *plan, const struct cluster *cluster,
                       struct err *err)
{
    struct arena arena = { 0 };
    struct replica_programs replicas;
    struct timeline_list list = { .replicas = &replicas, .arena = &arena };
    struct timeline_order order;

    if (!cluster)
        return err_set(err, ERR_CONFIG,
                       "--trace is of a predicted step (hint: --device NAME or --cluster NAME)");
    replica_programs_init(&replicas, plan);
    int status = timelines_add_predicted(&list, plan, cluster, NULL, 0, err);
    if (!status)
        status = timelines_write(&list, plan, plan->job->source, path, &order, err);
    replica_programs_release(&replicas);
    arena_release(&arena);
    return status;
}

static int print_answer(const struct plan_request *q, const struct plan *plan,
                        const struct plan_subject *subject, struct str *out, struct err *err)
{
    const struct cluster *cluster = subject->has_cluster ? &subject->cluster : NULL;

    if (q->trace && write_trace(q->trace, plan, cluster, err))
        return -1;
    if (q->print_after)
        return print_passes(plan, q->print_after, out, err);
    if (q->json)
        return print_json(plan, subject, out, err);
    if (q->print_program) {
        print_program(&plan->programs[plan->shown], PRINT_ADDRESSES, out);
        return 0;
    }
    print_plan(plan, cluster, subject, out);
    if (plan_print_choice(plan, cluster, out, err))
        return -1;
    int status = cluster ? plan_print_time(plan, cluster, out, err) : 0;
    if (subject->search.n_rows && status >= 0)
        plan_print_search(&subject->search, subject->within, out);
    return status;
}

static int answer(const struct plan_request *q, const char *path, struct arena *arena,
                  struct str *out)
{
    struct plan_subject subject;
    struct plan plan;
    struct err err;

    if ((q->print_after && check_pass(q->print_after, &err) < 0) ||
        plan_read_subject(&subject, &q->read, path, q->world, arena, &err))
        return cmd_fail(&err);
    if (q->rank >= subject.job.world_size) {
        err_set(&err, ERR_CONFIG, "--rank is %d, but the job has ranks 0 to %d", q->rank,
                subject.job.world_size - 1);
        return cmd_fail(&err);
    }
    if (q->optimizers) {
        plan_optimizers(&subject.job, q->json, out);
        return 0;
    }
    if (q->ladder)
        return plan_ladder(&subject, q->json, out, &err) < 0 ? cmd_fail(&err) : 0;
    int status = open_plan(&plan, &subject.job, q->rank, &err);
    if (!status && q->calibrate > 0)
        status = plan_calibrate(&plan, &subject.cluster, q->calibrate, out, &err);
    else if (!status)
        status = print_answer(q, &plan, &subject, out, &err);
    plan_close(&plan);
    return status < 0 ? cmd_fail(&err) : status;
}

/* -1 if the text is not a number above 0. */
static double read_seconds(const char *text)
{
    char *end;
    double seconds = strtod(text, &end);

    return *text && !*end && seconds > 0 && seconds < 1e9 ? seconds : -1;
}

/* What options do not go together. */
static int check_request(const struct plan_request *q, struct err *err)
{
    if (q->weak && !q->sweep)
        return err_set(err, ERR_CONFIG, "--weak is for --sweep ranks=N,N,...");
    if (q->calibrate < 0)
        return err_set(err, ERR_CONFIG, "--calibrate is not a number of seconds (hint: 14.72)");
    return 0;
}

static int run(struct plan_request *q, const char *path, struct arena *arena)
{
    struct str out = { 0 };
    struct err err;
    int status;

    q->read.to_suggest = !q->sweep;
    q->calibrate = q->calibrated ? read_seconds(q->calibrated) : 0;
    if (check_request(q, &err))
        status = cmd_fail(&err);
    else if (q->sweep)
        status = plan_sweep(&q->read, path, q->sweep, q->weak, q->json, arena, &out);
    else
        status = answer(q, path, arena, &out);
    if (out.length) {
        int printed = cmd_print(&out);

        status = status ? status : printed;
    }
    str_release(&out);
    return status;
}

/* A search compiles programs by the hundred: what one has given back the next one takes, without
 * the kernel (a third of a search was page faults). */
static void keep_freed_memory(void)
{
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    mallopt(M_TOP_PAD, 32 << 20);
}

int cmd_plan(int argc, char **argv)
{
    struct plan_request q = { .rank = -1, .read.n_top = 10 };
    const struct option ranks = option_int("ranks", &q.world, "N", 1, 1000000,
                                           "plan for N ranks; overrides ranks of the job");
    const struct option table[] = {
        cmd_option_set(&q.read.sets),
        ranks,
        option_deprecated("world", &ranks, "0.1", "0.3"),
        option_flag(
            "print-program", &q.print_program,
            "print the step program: cells, ops and actions with their shapes and addresses"),
        option_text(
            "print-after", &q.print_after, "PASS",
            "print the step program after a pass of the compiler, or after \"all\" of them; a "
            "wrong name lists the passes"),
        option_int("rank", &q.rank, "R", 0, 1000000,
                   "rank whose memory and program are shown (ranks of the same pipeline stage are "
                   "equal); default: a rank with the highest memory use"),
        option_text("device", &q.read.device, "NAME",
                    "predict the time of a step on this device, say whether the job fits: a name "
                    "of configs/devices (a wrong one lists them), or a file"),
        option_text("cluster", &q.read.cluster, "NAME",
                    "the same on the nodes and links of a file of configs/clusters"),
        option_text("layout", &q.read.layout, "KEY=VALUE,...",
                    "plan this layout, whatever the job says: tp, pp, dp, zero, schedule, chunks, "
                    "recompute, micro_batch and other keys of parallel"),
        option_text("trace", &q.trace, "FILE",
                    "write a timeline of the predicted step of each pipeline stage, for Perfetto"),
        option_flag("ladder", &q.ladder,
                    "a table of ten budgets of device memory, from the least that the job fits to "
                    "all that it keeps: what goes, and the time that it adds"),
        option_flag("optimizers", &q.optimizers,
                    "a table of optimizers: bytes a parameter, by what keeps their states"),
        option_text("sweep", &q.sweep, "ranks=N,N,...",
                    "a table of predicted times for these numbers of ranks"),
        option_flag("weak", &q.weak,
                    "with --sweep: train.global_batch grows with the ranks, from the first on"),
        option_text("calibrate", &q.calibrated, "SECONDS",
                    "find by how much products take longer than by the formulas, if a step takes "
                    "so long; written to the cluster's file, if it is given by its path"),
        option_int("top", &q.read.n_top, "N", 1, 1000,
                   "how many of the best layouts a search prints (default: 10)"),
        option_flag("json", &q.json, "print the results as JSON"),
    };
    const struct options options = {
        .command = "lmtrain plan",
        .arguments = "JOB.yaml",
        .summary = "Predict what a job needs: parameters, memory of each rank, FLOPs; needs no GPU",
        .details = "Exit status: 0, or 2 if the job or the command line is wrong, or the job "
                   "does not fit the device.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    keep_freed_memory();
    if (status < 0)
        status = run(&q, arguments.items[0], &arena);
    arena_release(&arena);
    return status;
}
