/*
 * pipeline_print.c - a schedule as a picture in text
 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "layout/pipeline_impl.h"

struct canvas {
    const struct pipeline *pipeline;
    struct str *text;
    int width; /* of a unit's column */
    int column, n_columns;
    int pending; /* blanks owed before the next cell, so that lines don't end in them */
};

static void put_cell(struct canvas *canvas, const char *cell)
{
    if (canvas->column++ >= canvas->n_columns)
        return;
    str_printf(canvas->text, "%*s%s", canvas->pending, "", cell);
    canvas->pending = canvas->width - (int)strlen(cell);
}

static int64_t cells_of(const struct pipeline_spec *spec, const struct pipeline_step *step)
{
    return (step->kind == STEP_B ? 2 : 1) * (spec->sizes ? spec->sizes[step->micro_batch] : 1);
}

static void put_rank(struct canvas *canvas, const struct pipeline_timing *timing, int rank)
{
    const struct pipeline_list *list = &canvas->pipeline->ranks[rank];
    char name[64];

    canvas->column = 0;
    canvas->pending = 0;
    str_printf(canvas->text, "rank %-*d",
               snprintf(NULL, 0, "%d", canvas->pipeline->spec.n_ranks) + 2, rank);
    for (int k = 0; k < list->n_steps && canvas->column < canvas->n_columns; k++) {
        int64_t cells = cells_of(&canvas->pipeline->spec, &list->steps[k]);

        while (canvas->column < canvas->n_columns && canvas->column < timing->ranks[rank].starts[k])
            put_cell(canvas, ".");
        put_cell(canvas, step_text(name, sizeof name, &canvas->pipeline->spec, &list->steps[k]));
        for (int64_t cell = 1; cell < cells && canvas->column < canvas->n_columns; cell++)
            put_cell(canvas, "-");
    }
    if (timing->ranks[rank].last_end > canvas->n_columns)
        str_printf(canvas->text, "%*s...", canvas->pending, "");
    str_add_char(canvas->text, '\n');
}

int pipeline_print(const struct pipeline *pipeline, int n_units, struct str *text, struct err *err)
{
    const struct pipeline_spec *spec = &pipeline->spec;
    struct pipeline_step widest = { STEP_F, spec->n_chunks - 1, spec->n_micro_batches - 1 };
    struct arena scratch = { 0 };
    struct pipeline_timing timing;
    char name[64];
    int status = simulate_units(&timing, pipeline, &scratch, err);

    if (status == 0) {
        struct canvas canvas = { .pipeline = pipeline, .text = text };

        canvas.width = (int)strlen(step_text(name, sizeof name, spec, &widest)) + 1;
        canvas.n_columns = n_units > 0 ? n_units : (int)min_i64(timing.makespan, 1 << 20);
        for (int rank = 0; rank < spec->n_ranks; rank++)
            put_rank(&canvas, &timing, rank);
    }
    arena_release(&scratch);
    return status;
}
