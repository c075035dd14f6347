/*
 * sweep.c - lmtrain sweep: many trials of a job, and what became of them
 */
#include "base/file.h"
#include "base/log.h"
#include "sweep_run.h"

/* A sweep's folder as it stands, read by its history alone. */
static int read_sweep(struct sweep_session *s, const char *folder, struct err *err)
{
    const char *path = history_path(folder, s->arena);

    if (!file_exists(path))
        return err_set(err, ERR_DATA,
                       "%s is not the folder of a sweep: it has no sweep.jsonl (hint: the output "
                       "of the job)",
                       folder);
    s->output = folder;
    if (history_read(&s->history, path, s->arena, err) < 0)
        return -1;
    if (s->history.n_settings < s->history.header.n_trials)
        return err_set(err, ERR_DATA,
                       "%s: it ends before the last trial's settings (hint: the "
                       "sweep's command completes it)",
                       path);
    if (history_replay(&s->history, &s->judge, &s->n_written, s->arena, err) < 0)
        return -1;
    s->reasons = arena_array(s->arena, const char *, s->judge.rules.n_trials);
    for (int i = 0; i < s->history.n_records; i++)
        if (s->history.records[i].event == HISTORY_FAIL)
            s->reasons[s->history.records[i].trial] = s->history.records[i].text;
    return 0;
}

/* Every decision, which has been made again by the rules. */
static void print_decisions(const struct sweep_session *s, struct str *out)
{
    int n = s->judge.n_decisions;

    for (int i = 0; i < n; i++) {
        const struct judge_decision *d = &s->judge.decisions[i];

        str_printf(out, "trial %d, %s: %s\n", d->trial,
                   sweep_rung_name(&s->history.header, d->rung, s->arena),
                   d->goes_on ? "goes on" : "is stopped");
    }
    str_printf(out, "%d decision%s, all as the rules make them\n", n, str_s(n));
}

static int show(const struct sweep_request *q, const char *folder, struct arena *arena)
{
    struct sweep_session s = { .arena = arena };
    struct str out = { 0 };
    struct err err;

    if (q->sets.n || q->hosts || q->trial >= 0 || q->join) {
        err_set(&err, ERR_CONFIG,
                "--set, --hosts, --trial and --join are of a job, but %s is a folder", folder);
        return cmd_fail(&err);
    }
    if (read_sweep(&s, folder, &err) < 0)
        return cmd_fail(&err);
    if (q->replay)
        print_decisions(&s, &out);
    else
        sweep_print(&s, q->json, &out);
    int status = cmd_print(&out);
    str_release(&out);
    return status;
}

static int run(const struct sweep_request *q, const char *job_file, struct arena *arena)
{
    struct err err;

    if (q->join && q->trial >= 0) {
        err_set(&err, ERR_CONFIG,
                "--join takes whichever trial is next, --trial %d a certain one (hint: one of "
                "the two)",
                q->trial);
        return cmd_fail(&err);
    }
    if (q->join)
        return sweep_join(q, job_file, arena);
    return q->trial < 0 ? sweep_run(q, job_file, arena) : sweep_become_trial(q, job_file, arena);
}

int cmd_sweep(int argc, char **argv)
{
    struct sweep_request q = { .trial = -1 };
    struct arena arena = { 0 };
    const struct option table[] = {
        cmd_option_set(&q.sets),
        option_text("hosts", &q.hosts, "FILE|HOST,...",
                    "divide these hosts among the trials that run at a time (sweep.parallel), "
                    "each of which starts its ranks on them through ssh"),
        option_int("trial", &q.trial, "N", 0, SWEEP_TRIALS_MAX - 1,
                   "run trial N alone, to its end, and nothing else: a task of a Slurm array; the "
                   "same command without it, later, takes the results"),
        option_flag("join", &q.join,
                    "take trials beside other processes with this option, one after the other "
                    "until none is left: tasks of a Slurm array, or machines that share OUTPUT"),
        option_flag("replay", &q.replay,
                    "of a folder: make all decisions again from the values in its history, compare "
                    "them with those that were made, and print them"),
        option_flag("json", &q.json, "print the result as JSON"),
    };
    const struct options options = {
        .command = "lmtrain sweep",
        .arguments = "JOB.yaml|DIR",
        .summary = "Run a job's sweep (its keys sweep.*), or show the sweep in a folder",
        .details =
            "Each trial is a run of the job with other values, in OUTPUT/trial-NNN, as its kind "
            "(pretrain,\nfinetune, lora) is run. The best ones are printed at the end. The same "
            "command continues a sweep\nthat was interrupted: finished trials are kept, others "
            "resume from their checkpoints.\nExit status: 0; 1 no trial finished; 2 usage or job; "
            "3 the history is unreadable, or is not what\nthe rules make; 75 interrupted, start "
            "the sweep again to continue.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0) {
        const char *what = arguments.items[0];

        if (file_is_folder(what)) {
            status = show(&q, what, &arena);
        } else if (q.replay) {
            struct err err;

            err_set(&err, ERR_CONFIG,
                    "--replay is of a sweep's folder, not of a job (hint: its "
                    "output)");
            status = cmd_fail(&err);
        } else {
            status = run(&q, what, &arena);
        }
    }
    arena_release(&arena);
    return status;
}
