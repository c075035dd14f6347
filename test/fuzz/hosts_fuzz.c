/*
 * hosts_fuzz.c - lists of hosts, files of hosts, and handshakes to daemons
 *
 * The first byte says which. What is taken as a list must be names that ssh cannot mistake for
 * options, and dealing ranks out must give each its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/remote/hosts_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void use(const struct host_list *list, struct arena *arena)
{
    int *n_ranks_of = arena_array(arena, int, list->n_hosts);
    struct err err = { 0 };

    CHECK(0 < list->n_hosts && list->n_hosts <= HOSTS_MAX);
    for (int i = 0; i < list->n_hosts; i++) {
        const char *name = list->hosts[i].name, *at = strrchr(name, '@');

        CHECK(*name && *name != '-');
        CHECK(!at || (at[1] && at[1] != '-'));
        CHECK(list->hosts[i].n_slots >= 0);
        CHECK(!strpbrk(name, " \t\n;&|$`'\"\\<>(){}*?!#~"));
    }
    for (int n_ranks = 1; n_ranks < 40; n_ranks += 13) {
        int total = 0;

        if (hosts_deal(list, n_ranks, n_ranks_of, &err) < 0) {
            CHECK(err.code == ERR_CONFIG);
            continue;
        }
        for (int i = 0; i < list->n_hosts; i++) {
            CHECK(n_ranks_of[i] >= 0);
            CHECK(!list->hosts[i].n_slots || n_ranks_of[i] <= list->hosts[i].n_slots);
            total += n_ranks_of[i];
        }
        CHECK(total == n_ranks);
    }
}

/* A file that is nowhere but in memory, and the same for all runs. */
static const char *as_file(const char *text, size_t n_bytes)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("hosts", MFD_CLOEXEC);
        CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(pwrite(fd, text, n_bytes, 0) == (ssize_t)n_bytes);
    return path;
}

static void read_handshake(char *text, size_t n_bytes)
{
    struct remote_handshake handshake;
    struct err err = { 0 };

    remote_handshake_is_whole(text, n_bytes);
    if (remote_handshake_read(&handshake, text, "fuzz", &err) < 0) {
        CHECK(err.code == ERR_FAILED || err.code == ERR_CONFIG);
        return;
    }
    CHECK(handshake.index >= 0 && handshake.index < HOSTS_MAX);
    CHECK(handshake.n_addresses > 0 && handshake.n_addresses <= HOSTS_ADDRESSES_MAX);
    CHECK(handshake.seconds > 0 && handshake.link_seconds > 0);
    char again[REMOTE_HANDSHAKE_MAX];
    struct remote_handshake second;
    size_t length = remote_handshake_write(&handshake, again);
    CHECK(remote_handshake_is_whole(again, length));
    CHECK(remote_handshake_read(&second, again, "fuzz", &err) == 0);
    CHECK(second.n_addresses == handshake.n_addresses);
    CHECK(!memcmp(second.cookie, handshake.cookie, sizeof second.cookie));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct host_list list;
    struct err err = { 0 };

    if (n_bytes < 2)
        return 0;
    char *text = arena_strndup(&arena, (const char *)data + 1, n_bytes - 1);
    int kind = data[0] % 3, status = -1;

    if (kind == 0)
        status = hosts_read(&list, as_file((const char *)data + 1, n_bytes - 1), &arena, &err);
    else if (kind == 1 && !strchr(text, '/'))
        status = hosts_read(&list, text, &arena, &err);
    else if (kind == 2)
        read_handshake(text, strlen(text));
    if (status == 0)
        use(&list, &arena);
    else if (kind == 0)
        CHECK(err.code == ERR_CONFIG);
    arena_release(&arena);
    return 0;
}
