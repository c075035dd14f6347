/*
 * completion.c - lmtrain completion SHELL: the script that completes command lines
 *
 * For packagers; `make install` calls it. Nothing is written by hand: the commands print their own
 * tables.
 */
#include <stdio.h>
#include <string.h>

#include "base/completion.h"
#include "cmd.h"
#include "config/man_fields.h"

/* Each command has the text printed by itself, and at once. */
static int print_script(const struct completion_shell *shell)
{
    struct str text = { 0 }, argument = { 0 };

    str_printf(&argument, "%s%s", CMD_COMPLETION, shell->name);
    shell->begin(&text);
    int status = cmd_print(&text);
    if (!status)
        status = cmd_each(str_text(&argument));
    str_clear(&text);
    job_completion(shell, &text);
    shell->end(&text);
    if (!status)
        status = cmd_print(&text);
    str_release(&text);
    str_release(&argument);
    return status;
}

int cmd_completion(int argc, char **argv)
{
    const struct completion_shell *shell = argc == 2 ? completion_shell_find(argv[1]) : NULL;

    if (shell)
        return print_script(shell);
    if (argc > 1)
        fprintf(stderr, "lmtrain completion: %s is not bash, zsh or fish\n", argv[1]);
    fprintf(stderr, "usage: lmtrain completion bash|zsh|fish\n");
    return ERR_CONFIG;
}
