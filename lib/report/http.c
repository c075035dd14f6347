/*
 * http.c - libcurl, opened at run time
 */
#include "report/http.h"

#include <ctype.h>
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES_MAX ((size_t)1 << 20)

/* The functions that are used, with the types of curl.h. */
struct libcurl {
    typeof(curl_global_init) *global_init;
    typeof(curl_easy_init) *easy_init;
    typeof(curl_easy_cleanup) *easy_cleanup;
    typeof((curl_easy_setopt)) *easy_setopt;
    typeof(curl_easy_perform) *easy_perform;
    typeof((curl_easy_getinfo)) *easy_getinfo;
    typeof(curl_easy_strerror) *easy_strerror;
    typeof(curl_slist_append) *slist_append;
    typeof(curl_slist_free_all) *slist_free_all;
};

struct http {
    struct libcurl curl;
    CURL *easy;
    struct curl_slist *headers;
    char *login; /* USER:PASSWORD */
    struct http_options options;
    char problem[CURL_ERROR_SIZE];
};

/* The library stays open: its global state has no safe end. */
static int open_library(struct libcurl *curl, struct err *err)
{
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void **function;
    } symbols[] = {
        { "curl_global_init", (void **)&curl->global_init },
        { "curl_easy_init", (void **)&curl->easy_init },
        { "curl_easy_cleanup", (void **)&curl->easy_cleanup },
        { "curl_easy_setopt", (void **)&curl->easy_setopt },
        { "curl_easy_perform", (void **)&curl->easy_perform },
        { "curl_easy_getinfo", (void **)&curl->easy_getinfo },
        { "curl_easy_strerror", (void **)&curl->easy_strerror },
        { "curl_slist_append", (void **)&curl->slist_append },
        { "curl_slist_free_all", (void **)&curl->slist_free_all },
    };

    if (!library)
        return err_set(err, ERR_CONFIG,
                       "libcurl.so.4 cannot be opened (hint: install Debian's libcurl4): %s",
                       dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].function = dlsym(library, symbols[i].name);
        if (!*symbols[i].function)
            return err_set(err, ERR_CONFIG, "libcurl.so.4 has no %s", symbols[i].name);
    }
    return 0;
}

static size_t take_reply(char *data, size_t size, size_t n, void *reply)
{
    struct str *text = reply;

    if (text->length + size * n <= REPLY_BYTES_MAX)
        str_add_bytes(text, data, size * n);
    return size * n;
}

static int watch_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct http *http = context;

    (void)a, (void)b, (void)c, (void)d;
    return http->options.must_stop && http->options.must_stop(http->options.context);
}

static void set_options(struct http *http)
{
    const struct libcurl *curl = &http->curl;
    CURL *easy = http->easy;

    curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(1e3 * http->options.connect_seconds));
    curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(1e3 * http->options.seconds));
    curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, http->problem);
    curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_reply);
    curl->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, watch_progress);
    curl->easy_setopt(easy, CURLOPT_XFERINFODATA, http);
    curl->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl->easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers);
    if (http->login)
        curl->easy_setopt(easy, CURLOPT_USERPWD, http->login);
}

/* Expect: a server would be asked whether it wants the body. */
static void make_headers(struct http *http)
{
    const struct libcurl *curl = &http->curl;
    struct str header = { 0 };

    http->headers = curl->slist_append(http->headers, "Content-Type: application/json");
    http->headers = curl->slist_append(http->headers, "Expect:");
    if (http->options.token) {
        str_printf(&header, "Authorization: Bearer %s", http->options.token);
        http->headers = curl->slist_append(http->headers, str_text(&header));
    } else if (http->options.user) {
        str_printf(&header, "%s:%s", http->options.user,
                   http->options.password ? http->options.password : "");
        http->login = strdup(str_text(&header));
    }
    str_release(&header);
}

int http_open(struct http **http, const struct http_options *options, struct err *err)
{
    struct http *made = calloc(1, sizeof *made);

    CHECK(made);
    made->options = *options;
    if (open_library(&made->curl, err) < 0) {
        free(made);
        return -1;
    }
    if (made->curl.global_init(CURL_GLOBAL_DEFAULT) || !(made->easy = made->curl.easy_init())) {
        free(made);
        return err_set(err, ERR_CONFIG, "libcurl cannot be started");
    }
    make_headers(made);
    set_options(made);
    *http = made;
    return 0;
}

int http_request(struct http *http, const char *url, const char *body, struct str *reply,
                 struct err *err)
{
    const struct libcurl *curl = &http->curl;
    long status = 0;

    str_clear(reply);
    http->problem[0] = '\0';
    curl->easy_setopt(http->easy, CURLOPT_URL, url);
    curl->easy_setopt(http->easy, CURLOPT_WRITEDATA, reply);
    if (body) {
        curl->easy_setopt(http->easy, CURLOPT_POST, 1L);
        curl->easy_setopt(http->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        curl->easy_setopt(http->easy, CURLOPT_POSTFIELDS, body);
    } else {
        curl->easy_setopt(http->easy, CURLOPT_HTTPGET, 1L);
    }
    CURLcode code = curl->easy_perform(http->easy);
    if (code == CURLE_OK)
        code = curl->easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK)
        return err_set(err, ERR_FAILED, "%s",
                       http->problem[0] ? http->problem : curl->easy_strerror(code));
    return (int)status;
}

void http_add_escaped(struct str *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (isalnum(c) || strchr("-._~", c))
            str_add_char(out, (char)c);
        else
            str_printf(out, "%%%02X", c);
    }
}

void http_close(struct http *http)
{
    if (!http)
        return;
    http->curl.easy_cleanup(http->easy);
    http->curl.slist_free_all(http->headers);
    free(http->login);
    free(http);
}
