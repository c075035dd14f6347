/*
 * pmix_first.c - see PMIx's ptl_base_handshake.h
 */
#include "support/pmix_first.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t put(unsigned char *bytes, size_t at, const void *data, size_t n)
{
    memcpy(bytes + at, data, n);
    return at + n;
}

static size_t put_number(unsigned char *bytes, size_t at, uint32_t number)
{
    uint32_t big = htonl(number);

    return put(bytes, at, &big, sizeof big);
}

size_t pmix_first_make(const struct pmix_first *first, unsigned char bytes[PMIX_FIRST_MAX])
{
    static const unsigned char credential[8];
    uint32_t header[4] = { UINT32_MAX, UINT32_MAX, 0, 0 };
    size_t n = sizeof header;

    n = put(bytes, n, "native", 7);
    n = put_number(bytes, n, first->credential_bytes);
    n = put(bytes, n, credential, sizeof credential);
    n = put(bytes, n, &first->kind, 1);
    n = put(bytes, n, first->nspace, strlen(first->nspace) + 1);
    n = put_number(bytes, n, first->rank);
    n = put(bytes, n, first->version, strlen(first->version) + 1);
    n = put(bytes, n, "v41", 4);
    n = put(bytes, n, "\x01", 1); /* buffers say nothing of types */
    n = put(bytes, n, "hash", 5);
    header[2] = (uint32_t)(n - sizeof header);
    put(bytes, 0, header, sizeof header);
    return n;
}

int pmix_first_connect(int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        return -1;
    }
    return fd;
}

int pmix_first_is_refused(int fd)
{
    struct pollfd ready = { .fd = fd, .events = POLLIN };
    char byte;

    return poll(&ready, 1, 60000) == 1 && read(fd, &byte, 1) <= 0;
}
