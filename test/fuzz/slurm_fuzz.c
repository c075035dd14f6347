/*
 * slurm_fuzz.c - what an allocation's environment says, and what becomes of it
 *
 * The input is lines NAME=VALUE. Whatever is taken must be dealt out or refused for any number of
 * ranks, and every rank has a node.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "launch/slurm/slurm_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* context: "NAME=VALUE" texts, each ended by 0, and an empty one. */
static const char *get(const void *context, const char *name)
{
    size_t length = strlen(name);

    for (const char *line = context; *line; line += strlen(line) + 1)
        if (!strncmp(line, name, length) && line[length] == '=')
            return line + length + 1;
    return NULL;
}

static void use(const struct slurm_allocation *allocation, struct arena *arena)
{
    struct slurm_step step;
    struct err err = { 0 };

    CHECK(allocation->n_nodes > 0);
    CHECK(allocation->n_gpus >= 0);
    CHECK(allocation->n_tasks >= 0);
    for (int n_ranks = 1; n_ranks < 300; n_ranks += 37)
        for (int has_smt = 0; has_smt < 2; has_smt++) {
            if (slurm_fit(&step, allocation, n_ranks, has_smt, &err) < 0) {
                CHECK(err.code == ERR_CONFIG);
                continue;
            }
            CHECK(step.n_ranks == n_ranks);
            CHECK(step.n_nodes >= 1 && step.n_nodes <= allocation->n_nodes);
            char *words[] = { (char[]){ "lmtrain" }, NULL };
            struct slurm_command command = { .major = 22, .binary = "lmtrain", .words = words };
            CHECK(slurm_argv(&step, &command, arena));
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct slurm_allocation allocation;
    struct err err = { 0 };
    char *lines = arena_array(&arena, char, (int)n_bytes + 2), *at = lines;

    for (size_t i = 0; i < n_bytes; i++)
        if (data[i] && (data[i] != '\n' || (at > lines && at[-1])))
            *at++ = data[i] == '\n' ? '\0' : (char)data[i];
    at[0] = '\0';
    at[at > lines] = '\0';
    struct context_view view = { .get = get, .context = lines };
    if (slurm_allocation_read(&allocation, &view, &arena, &err) == 0)
        use(&allocation, &arena);
    else
        CHECK(err.code == ERR_FAILED);
    CHECK(slurm_count_gpus(arena_strndup(&arena, (const char *)data, n_bytes)) >= 0);
    arena_release(&arena);
    return 0;
}
