/*
 * pretrain.c - lmtrain pretrain, finetune, lora: train a model from one job file
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/log_file.h"
#include "ckpt/store.h"
#include "cmd.h"
#include "config/job.h"
#include "launch/launch.h"
#include "ranks.h"
#include "searched.h"
#include "train/codec_start.h"
#include "train/job_file.h"
#include "train/pretrain.h"
#include "train/signals.h"
#include "tuned.h"

/* One of the commands. */
struct training {
    const char *name, *kind; /* kind: the job's, as --set has it */
    const char *summary, *details;
};

struct pretrain_request {
    const struct training *training;
    struct option_list sets;
    const char *resume, *hosts;
    int ranks;
    int64_t stop_at;
    bool accept_numerics, dry_run, replan;
};

static int dry_run(const struct job *job)
{
    struct str out = { 0 };

    job_log_warnings(job);
    job_print(job, &out);
    for (int i = 0; i < job->n_notes; i++)
        str_printf(&out, i ? "# %s\n" : "\n# %s\n", job->notes[i]);
    int status = cmd_plan_print(job, &out);
    if (!status)
        status = cmd_print(&out);
    str_release(&out);
    return status;
}

static int train(const struct pretrain_request *q, struct job *job, const struct launch_rank *rank)
{
    const struct engine_request request = { job->threads, job->device };
    struct engine engine;
    struct err err;

    if (engine_open(&engine, rank, &request, &err) < 0)
        return ranks_fail(rank, &err);
    engine_settle(&engine, job);
    if (engine_find_nodes(&engine, job, &err) < 0)
        return ranks_fail(rank, &err);
    struct pretrain_options options = {
        .job = job,
        .resume = q->resume,
        .accept_numerics = q->accept_numerics,
        .engine = &engine,
        .stop_at = q->stop_at,
        .build = cmd_build(),
        .may_be_done = job->kind != JOB_PRETRAIN && tuned_is_unfinished(job),
        .on_saved = job->kind == JOB_PRETRAIN ? NULL : tuned_saved,
        .context = job,
    };
    int agreed;
    int status = pretrain(&options, &agreed, &err) < 0 ? (int)err.code : 0;
    if (!agreed)
        return ranks_fail(rank, &err);
    /* What all ranks return is said once. */
    if (status && rank->world_rank == 0)
        cmd_fail(&err);
    engine_close(&engine);
    if (!status && rank->world_rank == 0 && job->kind != JOB_PRETRAIN) {
        interrupt_catch("the training is saved; the same command writes the missing files");
        status = tuned_finish(job);
    }
    launch_leave();
    return status;
}

/* Ranks that another launcher has started are all part of the run. */
static int check_started(const struct job *job, int n_ranks, int n_started, struct err *err)
{
    if (n_ranks == n_started)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: search.allow_idle is true and the best layout has %d ranks, but the "
                   "launcher started %d (hint: start %d, or search.allow_idle: false)",
                   job->source, n_ranks, n_started, n_ranks);
}

/* What the run that goes on has chosen, and its job would choose otherwise now; for the ranks, too.
 */
static void take_codec_start(const struct pretrain_request *q, struct job *job,
                             struct option_list *sets, struct arena *arena)
{
    if (!codec_start_from_run(job, q->resume, arena))
        return;
    const char *set =
        arena_printf(arena, "parallel.compress_start=%d", job->parallel.compress_start);
    if (ranks_expected() == 0)
        log_info("%s, as in the run that is resumed", set);
    cmd_add_set(sets, set, arena);
}

static int run_rank(const struct pretrain_request *q, struct job *job, struct arena *arena)
{
    struct option_list ignored = { 0 };
    struct launch_rank rank;
    struct err err;

    /*
     * A signal to stop that arrives while the job starts takes effect at the end of its first step.
     */
    signals_catch();
    int status = ranks_join(&rank, job, RANKS_WITH_LOGS, &err);
    if (status)
        return status;
    int n_ranks = rank.world_size;
    take_codec_start(q, job, &ignored, arena);
    if (searched_layout(job, &n_ranks, q->replan, &ignored, arena, &err) < 0 ||
        check_started(job, n_ranks, rank.world_size, &err) < 0 ||
        job_resolve(job, n_ranks, arena, &err) < 0)
        return ranks_fail(&rank, &err);
    job_take_replica(job, rank.world_rank);
    return train(q, job, &rank);
}

/* Before anybody makes a file in the run's folder: the head its logs, a rank all else. */
static void settle_files(const struct job *job)
{
    static const enum file_sharing sharings[] = {
        [OUTPUT_PRIVATE] = FILE_PRIVATE, [OUTPUT_GROUP] = FILE_GROUP, [OUTPUT_ALL] = FILE_ALL
    };

    file_share(sharings[job->output_mode]);
    log_file_set_limit((size_t)job->metrics.log_mb << 20);
}

/* tuned_prepare whose output folder is one of its own, which goes again; samples and steps stay
 * known. */
static int prepare_nothing(struct job *job, struct arena *arena)
{
    const char *output = job->output, *scratch, *tokenizer;
    struct err err;

    if (!(scratch = cmd_scratch_folder(arena, &err)))
        return cmd_fail(&err);
    job->output = scratch;
    int status = tuned_prepare(job, arena);
    job->output = output;
    tokenizer = job->data.tokenizer;
    if (tokenizer && str_starts_with(tokenizer, scratch))
        job->data.tokenizer = arena_printf(arena, "%s%s", output, tokenizer + strlen(scratch));
    if (cmd_remove_scratch(scratch, &err) < 0)
        log_warn("%s", err.text);
    return status;
}

/* A run that is there goes on, whatever it began with. */
static int check_init(const struct pretrain_request *q, const struct job *job, struct arena *arena,
                      struct err *err)
{
    const char *folder = job->train.unsaid_init;
    struct err ignored;

    if (!folder || (strcmp(q->resume, "auto") != 0 && strcmp(q->resume, "none") != 0) ||
        store_count(arena_printf(arena, "%s/checkpoints", job->output), &ignored) > 0)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: model is %s, which has weights, but train.init is not given (hint: "
                   "train.init: %s, or train.init: random)",
                   job->source, folder, folder);
}

/*
 * A job that says what it is must not become something else by the command: adapters that were
 * meant would be a model trained from scratch. Mistakes in the file are reported by the read that
 * follows.
 */
static int check_kind(const struct pretrain_request *q, const char *path, struct arena *arena,
                      struct err *err)
{
    struct job job;
    struct err ignored;
    struct stat status;

    /* What comes through a pipe can be read once. */
    if (stat(path, &status) < 0 || !S_ISREG(status.st_mode) ||
        job_read(&job, path, q->sets.items, q->sets.n, arena, &ignored) < 0 || !job.kind_given ||
        !strcmp(choice_word(job_kind_choices, (int)job.kind), q->training->name))
        return 0;
    const char *kind = choice_word(job_kind_choices, (int)job.kind);
    return err_set(err, ERR_CONFIG, "%s: kind is %s, the command is %s (hint: lmtrain %s %s)", path,
                   kind, q->training->name, kind, path);
}

static int run(const struct pretrain_request *q, const char *path, struct arena *arena)
{
    struct ranks ranks;
    struct job job;
    struct err err;

    if (!launch_is_rank())
        interrupt_catch("no step was trained yet; the same command starts from the beginning");
    if (check_kind(q, path, arena, &err) < 0)
        return cmd_fail(&err);
    const char **sets = arena_array(arena, const char *, q->sets.n + 1);
    for (int i = 0; i < q->sets.n; i++)
        sets[i] = q->sets.items[i];
    sets[q->sets.n] = q->training->kind;
    if (job_read(&job, path, sets, q->sets.n + 1, arena, &err) < 0)
        return cmd_fail(&err);
    if (check_init(q, &job, arena, &err) < 0 || job_file_check(&job, &err) < 0 ||
        (job.kind != JOB_PRETRAIN && tuned_check_output(&job, &err) < 0))
        return cmd_fail(&err);
    if (q->ranks)
        job.ranks = q->ranks;
    if (ranks_find(&ranks, &job, q->hosts, arena, &err) < 0)
        return cmd_fail(&err);
    settle_files(&job);
    if (job.kind != JOB_PRETRAIN) {
        int status = q->dry_run ? prepare_nothing(&job, arena) : tuned_prepare(&job, arena);

        if (status)
            return status;
    }
    if (ranks.context == CONTEXT_RANK && !q->dry_run)
        return run_rank(q, &job, arena);
    struct option_list all_sets = q->sets;
    int n_offered = ranks.n_ranks;
    take_codec_start(q, &job, &all_sets, arena);
    if (searched_layout(&job, &ranks.n_ranks, q->replan, &all_sets, arena, &err) < 0 ||
        job_resolve(&job, ranks.n_ranks, arena, &err) < 0)
        return cmd_fail(&err);
    if (q->dry_run)
        return dry_run(&job);
    if (ranks.n_ranks != n_offered)
        ranks.is_open = false; /* the layout is for that number */
    if (!ranks_are_started(&ranks, &job))
        return run_rank(q, &job, arena);
    const char *more[4] = { NULL };
    int n_more = 0;
    if (q->accept_numerics)
        more[n_more++] = "--accept-numerics";
    if (q->stop_at) {
        more[n_more++] = "--stop-at";
        more[n_more] = arena_printf(arena, "%lld", (long long)q->stop_at);
    }
    struct ranks_command command = { .name = q->training->name,
                                     .job_path = path,
                                     .sets = &all_sets,
                                     .resume = q->resume,
                                     .more = more };
    return ranks_start(&ranks, &job, &command, arena);
}

static int train_command(const struct training *training, int argc, char **argv)
{
    struct pretrain_request q = { .training = training, .resume = "auto" };
    struct arena arena = { 0 };
    const struct option table[] = {
        cmd_option_set(&q.sets),
        option_int("ranks", &q.ranks, "N", 1, 1000000,
                   "run on N ranks; overrides ranks of the job"),
        option_text(
            "hosts", &q.hosts, "FILE|HOST,...",
            "run on these hosts through ssh: a comma-separated list, or a file with one host per "
            "line; HOST:N starts N ranks on a host, else ranks are divided equally"),
        option_text(
            "resume", &q.resume, "auto|none|DIR",
            "auto: continue from the newest checkpoint in the output folder, if there is one; "
            "none: fail if there is one; DIR: start from that run or checkpoint (default: auto)"),
        option_flag("accept-numerics", &q.accept_numerics,
                    "resume although the arithmetic differs from the checkpoint's (another dtype, "
                    "kind of machine or version of lmtrain); it is refused otherwise"),
        option_flag("replan", &q.replan,
                    "search the layout again although the run in the output folder has one (with "
                    "parallel.mode auto, semi or data), and the sizes of parallel.micro_batches "
                    "auto, which are numerics"),
        option_i64("stop-at", &q.stop_at, "STEP", 1, 1e15,
                   "save a checkpoint after this step and exit with status 75; the same command "
                   "without it, or with a later step, continues to the same bits"),
        option_flag("dry-run", &q.dry_run, "print the resolved job and its plan, do not train"),
    };
    const struct options options = {
        .command = arena_printf(&arena, "lmtrain %s", training->name),
        .arguments = "JOB.yaml",
        .summary = training->summary,
        .details = training->details,
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = run(&q, arguments.items[0], &arena);
    arena_release(&arena);
    return status;
}

#define ENDS \
    "On SIGTERM, SIGINT, SIGHUP and SIGUSR1 the job saves a checkpoint after the current step " \
    "and exits with status 75; " \
    "an\n" \
    "evaluation stops at its next batch.\n" \
    "Exit status: 0; 1 failed; 2 usage or job; 3 data or checkpoint; 4 device or\n" \
    "memory; 5 a rank died; 75 checkpoint saved, start the job again to continue.\n"

int cmd_pretrain(int argc, char **argv)
{
    static const struct training training = { "pretrain", "kind=pretrain",
                                              "Train a model from scratch, or continue a run",
                                              ENDS };

    return train_command(&training, argc, argv);
}

int cmd_finetune(int argc, char **argv)
{
    static const struct training training = {
        "finetune", "kind=finetune",
        "Finetune a model on instruction data: all parameters, or those that train.only names",
        "The job's model is a Hugging Face folder, a checkpoint or a run. The trained model is "
        "written\nto OUTPUT/model, as a Hugging Face folder.\n" ENDS
    };

    return train_command(&training, argc, argv);
}

int cmd_lora(int argc, char **argv)
{
    static const struct training training = {
        "lora", "kind=lora",
        "Train low-rank adapters (LoRA) on instruction data; the base model stays frozen",
        "The job's model is a Hugging Face folder, a checkpoint or a run. The adapter is written "
        "to\nOUTPUT/adapter, in peft's format; lmtrain merge merges it into the model.\n" ENDS
    };

    return train_command(&training, argc, argv);
}
