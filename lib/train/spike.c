/*
 * spike.c - z-scores over a ring of values
 */
#include "train/spike.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/num.h"

#define SPREAD_MIN 1e-3 /* of the mean */

void spikes_init(struct spikes *s, double z, int window)
{
    CHECK(window >= 2 && window <= SPIKE_WINDOW_MAX);
    *s = (struct spikes){ .z = z, .window = window };
    for (int i = 0; i < N_SPIKE_MEASURES; i++) {
        s->values[i] = calloc((size_t)window, sizeof *s->values[i]);
        CHECK(s->values[i]);
    }
}

void spikes_release(struct spikes *s)
{
    for (int i = 0; i < N_SPIKE_MEASURES; i++)
        free(s->values[i]);
    *s = (struct spikes){ 0 };
}

/* Two passes, in the order of time: the same bits however the ring lies. */
static double score(const struct spikes *s, const double *values, double value)
{
    double mean = 0, variance = 0;

    for (int i = 0; i < s->n; i++)
        mean += values[(s->next + i) % s->window] / s->n;
    for (int i = 0; i < s->n; i++) {
        double apart = values[(s->next + i) % s->window] - mean;

        variance += apart * apart / (s->n - 1);
    }
    return (value - mean) / fmax(sqrt(variance), SPREAD_MIN * fabs(mean) + 1e-30);
}

int spikes_find(const struct spikes *s, const double values[N_SPIKE_MEASURES],
                double z[N_SPIKE_MEASURES])
{
    int found = 0;

    for (int i = 0; i < N_SPIKE_MEASURES; i++) {
        z[i] = 0;
        if (s->n < s->window || !isfinite(values[i]))
            continue;
        z[i] = score(s, s->values[i], values[i]);
        found |= z[i] > s->z;
    }
    return found;
}

void spikes_add(struct spikes *s, const double values[N_SPIKE_MEASURES])
{
    for (int i = 0; i < N_SPIKE_MEASURES; i++)
        if (!isfinite(values[i]))
            return;
    for (int i = 0; i < N_SPIKE_MEASURES; i++)
        s->values[i][s->next] = values[i];
    s->next = (s->next + 1) % s->window;
    s->n = min_int(s->n + 1, s->window);
}

void spikes_print(const struct spikes *s, struct str *out)
{
    int oldest = s->n < s->window ? 0 : s->next;

    str_add(out, "[");
    for (int i = 0; i < N_SPIKE_MEASURES; i++) {
        str_add(out, i ? ", [" : "[");
        for (int k = 0; k < s->n; k++)
            str_printf(out, "%s\"%a\"", k ? ", " : "", s->values[i][(oldest + k) % s->window]);
        str_add(out, "]");
    }
    str_add(out, "]");
}

/* A string of spikes_print; older checkpoints have numbers. */
static bool read_value(const cJSON *item, double *value)
{
    char *end;

    if (cJSON_IsNumber(item)) {
        *value = item->valuedouble;
        return true;
    }
    if (!cJSON_IsString(item) || !*item->valuestring)
        return false;
    *value = strtod(item->valuestring, &end);
    return !*end;
}

void spikes_read(struct spikes *s, const char *text)
{
    cJSON *root = cJSON_Parse(text);
    const cJSON *losses = cJSON_GetArrayItem(root, SPIKE_LOSS);
    const cJSON *norms = cJSON_GetArrayItem(root, SPIKE_NORM);
    const cJSON *loss = losses ? losses->child : NULL, *norm = norms ? norms->child : NULL;
    double values[N_SPIKE_MEASURES];

    s->n = s->next = 0;
    for (; read_value(loss, &values[SPIKE_LOSS]) && read_value(norm, &values[SPIKE_NORM]);
         loss = loss->next, norm = norm->next)
        spikes_add(s, values);
    cJSON_Delete(root);
}
