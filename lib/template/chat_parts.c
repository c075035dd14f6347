/*
 * chat_parts.c - a conversation's text cut into answers and what is between them
 *
 * chat.h states the two rules. That of {% generation %} blocks takes one rendering, that of
 * prefixes two more for each answer, and two again where the template writes no generation prompt.
 */
#include <stdlib.h>
#include <string.h>

#include "template/chat_impl.h"

void chat_parts_release(struct chat_parts *parts)
{
    str_release(&parts->text);
    free(parts->items);
    memset(parts, 0, sizeof *parts);
}

int chat_parts_add(struct chat_parts *parts, size_t begin, size_t end, bool is_answer, int message,
                   struct err *err)
{
    if (parts->n == parts->capacity) {
        int capacity = parts->capacity ? 2 * parts->capacity : 8;
        struct chat_part *items = realloc(parts->items, sizeof *items * (size_t)capacity);

        if (!items)
            return err_set(err, ERR_DEVICE, "out of host memory");
        parts->items = items;
        parts->capacity = capacity;
    }
    parts->items[parts->n++] = (struct chat_part){ begin, end, is_answer, message };
    return 0;
}

/* What lies before an answer, and the answer; nothing that is empty. */
static int add_answer(struct chat_parts *parts, size_t *done, size_t begin, size_t end, int message,
                      struct err *err)
{
    if (*done < begin && chat_parts_add(parts, *done, begin, false, -1, err) < 0)
        return -1;
    if (begin < end && chat_parts_add(parts, begin, end, true, message, err) < 0)
        return -1;
    *done = end;
    return 0;
}

static int add_rest(struct chat_parts *parts, size_t done, struct err *err)
{
    return done < parts->text.length
               ? chat_parts_add(parts, done, parts->text.length, false, -1, err)
               : 0;
}

/* The last message of the assistant; -1 if there is none. */
static int last_answer(const struct chat_message *messages, int n)
{
    while (n > 0 && strcmp(messages[n - 1].role, ROLE_ASSISTANT))
        n--;
    return n - 1;
}

/* ---- {% generation %} blocks ---- */

/* How many blocks belong to what stands before the last answer. */
static int count_earlier(const struct chat_template *t, const struct chat_message *messages, int n,
                         const struct chat_parts *blocks)
{
    struct chat_parts earlier = { 0 };
    struct err ignored;
    int last = last_answer(messages, n), n_earlier = blocks->n - 1;

    if (last > 0 && chat_render(t, messages, last, 0, &earlier.text, &earlier, &ignored) == 0)
        n_earlier = earlier.n;
    chat_parts_release(&earlier);
    return n_earlier;
}

static int add_blocks(const struct chat_parts *blocks, int first, struct chat_parts *parts,
                      struct err *err)
{
    size_t done = 0;

    for (int i = first > 0 ? first : 0; i < blocks->n; i++) {
        size_t begin = blocks->items[i].begin, end = blocks->items[i].end;

        begin = begin < done ? done : begin;
        end = end > parts->text.length ? parts->text.length : end;
        if (begin < end && add_answer(parts, &done, begin, end, -1, err) < 0)
            return -1;
    }
    return add_rest(parts, done, err);
}

static int mark_blocks(const struct chat_template *t, const struct chat_message *messages, int n,
                       enum chat_marks marks, struct chat_parts *parts, struct err *err)
{
    struct chat_parts blocks = { 0 };
    int status = chat_render(t, messages, n, 0, &parts->text, &blocks, err);

    parts->by_blocks = 1;
    if (!status)
        status = add_blocks(&blocks,
                            marks == CHAT_MARK_LAST ? count_earlier(t, messages, n, &blocks) : 0,
                            parts, err);
    chat_parts_release(&blocks);
    return status;
}

/* ---- prefixes ---- */

static size_t common_length(const struct str *a, const struct str *b)
{
    size_t n = 0, least = a->length < b->length ? a->length : b->length;

    while (n < least && a->data[n] == b->data[n])
        n++;
    /* Not within a character. */
    while (n && n < a->length && ((unsigned char)a->data[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static int refuse_rewriting(int message, struct err *err)
{
    return err_set(err, ERR_DATA,
                   "the template renders the text before the answer of message %d differently when "
                   "the answer follows, so that the start of the answer is unknown",
                   message);
}

/* Where answers at message i's place stop to be alike; as it was if that is white space further
 * on. */
static int skip_header(const struct chat_template *t, const struct chat_message *messages, int i,
                       const struct str *text, size_t *begin, struct err *err)
{
    static const char *const probes[] = { "Answer0probe", "9probe" };
    struct chat_message *copy = malloc(sizeof *copy * (size_t)(i + 1));
    struct str other = { 0 };
    size_t end = text->length;
    int status = 0;

    if (!copy)
        return err_set(err, ERR_DEVICE, "out of host memory");
    memcpy(copy, messages, sizeof *copy * (size_t)i);
    for (int k = 0; k < 2 && !status; k++) {
        copy[i] = (struct chat_message){ ROLE_ASSISTANT, probes[k], NULL };
        str_clear(&other);
        status = chat_template_render(t, copy, i + 1, 0, &other, err);
        size_t common = common_length(text, &other);
        end = common < end ? common : end;
    }
    if (!status && end > *begin &&
        text_strip((struct text){ text->data + *begin, end - *begin }, NULL, STRIP_LEFT).n > 0)
        *begin = end;
    str_release(&other);
    free(copy);
    return status;
}

/*
 * Where message i begins to be the model's. A generation prompt may go on differently from what
 * stands there in the end (thinking that begins); it counts as far as it is the same.
 */
static int find_begin(const struct chat_template *t, const struct chat_message *messages, int i,
                      const struct str *text, size_t *begin, struct err *err)
{
    struct str before = { 0 }, without = { 0 };
    int status = chat_template_render(t, messages, i, 1, &before, err);

    if (!status) {
        *begin = common_length(text, &before);
        bool is_whole = *begin == before.length;
        if (!is_whole || !t->has_prompt) {
            status = chat_template_render(t, messages, i, 0, &without, err);
            if (!status &&
                (*begin < without.length || common_length(text, &without) < without.length))
                status = refuse_rewriting(i, err);
            else if (!status && is_whole && without.length == before.length)
                status = skip_header(t, messages, i, text, begin, err);
        }
    }
    str_release(&before);
    str_release(&without);
    return status;
}

/* Where the text up to message i ends; *is_rewritten if the whole does not begin with it. */
static int find_end(const struct chat_template *t, const struct chat_message *messages, int i,
                    int n, const struct str *text, size_t *end, bool *is_rewritten, struct err *err)
{
    struct str until = { 0 };
    int status = 0;

    *is_rewritten = false;
    *end = text->length;
    if (i + 1 < n) {
        status = chat_template_render(t, messages, i + 1, 0, &until, err);
        *end = until.length;
        *is_rewritten = !status && common_length(text, &until) < until.length;
    }
    str_release(&until);
    return status;
}

static int mark(const struct chat_template *t, const struct chat_message *messages, int i, int n,
                struct chat_parts *parts, size_t *done, struct err *err)
{
    size_t begin = 0, end = 0;
    bool is_rewritten;

    if (find_end(t, messages, i, n, &parts->text, &end, &is_rewritten, err) < 0)
        return -1;
    if (is_rewritten) {
        parts->n_rewritten++;
        return 0;
    }
    if (find_begin(t, messages, i, &parts->text, &begin, err) < 0)
        return -1;
    if (begin < *done || end < begin)
        return refuse_rewriting(i, err);
    struct text answer =
        text_strip((struct text){ str_text(&parts->text) + begin, end - begin }, NULL, STRIP_RIGHT);
    return add_answer(parts, done, begin, begin + answer.n, i, err);
}

int chat_template_parts(const struct chat_template *t, const struct chat_message *messages, int n,
                        enum chat_marks marks, struct chat_parts *parts, struct err *err)
{
    size_t done = 0;

    parts->n = parts->by_blocks = parts->n_rewritten = 0;
    str_clear(&parts->text);
    if (marks != CHAT_MARK_NONE && t->jinja.has_generation)
        return mark_blocks(t, messages, n, marks, parts, err);
    if (chat_template_render(t, messages, n, 0, &parts->text, err) < 0)
        return -1;
    int first = marks == CHAT_MARK_ALL ? 0 : marks == CHAT_MARK_LAST ? last_answer(messages, n) : n;
    for (int i = first < 0 ? n : first; i < n; i++)
        if (!strcmp(messages[i].role, ROLE_ASSISTANT) &&
            mark(t, messages, i, n, parts, &done, err) < 0)
            return -1;
    return add_rest(parts, done, err);
}
