/*
 * doctor_command.c - asking other programs, none of which may keep the doctor waiting
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_impl.h"
#include "launch/command.h"

enum { OUTPUT_BYTES_MAX = 8192 };

const char *doctor_find_in_path(struct doctor *doctor, const char *name)
{
    const char *path = getenv("PATH");

    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");
        const char *file = arena_printf(doctor->arena, "%.*s/%s", (int)length, path, name);

        if (access(file, X_OK) == 0)
            return file;
        path += length;
        path += *path == ':';
    }
    return NULL;
}

const char *doctor_command(struct doctor *doctor, char *const *argv, double timeout_seconds)
{
    const char *text = NULL;
    struct str said = { 0 };

    if (doctor_find_in_path(doctor, argv[0]) != NULL &&
        command_capture(argv, timeout_seconds, &said) == 0)
        text = arena_strndup(doctor->arena, str_text(&said),
                             said.length < OUTPUT_BYTES_MAX ? said.length : OUTPUT_BYTES_MAX);
    str_release(&said);
    return text;
}
