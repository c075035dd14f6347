/*
 * http_test.c - the HTTP client against a server of one thread on the loopback interface, which
 * keeps what it got and answers what the test says
 */
#include "report_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <strings.h>
#include <sys/socket.h>

#include "report/http.h"

enum { REQUEST_BYTES = 8192 };

struct server {
    int socket;
    int port;
    const char *answer; /* whole, with its head; NULL: none until it is stopped */
    size_t n_more;      /* bytes of 'x' behind it */
    char request[REQUEST_BYTES];
    atomic_bool must_stop;
    pthread_t thread;
};

/* ---- the server ---- */

/* Up to the end of the head and the body that it announces. */
static void read_request(struct server *s, int connection)
{
    size_t n = 0, n_wanted = REQUEST_BYTES - 1;
    ssize_t got;

    while (n < n_wanted && (got = read(connection, s->request + n, n_wanted - n)) > 0) {
        n += (size_t)got;
        s->request[n] = '\0';
        const char *end = strstr(s->request, "\r\n\r\n");
        const char *length = strcasestr(s->request, "\r\ncontent-length:");

        if (end)
            n_wanted = (size_t)(end + 4 - s->request) +
                       (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    }
}

static void send_all(int connection, const char *data, size_t n)
{
    ssize_t sent;

    for (; n && (sent = send(connection, data, n, MSG_NOSIGNAL)) > 0; n -= (size_t)sent)
        data += sent;
}

static void *serve(void *argument)
{
    struct server *s = argument;
    int connection = accept(s->socket, NULL, NULL);
    char x[4096];

    if (connection < 0)
        return NULL;
    read_request(s, connection);
    while (!s->answer && !atomic_load(&s->must_stop))
        usleep(10000);
    memset(x, 'x', sizeof x);
    if (s->answer)
        send_all(connection, s->answer, strlen(s->answer));
    for (size_t n = s->n_more; n; n -= n < sizeof x ? n : sizeof x)
        send_all(connection, x, n < sizeof x ? n : sizeof x);
    close(connection);
    return NULL;
}

static void start(struct server *s, const char *answer)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;

    s->answer = answer;
    s->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->socket >= 0);
    assert_int_equal(bind(s->socket, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(s->socket, 4), 0);
    assert_int_equal(getsockname(s->socket, (struct sockaddr *)&address, &size), 0);
    s->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void stop(struct server *s)
{
    atomic_store(&s->must_stop, true);
    shutdown(s->socket, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->socket);
}

/* ---- one request ---- */

static const struct http_options patient = { .connect_seconds = 30, .seconds = 60 };

/* The status, or -1 and err; the reply in *reply. */
static int request(const struct server *s, const struct http_options *options, const char *body,
                   struct str *reply, struct err *err)
{
    struct http *http;
    char url[128];

    assert_ok(http_open(&http, options, err), err);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/api?q=a%%20b", s->port);
    int status = http_request(http, url, body, reply, err);
    http_close(http);
    return status;
}

static bool has_line(const struct server *s, const char *line)
{
    const char *at = strstr(s->request, line);

    return at && (at == s->request || at[-1] == '\n') && !strncmp(at + strlen(line), "\r\n", 2);
}

static void a_get_and_a_post(void **state)
{
    struct server get = { 0 }, post = { 0 };
    struct str reply = { 0 };
    struct err err;

    (void)state;
    start(&get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert_int_equal(request(&get, &patient, NULL, &reply, &err), 200);
    stop(&get);
    assert_string_equal(str_text(&reply), "{}");
    assert_true(str_starts_with(get.request, "GET /api?q=a%20b HTTP/1.1\r\n"));
    assert_null(strstr(get.request, "Authorization"));

    start(&post, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone");
    assert_int_equal(request(&post, &patient, "{\"a\":1}", &reply, &err), 404);
    stop(&post);
    assert_string_equal(str_text(&reply), "none");
    assert_true(str_starts_with(post.request, "POST /api?q=a%20b HTTP/1.1\r\n"));
    assert_true(has_line(&post, "Content-Type: application/json"));
    assert_null(strstr(post.request, "Expect:"));
    assert_string_equal(strstr(post.request, "\r\n\r\n"), "\r\n\r\n{\"a\":1}");
    str_release(&reply);
}

static void who_it_is(void **state)
{
    const struct http_options
        token = { .token = "abc", .user = "u", .connect_seconds = 30, .seconds = 60 },
        login = { .user = "u", .password = "p", .connect_seconds = 30, .seconds = 60 };
    struct server first = { 0 }, second = { 0 };
    struct str reply = { 0 };
    struct err err;

    (void)state;
    start(&first, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(request(&first, &token, NULL, &reply, &err), 200);
    stop(&first);
    assert_true(has_line(&first, "Authorization: Bearer abc"));
    assert_null(strstr(first.request, "Basic"));
    start(&second, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(request(&second, &login, NULL, &reply, &err), 200);
    stop(&second);
    assert_true(has_line(&second, "Authorization: Basic dTpw")); /* u:p */
    str_release(&reply);
}

/* A token must not go where a server sends it. */
static void redirections_are_not_followed(void **state)
{
    struct server s = { 0 };
    struct str reply = { 0 };
    struct err err;

    (void)state;
    start(&s, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(request(&s, &patient, NULL, &reply, &err), 302);
    stop(&s);
    str_release(&reply);
}

static void long_answers_are_cut(void **state)
{
    struct server s = { .n_more = 3 << 20 };
    struct str reply = { 0 };
    struct err err;

    (void)state;
    start(&s, "HTTP/1.1 200 OK\r\nContent-Length: 3145728\r\n\r\n");
    assert_int_equal(request(&s, &patient, NULL, &reply, &err), 200);
    stop(&s);
    assert_true(reply.length > 1 << 19 && reply.length <= 1 << 20);
    str_release(&reply);
}

static bool at_once(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
    return true;
}

static void no_answer(void **state)
{
    atomic_int n_asked = 0;
    const struct http_options hasty = { .connect_seconds = 30, .seconds = 0.2 };
    const struct http_options stopped = {
        .connect_seconds = 300, .seconds = 300, .must_stop = at_once, .context = &n_asked
    };
    struct server slow = { 0 }, silent = { 0 }, torn = { 0 };
    struct str reply = { 0 };
    struct err err = { 0 };

    (void)state;
    start(&slow, NULL);
    assert_int_equal(request(&slow, &hasty, NULL, &reply, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "timed out"));
    stop(&slow);
    start(&silent, NULL);
    assert_int_equal(request(&silent, &stopped, "{}", &reply, &err), -1);
    assert_true(atomic_load(&n_asked) > 0);
    stop(&silent);
    start(&torn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{");
    assert_int_equal(request(&torn, &patient, NULL, &reply, &err), -1);
    stop(&torn);
    /* Its port has no listener any more. */
    assert_int_equal(request(&torn, &patient, NULL, &reply, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_true(*err.text);
    str_release(&reply);
}

static void one_client_many_requests(void **state)
{
    struct server first = { 0 }, second = { 0 };
    struct str reply = { 0 };
    struct http *http;
    struct err err;
    char url[64];

    (void)state;
    assert_ok(http_open(&http, &patient, &err), &err);
    start(&first, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na");
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", first.port);
    assert_int_equal(http_request(http, url, "{}", &reply, &err), 200);
    stop(&first);
    /* A GET behind a POST has no body, and the answer replaces the one before. */
    start(&second, "HTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nb");
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", second.port);
    assert_int_equal(http_request(http, url, NULL, &reply, &err), 201);
    stop(&second);
    assert_string_equal(str_text(&reply), "b");
    assert_true(str_starts_with(second.request, "GET / "));
    /* Of other kinds of URLs none is fetched. */
    assert_int_equal(http_request(http, "file:///etc/hostname", NULL, &reply, &err), -1);
    http_close(http);
    http_close(NULL);
    str_release(&reply);
}

static void what_is_escaped(void **state)
{
    struct str out = { 0 };

    (void)state;
    http_add_escaped(&out, "aZ9-._~ /?&=%\xc3\xa9");
    assert_string_equal(str_text(&out), "aZ9-._~%20%2F%3F%26%3D%25%C3%A9");
    str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_and_a_post),
        cmocka_unit_test(who_it_is),
        cmocka_unit_test(redirections_are_not_followed),
        cmocka_unit_test(long_answers_are_cut),
        cmocka_unit_test(no_answer),
        cmocka_unit_test(one_client_many_requests),
        cmocka_unit_test(what_is_escaped),
    };
    struct http *http;
    struct err err;

    /* Proxies of this machine are not for the loopback interface. */
    setenv("no_proxy", "127.0.0.1", 1);
    if (http_open(&http, &patient, &err) < 0) {
        printf("skip the HTTP client: %s\n", err.text);
        return 0;
    }
    http_close(http);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
