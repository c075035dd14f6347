/*
 * live_line.c - the parts of the line, and which of them fit
 */
#include "report/live_line.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"

bool live_line_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);

    if (!locale)
        return false;
    bool utf8 = !strcmp(nl_langinfo_l(CODESET, locale), "UTF-8");
    freelocale(locale);
    return utf8;
}

int live_line_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void live_line_add_cut(struct str *out, const char *text, int width)
{
    const char *end = text;

    while (*end && (((unsigned char)*end & 0xc0) == 0x80 || width-- > 0))
        end++;
    str_add_bytes(out, text, (size_t)(end - text));
}

/* 12400 -> "12.4k" */
static const char *short_count(char *buffer, size_t size, double n)
{
    static const char *const units[] = { "", "k", "M", "G", "T" };
    int unit = 0;

    while (n >= 999.5 && unit < 4) {
        n /= 1000;
        unit++;
    }
    snprintf(buffer, size, unit && n < 99.95 ? "%.1f%s" : "%.0f%s", n, units[unit]);
    return buffer;
}

void live_line_add(struct live_line *line, int need, const char *format, ...)
{
    CHECK(line->n < N_LIVE_PARTS_MAX);
    struct live_part *part = &line->parts[line->n++];
    va_list arguments;

    *part = (struct live_part){ .need = need };
    va_start(arguments, format);
    vsnprintf(part->text, sizeof part->text, format, arguments);
    va_end(arguments);
}

static void add_speed(struct live_line *line, const struct metrics_step *step)
{
    char text[32], learned[32];

    if (step->tokens_per_s > 0 && step->learned_per_s > 0)
        live_line_add(line, 4, "%s tok/s (%s with loss)",
                      short_count(text, sizeof text, step->tokens_per_s),
                      short_count(learned, sizeof learned, step->learned_per_s));
    else if (step->tokens_per_s > 0)
        live_line_add(line, 4, "%s tok/s", short_count(text, sizeof text, step->tokens_per_s));
    if (step->mfu > 0)
        live_line_add(line, 5, step->mfu < 0.0995 ? "MFU %.1f %%" : "MFU %.0f %%", 100 * step->mfu);
}

void live_line_of(struct live_line *line, const struct live_facts *facts)
{
    const struct metrics_step *step = facts->step;
    char text[32];

    line->n = 0;
    live_line_add(line, 0, "step %lld/%lld", (long long)step->step, (long long)facts->total_steps);
    if (facts->has_step)
        live_line_add(line, 3, "loss %.3f", step->loss);
    add_speed(line, step);
    if (step->memory_bytes)
        live_line_add(line, 6, "%s", str_bytes(text, sizeof text, step->memory_bytes));
    if (step->skipped)
        live_line_add(line, 7, "skipped %lld", (long long)step->skipped);
    if (step->reruns)
        live_line_add(line, 7, "run again %lld", (long long)step->reruns);
    if (step->loss_scale > 0)
        live_line_add(line, 8, "scale %.0f", step->loss_scale);
    if (*facts->note)
        live_line_add(line, 2, "straggler %s", facts->note);
    if (*facts->status)
        live_line_add(line, 1, "%s", facts->status);
    if (isfinite(facts->left_s))
        live_line_add(line, 2, "left %s", str_duration(text, sizeof text, facts->left_s));
}

/* As many as fit, by need; false if some do not. */
static bool choose_parts(struct live_line *line, int width)
{
    int used = 0;

    for (int need = 0; need < N_LIVE_PARTS_MAX; need++)
        for (int i = 0; i < line->n; i++) {
            struct live_part *part = &line->parts[i];

            if (part->need != need)
                continue;
            int wanted = (used ? 2 : 0) + live_line_width(part->text);
            if (used && used + wanted > width)
                return false;
            part->is_shown = true;
            used += wanted;
        }
    return used <= width;
}

bool live_line_print(struct live_line *line, struct str *out, int width)
{
    bool all = choose_parts(line, width);

    for (int i = 0; i < line->n; i++) {
        if (!line->parts[i].is_shown)
            continue;
        if (i > 0)
            str_add(out, "  ");
        live_line_add_cut(out, line->parts[i].text, width);
    }
    return all;
}

void live_line_bar(struct str *out, double share, int n_cells, bool is_utf8, bool has_colour)
{
    int n_full = (int)(fmin(fmax(share, 0), 1) * n_cells);

    if (has_colour)
        str_add(out, "\033[32m");
    for (int i = 0; i < n_cells; i++) {
        if (is_utf8)
            str_add(out, i < n_full ? "\xe2\x96\x88" : "\xe2\x96\x91");
        else
            str_add_char(out, i < n_full ? '#' : '.');
    }
    if (has_colour)
        str_add(out, "\033[0m");
}
