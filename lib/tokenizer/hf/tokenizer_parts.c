/*
 * tokenizer_parts.c - the normalizer and the pre_tokenizer of tokenizer.json
 *
 * Both are a part or a Sequence of parts. A part that isn't here is refused by its name.
 */
#include "base/str.h"
#include "tokenizer/base64.h"
#include "tokenizer/hf/tokenizer_reader.h"

/* What ByteLevel splits by when use_regex is set: GPT-2's. */
#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/*
 * The pre-tokenizer Digits uses Rust's char::is_numeric, whose newer Unicode has these as well
 * (tokenizers 0.23.3).
 */
#define NUMBERS "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"

struct parts_reader {
    struct tokenizer *tokenizer;
    const char *name, *part; /* part: "normalizer" or "pre_tokenizer" */
    struct err *err;
    bool is_byte_level;
    bool is_behind_whitespace; /* the first part was WhitespaceSplit */
};

static const char *type_name(const cJSON *part)
{
    const cJSON *type = get(part, "type");

    return cJSON_IsString(type) ? type->valuestring : "without a type";
}

static int unsupported(struct parts_reader *r, const cJSON *part, const char *why)
{
    return REFUSE(r, "%s: %s %s%s is not supported", r->name, r->part, type_name(part), why);
}

/* A flag that may be left out: -1 if it is neither true nor false. */
static int get_flag(const cJSON *object, const char *key, int otherwise)
{
    const cJSON *item = get(object, key);

    return !item || cJSON_IsNull(item) ? otherwise : cJSON_IsBool(item) ? cJSON_IsTrue(item) : -1;
}

typedef int (*part_fn)(struct parts_reader *r, const cJSON *part, int index);

/* A part, or those of a Sequence in turn. */
static int each_part(struct parts_reader *r, const cJSON *part, const char *list_name, part_fn read)
{
    const cJSON *list = get(part, list_name), *item;
    int index = 0;

    if (!part || cJSON_IsNull(part))
        return 0;
    if (strcmp(type_name(part), "Sequence") != 0)
        return read(r, part, 0);
    if (!cJSON_IsArray(list))
        return REFUSE(r, "%s: %s.%s is not a list", r->name, r->part, list_name);
    cJSON_ArrayForEach(item, list)
    {
        if (read(r, item, index++) < 0)
            return -1;
    }
    return 0;
}

/* ---- normalizer ---- */

static struct normal_step *add_normal(struct parts_reader *r, enum normal_kind kind)
{
    struct tokenizer *t = r->tokenizer;

    if (t->n_normal == TOKENIZER_STEPS_MAX) {
        REFUSE(r, "%s: normalizer has more than %d parts", r->name, TOKENIZER_STEPS_MAX);
        return NULL;
    }
    t->normal[t->n_normal] = (struct normal_step){ .kind = kind };
    return &t->normal[t->n_normal++];
}

static int read_prepend(struct parts_reader *r, const char *text)
{
    struct normal_step *step = add_normal(r, NORMAL_PREPEND);

    if (!step)
        return -1;
    step->a = arena_strdup(&r->tokenizer->arena, text);
    step->n_a = strlen(text);
    return 0;
}

/* Of a text, or of what a pattern matches. */
static int read_replace(struct parts_reader *r, const cJSON *part)
{
    const cJSON *content = get(part, "content"), *text = get(get(part, "pattern"), "String");
    const cJSON *regex = get(get(part, "pattern"), "Regex");
    struct arena *arena = &r->tokenizer->arena;
    struct normal_step *step;

    if (!cJSON_IsString(content) ||
        !(cJSON_IsString(regex) || (cJSON_IsString(text) && *text->valuestring)))
        return unsupported(r, part, " with this pattern or content");
    if (!(step = add_normal(r, cJSON_IsString(regex) ? NORMAL_PATTERN : NORMAL_REPLACE)))
        return -1;
    step->b = arena_strdup(arena, content->valuestring);
    step->n_b = strlen(step->b);
    if (!cJSON_IsString(regex)) {
        step->a = arena_strdup(arena, text->valuestring);
        step->n_a = strlen(step->a);
        return 0;
    }
    struct pattern *pattern = arena_new(arena, struct pattern);
    step->pattern = pattern;
    return pattern_compile(pattern, regex->valuestring, arena, r->err) < 0
               ? err_add(r->err, "%s: normalizer", r->name)
               : 0;
}

/* SentencePiece's table, in base64. */
static int read_precompiled(struct parts_reader *r, const cJSON *part)
{
    const cJSON *text = get(part, "precompiled_charsmap");
    struct tokenizer *t = r->tokenizer;

    if (t->charsmap.units)
        return unsupported(r, part, " twice");
    if (!cJSON_IsString(text) || !add_normal(r, NORMAL_CLUSTERS))
        return r->err->code ? -1 : unsupported(r, part, " without precompiled_charsmap");
    size_t n = strlen(text->valuestring);
    unsigned char *bytes = arena_alloc(&t->arena, BASE64_BYTES(n));
    long long n_bytes = base64_decode(text->valuestring, n, bytes);
    if (n_bytes < 0 || charsmap_read(&t->charsmap, &t->arena, bytes, (size_t)n_bytes) < 0)
        return REFUSE(r, "%s: normalizer.precompiled_charsmap is broken", r->name);
    return 0;
}

static int read_strip(struct parts_reader *r, const cJSON *part)
{
    int left = get_flag(part, "strip_left", 1), right = get_flag(part, "strip_right", 1);
    struct normal_step *step;

    if (left < 0 || right < 0)
        return unsupported(r, part, " with a side that is neither true nor false");
    if (!(step = add_normal(r, NORMAL_STRIP)))
        return -1;
    step->n_a = (size_t)left;
    step->n_b = (size_t)right;
    return 0;
}

static int read_normal(struct parts_reader *r, const cJSON *part, int index)
{
    const char *type = type_name(part);
    const cJSON *prepend = get(part, "prepend");

    (void)index;
    if (strcmp(type, "NFC") == 0)
        return add_normal(r, NORMAL_NFC) ? 0 : -1;
    if (strcmp(type, "Prepend") == 0 && cJSON_IsString(prepend))
        return read_prepend(r, prepend->valuestring);
    if (strcmp(type, "Replace") == 0)
        return read_replace(r, part);
    if (strcmp(type, "Precompiled") == 0)
        return read_precompiled(r, part);
    if (strcmp(type, "Strip") == 0)
        return read_strip(r, part);
    return unsupported(r, part, "");
}

int tokenizer_parse_normalizer(struct tokenizer *tokenizer, const char *name,
                               const cJSON *normalizer, struct err *err)
{
    struct parts_reader r = {
        .tokenizer = tokenizer, .name = name, .part = "normalizer", .err = err
    };

    return each_part(&r, normalizer, "normalizers", read_normal);
}

/* ---- pre_tokenizer ---- */

static int add_split(struct parts_reader *r, const char *pattern, enum split_behavior behavior,
                     int inverted)
{
    struct tokenizer *t = r->tokenizer;

    if (t->n_splits == TOKENIZER_STEPS_MAX)
        return REFUSE(r, "%s: pre_tokenizer has more than %d splits", r->name, TOKENIZER_STEPS_MAX);
    struct split_step *step = &t->splits[t->n_splits++];
    step->behavior = behavior;
    step->inverted = inverted;
    if (pattern_compile(&step->pattern, pattern, &t->arena, r->err) < 0)
        return err_add(r->err, "%s: pre_tokenizer", r->name);
    return 0;
}

/* A text as a pattern that matches it. */
static void quote(struct str *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\()[]{}|?*+.^$&-", *text))
            str_add_char(out, '\\');
        str_add_char(out, *text);
    }
}

static int read_split(struct parts_reader *r, const cJSON *part)
{
    static const char *const names[] = { "Isolated", "Removed", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };
    const cJSON *regex = get(get(part, "pattern"), "Regex"), *behavior = get(part, "behavior");
    const cJSON *text = get(get(part, "pattern"), "String");
    int kind = 0, inverted = get_flag(part, "invert", 0);
    struct str pattern = { 0 };

    while (kind < 5 && (!cJSON_IsString(behavior) || strcmp(names[kind], behavior->valuestring)))
        kind++;
    if (kind == 5 || inverted < 0 || (!cJSON_IsString(regex) && !cJSON_IsString(text)))
        return unsupported(r, part, " with this pattern, behavior or invert");
    if (cJSON_IsString(regex))
        str_add(&pattern, regex->valuestring);
    else
        quote(&pattern, text->valuestring);
    int rc = add_split(r, str_text(&pattern), (enum split_behavior)kind, inverted);
    str_release(&pattern);
    return rc;
}

static int read_byte_level(struct parts_reader *r, const cJSON *part, int index)
{
    int prefix = get_flag(part, "add_prefix_space", 1), regex = get_flag(part, "use_regex", 1);

    if (prefix < 0 || regex < 0)
        return unsupported(r, part,
                           " with an add_prefix_space or use_regex that is neither true nor false");
    if (prefix && index > 0)
        return unsupported(r, part, " with add_prefix_space after another part");
    r->tokenizer->add_prefix_space = prefix;
    r->is_byte_level = true;
    return regex ? add_split(r, GPT2_PATTERN, SPLIT_ISOLATED, 0) : 0;
}

static int read_metaspace(struct parts_reader *r, const cJSON *part, int index)
{
    const cJSON *mark = get(part, "replacement"), *scheme = get(part, "prepend_scheme");
    struct tokenizer *t = r->tokenizer;
    int splits = get_flag(part, "split", 1);
    /* Before prepend_scheme there was add_prefix_space. */
    int prefix = get_flag(part, "add_prefix_space", 1);
    const char *how = cJSON_IsString(scheme) ? scheme->valuestring : prefix ? "always" : "never";

    if (index > 0 && !(index == 1 && r->is_behind_whitespace))
        return unsupported(r, part, " after another part");
    if ((cJSON_IsString(mark) && strcmp(mark->valuestring, BPE_SPACE) != 0) || splits < 0 ||
        prefix < 0)
        return unsupported(r, part, " with this replacement, split or add_prefix_space");
    if (index > 0 && strcmp(how, "always") != 0)
        return unsupported(r, part, " with this prepend_scheme after WhitespaceSplit");
    t->marks_spaces = index == 0;
    t->mark_step = index;
    if (strcmp(how, "always") == 0)
        t->prepend = PREPEND_ALWAYS;
    else if (strcmp(how, "first") == 0)
        t->prepend = PREPEND_FIRST;
    else if (strcmp(how, "never") == 0)
        t->prepend = PREPEND_NEVER;
    else
        return unsupported(r, part, " with this prepend_scheme");
    return splits ? add_split(r, BPE_SPACE, SPLIT_MERGED_WITH_NEXT, 0) : 0;
}

static int read_pre_tokenizer(struct parts_reader *r, const cJSON *part, int index)
{
    const char *type = type_name(part);

    if (r->is_byte_level)
        return unsupported(r, part, " after ByteLevel");
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, part, index);
    if (strcmp(type, "Split") == 0)
        return read_split(r, part);
    if (strcmp(type, "Digits") == 0) {
        int individual = get_flag(part, "individual_digits", 0);

        return individual < 0 ? unsupported(r, part, " with individual_digits not a flag")
                              : add_split(r, individual ? NUMBERS : NUMBERS "+", SPLIT_ISOLATED, 0);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        r->is_behind_whitespace = index == 0;
        return add_split(r, "\\s", SPLIT_REMOVED, 0);
    }
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(r, part, index);
    return unsupported(r, part, "");
}

int tokenizer_parse_splits(struct tokenizer *tokenizer, const char *name,
                           const cJSON *pre_tokenizer, bool *is_byte_level, struct err *err)
{
    struct parts_reader r = {
        .tokenizer = tokenizer, .name = name, .part = "pre_tokenizer", .err = err
    };

    if (each_part(&r, pre_tokenizer, "pretokenizers", read_pre_tokenizer) < 0)
        return -1;
    *is_byte_level = r.is_byte_level;
    return 0;
}
