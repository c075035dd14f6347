/*
 * items_shots.c - the few-shot examples in front of an item's prompt, as lm-evaluation-harness
 * draws them
 *
 * Shots are the first records, or a sample by Python's random generator with the seed of the
 * harness; one generator serves the whole part, so items are made in their order. Where shots come
 * from the items themselves, an item is never a shot of its own prompt. A file may have finished
 * shots instead.
 */
#include <string.h>

#include "data/rows/json_value.h"
#include "eval/items_impl.h"

#define SHOTS_SEED 1234

/* "QUESTION ANSWER\n\n" of a record. */
static int make_shot(struct item_maker *m, const char *record, const char **out, struct err *err)
{
    const struct task_way *way = &m->part->way;
    struct str text = { 0 }, target = { 0 };
    const char **choices;
    int golds[ITEM_GOLDS_MAX], n_golds, n;

    int status = item_maker_render(m, way->prompt, record, true, &text, err);
    if (!status)
        status = item_maker_render(m, way->target, record, true, &target, err);
    if (!status && way->kind == TASK_CHOICE) {
        status = item_maker_choices(m, record, true, &choices, &n, err);
        if (!status)
            status = item_golds(str_text(&target), choices, n, golds, &n_golds, err);
        if (!status) {
            str_clear(&target);
            str_add(&target, choices[golds[0]]);
        }
    }
    if (!status) {
        if (target.length)
            str_printf(&text, "%s%s%s", way->target_delimiter, str_text(&target),
                       way->shot_delimiter);
        *out = item_maker_keep(m, &text);
    }
    str_release(&text);
    str_release(&target);
    return status;
}

/* Whether shots are put together from items. */
static bool has_shots(const struct item_maker *m)
{
    return m->n_shots > 0 && !m->file_shots && m->part->way.shots_from != TASK_FROM_DESCRIPTION;
}

/* Indices of a record's shots, in `chosen`. */
static int choose_shots(struct item_maker *m, const char *record, struct err *err)
{
    const struct task_way *way = &m->part->way;
    int from_test = way->shots_from == TASK_FROM_TEST, n = 0, k = m->n_shots;
    uint32_t total = (uint32_t)m->shots.n;

    if (way->order == TASK_SHOTS_FIRST) {
        for (uint32_t i = 0; i < total && n < k; i++)
            if (!from_test || strcmp(m->shots.items[i], record) != 0)
                m->chosen[n++] = i;
    } else if (total >= (uint32_t)(k + from_test)) {
        python_random_sample(&m->random, total, (uint32_t)(k + from_test), m->chosen, m->pool);
        for (int i = 0; i < k + from_test && n < k; i++)
            if (!from_test || strcmp(m->shots.items[m->chosen[i]], record) != 0)
                m->chosen[n++] = m->chosen[i];
        if (n < k) { /* the record is there more than once: again from all but it */
            uint32_t *others = arena_array(&m->l->items->arena, uint32_t, total), n_others = 0;

            for (uint32_t i = 0; i < total; i++)
                if (strcmp(m->shots.items[i], record) != 0)
                    others[n_others++] = i;
            n = n_others >= (uint32_t)k ? k : 0;
            if (n)
                python_random_sample(&m->random, n_others, (uint32_t)k, m->chosen, m->pool);
            for (int i = 0; i < n; i++)
                m->chosen[i] = others[m->chosen[i]];
        }
    }
    if (n < k)
        return err_set(err, ERR_DATA, "%s: %d shot%s requested, but there are only %lld (%s)",
                       m->part->name, k, k == 1 ? " is" : "s are", (long long)m->shots.n,
                       m->shots.path ? m->shots.path : "the items");
    return 0;
}

int item_maker_add_shots(struct item_maker *m, const char *record, struct str *out, struct err *err)
{
    if (!has_shots(m))
        return 0;
    if (choose_shots(m, record, err) < 0)
        return -1;
    for (int i = 0; i < m->n_shots; i++) {
        uint32_t at = m->chosen[i];

        if (!m->shot_texts[at] && make_shot(m, m->shots.items[at], &m->shot_texts[at], err) < 0)
            return -1;
        str_add(out, m->shot_texts[at]);
    }
    return 0;
}

/* What a file of shots has for the part: JSON, as JSON. */
static int pick_shots(struct item_maker *m, const char *text, struct err *err)
{
    struct arena scratch = { 0 };
    struct json_value *all;
    struct str out = { 0 };
    int status = 0;

    if (str_ends_with(m->file_shots_path, ".json")) {
        status = json_value_parse(&all, text, strlen(text), &scratch, err);
        if (status < 0)
            err_add(err, "%s", m->file_shots_path);
        const struct json_value *own =
            !status && all->kind == JSON_OBJECT ? json_value_get(all, m->part->name) : NULL;
        if (!status)
            json_value_print(own ? own : all, &out);
    } else {
        json_value_print_text(text, strlen(text), &out);
    }
    if (!status)
        m->file_shots = item_maker_keep(m, &out);
    str_release(&out);
    arena_release(&scratch);
    return status;
}

/* Finished shots of a file, which are used unless --shots gives a number. */
int item_maker_read_shots(struct item_maker *m, struct err *err)
{
    const struct task_way *way = &m->part->way;
    struct items_loader *l = m->l;
    struct str looked = { 0 };
    char *text;
    int found = 0;

    if (way->shots_file.n && l->o->n_shots < 0)
        found = records_find_text(&way->shots_file, l->o->data, l->task->name, m->part->name,
                                  &l->items->arena, &text, &m->file_shots_path, &looked, err);
    if (found > 0 && pick_shots(m, text, err) < 0)
        found = -1;
    if (found > 0 && m->part_index == l->first_part)
        l->items->n_shots = -1;
    str_release(&looked);
    return found < 0 ? -1 : 0;
}

int item_maker_prepare_shots(struct item_maker *m, struct err *err)
{
    struct items_loader *l = m->l;
    const struct task_way *way = &m->part->way;
    struct arena *arena = &l->items->arena;
    struct str looked = { 0 };
    int found = 1;

    if (!has_shots(m))
        return 0;
    if (way->shots_from == TASK_FROM_TEST || way->shots_from == TASK_FROM_ITEMS)
        m->shots = m->test;
    else
        found = records_read(&m->shots, &l->task->shots, l->o->data, l->task->name, m->part->name,
                             m->variables, 0, arena, &looked, err);
    if (!found)
        err_set(err, ERR_DATA,
                "%s, %s: no few-shot file (hint: --shots 0; searched %s, in %s/%s and in %s)",
                l->task->name, m->part->name, str_text(&looked), l->o->data, l->task->name,
                l->o->data);
    str_release(&looked);
    if (found <= 0)
        return -1;
    size_t room = (size_t)m->shots.n + 1;
    m->shot_texts = arena_array(arena, const char *, room);
    m->pool = arena_array(arena, uint32_t, room);
    m->chosen = arena_array(arena, uint32_t, (size_t)m->n_shots + 2);
    python_random_seed(&m->random, SHOTS_SEED);
    return 0;
}

int item_maker_check_shots(const struct item_maker *m, struct err *err)
{
    int most = m->part->way.n_shots_most;

    if (most >= 0 && m->n_shots > most)
        return err_set(err, ERR_CONFIG, "--shots %d: %s in style %s has at most %d", m->n_shots,
                       m->l->task->name, m->l->task->style, most);
    return 0;
}
