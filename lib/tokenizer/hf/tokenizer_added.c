/*
 * tokenizer_added.c - the added tokens of tokenizer.json, or such a list made of other files
 */
#include <string.h>

#include "tokenizer/hf/tokenizer_reader.h"

/* What is looked for in normalized text is the token's text normalized. */
static int normalize_token(struct tokenizer_reader *r, struct added_token *token)
{
    struct tokenizer *t = r->tokenizer;
    struct tokenizer_budget budget = { .n_text = token->n_shown };
    struct str text = { 0 };
    int rc = tokenizer_normalize(t, token->shown, token->n_shown, false, &budget, &text, r->err);

    if (rc == 0) {
        token->text = arena_strndup(&t->arena, str_text(&text), text.length);
        token->n_bytes = text.length;
    }
    str_release(&text);
    return rc;
}

static int read_added_token(struct tokenizer_reader *r, const cJSON *item, int index,
                            struct added_token *token)
{
    const cJSON *content = get(item, "content"), *normalized = get(item, "normalized");
    int id = tokenizer_json_id(get(item, "id"), TOKENIZER_IDS_MAX);

    if (!cJSON_IsString(content) || !*content->valuestring || id < 0)
        return REFUSE(r, "%s: added_tokens[%d] has no content or no id in 0..%d", r->name, index,
                      TOKENIZER_IDS_MAX - 1);
    int32_t in_vocab =
        bpe_find(&r->tokenizer->bpe, content->valuestring, strlen(content->valuestring));
    bool taken = id < r->tokenizer->bpe.n_ids && r->tokenizer->bpe.tokens[id].spelling != NULL;
    if (in_vocab >= 0 ? in_vocab != id : taken)
        return REFUSE(r, "%s: added token '%s' has id %d, which conflicts with the vocabulary",
                      r->name, content->valuestring, id);
    *token = (struct added_token){
        .text = arena_strdup(&r->tokenizer->arena, content->valuestring),
        .n_bytes = strlen(content->valuestring),
        .id = id,
        .normalized = normalized ? cJSON_IsTrue(normalized) : !cJSON_IsTrue(get(item, "special")),
        .takes_left = cJSON_IsTrue(get(item, "lstrip")),
        .takes_right = cJSON_IsTrue(get(item, "rstrip")),
        .single_word = cJSON_IsTrue(get(item, "single_word")),
        .is_special = cJSON_IsTrue(get(item, "special")),
    };
    token->shown = token->text;
    token->n_shown = token->n_bytes;
    if (token->normalized && r->tokenizer->n_normal > 0 && normalize_token(r, token) < 0)
        return -1;
    return token->n_bytes > 0
               ? 0
               : REFUSE(r, "%s: added token '%s' is normalized to nothing", r->name, token->shown);
}

/* Split the added tokens by pass, and index them by id. */
static int index_added(struct tokenizer_reader *r)
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
            return REFUSE(r, "%s: added token '%s' occurs twice", r->name, t->added[i].shown);
    t->added_by_id = arena_array(&t->arena, const struct added_token *, t->vocab_size);
    for (int i = 0; i < t->n_added; i++) {
        const struct added_token *token = &t->added[i];

        if (t->added_by_id[token->id])
            return REFUSE(r, "%s: added tokens '%s' and '%s' have the same id %d", r->name,
                          t->added_by_id[token->id]->shown, token->shown, token->id);
        t->added_by_id[token->id] = token;
    }
    return 0;
}

int tokenizer_read_added(struct tokenizer_reader *r, const cJSON *list)
{
    struct tokenizer *t = r->tokenizer;
    const cJSON *item;

    if (!is_absent(list) && !cJSON_IsArray(list))
        return REFUSE(r, "%s: added_tokens is not a list", r->name);
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
