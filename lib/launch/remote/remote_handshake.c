/*
 * remote_handshake.c - the text for a daemon's stdin, the proofs, and random bytes
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str.h"
#include "launch/remote/hosts_impl.h"

static const char first_line[] = "lmtrain-handshake 1";
static const char last_line[] = "end\n";

/* ---- the handshake ---- */

size_t remote_handshake_write(const struct remote_handshake *handshake,
                              char text[REMOTE_HANDSHAKE_MAX])
{
    char hex[2 * HOSTS_COOKIE_BYTES + 1];
    size_t n, room = REMOTE_HANDSHAKE_MAX;

    n = (size_t)snprintf(text, room, "%s\nbuild %s\nhost %d\nseconds %.3f\nlink-seconds %.3f\n",
                         first_line, handshake->build, handshake->index, handshake->seconds,
                         handshake->link_seconds);
    for (int i = 0; i < handshake->n_addresses; i++)
        n += (size_t)snprintf(text + n, room - n, "address %s %d\n", handshake->addresses[i].ip,
                              handshake->addresses[i].port);
    sodium_bin2hex(hex, sizeof hex, handshake->cookie, sizeof handshake->cookie);
    n += (size_t)snprintf(text + n, room - n, "cookie %s\n%s", hex, last_line);
    sodium_memzero(hex, sizeof hex);
    CHECK(n < room);
    return n;
}

int remote_handshake_is_whole(const char *text, size_t n_bytes)
{
    size_t n = sizeof last_line - 1;

    return n_bytes > n && text[n_bytes - n - 1] == '\n' &&
           !memcmp(text + n_bytes - n, last_line, n);
}

static int read_seconds(const char *text, double *out)
{
    double seconds;

    if (str_to_f64(text, &seconds) || !(seconds > 0 && seconds <= 86400))
        return -1;
    *out = seconds;
    return 0;
}

static int read_int(const char *text, int min, int max, int *out)
{
    int64_t n;

    if (str_to_i64(text, &n) || n < min || n > max)
        return -1;
    *out = (int)n;
    return 0;
}

static int read_address(struct remote_handshake *handshake, char *text)
{
    struct remote_address *address = &handshake->addresses[handshake->n_addresses];
    struct in6_addr ignored;
    char *blank = strchr(text, ' ');

    if (!blank || handshake->n_addresses == HOSTS_ADDRESSES_MAX)
        return -1;
    *blank = '\0';
    if (strlen(text) >= sizeof address->ip || read_int(blank + 1, 1, 65535, &address->port) ||
        (inet_pton(AF_INET, text, &ignored) != 1 && inet_pton(AF_INET6, text, &ignored) != 1))
        return -1;
    snprintf(address->ip, sizeof address->ip, "%s", text);
    handshake->n_addresses++;
    return 0;
}

static int read_cookie(struct remote_handshake *handshake, const char *text)
{
    size_t n;

    return sodium_hex2bin(handshake->cookie, sizeof handshake->cookie, text, strlen(text), NULL, &n,
                          NULL) ||
           n != sizeof handshake->cookie;
}

/* "key value"; each key but address occurs once, and unknown keys are refused. */
static int read_line(struct remote_handshake *handshake, char *line, unsigned *seen)
{
    static const char *const keys[] = { "build",        "host",    "seconds",
                                        "link-seconds", "address", "cookie" };
    char *value = strchr(line, ' ');
    unsigned key = 0;

    if (!value)
        return -1;
    *value++ = '\0';
    while (key < 6 && strcmp(line, keys[key]))
        key++;
    if (key == 6 || (*seen & 1u << key && key != 4))
        return -1;
    *seen |= 1u << key;
    switch (key) {
    case 0:
        snprintf(handshake->build, sizeof handshake->build, "%s", value);
        return 0;
    case 1:
        return read_int(value, 0, HOSTS_MAX - 1, &handshake->index);
    case 2:
        return read_seconds(value, &handshake->seconds);
    case 3:
        return read_seconds(value, &handshake->link_seconds);
    case 4:
        return read_address(handshake, value);
    default:
        return read_cookie(handshake, value);
    }
}

static int read_lines(struct remote_handshake *handshake, char *text, const char *build,
                      struct err *err)
{
    unsigned seen = 0;
    int n_lines = 0, bad = 0;

    for (char *next, *line = text; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (!strcmp(line, "end"))
            break;
        if (n_lines++ == 0) {
            if (strcmp(line, first_line))
                return err_set(err, str_starts_with(line, "lmtrain-") ? ERR_CONFIG : ERR_FAILED,
                               "data on stdin is not a handshake of this lmtrain");
            continue;
        }
        if (read_line(handshake, line, &seen)) {
            bad = 1;
            continue;
        }
        /* Another build may have other keys: then the build is the error to report. */
        if (seen & 1 && *handshake->build && strcmp(handshake->build, build) != 0)
            return err_set(err, ERR_CONFIG, "this host has lmtrain %s, but the head has %s", build,
                           handshake->build);
    }
    if (bad || seen != 63)
        return err_set(err, ERR_FAILED, "the handshake on stdin is damaged");
    return 0;
}

int remote_handshake_read(struct remote_handshake *handshake, char *text, const char *build,
                          struct err *err)
{
    size_t n_bytes = strlen(text);

    memset(handshake, 0, sizeof *handshake);
    int status = read_lines(handshake, text, build, err);
    sodium_memzero(text, n_bytes);
    if (status)
        sodium_memzero(handshake->cookie, sizeof handshake->cookie);
    return status;
}

/* ---- proofs ---- */

void remote_prove(unsigned char proof[HOSTS_PROOF_BYTES], const unsigned char *cookie,
                  enum remote_role role, const struct remote_challenge *challenge)
{
    unsigned char text[8 + 4 + 2 * HOSTS_NONCE_BYTES] = { 0 };

    _Static_assert(HOSTS_PROOF_BYTES == crypto_auth_BYTES, "the proof is one of crypto_auth");
    _Static_assert(HOSTS_COOKIE_BYTES == crypto_auth_KEYBYTES, "the cookie is its key");
    memcpy(text, role == HOSTS_HEAD ? "head" : "daemon", role == HOSTS_HEAD ? 4 : 6);
    for (int i = 0; i < 4; i++)
        text[8 + i] = (unsigned char)(challenge->index >> 8 * i);
    memcpy(text + 12, challenge->nonce_head, HOSTS_NONCE_BYTES);
    memcpy(text + 12 + HOSTS_NONCE_BYTES, challenge->nonce_daemon, HOSTS_NONCE_BYTES);
    crypto_auth(proof, text, sizeof text, cookie);
}

int remote_check_proof(const unsigned char *proof, const unsigned char *cookie,
                       enum remote_role role, const struct remote_challenge *challenge)
{
    unsigned char right[HOSTS_PROOF_BYTES];

    remote_prove(right, cookie, role, challenge);
    bool same = sodium_memcmp(right, proof, sizeof right) == 0;
    sodium_memzero(right, sizeof right);
    return same;
}

void remote_random(void *bytes, size_t n_bytes)
{
    unsigned char *at = bytes;

    while (n_bytes) {
        ssize_t n = getrandom(at, n_bytes, 0);

        CHECK(n > 0 || errno == EINTR);
        if (n > 0) {
            at += n;
            n_bytes -= (size_t)n;
        }
    }
}

int remote_block(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) ? -1 : 0;
}
