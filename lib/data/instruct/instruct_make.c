/*
 * instruct_make.c - a row to a conversation to text to ids, each with whether it is learned
 *
 * The whole text is encoded at once, so that its ids are transformers'; answers are found in it as
 * bytes (chat.h says how) and then as tokens: every token that has a part of one is learned.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "data/instruct/instruct_impl.h"

/* Where the folder names no end token, the tokenizer's own end of text is it: answers must end.
 * Where it names one, that is the same. */
static int set_end(struct chat_template *chat, const struct tokenizer *tokenizer, struct err *err)
{
    int32_t end = tokenizer_end_of_text(tokenizer);
    struct str text = { 0 }, json = { 0 };
    int rc = 0;

    if (end < 0)
        return 0;
    tokenizer_decode(tokenizer, &end, 1, &text);
    json_value_print_text(str_text(&text), text.length, &json);
    rc = chat_template_set(chat, "eos_token", str_text(&json), err);
    str_release(&text);
    str_release(&json);
    return rc;
}

int instruct_maker_open(struct instruct_maker *maker, const struct instruct_options *o,
                        const struct tokenizer *tokenizer, struct err *err)
{
    *maker = (struct instruct_maker){
        .options = o,
        .rows = { o->format, o->columns, o->n_columns, o->system },
        .tokenizer = tokenizer,
        .cache = tokenizer_cache_create(),
    };
    if (!o->chat && (o->format == INSTRUCT_TEXT || !chat_template_is_in(o->tokenizer)))
        return 0; /* a row that needs one says so */
    if (chat_template_open(&maker->chat, o->chat, o->tokenizer, err) == 0 &&
        set_end(maker->chat, tokenizer, err) == 0)
        return 0;
    instruct_maker_close(maker);
    return -1;
}

void instruct_maker_close(struct instruct_maker *maker)
{
    chat_template_close(maker->chat);
    chat_parts_release(&maker->parts);
    token_sections_release(&maker->sections);
    tokenizer_cache_destroy(maker->cache);
    arena_release(&maker->arena);
}

void instruct_samples_clear(struct instruct_samples *samples)
{
    samples->ids.n = samples->n = 0;
}

void instruct_samples_release(struct instruct_samples *samples)
{
    token_list_release(&samples->ids);
    free(samples->learned);
    free(samples->ends);
    *samples = (struct instruct_samples){ 0 };
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_DEVICE, "out of host memory for a sample");
}

/* Say whether ids from `from` on are learned. */
static int mark(struct instruct_samples *s, int64_t from, bool is_learned, struct err *err)
{
    if (s->ids.n > s->n_learned_bytes) {
        int64_t n = max_i64(2 * s->n_learned_bytes, s->ids.n + 4096);
        uint8_t *learned = realloc(s->learned, (size_t)n);

        if (!learned)
            return no_memory(err);
        s->learned = learned;
        s->n_learned_bytes = n;
    }
    if (s->ids.n > from)
        memset(s->learned + from, is_learned, (size_t)(s->ids.n - from));
    return 0;
}

/* The ids behind the last sample's end become one. */
static int close_sample(struct instruct_samples *s, struct instruct_report *report, struct err *err)
{
    int64_t from = s->n > 0 ? s->ends[s->n - 1] : 0;

    if (s->n == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 256;
        int64_t *ends = realloc(s->ends, (size_t)capacity * sizeof *ends);

        if (!ends)
            return no_memory(err);
        s->ends = ends;
        s->capacity = capacity;
    }
    s->ends[s->n++] = s->ids.n;
    report->n_samples++;
    report->n_tokens += s->ids.n - from;
    for (int64_t i = from + 1; i < s->ids.n; i++)
        report->n_learned += s->learned[i];
    return 0;
}

static bool is_learned(const struct instruct_samples *s, int64_t from, int64_t end)
{
    for (int64_t i = from + 1; i < end; i++)
        if (s->learned[i])
            return true;
    return false;
}

/* A long text in pieces; the last token of each is the first of the next, so that none is lost. */
static int split(struct instruct_samples *s, int64_t from, int64_t max,
                 struct instruct_report *report, struct err *err)
{
    int64_t n = s->ids.n - from, n_pieces = ceil_div(max_i64(n - 1, 1), max_i64(max - 1, 1));

    if (max < 2)
        return err_set(err, ERR_CONFIG, "text cannot be split into samples of %lld token",
                       (long long)max);
    /* Room for the doubled tokens, then from the last piece on to the back. */
    for (int64_t i = 1; i < n_pieces; i++)
        if (token_list_add(&s->ids, 0, err) < 0)
            return -1;
    if (mark(s, from + n, true, err) < 0)
        return -1;
    for (int64_t i = n_pieces - 1; i > 0; i--) {
        int64_t start = from + i * (max - 1), length = min_i64(max, from + n - start);

        memmove(s->ids.ids + from + i * max, s->ids.ids + start,
                sizeof *s->ids.ids * (size_t)length);
        memmove(s->learned + from + i * max, s->learned + start, (size_t)length);
    }
    int64_t end = s->ids.n;
    for (int64_t i = 0; i < n_pieces; i++) {
        s->ids.n = min_i64(from + (i + 1) * max, end);
        if (close_sample(s, report, err) < 0)
            return -1;
    }
    report->n_split += n_pieces - 1;
    return 0;
}

static int drop(struct instruct_samples *s, int64_t from, int64_t *count)
{
    s->ids.n = from;
    ++*count;
    return 0;
}

/* Ids from `from` on are the row's: what of them fits is made samples of. */
static int finish(struct instruct_maker *m, struct instruct_samples *s, int64_t from, bool is_text,
                  struct instruct_report *report, struct err *err)
{
    const struct instruct_options *o = m->options;
    int64_t n = s->ids.n - from;

    if (!is_learned(s, from, s->ids.n))
        return drop(s, from, &report->n_blank);
    if (n <= o->max_tokens)
        return close_sample(s, report, err);
    if (o->too_long == INSTRUCT_REFUSE)
        return err_set(err, ERR_DATA,
                       "the sample has %lld tokens, more than %d (hint: data.too_long: cut or "
                       "drop, or a larger data.seq_len)",
                       (long long)n, o->max_tokens);
    if (o->too_long == INSTRUCT_SPLIT && is_text)
        return split(s, from, o->max_tokens, report, err);
    if (o->too_long != INSTRUCT_CUT || !is_learned(s, from, from + o->max_tokens))
        return drop(s, from, &report->n_dropped);
    s->ids.n = from + o->max_tokens;
    report->n_cut++;
    return close_sample(s, report, err);
}

/* ---- text ---- */

static int add_ids(struct instruct_samples *s, const int32_t *ids, int n, struct err *err)
{
    for (int i = 0; i < n; i++)
        if (token_list_add(&s->ids, ids[i], err) < 0)
            return -1;
    return 0;
}

/* What the tokenizer puts in front, the text, the end of text. */
static int make_text(struct instruct_maker *m, const char *text, size_t n_bytes,
                     struct instruct_samples *s, struct err *err)
{
    int64_t from = s->ids.n;
    const int32_t *before, *after;
    int n_before, n_after, end = tokenizer_end_of_text(m->tokenizer);

    tokenizer_frame(m->tokenizer, &before, &n_before, &after, &n_after);
    if (add_ids(s, before, n_before, err) < 0)
        return -1;
    int64_t n = s->ids.n;
    if (tokenizer_encode_cached(m->tokenizer, m->cache, text, n_bytes, &s->ids, err) < 0)
        return -1;
    if (s->ids.n == n) {
        s->ids.n = from;
        return 0;
    }
    if (add_ids(s, after, n_after, err) < 0)
        return -1;
    if (end >= 0 && s->ids.ids[s->ids.n - 1] != end && token_list_add(&s->ids, end, err) < 0)
        return -1;
    return mark(s, from, true, err);
}

/* ---- conversations ---- */

static int set_tools(struct instruct_maker *m, const char *tools, struct err *err)
{
    if (!tools && !m->has_tools)
        return 0;
    m->has_tools = tools != NULL;
    return chat_template_set(m->chat, "tools", tools ? tools : "null", err);
}

/*
 * The token after the last one that overlaps [text, end). transformers looks up the token of the
 * last character of a block and gets the first of the tokens that share that character.
 */
static int64_t find_end(struct token_finder *finder, const char *text, size_t end, int by_blocks)
{
    end--;
    while (by_blocks && ((unsigned char)text[end] & 0xc0) == 0x80)
        end--;
    return token_finder_find(finder, end) + 1;
}

static int mark_answers(struct instruct_maker *m, int64_t from, struct instruct_samples *s,
                        struct err *err)
{
    const struct chat_parts *parts = &m->parts;
    const char *text = str_text(&parts->text);
    struct token_finder finder;
    int rc = mark(s, from, false, err);

    token_finder_init(&finder, m->tokenizer, &m->sections, text, s->ids.ids);
    for (int i = 0; i < parts->n && rc == 0; i++) {
        const struct chat_part *part = &parts->items[i];

        if (!part->is_answer)
            continue;
        int64_t first = token_finder_find(&finder, part->begin);
        int64_t end = min_i64(find_end(&finder, text, part->end, parts->by_blocks), s->ids.n);
        if (first < end)
            memset(s->learned + first, 1, (size_t)(end - first));
    }
    token_finder_release(&finder);
    return rc;
}

static int encode_parts(struct instruct_maker *m, struct instruct_samples *s, struct err *err)
{
    int64_t from = s->ids.n;

    if (tokenizer_encode_sections(m->tokenizer, m->cache, str_text(&m->parts.text),
                                  m->parts.text.length, &s->ids, &m->sections, err) < 0)
        return -1;
    return m->options->mask == INSTRUCT_MASK_NONE ? mark(s, from, true, err)
                                                  : mark_answers(m, from, s, err);
}

static int make_conversation(struct instruct_maker *m, const struct conversation *c,
                             struct instruct_samples *s, struct instruct_report *report,
                             struct err *err)
{
    static const enum chat_marks marks[] = { [INSTRUCT_MASK_PROMPT] = CHAT_MARK_ALL,
                                             [INSTRUCT_MASK_HISTORY] = CHAT_MARK_LAST,
                                             [INSTRUCT_MASK_NONE] = CHAT_MARK_NONE };

    if (!m->chat)
        return err_set(
            err, ERR_CONFIG,
            "%s has no chat template (hint: data.template names one: chatml, llama3, ...)",
            m->options->tokenizer);
    if (set_tools(m, c->tools, err) < 0 ||
        chat_template_parts(m->chat, c->messages, c->n, marks[m->options->mask], &m->parts, err) <
            0)
        return -1;
    report->n_rewritten += m->parts.n_rewritten;
    return encode_parts(m, s, err);
}

/* Before anything else sees it: a template may cut text anywhere. */
static int check_utf8(const struct row *row, struct err *err)
{
    const unsigned char *text = (const unsigned char *)row->text;

    for (size_t at = 0; at < row->n_bytes;) {
        int length = text[at] < 0x80 ? 1 : str_utf8_length(text + at, row->n_bytes - at);

        if (length == 0)
            return err_set(err, ERR_DATA, "byte %zu of the row (0x%02x) is not valid UTF-8", at + 1,
                           (unsigned)text[at]);
        at += (size_t)length;
    }
    return 0;
}

static int make(struct instruct_maker *m, const struct row *row, struct instruct_samples *s,
                struct instruct_report *report, struct err *err)
{
    struct conversation c = { .text = row->text, .n_text = row->n_bytes };
    struct json_value *value;
    int64_t from = s->ids.n;

    if (row->kind == ROW_BAD)
        return err_set(err, ERR_DATA, "%.*s", (int)row->n_bytes, row->text);
    if (check_utf8(row, err) < 0)
        return -1;
    if (row->kind == ROW_JSON &&
        (json_value_parse(&value, row->text, row->n_bytes, &m->arena, err) < 0 ||
         conversation_read(&m->rows, value, &m->arena, &c, err) < 0))
        return -1;
    if ((c.text ? make_text(m, c.text, c.n_text, s, err)
                : make_conversation(m, &c, s, report, err)) < 0)
        return -1;
    return finish(m, s, from, c.text != NULL, report, err);
}

int instruct_make(struct instruct_maker *m, const struct row *row, struct instruct_samples *s,
                  struct instruct_report *report, struct err *err)
{
    struct instruct_report counts = *report;
    int64_t n_ids = s->ids.n;
    int n = s->n, rc = make(m, row, s, &counts, err);

    arena_release(&m->arena);
    if (rc < 0) {
        s->ids.n = n_ids;
        s->n = n;
        return -1;
    }
    *report = counts;
    return 0;
}
