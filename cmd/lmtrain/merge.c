/*
 * merge.c - lmtrain merge: fold an adapter into the model it was trained for
 */
#include "cmd.h"

int cmd_merge(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 1;
}
