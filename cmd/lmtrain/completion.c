/*
 * completion.c - lmtrain completion bash: the script that completes command lines in bash
 *
 * For packagers; `make install` calls it. Nothing is written by hand: the commands print their own
 * tables.
 */
#include <stdio.h>
#include <string.h>

#include "base/completion.h"
#include "cmd.h"
#include "config/man_fields.h"

int cmd_completion(int argc, char **argv)
{
    struct str text = { 0 };

    if (argc != 2 || strcmp(argv[1], "bash") != 0) {
        if (argc > 1)
            fprintf(stderr,
                    "lmtrain completion: %s is not bash, the only shell that is supported\n",
                    argv[1]);
        fprintf(stderr, "usage: lmtrain completion bash\n");
        return ERR_CONFIG;
    }
    completion_begin(&text);
    int status = cmd_print(&text);
    if (!status)
        status = cmd_each(CMD_COMPLETION);
    str_clear(&text);
    job_completion(&text);
    completion_end(&text);
    if (!status)
        status = cmd_print(&text);
    str_release(&text);
    return status;
}
