/*
 * http.h - requests of JSON over HTTP, by libcurl
 *
 * libcurl.so.4 is opened at run time, when the first client is made: only a run that is tracked
 * needs it. A client is for one thread.
 */
#ifndef REPORT_HTTP_H
#define REPORT_HTTP_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

struct http;

struct http_options {
    const char *token;                /* of a bearer; NULL: none */
    const char *user, *password;      /* of basic authentication, without a token; NULL: none */
    double connect_seconds, seconds;  /* at most, of a connection, of a request */
    bool (*must_stop)(void *context); /* asked during a request, which then fails; NULL: never */
    void *context;
};

/* ERR_CONFIG where libcurl cannot be opened. The texts are copied. */
int http_open(struct http **http, const struct http_options *options, struct err *err);

/*
 * A request with a JSON body (NULL: a GET without one). Returns the status, with what came in
 * *reply, of which 1 MiB is kept; or -1 and ERR_FAILED if there was no answer. Follows no
 * redirection.
 */
int http_request(struct http *http, const char *url, const char *body, struct str *reply,
                 struct err *err);

/* Add text as a part of a URL's query: what is not a letter, digit, - . _ or ~ as %XX. */
void http_add_escaped(struct str *out, const char *text);

/* NULL is fine. */
void http_close(struct http *http);

#endif
