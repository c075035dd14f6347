/*
 * tokenizer_json.c - from tokenizer.json to tables
 *
 * What would change ids and isn't built here is refused by name, for a tokenizer that is nearly
 * right spoils a training without a sound. `truncation` and `padding` are left aside: they belong
 * to a use, not to the tokenizer.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tokenizer/tokenizer_impl.h"

struct reader {
    const char *name;
    struct err *err;
    struct tokenizer *tokenizer;
};

#define REFUSE(r, ...) err_set((r)->err, ERR_DATA, __VA_ARGS__)

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static int is_absent(const cJSON *item)
{
    return !item || cJSON_IsNull(item);
}

static int is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

/* The type of a part, for a message: its "type", or what JSON it is. */
static const char *type_name(const cJSON *part)
{
    const cJSON *type = get(part, "type");

    return cJSON_IsString(type) ? type->valuestring : is_absent(part) ? "null" : "untyped";
}

/* A member that is an integer in 0..limit-1, or -1. */
static int get_id(const cJSON *item, int limit)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble >= limit ||
        item->valuedouble != (double)(int)item->valuedouble)
        return -1;
    return (int)item->valuedouble;
}

/* Normalizer, splitter, decoder and so on: what is not here must be absent. */
static int check_parts(struct reader *r, const cJSON *root)
{
    const cJSON *normalizer = get(root, "normalizer"), *split = get(root, "pre_tokenizer");
    const cJSON *post = get(root, "post_processor"), *decoder = get(root, "decoder");

    if (!is_absent(normalizer))
        return REFUSE(r, "%s: normalizer %s is not supported (only null)", r->name,
                      type_name(normalizer));
    if (!is_text(get(split, "type"), "ByteLevel"))
        return REFUSE(r, "%s: pre_tokenizer %s is not supported (only ByteLevel)", r->name,
                      type_name(split));
    const cJSON *use_regex = get(split, "use_regex"), *prefix = get(split, "add_prefix_space");
    if (use_regex && !cJSON_IsTrue(use_regex))
        return REFUSE(r, "%s: pre_tokenizer ByteLevel with use_regex false is not supported",
                      r->name);
    if (prefix && !cJSON_IsBool(prefix))
        return REFUSE(r, "%s: pre_tokenizer.add_prefix_space is neither true nor false", r->name);
    r->tokenizer->add_prefix_space = !prefix || cJSON_IsTrue(prefix);
    if (!is_absent(post) && !is_text(get(post, "type"), "ByteLevel"))
        return REFUSE(r, "%s: post_processor %s is not supported (only null and ByteLevel)",
                      r->name, type_name(post));
    if (!is_text(get(decoder, "type"), "ByteLevel"))
        return REFUSE(r, "%s: decoder %s is not supported (only ByteLevel)", r->name,
                      type_name(decoder));
    return 0;
}

static int check_model(struct reader *r, const cJSON *model)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const cJSON *type = get(model, "type"), *dropout = get(model, "dropout");

    /* Files of before 2021 leave the type out when it is BPE. */
    if (!cJSON_IsObject(model) || (type && !is_text(type, "BPE")))
        return REFUSE(r, "%s: model %s is not supported (only BPE)", r->name, type_name(model));
    if (!is_absent(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return REFUSE(r, "%s: model.dropout is not supported", r->name);
    for (int i = 0; i < 2; i++) {
        const cJSON *affix = get(model, affixes[i]);

        if (!is_absent(affix) && !is_text(affix, ""))
            return REFUSE(r, "%s: model.%s is not supported", r->name, affixes[i]);
    }
    if (!cJSON_IsObject(get(model, "vocab")))
        return REFUSE(r, "%s: model.vocab is no object", r->name);
    if (!cJSON_IsArray(get(model, "merges")))
        return REFUSE(r, "%s: model.merges is no list", r->name);
    return 0;
}

/* Greatest id + 1 and the number of entries of model.vocab. */
static int measure_vocab(struct reader *r, const cJSON *vocab, int *n_tokens, int *n_ids)
{
    const cJSON *item;

    *n_tokens = *n_ids = 0;
    cJSON_ArrayForEach(item, vocab)
    {
        int id = get_id(item, TOKENIZER_IDS_MAX);

        if (id < 0)
            return REFUSE(r, "%s: model.vocab: the id of '%s' is not in 0..%d", r->name,
                          item->string, TOKENIZER_IDS_MAX - 1);
        *n_ids = id >= *n_ids ? id + 1 : *n_ids;
        ++*n_tokens;
    }
    return 0;
}

static int read_vocab(struct reader *r, const cJSON *model)
{
    const cJSON *vocab = get(model, "vocab"), *item;
    struct bpe *bpe = &r->tokenizer->bpe;
    int n_tokens, n_ids;

    if (measure_vocab(r, vocab, &n_tokens, &n_ids) < 0)
        return -1;
    bpe_init(bpe, &r->tokenizer->arena, n_tokens, n_ids, cJSON_GetArraySize(get(model, "merges")));
    bpe->ignore_merges = cJSON_IsTrue(get(model, "ignore_merges"));
    cJSON_ArrayForEach(
        item, vocab) if (bpe_add_token(bpe, item->valueint, item->string, strlen(item->string)) <
                         0) return REFUSE(r, "%s: model.vocab: '%s' or its id %d is there twice",
                                          r->name, item->string, item->valueint);
    int missing = bpe_find_bytes(bpe);
    if (missing >= 0)
        return REFUSE(r, "%s: model.vocab has no token for byte 0x%02x, so it is not byte-level",
                      r->name, (unsigned)missing);
    r->tokenizer->vocab_size = n_ids;
    return 0;
}

/* The two halves of a merge: ["a", "b"] or "a b". */
static int split_merge(const cJSON *item, const char **left, size_t *n_left, const char **right)
{
    const cJSON *first = item->child, *second = first ? first->next : NULL;

    if (cJSON_IsString(item)) {
        const char *space = strchr(item->valuestring, ' ');

        if (!space || strchr(space + 1, ' '))
            return -1;
        *left = item->valuestring;
        *n_left = (size_t)(space - item->valuestring);
        *right = space + 1;
        return 0;
    }
    if (!cJSON_IsArray(item) || !cJSON_IsString(first) || !cJSON_IsString(second) || second->next)
        return -1;
    *left = first->valuestring;
    *n_left = strlen(*left);
    *right = second->valuestring;
    return 0;
}

static int read_merges(struct reader *r, const cJSON *merges)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    struct str joined = { 0 };
    const cJSON *item;
    int rank = 0, rc = 0;

    cJSON_ArrayForEach(item, merges)
    {
        const char *left, *right;
        size_t n_left;

        if (split_merge(item, &left, &n_left, &right) < 0) {
            rc = REFUSE(r, "%s: model.merges[%d] is no pair of tokens", r->name, rank);
            break;
        }
        str_clear(&joined);
        str_add_bytes(&joined, left, n_left);
        str_add(&joined, right);
        int32_t left_id = bpe_find(bpe, left, n_left),
                right_id = bpe_find(bpe, right, strlen(right));
        int32_t id = bpe_find(bpe, str_text(&joined), joined.length);
        if (left_id < 0 || right_id < 0 || id < 0) {
            rc = REFUSE(
                r, "%s: model.merges[%d]: '%.*s', '%s' or both joined is not in the vocabulary",
                r->name, rank, (int)n_left, left, right);
            break;
        }
        bpe_add_merge(bpe, left_id, right_id, rank++, id);
    }
    str_release(&joined);
    return rc;
}

static int read_added_token(struct reader *r, const cJSON *item, int index,
                            struct added_token *token)
{
    static const char *const unsupported[] = { "single_word", "lstrip", "rstrip" };
    const cJSON *content = get(item, "content"), *normalized = get(item, "normalized");
    int id = get_id(get(item, "id"), TOKENIZER_IDS_MAX);

    if (!cJSON_IsString(content) || !*content->valuestring || id < 0)
        return REFUSE(r, "%s: added_tokens[%d] has no content or no id in 0..%d", r->name, index,
                      TOKENIZER_IDS_MAX - 1);
    for (int i = 0; i < 3; i++)
        if (cJSON_IsTrue(get(item, unsupported[i])))
            return REFUSE(r, "%s: added token '%s' has %s, which is not supported", r->name,
                          content->valuestring, unsupported[i]);
    int32_t in_vocab =
        bpe_find(&r->tokenizer->bpe, content->valuestring, strlen(content->valuestring));
    int taken = id < r->tokenizer->bpe.n_ids && r->tokenizer->bpe.tokens[id].spelling != NULL;
    if (in_vocab >= 0 ? in_vocab != id : taken)
        return REFUSE(r, "%s: added token '%s' has id %d, which the vocabulary gives otherwise",
                      r->name, content->valuestring, id);
    *token = (struct added_token){
        .text = arena_strdup(&r->tokenizer->arena, content->valuestring),
        .n_bytes = strlen(content->valuestring),
        .id = id,
        .normalized = normalized ? cJSON_IsTrue(normalized) : !cJSON_IsTrue(get(item, "special")),
    };
    return 0;
}

/* Split the added tokens by pass, and index them by id. */
static int index_added(struct reader *r)
{
    struct tokenizer *t = r->tokenizer;
    int n_plain = 0;

    /* The plain ones to the front; order among equals does not matter. */
    for (int i = 0; i < t->n_added; i++)
        if (!t->added[i].normalized) {
            struct added_token token = t->added[i];

            t->added[i] = t->added[n_plain];
            t->added[n_plain++] = token;
        }
    added_init(&t->passes[0], t->added, n_plain);
    added_init(&t->passes[1], t->added + n_plain, t->n_added - n_plain);
    for (int i = 1; i < t->n_added; i++)
        if (i != n_plain && strcmp(t->added[i - 1].text, t->added[i].text) == 0)
            return REFUSE(r, "%s: added token '%s' is there twice", r->name, t->added[i].text);
    t->added_by_id = arena_array(&t->arena, const struct added_token *, t->vocab_size);
    for (int i = 0; i < t->n_added; i++) {
        const struct added_token *token = &t->added[i];

        if (t->added_by_id[token->id])
            return REFUSE(r, "%s: added tokens '%s' and '%s' have the same id %d", r->name,
                          t->added_by_id[token->id]->text, token->text, token->id);
        t->added_by_id[token->id] = token;
    }
    return 0;
}

static int read_added(struct reader *r, const cJSON *list)
{
    struct tokenizer *t = r->tokenizer;
    const cJSON *item;

    if (!is_absent(list) && !cJSON_IsArray(list))
        return REFUSE(r, "%s: added_tokens is no list", r->name);
    t->added = arena_array(&t->arena, struct added_token, cJSON_GetArraySize(list));
    cJSON_ArrayForEach(item, list)
    {
        struct added_token *token = &t->added[t->n_added];

        if (read_added_token(r, item, t->n_added, token) < 0)
            return -1;
        t->n_added++;
        t->vocab_size = token->id >= t->vocab_size ? token->id + 1 : t->vocab_size;
    }
    return index_added(r);
}

/* Parse and check that nothing but white space follows. */
static cJSON *parse_json(struct reader *r, const char *json, size_t n_bytes)
{
    const char *end = json;
    size_t bad = tokenizer_utf8_end(json, n_bytes);

    if (bad < n_bytes) {
        REFUSE(r, "%s: byte %zu is no UTF-8", r->name, bad);
        return NULL;
    }
    cJSON *root = cJSON_ParseWithLengthOpts(json, n_bytes, &end, 0);
    size_t at = (size_t)(end - json);
    if (root && at + strspn(end, " \t\r\n") == n_bytes && cJSON_IsObject(root))
        return root;
    REFUSE(r, "%s: no JSON object; reading stopped at byte %zu", r->name, at);
    cJSON_Delete(root);
    return NULL;
}

static const char *const end_of_text_names[] = {
    "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>",
};

int tokenizer_parse(struct tokenizer **out, const char *name, const char *json, size_t n_bytes,
                    struct err *err)
{
    struct reader r = { .name = name, .err = err };
    cJSON *root = parse_json(&r, json, n_bytes);

    if (!root)
        return -1;
    r.tokenizer = calloc(1, sizeof *r.tokenizer);
    if (!r.tokenizer) {
        cJSON_Delete(root);
        return err_set(err, ERR_DEVICE, "%s: out of host memory", name);
    }
    const cJSON *model = get(root, "model");
    int failed = check_model(&r, model) < 0 || check_parts(&r, root) < 0 ||
                 read_vocab(&r, model) < 0 || read_merges(&r, get(model, "merges")) < 0 ||
                 read_added(&r, get(root, "added_tokens")) < 0;
    cJSON_Delete(root);
    if (failed) {
        tokenizer_close(r.tokenizer);
        return -1;
    }
    r.tokenizer->end_of_text = -1;
    for (size_t i = 0; i < sizeof end_of_text_names / sizeof *end_of_text_names; i++)
        if (r.tokenizer->end_of_text < 0)
            r.tokenizer->end_of_text = tokenizer_find(r.tokenizer, end_of_text_names[i]);
    *out = r.tokenizer;
    return 0;
}

int tokenizer_parse_config(struct tokenizer *tokenizer, const char *name, const char *json,
                           size_t n_bytes, struct err *err)
{
    struct reader r = { .name = name, .err = err, .tokenizer = tokenizer };
    cJSON *root = parse_json(&r, json, n_bytes);

    if (!root)
        return -1;
    int rc = 0;
    const cJSON *eos = get(root, "eos_token");
    if (cJSON_IsObject(eos))
        eos = get(eos, "content");
    if (cJSON_IsString(eos)) {
        tokenizer->end_of_text = tokenizer_find(tokenizer, eos->valuestring);
        if (tokenizer->end_of_text < 0)
            rc = REFUSE(&r, "%s: eos_token '%s' is not in the vocabulary", name, eos->valuestring);
    }
    cJSON_Delete(root);
    return rc;
}
