/*
 * tokenizer_json.c - from tokenizer.json to tables
 *
 * What would change ids and isn't built here is refused by name, for a tokenizer that is nearly
 * right spoils a training without a sound. `truncation` and `padding` are left aside: they belong
 * to a use, not to the tokenizer.
 */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tokenizer/hf/tokenizer_reader.h"

/* The type of a part, for a message: its "type", or what JSON it is. */
static const char *type_name(const cJSON *part)
{
    const cJSON *type = get(part, "type");

    return cJSON_IsString(type) ? type->valuestring : is_absent(part) ? "null" : "untyped";
}

/* ---- what is around a text, and decoding ---- */

static int add_frame(struct tokenizer_reader *r, int32_t *ids, int *n, const cJSON *list)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        int id = tokenizer_json_id(item, TOKENIZER_IDS_MAX);

        if (id < 0 || *n == TOKENIZER_FRAME_MAX)
            return REFUSE(r, "%s: post_processor: unexpected ids of a special token", r->name);
        ids[(*n)++] = id;
    }
    return 0;
}

/* The template of a single text: special tokens, the text once, special tokens. */
static int read_template(struct tokenizer_reader *r, const cJSON *template)
{
    const cJSON *special = get(template, "special_tokens"), *item;
    struct tokenizer *t = r->tokenizer;
    int n_texts = 0;

    cJSON_ArrayForEach(item, get(template, "single"))
    {
        const cJSON *token = get(get(item, "SpecialToken"), "id");
        int rc;

        if (get(item, "Sequence")) {
            n_texts++;
            continue;
        }
        const cJSON *ids =
            cJSON_IsString(token) ? get(get(special, token->valuestring), "ids") : NULL;
        if (!cJSON_IsArray(ids))
            return REFUSE(r, "%s: post_processor: a special token of its template has no ids",
                          r->name);
        rc = n_texts ? add_frame(r, t->after, &t->n_after, ids)
                     : add_frame(r, t->before, &t->n_before, ids);
        if (rc < 0)
            return -1;
    }
    return n_texts == 1
               ? 0
               : REFUSE(r, "%s: post_processor: its template must have exactly one sequence",
                        r->name);
}

static int read_post_processor(struct tokenizer_reader *r, const cJSON *post)
{
    if (is_absent(post) || is_text(get(post, "type"), "ByteLevel"))
        return 0;
    if (is_text(get(post, "type"), "TemplateProcessing"))
        return read_template(r, post);
    return REFUSE(r, "%s: post_processor %s is not supported", r->name, type_name(post));
}

static int read_post_processors(struct tokenizer_reader *r, const cJSON *post)
{
    const cJSON *item;

    if (!is_text(get(post, "type"), "Sequence"))
        return read_post_processor(r, post);
    cJSON_ArrayForEach(item, get(post, "processors"))
    {
        if (read_post_processor(r, item) < 0)
            return -1;
    }
    return 0;
}

/* How ids become text again is known from the model; the decoder must not say otherwise. */
static int read_decoder(struct tokenizer_reader *r, const cJSON *decoder, bool is_byte_level)
{
    static const char *const known[] = { "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace" };
    const cJSON *one =
        is_text(get(decoder, "type"), "Sequence") ? get(decoder, "decoders")->child : decoder;

    if (is_byte_level && !is_text(get(one, "type"), "ByteLevel"))
        return REFUSE(r, "%s: decoder %s is not supported (only ByteLevel)", r->name,
                      type_name(one));
    for (; one && !is_byte_level && !is_absent(one); one = one->next) {
        int i = 0;

        while (i < 5 && !is_text(get(one, "type"), known[i]))
            i++;
        if (i == 5)
            return REFUSE(r, "%s: decoder %s is not supported", r->name, type_name(one));
        if (i >= 3 && !is_text(get(one, "prepend_scheme"), "never"))
            r->tokenizer->strips_space = true;
        if (one == decoder)
            break;
    }
    return 0;
}

/* All but the model and the added tokens. */
static int read_parts(struct tokenizer_reader *r, const cJSON *root, bool *is_byte_level)
{
    const cJSON *decoder = get(root, "decoder");

    if (is_text(get(decoder, "type"), "Sequence") && !cJSON_IsArray(get(decoder, "decoders")))
        return REFUSE(r, "%s: decoder.decoders is not a list", r->name);
    if (tokenizer_parse_normalizer(r->tokenizer, r->name, get(root, "normalizer"), r->err) < 0)
        return -1;
    if (tokenizer_parse_splits(r->tokenizer, r->name, get(root, "pre_tokenizer"), is_byte_level,
                               r->err) < 0)
        return -1;
    if (read_post_processors(r, get(root, "post_processor")) < 0)
        return -1;
    return read_decoder(r, decoder, *is_byte_level);
}

/* ---- the model ---- */

static int check_model(struct tokenizer_reader *r, const cJSON *model)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const cJSON *type = get(model, "type"), *dropout = get(model, "dropout");

    /* Files of before 2021 leave the type out when it is BPE. */
    if (!cJSON_IsObject(model) || (type && !is_text(type, "BPE")))
        return REFUSE(r, "%s: model %s is not supported (only BPE and Unigram)", r->name,
                      type_name(model));
    if (!is_absent(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return REFUSE(r, "%s: model.dropout is not supported", r->name);
    for (int i = 0; i < 2; i++) {
        const cJSON *affix = get(model, affixes[i]);

        if (!is_absent(affix) && !is_text(affix, ""))
            return REFUSE(r, "%s: model.%s is not supported", r->name, affixes[i]);
    }
    if (!cJSON_IsObject(get(model, "vocab")))
        return REFUSE(r, "%s: model.vocab is not an object", r->name);
    if (!cJSON_IsArray(get(model, "merges")))
        return REFUSE(r, "%s: model.merges is not a list", r->name);
    return 0;
}

/* Greatest id + 1 and the number of entries of model.vocab. */
static int measure_vocab(struct tokenizer_reader *r, const cJSON *vocab, int *n_tokens, int *n_ids)
{
    const cJSON *item;

    *n_tokens = *n_ids = 0;
    cJSON_ArrayForEach(item, vocab)
    {
        int id = tokenizer_json_id(item, TOKENIZER_IDS_MAX);

        if (id < 0)
            return REFUSE(r, "%s: model.vocab: the id of '%s' is not in 0..%d", r->name,
                          item->string, TOKENIZER_IDS_MAX - 1);
        *n_ids = id >= *n_ids ? id + 1 : *n_ids;
        ++*n_tokens;
    }
    return 0;
}

/* The tokens of bytes, and the one for what is unknown, of a vocabulary of characters. */
static int read_fallback(struct tokenizer_reader *r, const cJSON *model)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    const cJSON *unknown = get(model, "unk_token");

    bpe_find_ascii(bpe);
    bpe->fuse_unknown = cJSON_IsTrue(get(model, "fuse_unk"));
    if (cJSON_IsString(unknown)) {
        bpe->unknown = bpe_find(bpe, unknown->valuestring, strlen(unknown->valuestring));
        if (bpe->unknown < 0)
            return REFUSE(r, "%s: model.unk_token '%s' is not in the vocabulary", r->name,
                          unknown->valuestring);
    }
    if (!cJSON_IsTrue(get(model, "byte_fallback")))
        return 0;
    int missing = bpe_find_fallback(bpe);
    if (missing >= 0)
        return REFUSE(r, "%s: model.byte_fallback without a token <0x%02X>", r->name,
                      (unsigned)missing);
    return 0;
}

/* Bytes that text hardly has may have no token (SmolLM2): they are left out, as the library does it
 * where nothing stands for what is unknown. */
static int find_missing(struct bpe *bpe, bool has_unknown)
{
    int least = bpe_find_bytes(bpe);

    for (int byte = 0x20; !has_unknown && least >= 0 && byte < 0x7f; byte++)
        if (bpe->byte_ids[byte] < 0)
            return byte;
    return has_unknown ? least : -1;
}

static int read_vocab(struct tokenizer_reader *r, const cJSON *model, bool is_byte_level)
{
    const cJSON *vocab = get(model, "vocab"), *item;
    struct bpe *bpe = &r->tokenizer->bpe;
    int n_tokens, n_ids;

    if (measure_vocab(r, vocab, &n_tokens, &n_ids) < 0)
        return -1;
    bpe_init(bpe, &r->tokenizer->arena, is_byte_level, n_tokens, n_ids);
    bpe_init_merges(bpe, cJSON_GetArraySize(get(model, "merges")));
    bpe->ignore_merges = cJSON_IsTrue(get(model, "ignore_merges"));
    cJSON_ArrayForEach(
        item, vocab) if (bpe_add_token(bpe, item->valueint, item->string, strlen(item->string)) <
                         0) return REFUSE(r, "%s: model.vocab: '%s' or its id %d occurs twice",
                                          r->name, item->string, item->valueint);
    r->tokenizer->vocab_size = n_ids;
    if (!is_byte_level)
        return read_fallback(r, model);
    int missing = find_missing(bpe, cJSON_IsString(get(model, "unk_token")));
    if (missing >= 0)
        return REFUSE(r, "%s: model.vocab has no token for byte 0x%02x, so it is not byte-level",
                      r->name, (unsigned)missing);
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

static int read_merges(struct tokenizer_reader *r, const cJSON *merges)
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
            rc = REFUSE(r, "%s: model.merges[%d] is not a pair of tokens", r->name, rank);
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

/* What is put around a text must be in the vocabulary. */
static int check_frame(struct tokenizer_reader *r)
{
    const struct tokenizer *t = r->tokenizer;

    for (int i = 0; i < t->n_before + t->n_after; i++) {
        int id = i < t->n_before ? t->before[i] : t->after[i - t->n_before];

        if (id >= t->vocab_size)
            return REFUSE(r, "%s: post_processor: id %d is not in the vocabulary", r->name, id);
    }
    return 0;
}

static int read_bpe(struct tokenizer_reader *r, const cJSON *model, bool is_byte_level)
{
    if (read_vocab(r, model, is_byte_level) < 0 || read_merges(r, get(model, "merges")) < 0)
        return -1;
    if (is_byte_level && bpe_index_words(&r->tokenizer->bpe) < 0)
        return err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
    return 0;
}

static bool is_mark(const char *text, size_t n)
{
    return n == sizeof BPE_SPACE - 1 && memcmp(text, BPE_SPACE, n) == 0;
}

/* Where all that is done with spaces is to mark them, leave that to the encoder: it has less to
 * read and to compare. */
static void keep_spaces(struct tokenizer *t)
{
    struct normal_step *steps = t->normal, *last = &steps[t->n_normal == 2];

    if (t->bpe.ignore_merges || t->n_splits > 0 || t->passes[1].n > 0 || t->add_prefix_space)
        return;
    if (t->marks_spaces) {
        t->keeps_spaces = true;
    } else if (t->n_normal >= 1 && t->n_normal <= 2 && last->kind == NORMAL_REPLACE &&
               last->n_a == 1 && *last->a == ' ' && is_mark(last->b, last->n_b) &&
               (t->n_normal == 1 ||
                (steps->kind == NORMAL_PREPEND && is_mark(steps->a, steps->n_a)))) {
        t->keeps_spaces = true;
        t->n_normal--;
        steps->a = " ";
        steps->n_a = 1;
    }
}

int tokenizer_read_root(struct tokenizer_reader *r, const cJSON *root)
{
    const cJSON *model = get(root, "model");
    bool is_byte_level = false, is_unigram = is_text(get(model, "type"), "Unigram");

    if (!is_unigram && check_model(r, model) < 0)
        return -1;
    if (read_parts(r, root, &is_byte_level) < 0)
        return -1;
    if (is_unigram && is_byte_level)
        return REFUSE(r, "%s: pre_tokenizer ByteLevel before a Unigram model is not supported",
                      r->name);
    int rc = is_unigram ? tokenizer_read_unigram(r, model) : read_bpe(r, model, is_byte_level);
    if (rc < 0 || tokenizer_read_added(r, get(root, "added_tokens")) < 0 || check_frame(r) < 0)
        return -1;
    if (!is_byte_level) {
        keep_spaces(r->tokenizer);
        if (!is_unigram)
            bpe_index_ascii(&r->tokenizer->bpe, r->tokenizer->keeps_spaces);
        tokenizer_index_words(r->tokenizer);
    }
    tokenizer_guess_end_of_text(r->tokenizer);
    tokenizer_hash_json(r->tokenizer, root);
    return 0;
}

int tokenizer_parse(struct tokenizer **out, const char *name, const char *json, size_t n_bytes,
                    struct err *err)
{
    struct tokenizer_reader r = { .name = name, .err = err };
    cJSON *root = tokenizer_parse_object(name, json, n_bytes, err);
    int rc = -1;

    if (root && tokenizer_reader_create(&r) == 0)
        rc = tokenizer_read_root(&r, root);
    cJSON_Delete(root);
    return tokenizer_reader_finish(&r, rc, out);
}
