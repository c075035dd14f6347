/*
 * common.c - what all commands do alike
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/completion.h"
#include "base/dtype_choices.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/num.h"
#include "cmd.h"
#include "config/man_fields.h"
#include "device/device.h"
#include "serve/served.h"
#include "version.h"

#define HELP_WIDTH_MIN 40
#define FAMILY_MAX 16

int cmd_print(const struct str *text)
{
    if (fwrite(str_text(text), 1, text->length, stdout) == text->length && !fflush(stdout))
        return 0;
    perror("lmtrain: standard output");
    return ERR_FAILED;
}

const char *cmd_build(void)
{
    return LMTRAIN_VERSION " " LMTRAIN_DESCRIBE;
}

const char *cmd_scratch_folder(struct arena *arena, struct err *err)
{
    const char *base = getenv("TMPDIR");
    char *folder = arena_printf(arena, "%s/lmtrain-XXXXXX", base && *base ? base : "/tmp");

    if (mkdtemp(folder)) {
        interrupt_mark(folder);
        return folder;
    }
    err_set_errno(err, ERR_FAILED, "cannot make the folder %s (hint: TMPDIR)", folder);
    return NULL;
}

int cmd_remove_scratch(const char *folder, struct err *err)
{
    int status = file_remove_tree(folder, err);

    interrupt_forget(folder);
    return status;
}

int cmd_check_model(const char *folder, struct err *err)
{
    return served_is(folder) ? 0 : hf_folder_refuse(folder, err);
}

int cmd_fail(const struct err *err)
{
    /* A command line's mistakes begin with the command: "lmtrain plan: ...". */
    fprintf(stderr, "%s%s\n", str_starts_with(err->text, "lmtrain ") ? "" : "lmtrain: ", err->text);
    return err->code ? (int)err->code : ERR_FAILED;
}

struct option cmd_option_set(struct option_list *sets)
{
    return option_list("set", sets, "KEY=VALUE", "override a field of the job; may be repeated");
}

int cmd_dtype(const char *name)
{
    return choice_find(dtype_conversion_choices, name)->value;
}

static int help_of_family(const struct cmd_family *family)
{
    struct str out = { 0 };

    for (int i = 0; i < family->n_members; i++) {
        if (i > 0)
            str_add_char(&out, '\n');
        family->add_help(i, &out);
    }
    int status = cmd_print(&out);
    str_release(&out);
    return status;
}

int cmd_run_family(const struct cmd_family *family, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (!strcmp(name, "-h") || !strcmp(name, "--help"))
        return help_of_family(family);
    if (str_starts_with(name, CMD_COMPLETION)) {
        int status = 0;

        for (int i = 0; i < family->n_members && !status; i++)
            status = family->run(i, argc, argv);
        return status;
    }
    for (int i = 0; i < family->n_members; i++)
        if (!strcmp(name, family->member_name(i)))
            return family->run(i, argc - 1, argv + 1);
    const char *names[FAMILY_MAX];
    for (int i = 0; i < family->n_members && i < FAMILY_MAX; i++)
        names[i] = family->member_name(i);
    const char *near =
        *name ? str_nearest(name, names, min_int(family->n_members, FAMILY_MAX)) : NULL;
    fprintf(stderr, "lmtrain: %s%s%s: give %s (hint: lmtrain %s %s)\n", family->name,
            *name ? " " : "", name, family->choice, family->name, near ? near : "-h");
    return ERR_CONFIG;
}

int cmd_n_ranks(const struct job *job)
{
    int one_copy = job->parallel.tp * job->parallel.pp * job->parallel.cp;
    int n_gpus = job->device == JOB_DEVICE_CPU ? 0 : device_cuda_seen();

    if (job->ranks)
        return job->ranks;
    /* What the job leaves open is one rank a GPU. */
    return (job->parallel.dp ? job->parallel.dp : max_int(1, n_gpus / one_copy)) * one_copy;
}

static bool has_option(const struct options *options, const char *name)
{
    for (int i = 0; i < options->n_options; i++)
        if (!strcmp(options->table[i].name, name))
            return true;
    return false;
}

/* What others call an option, where it is not near ours by its letters. */
static int refuse_synonyms(const struct options *options, int argc, char **argv, struct err *err)
{
    static const char *const names[][2] = {
        { "world", "ranks" },
        { "world-size", "ranks" },
        { "np", "ranks" },
        { "nproc", "ranks" },
        { "nproc-per-node", "ranks" },
        { "ntasks", "ranks" },
        { "model", "base" },
        { "model", "from" },
        { "input", "from" },
        { "input", "prompts" },
        { "output", "to" },
        { "output", "out" },
        { "out", "to" },
        { "max-tokens", "max-new-tokens" },
        { "max-length", "max-new-tokens" },
        { "checkpoint", "model" },
        { "jobs", "threads" },
        { "n-threads", "threads" },
    };

    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            size_t length = strlen(names[k][0]);

            if (!strncmp(argv[i], "--", 2) && !strncmp(argv[i] + 2, names[k][0], length) &&
                (!argv[i][2 + length] || argv[i][2 + length] == '=') &&
                !has_option(options, names[k][0]) && has_option(options, names[k][1]))
                return err_set(err, ERR_CONFIG, "%s: unknown option --%s (hint: --%s)",
                               options->command, names[k][0], names[k][1]);
        }
    return 0;
}

int cmd_columns(void)
{
    const char *given = getenv("COLUMNS");
    struct winsize size;
    int64_t n = 0;

    if ((!given || str_to_i64(given, &n)) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
        n = size.ws_col;
    if (n <= 0)
        return OPTIONS_HELP_WIDTH;
    return (int)(n < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : min_i64(n, OPTIONS_HELP_WIDTH));
}

int cmd_parse(const struct options *given, int argc, char **argv,
              struct option_arguments *arguments, struct arena *arena)
{
    struct options copy = *given, *options = &copy;
    struct err err;
    struct str help = { 0 };

    if (has_option(options, "set"))
        options->suggest = job_option_hint;
    if (argc == 2 && str_starts_with(argv[1], CMD_COMPLETION)) {
        completion_shell_find(argv[1] + strlen(CMD_COMPLETION))->options(options, &help);
        int printed = cmd_print(&help);
        str_release(&help);
        return printed;
    }
    int status = refuse_synonyms(options, argc, argv, &err) < 0
                     ? -1
                     : options_parse(options, argc, argv, arguments, arena, &err);

    for (int i = 0; status == 0 && i < arguments->n_warnings; i++)
        log_warn("%s", arguments->warnings[i]);
    if (status == 0)
        return -1;
    if (status < 0)
        return cmd_fail(&err);
    options_help(options, cmd_columns(), &help);
    status = cmd_print(&help);
    str_release(&help);
    return status;
}

const char *cmd_machine_cluster(bool to_make, struct arena *arena)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *folder;
    struct err ignored;

    if (cache && *cache)
        folder = arena_printf(arena, "%s/lmtrain", cache);
    else if (home && *home)
        folder = arena_printf(arena, "%s/.cache/lmtrain", home);
    else
        return NULL;
    const char *path = arena_printf(arena, "%s/cluster.yaml", folder);
    if (to_make)
        return file_make_folders(folder, &ignored) < 0 ? NULL : path;
    return access(path, R_OK) == 0 ? path : NULL;
}

void cmd_add_set(struct option_list *sets, const char *text, struct arena *arena)
{
    const char **items = arena_array(arena, const char *, sets->n + 1);

    if (sets->n)
        memcpy(items, sets->items, sizeof *items * (size_t)sets->n);
    items[sets->n++] = text;
    sets->items = items;
}
