/*
 * waterfall.c - see the header
 */
#include "report/waterfall.h"

#include <math.h>

#include "base/num.h"

/* The character in which a position lies; the last one at most. */
static int column_of(const struct waterfall *w, double at)
{
    return min_int(w->width, (int)lround(at / w->whole * w->width));
}

void waterfall_next(struct waterfall *w, double part, struct str *out)
{
    str_clear(out);
    if (!(part > 0) || !(w->whole > 0))
        return;
    /* Beside a share of 0.0 % a mark would say otherwise. */
    if (part < w->whole / 2000) {
        w->begin += part;
        return;
    }
    int begin = min_int(column_of(w, w->begin), w->width - 1);
    int end = max_int(begin + 1, column_of(w, w->begin + part));

    for (int i = 0; i < end; i++)
        str_add_char(out, i < begin ? ' ' : '#');
    w->begin += part;
}
