/*
 * plan_sizes.c - a list in short, and its bubble beside that of equal sizes
 */
#include "plan_sizes.h"

/* "1 2 3 4 5x9 4 3 2" */
static void print_list(const struct micro_batch_sizes *sizes, struct str *out)
{
    for (int begin = 0, end; begin < sizes->n; begin = end) {
        for (end = begin; end < sizes->n && sizes->sizes[end] == sizes->sizes[begin];)
            end++;
        str_printf(out, begin ? " %d" : "%d", sizes->sizes[begin]);
        if (end - begin > 1)
            str_printf(out, "x%d", end - begin);
    }
}

static double share(int64_t bubble, int64_t ns)
{
    return ns > 0 ? 100 * (double)bubble / (double)ns : 0;
}

void plan_print_sizes(const struct micro_batch_sizes *sizes, struct str *out)
{
    str_add(out, "micro-batches: ");
    print_list(sizes, out);
    str_printf(out,
               ", the best of %d list%s (%d simulated): %.2f ms, pipeline bubble %.2f ms (%.1f %%)",
               sizes->n_lists, str_s(sizes->n_lists), sizes->n_simulated, (double)sizes->ns / 1e6,
               (double)sizes->bubble / 1e6, share(sizes->bubble, sizes->ns));
    if (sizes->even)
        str_printf(out, "; all of %d: %.2f ms, bubble %.2f ms (%.1f %%)", sizes->even,
                   (double)sizes->even_ns / 1e6, (double)sizes->even_bubble / 1e6,
                   share(sizes->even_bubble, sizes->even_ns));
    str_add(out, "\n");
}

void plan_add_sizes(const struct micro_batch_sizes *sizes, cJSON *json)
{
    cJSON *made = cJSON_AddObjectToObject(json, "micro_batch_sizes");

    cJSON_AddNumberToObject(made, "lists", sizes->n_lists);
    cJSON_AddNumberToObject(made, "simulated", sizes->n_simulated);
    cJSON_AddNumberToObject(made, "ns", (double)sizes->ns);
    cJSON_AddNumberToObject(made, "bubble_ns", (double)sizes->bubble);
    if (!sizes->even)
        return;
    cJSON_AddNumberToObject(made, "even_size", sizes->even);
    cJSON_AddNumberToObject(made, "even_ns", (double)sizes->even_ns);
    cJSON_AddNumberToObject(made, "even_bubble_ns", (double)sizes->even_bubble);
}
