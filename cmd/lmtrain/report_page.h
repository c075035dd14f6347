/*
 * report_page.h - runs as one HTML file that needs nothing else
 *
 * The template, styles and scripts are lib/report/page/, the charts Chart.js, both carried inside
 * the binary (config/embedded.h).
 */
#ifndef CMD_REPORT_PAGE_H
#define CMD_REPORT_PAGE_H

#include "report_run.h"

#define REPORT_PAGE_BYTES 2000000 /* at most */

/*
 * Write the page. Tables, events and timelines are thinned until it has no more than
 * REPORT_PAGE_BYTES; a warning if that is not enough. Returns 0, or -1: ERR_FAILED also where this
 * lmtrain was built without Chart.js.
 */
int report_page_write(const struct report *report, const char *path, struct arena *arena,
                      struct err *err);

#endif
