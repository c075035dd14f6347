/*
 * tcp_card.c - where a rank can be reached, as it tells the others
 *
 * Card: the machine[16], the name[16] of the Unix socket, a count, and so many addresses of 19
 * bytes: 4 or 6, the port's two bytes, the higher one first, and 16 of the address.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/num.h"
#include "base/str.h"
#include "comm/tcp_impl.h"

/* What two processes have alike that see each other's Unix sockets, and each other's users
 * alike. */
void tcp_card_machine(unsigned char machine[16])
{
    static const char *const spaces[] = { "/proc/self/ns/net", "/proc/self/ns/user" };
    char text[512] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, 64);

    if (fd >= 0)
        close(fd);
    if (n <= 0) {
        randombytes_buf(machine, 16); /* equal to no other machine's */
        return;
    }
    gethostname(text + n, 256);
    for (int i = 0; i < 2; i++) {
        struct stat stat_of = { 0 };
        size_t used = strlen(text);

        stat(spaces[i], &stat_of);
        snprintf(text + used, sizeof text - used, " %lld %lld", (long long)stat_of.st_dev,
                 (long long)stat_of.st_ino);
    }
    crypto_generichash(machine, 16, (unsigned char *)text, strlen(text), NULL, 0);
}

/* A name without a file: "\0lmtrain-" and 32 digits. */
void tcp_card_unix(const unsigned char name[16], struct tcp_address *address)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&address->socket;
    char hex[33];

    memset(address, 0, sizeof *address);
    sodium_bin2hex(hex, sizeof hex, name, 16);
    un->sun_family = AF_UNIX;
    snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "lmtrain-%s", hex);
    address->length =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(un->sun_path + 1));
}

static const unsigned char *ip_of(const struct tcp_address *address, int *port, size_t *n_bytes)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)&address->socket;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address->socket;
    bool is_four = address->socket.ss_family == AF_INET;

    *port = ntohs(is_four ? four->sin_port : six->sin6_port);
    *n_bytes = is_four ? 4 : 16;
    return is_four ? (const unsigned char *)&four->sin_addr
                   : (const unsigned char *)&six->sin6_addr;
}

size_t tcp_card_write(const struct tcp_card *card, unsigned char bytes[TCP_CARD_BYTES_MAX])
{
    unsigned char *at = bytes;

    memcpy(at, card->machine, 16);
    memcpy(at + 16, card->name, 16);
    at[32] = (unsigned char)card->n_addresses;
    at += 33;
    for (int i = 0; i < card->n_addresses; i++, at += 19) {
        size_t n_bytes;
        int port;
        const unsigned char *ip = ip_of(&card->addresses[i], &port, &n_bytes);

        memset(at, 0, 19);
        at[0] = n_bytes == 4 ? 4 : 6;
        at[1] = (unsigned char)(port >> 8);
        at[2] = (unsigned char)port;
        memcpy(at + 3, ip, n_bytes);
    }
    return (size_t)(at - bytes);
}

static void read_address(const unsigned char at[19], struct tcp_address *address)
{
    struct sockaddr_in *four = (struct sockaddr_in *)&address->socket;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address->socket;
    in_port_t port = htons((in_port_t)(at[1] << 8 | at[2]));

    memset(address, 0, sizeof *address);
    if (at[0] == 4) {
        *four = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port };
        memcpy(&four->sin_addr, at + 3, 4);
        address->length = sizeof *four;
    } else {
        *six = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = port };
        memcpy(&six->sin6_addr, at + 3, 16);
        address->length = sizeof *six;
    }
}

int tcp_card_read(const unsigned char *bytes, size_t n_bytes, struct tcp_card *card)
{
    if (n_bytes < 33 || bytes[32] > TCP_ADDRESSES_MAX || n_bytes != 33 + (size_t)bytes[32] * 19)
        return -1;
    memcpy(card->machine, bytes, 16);
    memcpy(card->name, bytes + 16, 16);
    card->n_addresses = bytes[32];
    for (int i = 0; i < card->n_addresses; i++)
        read_address(bytes + 33 + i * 19, &card->addresses[i]);
    return 0;
}

/* ---- addresses of this machine ---- */

/* Whether address lies in a network (ADDRESS/BITS). */
static bool is_in_network(const struct sockaddr *address, const char *network)
{
    const void *ip = address->sa_family == AF_INET
                         ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                         : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
    unsigned char ours[16], theirs[16];
    const char *slash = strchr(network, '/');
    char text[INET6_ADDRSTRLEN];
    int64_t bits;

    if (!slash || (size_t)(slash - network) >= sizeof text || str_to_i64(slash + 1, &bits) ||
        bits < 0 || bits > (address->sa_family == AF_INET ? 32 : 128))
        return false;
    memcpy(text, network, (size_t)(slash - network));
    text[slash - network] = '\0';
    if (inet_pton(address->sa_family, text, theirs) != 1)
        return false;
    memcpy(ours, ip, address->sa_family == AF_INET ? 4 : 16);
    for (int64_t i = 0; i < bits; i++)
        if ((ours[i / 8] ^ theirs[i / 8]) & 0x80 >> i % 8)
            return false;
    return true;
}

static bool is_wanted(const struct ifaddrs *entry, const char *only, int loopback)
{
    const struct sockaddr *address = entry->ifa_addr;

    if (!address || !(entry->ifa_flags & IFF_UP) ||
        (address->sa_family != AF_INET && address->sa_family != AF_INET6))
        return false;
    /* Link-local ones mean nothing on another host. */
    if (address->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr))
        return false;
    if (only)
        return !strcmp(entry->ifa_name, only) || is_in_network(address, only);
    return !(entry->ifa_flags & IFF_LOOPBACK) == !loopback;
}

/* Of the interface, in Mbit/s; 0 where it does not say, as bridges of containers don't. */
static int speed_of(const char *interface)
{
    char path[64 + IFNAMSIZ];
    int speed = 0;

    snprintf(path, sizeof path, "/sys/class/net/%s/speed", interface);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%d", &speed) != 1)
        speed = 0;
    if (file)
        fclose(file);
    return max_int(0, speed);
}

int tcp_addresses_list(const char *only, int loopback,
                       struct tcp_address addresses[TCP_ADDRESSES_MAX])
{
    struct ifaddrs *list;
    int speeds[TCP_ADDRESSES_MAX], n = 0;

    if (getifaddrs(&list))
        return 0;
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (!is_wanted(entry, only, loopback))
            continue;
        int speed = speed_of(entry->ifa_name);
        if (n == TCP_ADDRESSES_MAX && speed <= speeds[n - 1])
            continue;
        int i = n < TCP_ADDRESSES_MAX ? n++ : n - 1; /* in the place of the slowest */
        for (; i > 0 && speeds[i - 1] < speed; i--) {
            speeds[i] = speeds[i - 1];
            addresses[i] = addresses[i - 1];
        }
        speeds[i] = speed;
        addresses[i] =
            (struct tcp_address){ .length = entry->ifa_addr->sa_family == AF_INET
                                                ? (socklen_t)sizeof(struct sockaddr_in)
                                                : (socklen_t)sizeof(struct sockaddr_in6) };
        memcpy(&addresses[i].socket, entry->ifa_addr, addresses[i].length);
    }
    freeifaddrs(list);
    return n;
}

/* ---- in words ---- */

const char *tcp_address_text(const struct tcp_address *address, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    size_t n_bytes;
    int port;

    if (address->socket.ss_family == AF_UNIX)
        return "its Unix socket";
    inet_ntop(address->socket.ss_family, ip_of(address, &port, &n_bytes), ip, sizeof ip);
    snprintf(text, size, "%s port %d", ip, port);
    return text;
}
