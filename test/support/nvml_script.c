/*
 * nvml_script.c - the file that the stand-in reads, in a folder of its own
 */
#include "support/nvml_script.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"

#define STUB "test/device/libnvidia-ml.so.1" /* below the folder that has test/MODULE/NAME_test */

static char folder[64];

void nvml_script(const char *lines)
{
    const char *path = getenv("NVML_STUB");
    struct err err;

    CHECK(path);
    CHECK(!file_write(path, lines, strlen(lines), &err));
}

/* The tests of a build lie in test/MODULE or test/emulated/MODULE of its folder. */
static void find_stub(void)
{
    char own[PATH_MAX], path[PATH_MAX + sizeof STUB];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);

    CHECK(n > 0);
    own[n] = '\0';
    char *test = strstr(own, "/test/");
    for (char *next = test; next; next = strstr(next + 1, "/test/"))
        test = next;
    CHECK(test);
    *test = '\0';
    snprintf(path, sizeof path, "%s/" STUB, own);
    CHECK(!access(path, R_OK));
    setenv("LMTRAIN_NVML", path, 1);
}

int nvml_script_begin(void **state)
{
    char script[sizeof folder + 8];

    (void)state;
    snprintf(folder, sizeof folder, "/tmp/nvml-test-XXXXXX");
    CHECK(mkdtemp(folder));
    snprintf(script, sizeof script, "%s/script", folder);
    setenv("NVML_STUB", script, 1);
    nvml_script("");
    find_stub();
    return 0;
}

int nvml_script_end(void **state)
{
    struct err ignored;

    (void)state;
    file_remove_tree(folder, &ignored);
    return 0;
}
