/*
 * bench.c - lmtrain bench: how fast a job runs here, and how near to what the machine can do
 *
 * It gets its ranks as pretrain does (ranks.h); each measures itself, rank 0 prints the result.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "bench_report.h"
#include "cmd.h"
#include "ranks.h"
#include "train/bench_cluster.h"

#define N_WARM 2

struct bench_request {
    struct option_list sets;
    const char *hosts, *to;
    int ranks, steps, rounds, max_mb, seconds;
    bool each, json;
};

struct bench_command {
    const char *name;
    struct options (*options)(struct bench_request *q, struct option *table);
    int (*run)(const struct bench_request *q, const struct job *job, struct engine *engine,
               struct str *out, struct err *err);
};

static int measure_step(const struct bench_request *q, const struct job *job, struct engine *engine,
                        int whole, struct str *out, struct err *err)
{
    struct bench bench;
    struct bench_report report = { job, engine, &bench };

    if (bench_run(&bench, job, engine, N_WARM, q->steps, err) < 0)
        return -1;
    if (whole && bench_gather_exposed(&bench, engine, err) < 0) {
        bench_release(&bench);
        return -1;
    }
    if (whole && q->json)
        bench_print_step_json(&report, out);
    else if (whole)
        bench_print_step(&report, out);
    else if (q->json)
        bench_print_ops_json(&report, q->each, out);
    else
        bench_print_ops(&report, q->each, out);
    bench_release(&bench);
    return 0;
}

static int run_ops(const struct bench_request *q, const struct job *job, struct engine *engine,
                   struct str *out, struct err *err)
{
    return measure_step(q, job, engine, 0, out, err);
}

static int run_step(const struct bench_request *q, const struct job *job, struct engine *engine,
                    struct str *out, struct err *err)
{
    return measure_step(q, job, engine, 1, out, err);
}

/* Ranks that lie otherwise than on nodes with as many each are taken as those of one. */
static int find_nodes(struct bench_nodes *nodes, struct engine *engine, struct err *err)
{
    if (!bench_find_nodes(nodes, engine, err))
        return 0;
    *nodes = (struct bench_nodes){ 1, engine->rank.world_size };
    return err->code == ERR_CONFIG ? 0 : -1;
}

static int run_comm(const struct bench_request *q, const struct job *job, struct engine *engine,
                    struct str *out, struct err *err)
{
    struct bench_report report = { job, engine, NULL };
    struct bench_collective *list = NULL;
    struct arena arena = { 0 };
    struct bench_nodes nodes;
    int n = 0, status = find_nodes(&nodes, engine, err);

    if (!status)
        status = bench_collectives(engine, &nodes, (size_t)q->max_mb << 20, q->rounds, &list, &n,
                                   &arena, err);
    if (!status && q->json)
        bench_print_collectives_json(&report, list, n, out);
    else if (!status)
        bench_print_collectives(&report, list, n, out);
    arena_release(&arena);
    return status;
}

static int run_ceilings(const struct bench_request *q, const struct job *job, struct engine *engine,
                        struct str *out, struct err *err)
{
    struct bench_report report = { job, engine, NULL };
    struct engine_sustained product;
    double bytes_per_second;

    if (engine_sustained_flops(engine, job->train.dtype, q->seconds, &product, err) < 0 ||
        machine_peak_memory(engine, &bytes_per_second, err) < 0)
        return -1;
    if (q->json)
        bench_print_ceilings_json(&report, &product, bytes_per_second, out);
    else
        bench_print_ceilings(&report, &product, bytes_per_second, out);
    return 0;
}

/* FILE and, beside it, its tables. */
static int write_cluster(const struct bench_cluster *c, const struct engine *engine,
                         enum dtype dtype, const char *path, struct arena *arena, struct err *err)
{
    const char *tables = arena_printf(arena, "%s.tables.json", path);
    const char *slash = strrchr(tables, '/');
    struct str text = { 0 }, table = { 0 };

    bench_cluster_print(c, engine, dtype, slash ? slash + 1 : tables, &text);
    price_table_print(&c->table, &table);
    int status = file_write(tables, str_text(&table), table.length, err);
    if (!status)
        status = file_write(path, str_text(&text), text.length, err);
    str_release(&text);
    str_release(&table);
    return status;
}

static void print_cluster(const struct bench_cluster *c, const char *path, int n_ranks,
                          struct str *out)
{
    str_printf(out, "%s: %d ops and %d collectives of %d rank%s", path, c->table.ops.n,
               c->table.collectives.n, n_ranks, str_s(n_ranks));
    if (n_ranks > 1)
        str_printf(out, ", contention %.2f in %d steps", c->table.contention, c->n_together);
    str_add(out, "\n");
}

static int run_cluster(const struct bench_request *q, const struct job *job, struct engine *engine,
                       struct str *out, struct err *err)
{
    struct bench_cluster cluster;
    struct arena arena = { 0 };
    const char *path = q->to ? q->to : cmd_machine_cluster(true, &arena);
    int status = 0;

    if (!path)
        status = err_set(err, ERR_CONFIG, "there is no home for this machine's file (hint: --to)");
    if (!status)
        status = bench_cluster(&cluster, job, engine, q->steps, &arena, err);
    cluster.table.build = cmd_build();
    if (!status && engine->rank.world_rank == 0)
        status = write_cluster(&cluster, engine, job->train.dtype, path, &arena, err);
    if (!status)
        print_cluster(&cluster, path, engine->rank.world_size, out);
    arena_release(&arena);
    return status;
}

/* ---- as a rank ---- */

static int run_rank(const struct bench_command *sub, const struct bench_request *q, struct job *job,
                    struct arena *arena)
{
    struct launch_rank rank;
    struct engine engine;
    struct str out = { 0 };
    struct err err;
    int status = ranks_join(&rank, job, RANKS_WITHOUT_LOGS, &err);

    if (status)
        return status;
    const struct engine_request request = { job->threads, job->device };
    if (job_resolve(job, rank.world_size, arena, &err) < 0 ||
        engine_open(&engine, &rank, &request, &err) < 0)
        return ranks_fail(&rank, &err);
    job_take_replica(job, rank.world_rank);
    engine_settle(&engine, job);
    if (engine_find_nodes(&engine, job, &err) < 0 || sub->run(q, job, &engine, &out, &err) < 0)
        status = ranks_fail(&rank, &err);
    else if (rank.world_rank == 0)
        status = cmd_print(&out);
    str_release(&out);
    engine_close(&engine);
    launch_leave();
    return status;
}

/* ---- from the command line to ranks ---- */

/* The options that ranks_start does not know of, for the ranks' command lines. */
static const char *const *more_words(const struct bench_command *sub, const struct bench_request *q,
                                     struct arena *arena)
{
    const char **words = arena_array(arena, const char *, 8);
    int n = 0;

    if (q->json)
        words[n++] = "--json";
    if (q->each)
        words[n++] = "--each";
    if (sub->run == run_comm) {
        words[n++] = arena_printf(arena, "--rounds=%d", q->rounds);
        words[n++] = arena_printf(arena, "--max-mb=%d", q->max_mb);
    } else if (sub->run == run_ceilings) {
        words[n++] = arena_printf(arena, "--seconds=%d", q->seconds);
    } else {
        if (q->steps)
            words[n++] = arena_printf(arena, "--steps=%d", q->steps);
        if (q->to)
            words[n++] = arena_printf(arena, "--to=%s", q->to);
    }
    return words;
}

static int run(const struct bench_command *sub, const struct bench_request *q, const char *path,
               struct arena *arena)
{
    struct ranks ranks;
    struct job job;
    struct err err;

    if (job_read(&job, path, q->sets.items, q->sets.n, arena, &err) < 0)
        return cmd_fail(&err);
    if (!launch_is_rank())
        job_log_warnings(&job);
    if (q->ranks)
        job.ranks = q->ranks;
    job.restarts = 0;
    if (ranks_find(&ranks, &job, q->hosts, arena, &err) < 0)
        return cmd_fail(&err);
    if (ranks.context == CONTEXT_RANK)
        return run_rank(sub, q, &job, arena);
    if (sub->run == run_comm && ranks.n_ranks == 1) {
        err_set(&err, ERR_CONFIG,
                "bench comm: %s is a job of one rank, which has no collectives (hint: --ranks 2)",
                path);
        return cmd_fail(&err);
    }
    if (job_resolve(&job, ranks.n_ranks, arena, &err) < 0)
        return cmd_fail(&err);
    if (!ranks_are_started(&ranks, &job))
        return run_rank(sub, q, &job, arena);
    struct ranks_command command = { .name = "bench",
                                     .subcommand = sub->name,
                                     .job_path = path,
                                     .sets = &q->sets,
                                     .more = more_words(sub, q, arena),
                                     .keeps_nothing = true };
    return ranks_start(&ranks, &job, &command, arena);
}

/* ---- options ---- */

#define OPTIONS_MAX 8

/* What all have; the rest of the table follows. Returns their number. */
static int common_options(struct bench_request *q, struct option *table)
{
    const struct option items[] = {
        cmd_option_set(&q->sets),
        option_int("ranks", &q->ranks, "N", 1, 1000000,
                   "run on N ranks; overrides ranks of the job"),
        option_text("hosts", &q->hosts, "FILE|HOST,...",
                    "run on these hosts through ssh, as for pretrain"),
        option_flag("json", &q->json, "print the results as JSON"),
    };

    memcpy(table, items, sizeof items);
    return sizeof items / sizeof *items;
}

static struct option steps_option(struct bench_request *q)
{
    return option_int("steps", &q->steps, "N", 1, 100000,
                      "measure N steps, after 3 warm-up steps (default: 10)");
}

static struct options with_table(struct option *table, int n, const char *command,
                                 const char *summary, const char *details)
{
    return (struct options){ .command = command,
                             .arguments = "JOB.yaml",
                             .summary = summary,
                             .details = details,
                             .table = table,
                             .n_options = n,
                             .min_arguments = 1,
                             .max_arguments = 1 };
}

static struct options ops_options(struct bench_request *q, struct option *table)
{
    int n = common_options(q, table);

    table[n++] = steps_option(q);
    table[n++] =
        option_flag("each", &q->each,
                    "one line per op in program order, instead of one line for all equal ops");
    return with_table(
        table, n, "lmtrain bench ops",
        "Measure the time of each op of a training step and compare it to the speed of light "
        "(roofline) of this machine",
        "Trains on random tokens with learning rate 0; reads no data and writes nothing.\n");
}

static struct options step_options(struct bench_request *q, struct option *table)
{
    int n = common_options(q, table);

    table[n++] = steps_option(q);
    return with_table(
        table, n, "lmtrain bench step",
        "Measure the time of a whole training step: tokens per second, waiting times, and the "
        "bound by the speed of light (roofline)",
        "Trains on random tokens with learning rate 0; reads no data and writes nothing.\n");
}

static struct options comm_options(struct bench_request *q, struct option *table)
{
    int n = common_options(q, table);

    table[n++] = option_int("rounds", &q->rounds, "N", 1, 100000,
                            "measure each collective N times (default: 10)");
    table[n++] = option_int("max-mb", &q->max_mb, "N", 1, 65536,
                            "largest message size in MiB (default: 64)");
    return with_table(
        table, n, "lmtrain bench comm",
        "Measure the collectives of a job's ranks, by message size and number of ranks",
        "Exit status: 0; 1 failed; 2 usage or job; 4 device or memory; 5 a rank "
        "died.\n");
}

static struct options cluster_options(struct bench_request *q, struct option *table)
{
    int n = common_options(q, table) - 1; /* all but --json: the result is a file */

    q->steps = 0;
    table[n++] = option_int("steps", &q->steps, "N", 1, 100000,
                            "measure N steps of each program (default: as many as a second has, "
                            "10 to 400)");
    table[n++] = option_text("to", &q->to, "FILE",
                             "the file to write, with FILE.tables.json beside it; default: the one "
                             "of this machine, which plan and pretrain use");
    return with_table(
        table, n, "lmtrain bench cluster",
        "Measure the ops of a job's steps and the collectives of its ranks on this machine, as "
        "lmtrain plan --cluster prices steps with",
        "Exit status: 0; 1 failed; 2 usage or job; 4 device or memory; 5 a rank died.\n");
}

static struct options ceilings_options(struct bench_request *q, struct option *table)
{
    int n = common_options(q, table);

    table[n++] = option_int("seconds", &q->seconds, "N", 1, 3600,
                            "run the matrix product for N seconds (default: 2)");
    return with_table(
        table, n, "lmtrain bench ceilings",
        "Measure the sustained speed of a square matrix product and the memory bandwidth",
        "Only device, dtype and threads of the job are used. Exit status: 0; 1 failed; 2 "
        "usage or job; 4 device or memory; 5 a rank died.\n");
}

static const struct bench_command subcommands[] = {
    { "ops", ops_options, run_ops },
    { "step", step_options, run_step },
    { "comm", comm_options, run_comm },
    { "ceilings", ceilings_options, run_ceilings },
    { "cluster", cluster_options, run_cluster },
};

#define N_SUBCOMMANDS (int)(sizeof subcommands / sizeof *subcommands)

static int run_subcommand(int member, int argc, char **argv)
{
    const struct bench_command *sub = &subcommands[member];
    struct bench_request q = { .steps = 10, .rounds = 10, .max_mb = 64, .seconds = 2 };
    struct option table[OPTIONS_MAX];
    struct options options = sub->options(&q, table);
    struct option_arguments arguments;
    struct arena arena = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = run(sub, &q, arguments.items[0], &arena);
    arena_release(&arena);
    return status;
}

static const char *member_name(int member)
{
    return subcommands[member].name;
}

static void add_help(int member, struct str *out)
{
    struct bench_request q = { 0 };
    struct option table[OPTIONS_MAX];
    struct options options = subcommands[member].options(&q, table);

    options_help(&options, cmd_columns(), out);
}

int cmd_bench(int argc, char **argv)
{
    static const struct cmd_family family = { "bench",       "ops, step, comm, ceilings or cluster",
                                              N_SUBCOMMANDS, member_name,
                                              add_help,      run_subcommand };

    return cmd_run_family(&family, argc, argv);
}
