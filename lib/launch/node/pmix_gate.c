/*
 * pmix_gate.c - one thread, one poll: accept, ask the kernel, read, judge, then pump
 */
#include "launch/node/pmix_gate_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "launch/fd_impl.h"
#include "launch/remote/peer_uid_impl.h"

static const double refuse_after_seconds = 1;   /* a wrong first message of this user */
static const double accept_pause_seconds = 0.1; /* when no more files can be opened */

enum { N_ACCEPTS_MAX = 256 };

/* Bytes on their way from one socket to the other. */
struct flow {
    size_t start, end;
    bool is_over; /* its source has ended */
    bool is_shut; /* and its target has been shut down */
    unsigned char bytes[GATE_MESSAGE_MAX];
};

struct connection {
    struct connection *next;
    int client;  /* TCP */
    int backend; /* Unix; -1: not passed on yet */
    bool is_refused;
    bool is_over;
    double deadline;     /* until the first message is here, or until a refused one is closed */
    struct flow in, out; /* to PMIx, from PMIx */
};

struct pmix_gate {
    struct pmix_gate_options options;
    char *nspace, *backend;
    pthread_t thread;
    int wake_fd, query_fd;
    atomic_bool is_stopping;
    _Atomic uint64_t counts[GATE_COUNTS];
    bool has_warned; /* that the system does not tell who connects */
    double accept_at;
    int n_connections, n_waiting;
    struct connection *first; /* oldest first */
    struct pollfd *polls;     /* two for each connection, and two */
    int n_polls_max;
};

/* ---- the first message ---- */

struct first_header {
    int32_t index;
    uint32_t tag;
    uint32_t n_bytes;
    uint32_t padding;
};

struct first_message_reader {
    const unsigned char *at;
    size_t left;
    bool is_broken;
};

static void skip(struct first_message_reader *reader, size_t n)
{
    if (n > reader->left) {
        reader->is_broken = true;
        n = reader->left;
    }
    reader->at += n;
    reader->left -= n;
}

static const char *read_text(struct first_message_reader *reader)
{
    const char *text = (const char *)reader->at;
    size_t length = strnlen(text, reader->left);

    skip(reader, length + 1);
    return reader->is_broken ? "" : text;
}

static uint32_t read_number(struct first_message_reader *reader)
{
    uint32_t number = 0;

    if (reader->left >= sizeof number)
        memcpy(&number, reader->at, sizeof number);
    skip(reader, sizeof number);
    return ntohl(number);
}

static int is_version(const char *text)
{
    unsigned major, minor, release;

    return sscanf(text, "%3u.%3u.%3u", &major, &minor, &release) == 3;
}

int pmix_gate_judge(const void *bytes, size_t n_bytes, const char *nspace, int first_rank,
                    int n_ranks)
{
    enum { SIMPLE_CLIENT = 0 };
    struct first_header header;
    struct first_message_reader reader = { .at = bytes };

    if (n_bytes < sizeof header)
        return 0;
    memcpy(&header, bytes, sizeof header);
    if (header.n_bytes > GATE_MESSAGE_MAX - sizeof header)
        return -1;
    if (n_bytes - sizeof header < header.n_bytes)
        return 0;
    reader.at += sizeof header;
    reader.left = header.n_bytes;
    read_text(&reader);                  /* the security module */
    skip(&reader, read_number(&reader)); /* the credential, which anyone could write */
    int kind = reader.left ? *reader.at : -1;
    skip(&reader, 1);
    bool is_ours = !strcmp(read_text(&reader), nspace);
    uint32_t rank = read_number(&reader);
    bool has_version = is_version(read_text(&reader));

    if (reader.is_broken || kind != SIMPLE_CLIENT || !is_ours || !has_version)
        return -1;
    return rank >= (uint32_t)first_rank && rank - (uint32_t)first_rank < (uint32_t)n_ranks ? 1 : -1;
}

/* ---- reports ---- */

uint64_t pmix_gate_count(const struct pmix_gate *gate, enum gate_count count)
{
    return atomic_load(&gate->counts[count]);
}

static void report(struct pmix_gate *gate, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void report(struct pmix_gate *gate, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gate->options.report(gate->options.context, text);
}

/* Count one more, and report the first, 10th, 100th, ...; `last` describes this one. */
static void count(struct pmix_gate *gate, enum gate_count what, const char *last)
{
    static const char *const reasons[GATE_COUNTS] = {
        [GATE_OTHER_USER] = "not owned by this user",
        [GATE_WRONG] = "without the job's secret namespace",
        [GATE_LATE] = "without a complete first message in time",
        [GATE_CROWDED] = "the longest waiting of too many without a first message",
    };
    uint64_t n = atomic_fetch_add(&gate->counts[what], 1) + 1, power = 1;

    while (power < n && power <= UINT64_MAX / 10)
        power *= 10;
    if (!reasons[what] || n != power)
        return;
    if (n == 1)
        report(gate, "closed a connection to the PMIx port %s (%s)", reasons[what], last);
    else
        report(gate, "closed %llu connections to the PMIx port %s so far (the last: %s)",
               (unsigned long long)n, reasons[what], last);
}

/* ---- connections ---- */

static int is_waiting(const struct connection *connection)
{
    return connection->backend < 0 && !connection->is_over;
}

/* Where the client is, for a report: its port is what `ss -tnp` shows. */
static const char *name_client(const struct connection *connection, char *text, size_t size)
{
    struct sockaddr_storage address = { 0 };
    socklen_t length = sizeof address;
    unsigned port = 0;

    if (!getpeername(connection->client, (struct sockaddr *)&address, &length))
        port =
            ntohs(address.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&address)->sin6_port
                                                : ((const struct sockaddr_in *)&address)->sin_port);
    snprintf(text, size, "from port %u, %zu bytes received", port, connection->in.end);
    return text;
}

/*
 * With a reset: no socket stays in TIME_WAIT, so a flood of connections uses up the sender's ports
 * only.
 */
static void close_hard(int *fd)
{
    struct linger none = { .l_onoff = 1 };

    setsockopt(*fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    fd_close(fd);
}

static void finish(struct pmix_gate *gate, struct connection *connection)
{
    if (is_waiting(connection)) {
        gate->n_waiting--;
        close_hard(&connection->client);
    }
    fd_close(&connection->client);
    fd_close(&connection->backend);
    connection->is_over = true;
}

static void remove_finished(struct pmix_gate *gate)
{
    struct connection **at = &gate->first;

    while (*at) {
        struct connection *connection = *at;

        if (!connection->is_over) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        free(connection);
        gate->n_connections--;
    }
}

static void close_longest_waiting(struct pmix_gate *gate)
{
    struct connection *connection = gate->first;
    char text[64];

    while (connection && !is_waiting(connection))
        connection = connection->next;
    if (!connection)
        return;
    if (!connection->is_refused)
        count(gate, GATE_CROWDED, name_client(connection, text, sizeof text));
    finish(gate, connection);
}

/* Whether the peer's socket belongs to this user, as far as the system reports it. */
static int is_our_user(struct pmix_gate *gate, int fd)
{
    char text[64] = "its socket is already closed, or not on this machine";
    uid_t uid = 0;
    enum peer_owner owner = peer_uid(gate->query_fd, fd, &uid);

    if (owner == PEER_UNKNOWN) {
        if (!gate->has_warned)
            report(gate, "this system does not report which user connects to the PMIx port "
                         "(neither NETLINK_SOCK_DIAG nor /proc/self/net/tcp works): only the job's "
                         "secret namespace protects it");
        gate->has_warned = true;
        return 1;
    }
    if (owner == PEER_OWNED && uid == gate->options.uid)
        return 1;
    if (owner == PEER_OWNED)
        snprintf(text, sizeof text, "uid %u; the job's is %u", (unsigned)uid,
                 (unsigned)gate->options.uid);
    count(gate, GATE_OTHER_USER, text);
    return 0;
}

static void add_connection(struct pmix_gate *gate, int fd)
{
    struct connection **at = &gate->first, *made = malloc(sizeof *made);
    int one = 1;

    CHECK(made);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (gate->n_waiting >= GATE_WAITING_MAX)
        close_longest_waiting(gate);
    made->next = NULL;
    made->client = fd;
    made->backend = -1;
    made->is_refused = made->is_over = false;
    made->deadline = clock_seconds() + gate->options.first_message_seconds;
    made->in.start = made->in.end = made->out.start = made->out.end = 0;
    made->in.is_over = made->in.is_shut = made->out.is_over = made->out.is_shut = false;
    while (*at)
        at = &(*at)->next;
    *at = made;
    gate->n_connections++;
    gate->n_waiting++;
}

static void accept_all(struct pmix_gate *gate)
{
    for (int i = 0; i < N_ACCEPTS_MAX; i++) {
        int fd = accept4(gate->options.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0 && is_our_user(gate, fd))
            add_connection(gate, fd);
        else if (fd >= 0)
            close_hard(&fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            gate->accept_at = clock_seconds() + accept_pause_seconds;
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* ---- passing on ---- */

static int connect_backend(const struct pmix_gate *gate)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", gate->backend);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address))
        fd_close(&fd);
    return fd;
}

static void judge(struct pmix_gate *gate, struct connection *connection)
{
    const struct pmix_gate_options *options = &gate->options;
    char text[64];
    int verdict = pmix_gate_judge(connection->in.bytes, connection->in.end, gate->nspace,
                                  options->first_rank, options->n_ranks);

    if (verdict < 0) {
        count(gate, GATE_WRONG, name_client(connection, text, sizeof text));
        connection->is_refused = true;
        connection->deadline = clock_seconds() + refuse_after_seconds;
    }
    if (verdict <= 0)
        return;
    int backend = connect_backend(gate);
    if (backend < 0) {
        report(gate, "cannot forward a rank's connection to the PMIx server: %s", strerror(errno));
        finish(gate, connection);
        return;
    }
    connection->backend = backend;
    gate->n_waiting--;
    count(gate, GATE_ADMITTED, "");
}

/* Read what there is room for. Returns -1 if the source broke. */
static int fill(struct flow *flow, int source)
{
    if (flow->start == flow->end)
        flow->start = flow->end = 0;
    if (flow->is_over || flow->end == sizeof flow->bytes)
        return 0;
    ssize_t n = read(source, flow->bytes + flow->end, sizeof flow->bytes - flow->end);

    if (n > 0)
        flow->end += (size_t)n;
    else if (!n)
        flow->is_over = true;
    return n < 0 && errno != EAGAIN && errno != EINTR ? -1 : 0;
}

/* Write what can be written; after the last byte the target's end is shut down. */
static int drain(struct flow *flow, int target)
{
    ssize_t n = 0;

    if (flow->start < flow->end)
        n = send(target, flow->bytes + flow->start, flow->end - flow->start, MSG_NOSIGNAL);
    if (n > 0)
        flow->start += (size_t)n;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return -1;
    if (flow->is_over && flow->start == flow->end && !flow->is_shut) {
        flow->is_shut = true;
        shutdown(target, SHUT_WR);
    }
    return 0;
}

static void pump(struct pmix_gate *gate, struct connection *connection)
{
    bool broken =
        fill(&connection->in, connection->client) || drain(&connection->in, connection->backend) ||
        fill(&connection->out, connection->backend) || drain(&connection->out, connection->client);

    /* PMIx has closed: no reader is left. */
    if (broken || connection->out.is_shut)
        finish(gate, connection);
}

static void serve(struct pmix_gate *gate, struct connection *connection, double now)
{
    char text[64];

    if (connection->is_over)
        return;
    if (is_waiting(connection) && !connection->is_refused) {
        bool broken = fill(&connection->in, connection->client);

        judge(gate, connection);
        if (is_waiting(connection) && !connection->is_refused &&
            (broken || connection->in.is_over)) {
            count(gate, GATE_WRONG, name_client(connection, text, sizeof text));
            finish(gate, connection);
        }
    }
    if (connection->backend >= 0)
        pump(gate, connection);
    if (is_waiting(connection) && now >= connection->deadline) {
        if (!connection->is_refused)
            count(gate, GATE_LATE, name_client(connection, text, sizeof text));
        finish(gate, connection);
    }
}

/* ---- the loop ---- */

static int has_room(const struct flow *flow)
{
    return !flow->is_over && (flow->start == flow->end || flow->end < sizeof flow->bytes);
}

/* A descriptor without events is left out: poll would report its hangup again and again. */
static struct pollfd poll_of(int fd, bool can_read, bool can_write)
{
    int events = (can_read ? POLLIN : 0) | (can_write ? POLLOUT : 0);

    return (struct pollfd){ .fd = events ? fd : -1, .events = (short)events };
}

/* Milliseconds until a deadline; -1: there is none. */
static int timeout_ms(const struct pmix_gate *gate, double now)
{
    double due = gate->accept_at > now ? gate->accept_at : 1e300;

    for (const struct connection *at = gate->first; at; at = at->next)
        if (is_waiting(at) && at->deadline < due)
            due = at->deadline;
    if (due > 1e299)
        return -1;
    return due <= now ? 0 : (int)((due - now) * 1000) + 1;
}

static void wait_for_events(struct pmix_gate *gate)
{
    double now = clock_seconds();
    int n = 0;

    if (gate->n_polls_max < 2 * gate->n_connections + 2) {
        gate->n_polls_max = 4 * gate->n_connections + 2;
        gate->polls = realloc(gate->polls, (size_t)gate->n_polls_max * sizeof *gate->polls);
        CHECK(gate->polls);
    }
    gate->polls[n++] = (struct pollfd){ .fd = gate->wake_fd, .events = POLLIN };
    gate->polls[n++] = (struct pollfd){ .fd = gate->accept_at > now ? -1 : gate->options.listener,
                                        .events = POLLIN };
    for (const struct connection *at = gate->first; at; at = at->next) {
        if (at->is_refused)
            continue;
        gate->polls[n++] = poll_of(at->client, has_room(&at->in), at->out.start < at->out.end);
        if (at->backend >= 0)
            gate->polls[n++] = poll_of(at->backend, has_room(&at->out), at->in.start < at->in.end);
    }
    poll(gate->polls, (nfds_t)n, timeout_ms(gate, now));
}

static void *run_gate(void *argument)
{
    struct pmix_gate *gate = argument;

    while (!atomic_load(&gate->is_stopping)) {
        wait_for_events(gate);
        double now = clock_seconds();
        for (struct connection *at = gate->first; at; at = at->next)
            serve(gate, at, now);
        if (now >= gate->accept_at)
            accept_all(gate);
        remove_finished(gate);
    }
    return NULL;
}

static void release(struct pmix_gate *gate)
{
    for (struct connection *at = gate->first; at; at = at->next)
        finish(gate, at);
    remove_finished(gate);
    fd_close(&gate->options.listener);
    fd_close(&gate->wake_fd);
    fd_close(&gate->query_fd);
    free(gate->polls);
    free(gate->nspace);
    free(gate->backend);
    free(gate);
}

int pmix_gate_start(struct pmix_gate **gate, const struct pmix_gate_options *options,
                    struct err *err)
{
    struct pmix_gate *made = calloc(1, sizeof *made);

    CHECK(made);
    made->options = *options;
    made->nspace = strdup(options->nspace);
    made->backend = strdup(options->backend);
    CHECK(made->nspace);
    CHECK(made->backend);
    made->query_fd = peer_uid_open();
    made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int status = made->wake_fd < 0 ? errno : thread_start(&made->thread, NULL, run_gate, made);
    if (status) {
        release(made);
        errno = status;
        return err_set_errno(err, ERR_FAILED, "cannot start the thread before the PMIx server");
    }
    *gate = made;
    return 0;
}

void pmix_gate_stop(struct pmix_gate *gate)
{
    if (!gate)
        return;
    atomic_store(&gate->is_stopping, true);
    eventfd_write(gate->wake_fd, 1);
    pthread_join(gate->thread, NULL);
    release(gate);
}
