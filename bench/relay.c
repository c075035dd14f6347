/*
 * relay.c - links with a rate and a delay between network namespaces, for scripts/bench/net
 *
 * `relay BITS_PER_SECOND MICROSECONDS MTU NETWORK PID...` gives the namespace of each process a
 * device link0 with the address NETWORK.1, NETWORK.2, ... ("10.99.2") and carries frames between
 * them: one by one at the rate out of each namespace and into each (0: at once), and then so much
 * later. It writes `ready` when the links are up, and, when standard input ends, a line of JSON:
 * its own seconds of CPU, frames, bytes, and frames that no buffer had room for.
 *
 * The kernel's token bucket (tc tbf) limits a rate for less CPU, but nothing in this kernel delays
 * (netem). Frames are as large as the MTU says: 9000 bytes at 1 Gb/s are 14,000 frames a second. A
 * namespace whose link is busy is not read from, so its queue fills as that of a real device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS_MAX = 16, FRAMES_MAX = 4096, FRAME_BYTES_MAX = 65536 };

/* A busy link is read from again so long before it is free. */
#define AHEAD_NS 500000

struct frame {
    int64_t due; /* ns, when it is delivered */
    size_t n_bytes;
    unsigned char *bytes;
};

struct host {
    int tun;
    int64_t out_free, in_free;       /* when the link has sent, and received, all it was given */
    struct frame frames[FRAMES_MAX]; /* to be delivered here, in a ring */
    int first, n;
};

struct relay {
    double ns_per_byte;
    int64_t delay;
    int mtu, n_hosts;
    struct host hosts[HOSTS_MAX];
    int64_t n_frames, n_bytes, n_dropped;
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    return -1;
}

/* ---- the links ---- */

static int set_address(struct ifreq *request, unsigned long code, const char *address, int s)
{
    struct sockaddr_in in = { .sin_family = AF_INET };

    if (inet_pton(AF_INET, address, &in.sin_addr) != 1)
        return -1;
    memcpy(&request->ifr_addr, &in, sizeof in);
    return ioctl(s, code, request);
}

/* In this namespace. Returns the device's descriptor. */
static int open_link(const char *address, int mtu)
{
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memcpy(request.ifr_name, "link0", sizeof "link0");
    if (tun < 0 || s < 0 || ioctl(tun, TUNSETIFF, &request) < 0 ||
        set_address(&request, SIOCSIFADDR, address, s) < 0 ||
        set_address(&request, SIOCSIFNETMASK, "255.255.255.0", s) < 0)
        return -1;
    request.ifr_mtu = mtu;
    if (ioctl(s, SIOCSIFMTU, &request) < 0)
        return -1;
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, &request) < 0)
        return -1;
    close(s);
    return tun;
}

static int open_host(struct relay *relay, int i, const char *network, const char *pid)
{
    char path[64], address[64];
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), other;
    struct host *host = &relay->hosts[i];

    snprintf(path, sizeof path, "/proc/%.20s/ns/net", pid);
    snprintf(address, sizeof address, "%.40s.%d", network, i + 1);
    other = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0 || other < 0 || setns(other, CLONE_NEWNET) < 0)
        return fail(path);
    host->tun = open_link(address, relay->mtu);
    if (host->tun < 0)
        fail(address);
    if (setns(own, CLONE_NEWNET) < 0)
        return fail("the relay's namespace");
    close(own);
    close(other);
    for (int k = 0; k < FRAMES_MAX; k++)
        if (!(host->frames[k].bytes = malloc((size_t)relay->mtu)))
            return fail("buffers");
    return host->tun < 0 ? -1 : 0;
}

/* ---- frames ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The place of a frame's destination among the hosts, by the last byte of its IPv4 address. */
static int destination_of(const struct relay *relay, const unsigned char *bytes, size_t n_bytes)
{
    int number = n_bytes >= 20 && bytes[0] >> 4 == 4 ? bytes[19] : 0;

    return number >= 1 && number <= relay->n_hosts ? number - 1 : -1;
}

static void take(struct relay *relay, struct host *from, const unsigned char *bytes, size_t n_bytes,
                 int64_t now)
{
    int to = destination_of(relay, bytes, n_bytes);
    int64_t lasts = (int64_t)(relay->ns_per_byte * (double)n_bytes);

    if (to < 0)
        return;
    struct host *host = &relay->hosts[to];
    from->out_free = larger(now, from->out_free) + lasts;
    if (host->n == FRAMES_MAX) {
        relay->n_dropped++;
        return;
    }
    /* The end of a frame comes with its end, unless the link has others to bring before. */
    host->in_free = larger(from->out_free, host->in_free + lasts);
    struct frame *frame = &host->frames[(host->first + host->n++) % FRAMES_MAX];
    frame->due = host->in_free + relay->delay;
    frame->n_bytes = n_bytes;
    memcpy(frame->bytes, bytes, n_bytes);
    relay->n_frames++;
    relay->n_bytes += (int64_t)n_bytes;
}

/* Whether the host's link will be free soon. */
static bool is_read(const struct host *host, int64_t now)
{
    return host->out_free <= now + AHEAD_NS;
}

static void read_host(struct relay *relay, struct host *host)
{
    static unsigned char bytes[FRAME_BYTES_MAX];
    int64_t now = now_ns();

    while (is_read(host, now)) {
        ssize_t n = read(host->tun, bytes, (size_t)relay->mtu);

        if (n <= 0)
            return;
        take(relay, host, bytes, (size_t)n, now);
        now = now_ns();
    }
}

static void deliver(struct host *host, int64_t now)
{
    while (host->n && host->frames[host->first].due <= now) {
        const struct frame *frame = &host->frames[host->first];

        if (write(host->tun, frame->bytes, frame->n_bytes) < 0 && errno == EAGAIN)
            return;
        host->first = (host->first + 1) % FRAMES_MAX;
        host->n--;
    }
}

/* When something is to be done next if nothing comes; 0: nothing. */
static int64_t next_event(const struct relay *relay, int64_t now)
{
    int64_t next = 0;

    for (int i = 0; i < relay->n_hosts; i++) {
        const struct host *host = &relay->hosts[i];
        int64_t due = host->n ? host->frames[host->first].due : 0;
        int64_t again = is_read(host, now) ? 0 : host->out_free - AHEAD_NS;

        next = due && (!next || due < next) ? due : next;
        next = again && (!next || again < next) ? again : next;
    }
    return next;
}

/* Until standard input ends. */
static int carry(struct relay *relay)
{
    struct pollfd polled[HOSTS_MAX + 1] = { { .fd = STDIN_FILENO, .events = POLLIN } };

    for (;;) {
        int64_t now = now_ns(), next = next_event(relay, now);
        int64_t wait = next ? larger(0, next - now) : 1000000000;
        struct timespec timeout = { wait / 1000000000, wait % 1000000000 };
        char ignored[16];

        for (int i = 0; i < relay->n_hosts; i++)
            polled[i + 1] =
                (struct pollfd){ .fd = is_read(&relay->hosts[i], now) ? relay->hosts[i].tun : -1,
                                 .events = POLLIN };
        if (ppoll(polled, (nfds_t)relay->n_hosts + 1, &timeout, NULL) < 0 && errno != EINTR)
            return fail("poll");
        if (polled[0].revents && read(STDIN_FILENO, ignored, sizeof ignored) <= 0)
            return 0;
        for (int i = 0; i < relay->n_hosts; i++)
            if (polled[i + 1].revents)
                read_host(relay, &relay->hosts[i]);
        now = now_ns();
        for (int i = 0; i < relay->n_hosts; i++)
            deliver(&relay->hosts[i], now);
    }
}

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    static struct relay relay;
    struct sched_param first = { .sched_priority = 1 };
    double rate = argc > 1 ? strtod(argv[1], NULL) : -1;

    relay.n_hosts = argc - 5;
    relay.delay = argc > 2 ? 1000 * strtol(argv[2], NULL, 10) : -1;
    relay.mtu = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    if (rate < 0 || relay.delay < 0 || relay.mtu < 576 || relay.mtu >= FRAME_BYTES_MAX ||
        relay.n_hosts < 2 || relay.n_hosts > HOSTS_MAX) {
        fprintf(stderr, "relay BITS_PER_SECOND MICROSECONDS MTU NETWORK PID PID...\n");
        return 2;
    }
    relay.ns_per_byte = rate > 0 ? 8e9 / rate : 0;
    for (int i = 0; i < relay.n_hosts; i++)
        if (open_host(&relay, i, argv[4], argv[5 + i]) < 0)
            return 1;
    /* Before those that compute, where that is allowed; and awake when it is to be. */
    prctl(PR_SET_TIMERSLACK, 1UL);
    if (sched_setscheduler(0, SCHED_FIFO, &first) < 0)
        setpriority(PRIO_PROCESS, 0, -20);
    puts("ready");
    fflush(stdout);
    if (carry(&relay) < 0)
        return 1;
    printf("{\"cpu_seconds\": %.3f, \"frames\": %lld, \"bytes\": %lld, \"dropped\": %lld}\n",
           cpu_seconds(), (long long)relay.n_frames, (long long)relay.n_bytes,
           (long long)relay.n_dropped);
    return 0;
}
