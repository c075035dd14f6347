/*
 * tokenizer_files.c - tokenizers of before tokenizer.json: ranks (tiktoken), vocabulary and merges
 *
 * Such files have the tokens only. How text is split and which tokens are special is in each
 * model's code, so it is known here by kind: of ranks by their number, of a vocabulary by the
 * tokenizer_class of its tokenizer_config.json (GPT-2's if that names none). From that the parts
 * are made as a tokenizer.json would have them, and read as such.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "tokenizer/base64.h"
#include "tokenizer/hf/tokenizer_reader.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS_AFTER(numbers) \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K_PATTERN CONTRACTIONS WORDS_AFTER("\\p{N}{1,3}")
#define QWEN_PATTERN CONTRACTIONS WORDS_AFTER("\\p{N}")
#define QWEN3_5_PATTERN \
    CONTRACTIONS \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K_PATTERN \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" \
    "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+" \
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" CONTRACTIONS \
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* ---- kinds of ranks ---- */

struct special_rank {
    int id;
    const char *text; /* with %d: n_numbered of them, from first_number on */
    int n_numbered, first_number;
};

/* What the models' own code adds to the ranks. */
static const struct special_rank gpt2_special[] = { { 50256, "<|endoftext|>", 0, 0 }, { 0 } };
static const struct special_rank cl100k_special[] = {
    { 100257, "<|endoftext|>", 0, 0 },   { 100258, "<|fim_prefix|>", 0, 0 },
    { 100259, "<|fim_middle|>", 0, 0 },  { 100260, "<|fim_suffix|>", 0, 0 },
    { 100276, "<|endofprompt|>", 0, 0 }, { 0 }
};
static const struct special_rank o200k_special[] = { { 199999, "<|endoftext|>", 0, 0 },
                                                     { 200018, "<|endofprompt|>", 0, 0 },
                                                     { 0 } };
static const struct special_rank llama3_special[] = {
    { 128000, "<|begin_of_text|>", 0, 0 },
    { 128001, "<|end_of_text|>", 0, 0 },
    { 128002, "<|reserved_special_token_%d|>", 4, 0 },
    { 128006, "<|start_header_id|>", 0, 0 },
    { 128007, "<|end_header_id|>", 0, 0 },
    { 128008, "<|reserved_special_token_%d|>", 1, 4 },
    { 128009, "<|eot_id|>", 0, 0 },
    { 128010, "<|reserved_special_token_%d|>", 246, 5 },
    { 0 }
};
static const struct special_rank qwen_special[] = { { 151643, "<|endoftext|>", 0, 0 },
                                                    { 151644, "<|im_start|>", 0, 0 },
                                                    { 151645, "<|im_end|>", 0, 0 },
                                                    { 151646, "<|extra_%d|>", 205, 0 },
                                                    { 0 } };
static const struct special_rank qwen3_5_special[] = { { 248044, "<|endoftext|>", 0, 0 },
                                                       { 248045, "<|im_start|>", 0, 0 },
                                                       { 248046, "<|im_end|>", 0, 0 },
                                                       { 0 } };

struct kind {
    int n_ranks;
    const char *pattern; /* NULL: GPT-2's, which ByteLevel knows */
    bool is_composed;    /* NFC first */
    const struct special_rank *special;
    int32_t before; /* put before a text; -1: nothing */
};

static const struct kind kinds[] = {
    { 50256, NULL, 0, gpt2_special, -1 },
    { 100256, CL100K_PATTERN, 0, cl100k_special, -1 },
    { 128000, CL100K_PATTERN, 0, llama3_special, 128000 },
    { 151643, QWEN_PATTERN, 1, qwen_special, -1 },
    { 199998, O200K_PATTERN, 0, o200k_special, -1 },
    { 248044, QWEN3_5_PATTERN, 1, qwen3_5_special, -1 },
};

static const struct kind *find_kind(int n_ranks)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].n_ranks == n_ranks)
            return &kinds[i];
    return NULL;
}

/* ---- the parts as a tokenizer.json has them ---- */

static cJSON *byte_level(bool use_regex, int add_prefix_space)
{
    cJSON *part = cJSON_CreateObject();

    cJSON_AddStringToObject(part, "type", "ByteLevel");
    cJSON_AddBoolToObject(part, "add_prefix_space", add_prefix_space);
    cJSON_AddBoolToObject(part, "use_regex", use_regex);
    return part;
}

/* pre_tokenizer and normalizer; pattern NULL: GPT-2's. */
static void add_parts(cJSON *root, const char *pattern, bool is_composed, int add_prefix_space)
{
    if (is_composed)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "normalizer"), "type", "NFC");
    if (!pattern) {
        cJSON_AddItemToObject(root, "pre_tokenizer", byte_level(true, add_prefix_space));
        return;
    }
    cJSON *both = cJSON_AddObjectToObject(root, "pre_tokenizer");
    cJSON_AddStringToObject(both, "type", "Sequence");
    cJSON *list = cJSON_AddArrayToObject(both, "pretokenizers"), *split = cJSON_CreateObject();
    cJSON_AddItemToArray(list, split);
    cJSON_AddStringToObject(split, "type", "Split");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(split, "pattern"), "Regex", pattern);
    cJSON_AddStringToObject(split, "behavior", "Isolated");
    cJSON_AddItemToArray(list, byte_level(false, 0));
}

/* Whether a list of added tokens has one of this text or id already. */
static bool is_listed(const cJSON *list, const char *text, int id)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        if (get(item, "id")->valueint == id || is_text(get(item, "content"), text))
            return true;
    }
    return false;
}

/* Append a token of this text unless there is one; details: of tokenizer_config.json, or NULL. */
static void add_token(cJSON *list, const char *text, int id, bool is_special, const cJSON *details)
{
    static const char *const flags[] = { "lstrip", "rstrip", "single_word", "normalized" };

    if (id < 0 || is_listed(list, text, id))
        return;
    cJSON *token = cJSON_CreateObject();
    cJSON_AddItemToArray(list, token);
    cJSON_AddStringToObject(token, "content", text);
    cJSON_AddNumberToObject(token, "id", id);
    cJSON_AddBoolToObject(
        token, "special",
        cJSON_IsBool(get(details, "special")) ? cJSON_IsTrue(get(details, "special")) : is_special);
    for (int i = 0; i < 4; i++)
        if (cJSON_IsBool(get(details, flags[i])))
            cJSON_AddBoolToObject(token, flags[i], cJSON_IsTrue(get(details, flags[i])));
}

/* added_tokens_decoder: tokens by their ids. */
static int add_decoder(struct tokenizer_reader *r, cJSON *list, const cJSON *config)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, get(config, "added_tokens_decoder"))
    {
        const cJSON *content = get(item, "content");
        char *end;
        long id = strtol(item->string, &end, 10);

        if (!cJSON_IsString(content) || *end || end == item->string || id < 0 ||
            id >= TOKENIZER_IDS_MAX)
            return REFUSE(r, "%s: tokenizer_config.json: added_tokens_decoder['%s'] is not a token",
                          r->name, item->string);
        add_token(list, content->valuestring, (int)id, false, item);
    }
    return 0;
}

/* bos_token and the like, if the vocabulary has them. */
static void add_named(cJSON *list, const cJSON *vocab, const cJSON *config)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "pad_token",
                                         "sep_token", "cls_token", "mask_token" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *token = get(config, names[i]);
        const cJSON *text = cJSON_IsObject(token) ? get(token, "content") : token;

        if (cJSON_IsString(text))
            add_token(list, text->valuestring,
                      tokenizer_json_id(get(vocab, text->valuestring), TOKENIZER_IDS_MAX), true,
                      cJSON_IsObject(token) ? token : NULL);
    }
}

static void add_special(cJSON *list, const struct special_rank *special)
{
    for (; special->text; special++) {
        int n = special->n_numbered;

        for (int i = 0; i < (n ? n : 1); i++) {
            struct str text = { 0 };
            const char *number = strstr(special->text, "%d");

            str_add_bytes(&text, special->text,
                          number ? (size_t)(number - special->text) : strlen(special->text));
            if (number)
                str_printf(&text, "%d%s", special->first_number + i, number + 2);
            add_token(list, str_text(&text), special->id + i, true, NULL);
            str_release(&text);
        }
    }
}

/* ---- ranks ---- */

/* The next line "BASE64 RANK": 1 and both, 0 at the end, -1 if it is none. */
static int next_rank(const char **at, const char *end, unsigned char *bytes, size_t limit,
                     size_t *n_bytes, int *rank)
{
    while (*at < end && (**at == '\n' || **at == '\r'))
        ++*at;
    if (*at == end)
        return 0;
    const char *space = memchr(*at, ' ', (size_t)(end - *at));
    size_t n = space ? (size_t)(space - *at) : 0;
    if (n == 0 || n > limit)
        return -1;
    long long n_decoded = base64_decode(*at, n, bytes);
    const char *digits = space + 1, *c = digits;
    int value = 0;
    while (c < end && *c >= '0' && *c <= '9' && value < TOKENIZER_IDS_MAX)
        value = value * 10 + (*c++ - '0');
    if (n_decoded < 1 || c == digits || value >= TOKENIZER_IDS_MAX ||
        (c < end && *c != '\n' && *c != '\r'))
        return -1;
    *at = c;
    *n_bytes = (size_t)n_decoded;
    *rank = value;
    return 1;
}

enum { RANK_CHARACTERS_MAX = 4096 };

/* Count the ranks and find the greatest, or add them as tokens too. */
static int go_through_ranks(struct tokenizer_reader *r, const char *data, size_t n, int adds,
                            int *n_ranks, int *n_ids)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    unsigned char bytes[BASE64_BYTES(RANK_CHARACTERS_MAX)];
    const char *at = data;
    size_t n_bytes;
    int rank, line = 0, rc;

    *n_ids = 0;
    while ((rc = next_rank(&at, data + n, bytes, RANK_CHARACTERS_MAX, &n_bytes, &rank)) > 0) {
        line++;
        *n_ids = rank >= *n_ids ? rank + 1 : *n_ids;
        if (adds && bpe_add_bytes(bpe, rank, bytes, n_bytes) < 0)
            return REFUSE(r, "%s: token %d: it or its rank %d occurs twice", r->name, line, rank);
    }
    *n_ranks = line;
    return rc < 0
               ? REFUSE(r, "%s: token %d is not a line with base64 and a rank", r->name, line + 1)
               : 0;
}

/* The file's own pattern (pat_str of tokenizer_config.json), or that of its kind. */
static int read_ranks(struct tokenizer_reader *r, const char *data, size_t n, const cJSON *config,
                      cJSON *root)
{
    struct tokenizer *t = r->tokenizer;
    const cJSON *pattern = get(config, "pat_str");
    cJSON *added = cJSON_AddArrayToObject(root, "added_tokens");
    int n_ranks, n_ids;
    bool is_byte_level;

    if (go_through_ranks(r, data, n, 0, &n_ranks, &n_ids) < 0)
        return -1;
    const struct kind *kind = n_ids == n_ranks ? find_kind(n_ranks) : NULL;
    if (!kind && !cJSON_IsString(pattern))
        return REFUSE(r,
                      "%s: %d ranks, which no known model has, so its pre-tokenizer is unknown "
                      "(hint: \"pat_str\" in tokenizer_config.json next to it)",
                      r->name, n_ranks);
    bpe_init(&t->bpe, &t->arena, true, n_ranks, n_ids);
    if (go_through_ranks(r, data, n, 1, &n_ranks, &n_ids) < 0)
        return -1;
    t->vocab_size = n_ids;
    int missing = bpe_find_bytes(&t->bpe);
    if (missing >= 0)
        return REFUSE(r, "%s: no token for byte 0x%02x", r->name, (unsigned)missing);
    if (bpe_derive_merges(&t->bpe) < 0)
        return err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
    t->bpe.ignore_merges = 1;
    if (bpe_index_words(&t->bpe) < 0)
        return err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
    add_parts(root, cJSON_IsString(pattern) ? pattern->valuestring : kind->pattern,
              kind && kind->is_composed, 0);
    if (add_decoder(r, added, config) < 0)
        return -1;
    if (kind)
        add_special(added, kind->special);
    if (tokenizer_parse_normalizer(t, r->name, get(root, "normalizer"), r->err) < 0 ||
        tokenizer_parse_splits(t, r->name, get(root, "pre_tokenizer"), &is_byte_level, r->err) < 0)
        return -1;
    if (kind && kind->before >= 0)
        t->before[t->n_before++] = kind->before;
    tokenizer_hash_file(t, data, n, root);
    return tokenizer_read_added(r, added);
}

bool tokenizer_is_tiktoken(const char *data, size_t n_bytes)
{
    unsigned char bytes[BASE64_BYTES(RANK_CHARACTERS_MAX)];
    size_t n;
    int rank;

    return next_rank(&data, data + n_bytes, bytes, RANK_CHARACTERS_MAX, &n, &rank) > 0;
}

int tokenizer_parse_tiktoken(struct tokenizer **out, const char *name, const char *data,
                             size_t n_bytes, const cJSON *config, struct err *err)
{
    struct tokenizer_reader r = { .name = name, .err = err };
    cJSON *root = cJSON_CreateObject();
    int rc = tokenizer_reader_create(&r);

    if (rc == 0)
        rc = read_ranks(&r, data, n_bytes, config, root);
    cJSON_Delete(root);
    if (rc == 0) {
        r.tokenizer->takes_frame = true;
        tokenizer_guess_end_of_text(r.tokenizer);
    }
    return tokenizer_reader_finish(&r, rc, out);
}

/* ---- vocabulary and merges ---- */

/* "a b" a line, but for a first one that begins with #version. */
static void add_merges(cJSON *model, const char *merges, size_t n_bytes)
{
    cJSON *list = cJSON_AddArrayToObject(model, "merges"), *last = NULL;
    const char *end = merges + n_bytes;

    if (n_bytes >= 8 && memcmp(merges, "#version", 8) == 0)
        merges = memchr(merges, '\n', n_bytes);
    while (merges && merges < end) {
        const char *stop = memchr(merges, '\n', (size_t)(end - merges));
        size_t n = (size_t)((stop ? stop : end) - merges);
        char *line = n > 0 ? strndup(merges, n) : NULL;

        merges += n + 1;
        if (!line)
            continue;
        if (line[strlen(line) - 1] == '\r')
            line[strlen(line) - 1] = 0;
        if (*line) {
            /* Linked by hand: to append to the list takes the list's length. */
            cJSON *item = cJSON_CreateString(line);

            if (!last)
                list->child = item;
            else
                last->next = item;
            item->prev = last;
            last = item;
            list->child->prev = item;
        }
        free(line);
    }
}

static int read_vocab_merges(struct tokenizer_reader *r, cJSON *root, const cJSON *vocab,
                             const struct tokenizer_side *side)
{
    const cJSON *class = get(side->config, "tokenizer_class"), *item;
    cJSON *added = cJSON_AddArrayToObject(root, "added_tokens");
    const char *name = cJSON_IsString(class) ? class->valuestring : "GPT2Tokenizer";
    bool is_gpt2 = str_starts_with(name, "GPT2Tokenizer");

    if (!is_gpt2 && !str_starts_with(name, "Qwen2Tokenizer"))
        return REFUSE(r,
                      "%s: tokenizer_class %s is not supported without a tokenizer.json (only "
                      "GPT2Tokenizer and Qwen2Tokenizer are)",
                      r->name, name);
    add_parts(root, is_gpt2 ? NULL : QWEN_PATTERN, !is_gpt2,
              is_gpt2 && cJSON_IsTrue(get(side->config, "add_prefix_space")));
    cJSON_AddItemToObject(root, "decoder", byte_level(true, 0));
    if (add_decoder(r, added, side->config) < 0)
        return -1;
    cJSON_ArrayForEach(item, side->added)
        add_token(added, item->string, tokenizer_json_id(item, TOKENIZER_IDS_MAX), false, NULL);
    add_named(added, vocab, side->config);
    add_named(added, vocab, side->special_map);
    add_token(added, "<|endoftext|>",
              tokenizer_json_id(get(vocab, "<|endoftext|>"), TOKENIZER_IDS_MAX), true, NULL);
    return tokenizer_read_root(r, root);
}

int tokenizer_parse_merges(struct tokenizer **out, const char *name, const char *vocab_json,
                           size_t n_vocab, const char *merges, size_t n_merges,
                           const struct tokenizer_side *side, struct err *err)
{
    struct tokenizer_reader r = { .name = name, .err = err };
    size_t bad = tokenizer_utf8_end(merges, n_merges);

    if (bad < n_merges || memchr(merges, 0, n_merges))
        return REFUSE(&r, "%s: its merges are not a string", name);
    cJSON *vocab = tokenizer_parse_object(name, vocab_json, n_vocab, err);
    if (!vocab)
        return -1;
    cJSON *root = cJSON_CreateObject(), *model = cJSON_AddObjectToObject(root, "model");
    cJSON_AddStringToObject(model, "type", "BPE");
    cJSON_AddItemToObject(model, "vocab", vocab);
    add_merges(model, merges, n_merges);
    int rc = tokenizer_reader_create(&r);
    if (rc == 0)
        rc = read_vocab_merges(&r, root, vocab, side);
    cJSON_Delete(root);
    if (rc == 0)
        r.tokenizer->takes_frame = true;
    return tokenizer_reader_finish(&r, rc, out);
}
