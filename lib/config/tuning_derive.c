/*
 * tuning_derive.c - what of a job is trained, from what it says and from the model's family
 */
#include <glob.h>
#include <string.h>

#include "config/hf_config.h"
#include "config/read_impl.h"

#define LORA_RANK_AUTO 8
static int has_text(const struct job_texts *texts, const char *text)
{
    for (int i = 0; i < texts->n; i++)
        if (!strcmp(texts->values[i], text))
            return 1;
    return 0;
}

/* Added tokens are untrained rows of the tables: with adapters the tables are trained as well. */
static void save_tables(struct job_reader *r)
{
    static const char *const tables[2][4] = { { "embed_tokens", "embedding", "wte",
                                                "tok_embeddings" },
                                              { "lm_head", "head", "output", "lm_head" } };
    struct job *job = r->job;
    struct job_texts *saved = &job->lora.modules_to_save;
    const char **values = arena_array(r->arena, const char *, saved->n + 2);
    int n = saved->n;

    if (job->kind != JOB_LORA || !job->data.added_tokens.n)
        return;
    for (int i = 0; i < saved->n; i++)
        values[i] = saved->values[i];
    for (int t = 0; t < 2 - !!job->model.tied_embeddings; t++) {
        int has = 0;

        for (int i = 0; i < 4; i++)
            has |= has_text(saved, tables[t][i]);
        if (!has)
            values[n++] = tables[t][0];
    }
    if (n > saved->n)
        job_note(job, r->arena, "lora.modules_to_save has %s%s%s too (auto: data.added_tokens)",
                 values[saved->n], n - saved->n > 1 ? ", " : "",
                 n - saved->n > 1 ? values[n - 1] : "");
    *saved = (struct job_texts){ values, n };
}

/* The family of the model that the job begins with, where a config.json says it; else NULL. */
static const char *family_of(const struct job_reader *r)
{
    static const char *const places[] = { "", "/hf", "/checkpoints/*/hf" };
    const char *folder = r->job->train.init ? r->job->train.init : r->model_folder;
    const char *family = NULL;
    struct err ignored;

    for (size_t i = 0; folder && !family && i < sizeof places / sizeof *places; i++) {
        const char *pattern = arena_printf(r->arena, "%s%s/config.json", folder, places[i]);
        glob_t found;

        if (glob(pattern, 0, NULL, &found) == 0) {
            char *slash = strrchr(found.gl_pathv[found.gl_pathc - 1], '/');

            *slash = '\0';
            family = hf_config_family(found.gl_pathv[found.gl_pathc - 1], r->arena, &ignored);
        }
        globfree(&found);
    }
    return family;
}

static int is_same_places(const struct tuning *a, const struct tuning *b)
{
    for (int i = 0; i < a->n_layers * N_LORA_MODULES; i++)
        if (a->places[i].rank != b->places[i].rank)
            return 0;
    return 1;
}

/* Whether some layer's experts have adapters. */
static int has_experts(const struct tuning *t)
{
    for (int i = 0; i < t->n_layers * N_LORA_MODULES; i++)
        if (t->places[i].rank && lora_is_of_experts((enum lora_module)(i % N_LORA_MODULES)))
            return 1;
    return 0;
}

/*
 * A target that is a name of the family is recorded by our names, since the family may not be known
 * where the job is read again.
 */
static void settle_targets(struct job_reader *r, const struct lora_wish *wish,
                           const struct tuning *tuning)
{
    struct job *job = r->job;
    struct lora_wish plain = *wish;
    struct tuning without;
    struct err ignored;

    plain.family = NULL;
    plain.packed = job->model.position == POSITION_LEARNED;
    if (!tuning_make_lora(&without, &job->model, &plain, r->arena, &ignored) &&
        is_same_places(&without, tuning))
        return;
    job->lora.targets = lora_targets(tuning, r->arena);
    struct str list = { 0 };
    for (int i = 0; i < job->lora.targets.n; i++)
        str_printf(&list, i ? ", %s" : "%s", job->lora.targets.values[i]);
    job_note(job, r->arena, "lora.targets = [%s] (as models of family %s have them)",
             str_text(&list), wish->family);
    str_release(&list);
}

/* What is trained, where that is not everything. */
void reader_derive_tuning(struct job_reader *r)
{
    struct job *job = r->job;

    save_tables(r);
    struct lora_wish wish = { .rank = job->lora.rank,
                              .alpha = job->lora.alpha,
                              .dropout = job->lora.dropout,
                              .rslora = job->lora.rslora,
                              .bias = job->lora.bias,
                              .targets = job->lora.targets,
                              .saved = job->lora.modules_to_save,
                              .packed = job->model.position == POSITION_LEARNED };
    const char *family = job->lora.rank || job->kind == JOB_LORA ? family_of(r) : NULL;
    struct tuning *tuning = arena_new(r->arena, struct tuning);
    struct err err;

    if (family) {
        wish.family = family;
        wish.packed = lora_family_packs(family);
    }
    if (job->kind == JOB_LORA && !job->lora.rank)
        wish.rank = job->lora.rank = LORA_RANK_AUTO;
    if (job->lora.rank && (job->train.only.n || job->train.freeze.n)) {
        diagnostics_add(&r->mistakes,
                        reader_given(r, job->train.only.n ? "train.only" : "train.freeze"),
                        "with lora the model's own parameters stay as they are (hint: "
                        "lora.modules_to_save, or without lora)");
        return;
    }
    if (job->lora.rank && tuning_make_lora(tuning, &job->model, &wish, r->arena, &err) < 0) {
        diagnostics_add(&r->mistakes,
                        reader_given(r, strstr(err.text, "lora.targets") ? "lora.targets"
                                                                         : "lora.modules_to_save"),
                        "%s", err.text);
        return;
    }
    if (wish.family)
        settle_targets(r, &wish, tuning);
    if (job->lora.rank && job->model.n_experts > 0 && has_text(&job->lora.targets, "all") &&
        !has_experts(tuning))
        job_note(job, r->arena, "lora.targets all does not include experts (hint: [all, experts])");
    tuning->only = job->train.only;
    tuning->freeze = job->train.freeze;
    if (job->lora.rank || tuning->only.n || tuning->freeze.n)
        job->tuning = tuning;
}
