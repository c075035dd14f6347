/*
 * items_chat.c - prompts as a user's message
 */
#include <string.h>
#include <xxhash.h>

#include "eval/items.h"

int items_chat(struct items *items, const struct task *task, const struct chat_template *template,
               struct err *err)
{
    struct str text = { 0 };
    int status = 0;

    for (int64_t i = 0; i < items->n && !status; i++) {
        struct item *item = &items->items[i];
        const struct chat_message message = { "user", item->context, NULL };

        if (!task->parts[item->part].way.chat)
            continue;
        str_clear(&text);
        status = chat_template_render(template, &message, 1, 0, &text, err);
        if (status < 0) {
            err_add(err, "%s, item %lld", task->parts[item->part].name,
                    (long long)item->number + 1);
            break;
        }
        item->context = arena_strndup(&items->arena, str_text(&text), text.length);
        item->hash = XXH3_64bits(item->context, text.length);
        item->is_framed = true;
    }
    str_release(&text);
    return status;
}
