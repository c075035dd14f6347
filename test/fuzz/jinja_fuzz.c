/*
 * jinja_fuzz.c - a template from outside, and conversations through it
 *
 * The input is a template. If it is taken, it renders conversations, whole and in parts, within
 * narrow bounds; the parts must tile the text.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "template/chat_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const struct jinja_limits narrow = { .steps = 20000, .bytes = 1 << 20, .depth = 100 };

static const struct chat_message messages[] = {
    { "system", "Be kind.", NULL },
    { "user", "Hello \xe4\xb8\xad", "{\"name\": \"B\", \"tool_calls\": [{\"a\": 1.5}, null]}" },
    { "assistant", "Hi!", NULL },
};

static void render(const struct jinja *jinja)
{
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a b\"}, "
                               "{\"role\": \"assistant\", \"content\": null, \"n\": [1, -2.5]}], "
                               "\"tools\": null, \"bos_token\": \"<s>\"}";
    struct arena arena = { 0 };
    struct jinja_value variables;
    const char *problem;
    struct str out = { 0 };
    struct err err = { 0 };

    CHECK(jinja_read_json(&variables, text_of(json), &arena, &problem) == 0);
    if (jinja_render(jinja, &narrow, variables.dict, &arena, &out, &err) < 0)
        CHECK(err.code == ERR_DATA);
    str_release(&out);
    arena_release(&arena);
}

static void cut(const char *text)
{
    struct chat_template *t = NULL;
    struct chat_parts parts = { 0 };
    struct err err = { 0 };
    size_t at = 0;

    if (chat_template_open_text(&t, "fuzz", text, &err) < 0)
        return;
    if (chat_template_parts(t, messages, 3, CHAT_MARK_ALL, &parts, &err) == 0) {
        for (int i = 0; i < parts.n; i++) {
            CHECK(parts.items[i].begin == at);
            CHECK(parts.items[i].end > at);
            at = parts.items[i].end;
        }
        CHECK(at == parts.text.length);
    }
    chat_parts_release(&parts);
    chat_template_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char *text = malloc(n_bytes + 1);
    struct jinja jinja;
    struct err err = { 0 };

    if (!text)
        return 0;
    memcpy(text, data, n_bytes);
    text[n_bytes] = 0;
    if (jinja_parse(&jinja, "fuzz", (struct text){ text, n_bytes }, &err) == 0) {
        render(&jinja);
        jinja_release(&jinja);
        /* Its bounds are wide: what goes around would take long. */
        if (!strstr(text, "for") && !strchr(text, '*') && !strstr(text, "macro") &&
            !strstr(text, "call"))
            cut(text);
    }
    free(text);
    return 0;
}
