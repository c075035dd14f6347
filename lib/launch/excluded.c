/*
 * excluded.c - the file of excluded hosts
 */
#include "launch/excluded.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "launch/environment_impl.h"

enum { FILE_MAX_BYTES = 1 << 20 };

static const char blanks[] = " \t\r";

const char *excluded_path(const char *output, struct arena *arena)
{
    return arena_printf(arena, "%s/excluded_hosts", output);
}

/* Cut the line at the first of these; returns what follows, without blanks in front. */
static char *cut(char *line, const char *at)
{
    char *rest = line + strcspn(line, at);

    if (*rest)
        *rest++ = '\0';
    return rest + strspn(rest, blanks);
}

/* "HOST\tTIME\tREASON", "HOST REASON" or "HOST". */
static struct excluded_host read_line(char *line)
{
    struct excluded_host found = { .host = line, .time = "" };
    char *rest = cut(line, blanks), *tab = strchr(rest, '\t');
    size_t length = strlen(rest);

    while (length && strchr(blanks, rest[length - 1]))
        rest[--length] = '\0';
    found.reason = rest;
    if (tab && *tab) {
        found.time = rest;
        found.reason = cut(rest, "\t");
    }
    return found;
}

int excluded_read(struct excluded_hosts *list, const char *output, struct arena *arena,
                  struct err *err)
{
    const char *path = excluded_path(output, arena);
    struct excluded_host *hosts = NULL;
    int n = 0, capacity = 0;
    char *data, *save = NULL;
    size_t n_bytes;

    *list = (struct excluded_hosts){ 0 };
    if (!file_exists(path))
        return 0;
    if (file_read(path, FILE_MAX_BYTES, ERR_CONFIG, &data, &n_bytes, err))
        return -1;
    char *text = arena_strdup(arena, data);
    free(data);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        line += strspn(line, blanks);
        if (!*line || *line == '#')
            continue;
        hosts = arena_grow(arena, hosts, sizeof *hosts, &capacity, n + 1);
        hosts[n++] = read_line(line);
    }
    *list = (struct excluded_hosts){ n, hosts };
    return 0;
}

const struct excluded_host *excluded_find(const struct excluded_hosts *list, const char *host)
{
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->hosts[i].host, host))
            return &list->hosts[i];
    return NULL;
}

static int check_name(const char *host, struct err *err)
{
    if (!*host || *host == '#')
        return err_set(err, ERR_CONFIG, "'%s' is no host name", host);
    for (const char *c = host; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 127)
            return err_set(err, ERR_CONFIG, "host '%s' has a blank or control character", host);
    return 0;
}

static void add_line(struct str *text, const char *host, const char *why)
{
    char now[32];
    time_t seconds = time(NULL);
    struct tm tm;

    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
    str_printf(text, "%s\t%s\t", host, now);
    for (const char *c = why; *c; c++)
        str_add_char(text, (unsigned char)*c < ' ' || *c == 127 ? ' ' : *c);
    str_add_char(text, '\n');
}

/* Behind the file's lines, by one write: others may add lines, and a link to a list of many runs
 * stays one. */
static int append(const char *path, const struct str *line, struct err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "%s", path);
    ssize_t n = write(fd, line->data, line->length);
    int status = n == (ssize_t)line->length && fsync(fd) == 0 ? 0 : -1;
    if (status)
        err_set_errno(err, ERR_FAILED, "%s", path);
    close(fd);
    return status;
}

int excluded_add(const char *output, const char *host, const char *why, struct err *err)
{
    struct arena arena = { 0 };
    struct excluded_hosts list;
    struct str text = { 0 };
    const char *path = excluded_path(output, &arena);
    char *data = NULL;
    size_t n_bytes = 0;
    int status = check_name(host, err) || excluded_read(&list, output, &arena, err) ? -1 : 0;

    if (!status && !excluded_find(&list, host)) {
        if (file_exists(path))
            status = file_read(path, FILE_MAX_BYTES, ERR_CONFIG, &data, &n_bytes, err);
        if (!status) {
            if (n_bytes && data[n_bytes - 1] != '\n')
                str_add_char(&text, '\n');
            add_line(&text, host, why);
            status = append(path, &text, err);
        }
    }
    free(data);
    str_release(&text);
    arena_release(&arena);
    return status;
}

const char *launch_host(void)
{
    static char name[256];
    const char *host = getenv(HOST_VARIABLE);

    if (!host || !*host)
        host = getenv("SLURMD_NODENAME");
    if (host && *host)
        return host;
    if (!*name && gethostname(name, sizeof name - 1))
        snprintf(name, sizeof name, "localhost");
    return name;
}
