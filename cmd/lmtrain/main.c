/*
 * main.c - finds the command
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/store.h"
#include "cmd.h"
#include "data/stream/indexed.h"
#include "train/numerics.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* NULL: not for people */
};

static const struct command commands[] = {
    { "pretrain", cmd_pretrain, "train a model from one job file" },
    { "finetune", cmd_finetune, "finetune a model on instruction data" },
    { "lora", cmd_lora, "train low-rank adapters (LoRA) of a model" },
    { "sweep", cmd_sweep, "run many trials of a job with other values, and find the best" },
    { "merge", cmd_merge, "merge a LoRA adapter into its base model" },
    { "generate", cmd_generate, "generate text with a trained model" },
    { "eval", cmd_eval, "evaluate a trained model: perplexity and benchmarks" },
    { "convert", cmd_convert, "convert a Hugging Face folder to a checkpoint, or back" },
    { "plan", cmd_plan, "predict memory and FLOPs of a job before it runs" },
    { "report", cmd_report, "make what a run recorded into files to look at" },
    { "watch", cmd_watch, "show how a run is that goes on elsewhere" },
    { "bench", cmd_bench,
      "measure the speed of a job on this machine, op by op, against the hardware limits" },
    { "data", cmd_data,
      "tokenize text, merge and inspect token files, preview finetuning samples" },
    { "config", cmd_config, "print a job with all fields, or explain a field" },
    { "doctor", cmd_doctor, "check this machine's hardware and software for training" },
    { "completion", cmd_completion, NULL },
    { "daemon", cmd_daemon, NULL },
};

#define N_COMMANDS (int)(sizeof commands / sizeof *commands)

/*
 * In a folder of `make dist` the plugins of Open MPI and PMIx lie beside us. Who names others,
 * means them.
 */
static void find_plugins(void)
{
    char path[4096], plugins[sizeof path + 32];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n <= 0)
        return;
    path[n] = 0;
    for (int i = 0; i < 2 && strrchr(path, '/'); i++) /* bin/lmtrain */
        *strrchr(path, '/') = 0;
    snprintf(plugins, sizeof plugins, "%s/lib/lmtrain/openmpi", path);
    if (access(plugins, R_OK) == 0)
        setenv("OMPI_MCA_mca_base_component_path", plugins, 0);
    snprintf(plugins, sizeof plugins, "%s/lib/lmtrain/pmix", path);
    if (access(plugins, R_OK) == 0)
        setenv("PMIX_MCA_mca_base_component_path", plugins, 0);
}

static void add_command(const struct command *command, struct str *out)
{
    str_printf(out, "  %-12s", command->name);
    options_wrap(out, command->help, 14, 14, cmd_columns());
}

static int usage(int status)
{
    struct str text = { 0 };

    str_add(&text, "usage: lmtrain COMMAND [ARGUMENTS]\n\n"
                   "Trains language models from one job file.\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].help)
            add_command(&commands[i], &text);
    str_add_char(&text, '\n');
    options_wrap(&text,
                 "`lmtrain COMMAND -h` shows the options of a command; `lmtrain --version` or -V "
                 "the version.",
                 0, 0, cmd_columns());
    if (status == 0)
        status = cmd_print(&text);
    else
        fputs(str_text(&text), stderr);
    str_release(&text);
    return status;
}

static int unknown(const char *name)
{
    static const char *const later[] = { "serve" };
    const char *names[N_COMMANDS];
    int n = 0;

    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (!strcmp(name, later[i])) {
            fprintf(stderr, "lmtrain: %s is not built yet (hint: lmtrain -h lists all commands)\n",
                    name);
            return ERR_CONFIG;
        }

    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].help)
            names[n++] = commands[i].name;
    const char *near = str_nearest(name, names, n);
    if (near)
        fprintf(stderr, "lmtrain: unknown command %s (hint: %s)\n", name, near);
    else
        fprintf(stderr, "lmtrain: unknown command %s (hint: lmtrain -h lists all)\n", name);
    return ERR_CONFIG;
}

int cmd_each(const char *argument)
{
    int status = 0;

    for (int i = 0; i < N_COMMANDS && !status; i++) {
        char *argv[] = { (char *)(uintptr_t)commands[i].name, (char *)(uintptr_t)argument, NULL };

        if (commands[i].help)
            status = commands[i].run(2, argv);
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(ERR_CONFIG);
    find_plugins();
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))
        return usage(0);
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("lmtrain %s\nformats: checkpoint %d, numerics %d, token files %d\n", cmd_build(),
               STORE_VERSION, NUMERICS_VERSION, INDEXED_VERSION);
        return fflush(stdout) ? ERR_FAILED : 0;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
