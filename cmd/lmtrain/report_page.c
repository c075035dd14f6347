/*
 * report_page.c - the template filled in
 */
#include "report_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "config/embedded.h"

#define FOLDER "lib/report/page/"
#define N_DIGITS 7 /* of numbers that are drawn */
/* At first, of each run. */
#define N_POINTS 2400
#define N_EVENTS 1500
#define N_SLICES 6000
#define N_ROUNDS 12 /* each with two thirds of the one before: a hundredth in the end */

/* A '<' could end the element that holds the data; outside of strings JSON has none. */
static void add_json(struct str *out, const char *text)
{
    for (const char *at = text; *at; at++) {
        if (*at == '<')
            str_add(out, "\\u003c");
        else
            str_add_char(out, *at);
    }
}

static void add_file(struct str *out, const char *path)
{
    const struct embedded_file *file = embedded_find(path);

    CHECK(file != NULL);
    str_add(out, file->text);
}

/* {{NAME}}: the data, or a file of the folder or, of the charts, of the build. */
static void add_part(struct str *out, const char *name, size_t length, const char *data)
{
    char path[128];

    if (length == 4 && !strncmp(name, "data", 4)) {
        add_json(out, data);
        return;
    }
    snprintf(path, sizeof path, "%s%.*s", strncmp(name, "chart.", 6) ? FOLDER : "build/gen/",
             (int)length, name);
    add_file(out, path);
}

static void fill(struct str *out, const char *data)
{
    const char *at = embedded_find(FOLDER "report.html")->text, *open;

    while ((open = strstr(at, "{{"))) {
        const char *close = strstr(open, "}}");

        CHECK(close != NULL);
        str_add_bytes(out, at, (size_t)(open - at));
        add_part(out, open + 2, (size_t)(close - open - 2), data);
        at = close + 2;
    }
    str_add(out, at);
}

static void make(struct str *out, const struct report *report, double share, struct arena *arena)
{
    const struct run_json_options options = { .n_points = (int)(N_POINTS * share),
                                              .n_digits = N_DIGITS,
                                              .n_events = (int)(N_EVENTS * share),
                                              .n_slices = (int)(N_SLICES * share) };
    cJSON *json = report_json(report, &options, arena);
    char *text = cJSON_PrintUnformatted(json);

    str_clear(out);
    fill(out, text);
    free(text);
    cJSON_Delete(json);
}

int report_page_write(const struct report *report, const char *path, struct arena *arena,
                      struct err *err)
{
    struct str page = { 0 };
    double share = 1;

    if (!embedded_find("build/gen/chart.min.js"))
        return err_set(err, ERR_FAILED,
                       "this lmtrain was built without Chart.js, which draws the page (hint: "
                       "install libjs-chart.js and build again; --json has all that a page shows)");
    make(&page, report, share, arena);
    for (int i = 0; i < N_ROUNDS && page.length > REPORT_PAGE_BYTES; i++) {
        share *= 2.0 / 3;
        make(&page, report, share, arena);
    }
    if (page.length > REPORT_PAGE_BYTES)
        log_warn("%s: %.1f MB, more than the 2 MB of most pages (hint: fewer runs)", path,
                 (double)page.length / 1e6);
    int status = file_write(path, str_text(&page), page.length, err);
    str_release(&page);
    return status;
}
