/*
 * job_spec_message.c - the job as bytes, and which variables travel
 */
#include "launch/job_spec_message_impl.h"

#include <stdlib.h>
#include <string.h>

#include "launch/message_impl.h"

enum { RANKS_MAX = 1 << 20 };

static void add_list(struct str *bytes, char *const *texts)
{
    uint32_t n = 0;

    while (texts[n])
        n++;
    message_add_number(bytes, n);
    for (uint32_t i = 0; i < n; i++)
        message_add_text(bytes, texts[i]);
}

void job_spec_encode(const struct job_spec *spec, struct str *bytes)
{
    message_add_text(bytes, spec->nspace);
    message_add_text(bytes, spec->cwd);
    message_add_number(bytes, (uint32_t)spec->attempt);
    message_add_number(bytes, (uint32_t)spec->n_ranks);
    message_add_number(bytes, (uint32_t)spec->node);
    message_add_number(bytes, (uint32_t)spec->has_screen);
    message_add_number(bytes, (uint32_t)spec->progress_ms);
    message_add_number(bytes, (uint32_t)spec->beat_ms);
    message_add_number(bytes, spec->credit_bytes);
    message_add_number(bytes, (uint32_t)spec->n_nodes);
    for (int i = 0; i < spec->n_nodes; i++) {
        message_add_text(bytes, spec->nodes[i].name);
        message_add_number(bytes, (uint32_t)spec->nodes[i].n_ranks);
    }
    add_list(bytes, spec->argv);
    add_list(bytes, spec->variables);
}

/* A number up to max. */
static int read_int(struct message_reader *reader, uint32_t max)
{
    uint32_t number = message_read_number(reader);

    if (number > max)
        reader->broken = true;
    return reader->broken ? 0 : (int)number;
}

/* How many follow, of at least five bytes each: an announcement allocates no more than it sent. */
static int read_count(struct message_reader *reader)
{
    uint32_t n = message_read_number(reader);

    if (n > (size_t)(reader->end - reader->at) / 5)
        reader->broken = true;
    return reader->broken ? 0 : (int)n;
}

static char *const *read_list(struct message_reader *reader, struct arena *arena)
{
    int n = read_count(reader);
    char **texts = arena_array(arena, char *, n + 1);

    for (int i = 0; i < n; i++)
        texts[i] = (char *)(uintptr_t)message_read_text(reader);
    return texts;
}

static int is_host_name(const char *name)
{
    return *name && strlen(name) < 256 && !strpbrk(name, ",;[]() \t\r\n/");
}

static void read_nodes(struct message_reader *reader, struct job_spec *spec, struct arena *arena)
{
    int n = read_count(reader), first_rank = 0;
    struct job_node *nodes = arena_array(arena, struct job_node, n);

    for (int i = 0; i < n; i++) {
        nodes[i].name = message_read_text(reader);
        nodes[i].first_rank = first_rank;
        nodes[i].n_ranks = read_int(reader, (uint32_t)(spec->n_ranks - first_rank));
        first_rank += nodes[i].n_ranks;
        if (!nodes[i].n_ranks || !is_host_name(nodes[i].name))
            reader->broken = true;
    }
    if (first_rank != spec->n_ranks || spec->node >= n)
        reader->broken = true;
    spec->n_nodes = n;
    spec->nodes = nodes;
}

int job_spec_decode(struct job_spec *spec, const void *bytes, size_t n_bytes, struct arena *arena,
                    struct err *err)
{
    struct message_reader reader = { .at = bytes, .end = (const unsigned char *)bytes + n_bytes };
    struct job_spec found = { .nspace = message_read_text(&reader) };

    found.cwd = message_read_text(&reader);
    found.attempt = read_int(&reader, INT32_MAX);
    found.n_ranks = read_int(&reader, RANKS_MAX);
    found.node = read_int(&reader, RANKS_MAX);
    found.has_screen = read_int(&reader, 1);
    found.progress_ms = read_int(&reader, 3600000);
    found.beat_ms = read_int(&reader, 3600000);
    found.credit_bytes = message_read_number(&reader);
    read_nodes(&reader, &found, arena);
    found.argv = read_list(&reader, arena);
    found.variables = read_list(&reader, arena);
    for (int i = 0; found.variables[i]; i++)
        if (!strchr(found.variables[i], '=') || found.variables[i][0] == '=')
            reader.broken = true;
    if (reader.broken || reader.at != reader.end || !found.n_ranks || !found.argv[0] ||
        !*found.nspace || strlen(found.nspace) > 200 || found.cwd[0] != '/')
        return err_set(err, ERR_PEER, "a job spec of %zu bytes is broken", n_bytes);
    *spec = found;
    return 0;
}

/* ---- which variables travel ---- */

/* Whether list ("A,B") names the variable. */
static int is_listed(const char *list, const char *name, size_t length)
{
    while (list && *list) {
        size_t n = strcspn(list, ",");

        if (n == length && !strncmp(list, name, n))
            return 1;
        list += n + (list[n] == ',');
    }
    return 0;
}

static int has_word(const char *name, size_t length, const char *word)
{
    const char *found = strcasestr(name, word);

    return found && found + strlen(word) <= name + length;
}

static int travels(const char *variable, const char *export)
{
    static const char *const prefixes[] = { "LMTRAIN_", "OMPI_MCA_", "UCX_",    "FI_",
                                            "CUDA_",    "NCCL_",     "MALLOC_", "LC_" };
    static const char *const names[] = { "LANG",
                                         "TZ",
                                         "LD_LIBRARY_PATH",
                                         "ASAN_OPTIONS",
                                         "UBSAN_OPTIONS",
                                         "LSAN_OPTIONS",
                                         "TSAN_OPTIONS",
                                         "OMPI_ALLOW_RUN_AS_ROOT",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" };
    static const char *const secrets[] = {
        "KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "COOKIE"
    };
    size_t length = strcspn(variable, "=");

    if (variable[length] != '=' || !length)
        return 0;
    if (is_listed(export, variable, length))
        return 1;
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (has_word(variable, length, secrets[i]))
            return 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts_with(variable, prefixes[i]))
            return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_listed(names[i], variable, length))
            return 1;
    return 0;
}

char *const *job_spec_variables(char *const *environment, struct arena *arena)
{
    const char *export = NULL;
    int n = 0, n_travelling = 0;

    for (; environment[n]; n++)
        if (str_starts_with(environment[n], "LMTRAIN_EXPORT="))
            export = environment[n] + strlen("LMTRAIN_EXPORT=");
    char **found = arena_array(arena, char *, n + 1);

    for (int i = 0; i < n; i++)
        if (travels(environment[i], export))
            found[n_travelling++] = environment[i];
    return found;
}
