/*
 * chat.h - a conversation to the text that its model was trained on
 *
 * A template is Jinja, as model folders carry it ("chat_template" in tokenizer_config.json, or
 * chat_template.jinja), or one of ours by name. It is rendered as transformers renders it
 * (trim_blocks and lstrip_blocks on, loop controls, tojson, strftime_now, raise_exception), by a
 * subset of the language that published templates need (jinja_impl.h says which); what isn't in it
 * is refused by name and line when the template is opened. A template is data from outside: it is
 * bounded in steps, depth and bytes, reads no files and changes nothing.
 *
 * The text begins with the model's bos token where its template puts one, so that it is encoded
 * without tokenizer_frame. What a message says is not escaped: special tokens in it become such.
 */
#ifndef TEMPLATE_CHAT_H
#define TEMPLATE_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

struct chat_template;

struct chat_message {
    const char *role;    /* "system", "user", "assistant", "tool", or what the template knows */
    const char *content; /* UTF-8; NULL where there is none (an assistant that only calls tools) */
    const char *fields;  /* JSON object of what else it has (tool_calls, name, ...), or NULL */
};

/*
 * name: one of chat_template_names, a file of Jinja (a path with '/' or that ends in ".jinja"), or
 * NULL: the one of folder. folder: with tokenizer_config.json and special_tokens_map.json, which
 * also give bos_token, eos_token and others; NULL where the name is enough: those are then "".
 * A folder with several named templates gives its "default". Returns 0, or -1 and ERR_CONFIG (no
 * such name, or the folder has none), ERR_DATA (unreadable, or what the subset lacks).
 */
int chat_template_open(struct chat_template **t, const char *name, const char *folder,
                       struct err *err);

/* Append the Jinja of a built-in template or of a file, by the name that chat_template_open takes.
 * ERR_CONFIG, ERR_DATA. */
int chat_template_text(const char *name, struct str *out, struct err *err);

/* The text of a template; name is what errors call it. */
int chat_template_open_text(struct chat_template **t, const char *name, const char *text,
                            struct err *err);
void chat_template_close(struct chat_template *t);

/* Built-in names, ends with NULL. */
const char *const *chat_template_names(void);

/* Whether folder holds a template, so that chat_template_open(NULL, folder) has something to
 * read. */
bool chat_template_is_in(const char *folder);

/*
 * Give all later renderings a variable as JSON: tools ("[...]"), enable_thinking ("false"),
 * bos_token ("\"<s>\""), date_string. Not while others render. Returns 0, or -1 and ERR_CONFIG.
 */
int chat_template_set(struct chat_template *t, const char *name, const char *json, struct err *err);

/*
 * Append the text of n messages to out. add_generation_prompt: and the beginning of an answer that
 * the model is to give. Safe from several threads at once. Returns 0, or -1 with out as it was and
 * ERR_DATA: the template refuses the conversation (its own words), or exceeds its bounds.
 */
int chat_template_render(const struct chat_template *t, const struct chat_message *messages, int n,
                         int add_generation_prompt, struct str *out, struct err *err);

/*
 * Bytes begin..end of the text. Parts tile the text and none is empty. Which are answers:
 *
 * 1. Of a template with {% generation %} blocks: what these write, as transformers'
 *    return_assistant_tokens_mask has it.
 * 2. Of another, by the difference of rendered prefixes. The answer of message i ends where the
 * text of messages
 *    0..i ends, less the white space at its end (the line break that many templates put behind the end token). It
 *    begins where the text of messages 0..i-1 with add_generation_prompt ends, or where the text of the whole
 *    begins to differ from it (a prompt that begins thinking which the answer has not).
 *    Where the template writes nothing for add_generation_prompt, it begins behind what all answers at this
 *    place begin with (the header), found by rendering two others; a header of white space is none.
 *    An answer that the template writes otherwise once more follows is no answer of the text: text 0..i is then no
 *    prefix of the whole. Templates that drop the thinking of earlier turns do so. The model never writes it
 *    so, and to learn it would be to learn to answer without thinking.
 */
struct chat_part {
    size_t begin, end;
    bool is_answer;
    /* an answer's index among the messages; -1 otherwise, and of {% generation %} blocks */
    int message;
};

struct chat_parts {
    struct str text;
    struct chat_part *items; /* heap */
    int n, capacity;
    int by_blocks;   /* answers are {% generation %} blocks */
    int n_rewritten; /* answers that are none as the template writes them otherwise here */
};
void chat_parts_release(struct chat_parts *parts);

/* Which messages of role "assistant" become answers. */
enum chat_marks { CHAT_MARK_NONE, CHAT_MARK_ALL, CHAT_MARK_LAST };

/*
 * The text of chat_template_render without a generation prompt, cut into parts; *parts is
 * overwritten, its memory used again (all zero at first). ERR_DATA also where what comes before the
 * last answer is rewritten.
 */
int chat_template_parts(const struct chat_template *t, const struct chat_message *messages, int n,
                        enum chat_marks marks, struct chat_parts *parts, struct err *err);

/*
 * What the template puts behind an answer: "<|im_end|>", "</s>", ... or "" if nothing. Where it is
 * no token, generation stops at the text. Belongs to the template.
 */
const char *chat_template_end_of_turn(const struct chat_template *t);

#endif
