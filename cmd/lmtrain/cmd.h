/*
 * cmd.h - the commands of lmtrain
 *
 * To add a command: 1. cmd/lmtrain/NAME.c with cmd_NAME, its table of options and nothing that a
 * module of lib/ should do; 2. a line below; 3. a line in the table of main.c; 4.
 * man/lmtrain-NAME.1, whose OPTIONS test/cli/man.sh holds against `lmtrain NAME -h`.
 *
 * A command gets its own name as argv[0] and returns its exit status (design.md §9). Results go to
 * stdout, everything else to stderr.
 */
#ifndef CMD_H
#define CMD_H

#include "base/options.h"
#include "config/job.h"

int cmd_bench(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_daemon(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_finetune(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_lora(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_pretrain(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_sweep(int argc, char **argv);
int cmd_watch(int argc, char **argv);

/*
 * options_parse for commands: -1 to go on; otherwise the status to return at once, after the help
 * went to stdout or the mistake to stderr.
 */
int cmd_parse(const struct options *options, int argc, char **argv,
              struct option_arguments *arguments, struct arena *arena);

/*
 * The only argument of a command (and of each of its subcommands) that makes cmd_parse print what a
 * shell needs to complete it, instead of parsing, with the shell's name behind it; `lmtrain
 * completion SHELL` calls all of them with it.
 */
#define CMD_COMPLETION "--print-completion="

/* A command that is made of others, as `lmtrain data tokenize`. */
struct cmd_family {
    const char *name;   /* "data" */
    const char *choice; /* what may follow: "tokenize or inspect" */
    int n_members;
    const char *(*member_name)(int member);
    void (*add_help)(int member, struct str *out);
    int (*run)(int member, int argc, char **argv); /* with its own name as argv[0] */
};

/* Find the member that argv[1] names and run it; -h alone is the help of all. */
int cmd_run_family(const struct cmd_family *family, int argc, char **argv);

/* Run every command that is for people with one argument; the first status that is not 0. */
int cmd_each(const char *argument);

/* The ranks a job wants: as it says, else the product of its degrees, where dp auto is 1. */
int cmd_n_ranks(const struct job *job);

/* Add the plan of a resolved job: sizes, memory, FLOPs. Returns 0, or a status after a message. */
int cmd_plan_print(const struct job *job, struct str *out);

/* The option --set KEY=VALUE, alike for all commands that take a job. */
struct option cmd_option_set(struct option_list *sets);

/* How wide help may be: $COLUMNS, else the terminal's columns, 40 to 100; 100 where there is
 * neither. */
int cmd_columns(void);

/* The enum dtype of a word of dtype_conversion_choices: -1 for "keep". */
int cmd_dtype(const char *name);

/* This build, "0.1.0 3301bc0", which all hosts of a job must have. */
const char *cmd_build(void);

/* Append a text to a list of --set, whose items then are in the arena. */
void cmd_add_set(struct option_list *sets, const char *text, struct arena *arena);

/*
 * A new folder below $TMPDIR or /tmp, in arena, for the caller to remove; an interrupt removes it,
 * too (base/interrupt.h). NULL and ERR_FAILED if it cannot be made.
 */
const char *cmd_scratch_folder(struct arena *arena, struct err *err);

/*
 * The path of the cluster file that `lmtrain bench cluster` measured of this machine
 * ($XDG_CACHE_HOME/lmtrain/cluster.yaml), in the arena; NULL if there is none, or, to make one, no
 * home for it.
 */
const char *cmd_machine_cluster(bool to_make, struct arena *arena);

/* Returns 0, or -1 and why it, or something in it, is still there. */
int cmd_remove_scratch(const char *folder, struct err *err);

/* Whether there is anything by the name that --model gives. Returns 0, or -1 and ERR_DATA. */
int cmd_check_model(const char *folder, struct err *err);

/* Print "lmtrain: TEXT" to stderr; returns the error's code, which is the exit status. */
int cmd_fail(const struct err *err);

/* Print text to stdout. Returns 0, or 1 after a line on stderr if it could not be written whole. */
int cmd_print(const struct str *text);

#endif
