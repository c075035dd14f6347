/*
 * chat_test.c - conversations by templates of ours and of folders, in parts, and what is refused
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <string.h>

#include "base/file.h"
#include "support/temporary.h"
#include "template/chat.h"

#define N_OF(list) ((int)(sizeof(list) / sizeof *(list)))

static const struct chat_message two_turns[] = {
    { "system", "Be kind.", NULL }, { "user", "Hello", NULL },    { "assistant", "Hi!", NULL },
    { "user", "And now?", NULL },   { "assistant", "Bye", NULL },
};

static struct chat_template *open_builtin(const char *name)
{
    struct chat_template *t;
    struct err err;

    if (chat_template_open(&t, name, NULL, &err) < 0 ||
        chat_template_set(t, "bos_token", "\"<s>\"", &err) < 0 ||
        chat_template_set(t, "eos_token", "\"</s>\"", &err) < 0)
        fail_msg("%s: %s", name, err.text);
    return t;
}

static struct chat_template *open_text(const char *text)
{
    struct chat_template *t;
    struct err err;

    if (chat_template_open_text(&t, "T", text, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static void renders(const struct chat_template *t, const struct chat_message *messages, int n,
                    int prompt, const char *wanted)
{
    struct str out = { 0 };
    struct err err;

    if (chat_template_render(t, messages, n, prompt, &out, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(str_text(&out), wanted);
    str_release(&out);
}

/* Parts as one text: answers in angle quotes. */
static void parts_are(const struct chat_template *t, const struct chat_message *messages, int n,
                      enum chat_marks marks, const char *wanted)
{
    struct chat_parts parts = { 0 };
    struct str shown = { 0 };
    struct err err;
    size_t at = 0;

    if (chat_template_parts(t, messages, n, marks, &parts, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < parts.n; i++) {
        const struct chat_part *p = &parts.items[i];

        assert_int_equal(p->begin, at);
        assert_true(p->end > p->begin);
        at = p->end;
        if (p->is_answer && !parts.by_blocks)
            assert_string_equal(messages[p->message].role, "assistant");
        str_add(&shown, p->is_answer ? "«" : "");
        str_add_bytes(&shown, str_text(&parts.text) + p->begin, p->end - p->begin);
        str_add(&shown, p->is_answer ? "»" : "");
    }
    assert_int_equal(at, parts.text.length);
    assert_string_equal(str_text(&shown), wanted);
    str_release(&shown);
    chat_parts_release(&parts);
}

struct built_in {
    const char *name, *parts, *prompt, *end;
};

/* two_turns in parts; what is behind "Hello" where an answer is to come; the end of a turn. */
static const struct built_in built_ins[] = {
    { "chatml",
      "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
      "<|im_start|>assistant\n«Hi!<|im_end|>»\n<|im_start|>user\nAnd now?<|im_end|>\n"
      "<|im_start|>assistant\n«Bye<|im_end|>»\n",
      "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>" },
    { "qwen",
      "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
      "<|im_start|>assistant\n«Hi!<|im_end|>»\n<|im_start|>user\nAnd now?<|im_end|>\n"
      "<|im_start|>assistant\n«Bye<|im_end|>»\n",
      "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>" },
    { "llama2",
      "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHello [/INST]« Hi! </s>»"
      "<s>[INST] And now? [/INST]« Bye </s>»",
      " [/INST]", "</s>" },
    { "llama3",
      "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n«Hi!<|eot_id|>»"
      "<|start_header_id|>user<|end_header_id|>\n\nAnd now?<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n«Bye<|eot_id|>»",
      "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>" },
    { "mistral", "<s>[INST] Be kind.\n\nHello [/INST]«Hi!</s>»[INST] And now? [/INST]«Bye</s>»",
      " [/INST]", "</s>" },
    { "mixtral", "<s>[INST] Be kind.\n\nHello [/INST]«Hi!</s>»[INST] And now? [/INST]«Bye</s>»",
      " [/INST]", "</s>" },
    { "alpaca",
      "<s>Be kind.\n\n### Instruction:\nHello\n\n### Response:\n«Hi!</s>»\n\n"
      "### Instruction:\nAnd now?\n\n### Response:\n«Bye</s>»\n\n",
      "\n\n### Response:\n", "</s>" },
    { "chatglm2",
      "[gMASK]sop[Round 1]\n\n问：Be kind.\n\nHello\n\n答：«Hi!</s>»\n\n"
      "[Round 2]\n\n问：And now?\n\n答：«Bye</s>»\n\n",
      "\n\n答：", "</s>" },
    { "chatglm3",
      "[gMASK]sop<|system|>\n Be kind.<|user|>\n Hello<|assistant|>«\n Hi!»"
      "<|user|>\n And now?<|assistant|>«\n Bye»",
      "<|assistant|>", "" },
    { "glm4",
      "[gMASK]<sop><|system|>\nBe kind.<|user|>\nHello<|assistant|>\n«Hi!»"
      "<|user|>\nAnd now?<|assistant|>\n«Bye»",
      "<|assistant|>\n", "" },
    { "gemma",
      "<s><start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
      "«Hi!<end_of_turn>»\n<start_of_turn>user\nAnd now?<end_of_turn>\n<start_of_turn>model\n"
      "«Bye<end_of_turn>»\n",
      "<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>" },
    { "deepseek2",
      "<s>Be kind.\n\nUser: Hello\n\nAssistant:« Hi!</s>»User: And now?\n\nAssistant:« Bye</s>»",
      "\n\nAssistant:", "</s>" },
    { "default",
      "<s>Be kind.\nHuman: Hello\nAssistant: «Hi!</s>»\nHuman: And now?\nAssistant: «Bye</s>»\n",
      "\nAssistant: ", "</s>" },
    { "empty", "<s>Be kind.Hello«Hi!</s>»And now?«Bye</s>»", "", "</s>" },
};

static void built_ins_are_what_models_know(void **state)
{
    (void)state;
    for (int i = 0; i < N_OF(built_ins); i++) {
        const struct built_in *b = &built_ins[i];
        struct chat_template *t = open_builtin(b->name);
        struct str out = { 0 };
        struct err err;

        parts_are(t, two_turns, 5, CHAT_MARK_ALL, b->parts);
        assert_string_equal(chat_template_end_of_turn(t), b->end);
        assert_int_equal(chat_template_render(t, two_turns, 2, 1, &out, &err), 0);
        const char *behind = strstr(str_text(&out), "Hello");
        assert_non_null(behind);
        assert_string_equal(behind + 5, b->prompt);
        str_release(&out);
        chat_template_close(t);
    }
    int n = 0;
    while (chat_template_names()[n])
        n++;
    assert_int_equal(n, N_OF(built_ins));
}

static void only_the_last_can_be_marked(void **state)
{
    struct chat_template *t = open_builtin("chatml");

    (void)state;
    parts_are(t, two_turns, 5, CHAT_MARK_LAST,
              "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
              "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n"
              "<|im_start|>assistant\n«Bye<|im_end|>»\n");
    parts_are(t, two_turns, 2, CHAT_MARK_LAST,
              "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n");
    chat_template_close(t);
}

/* As Qwen3's: what was thought before is left out once there is another turn. */
static const char forgetful[] =
    "{%- for m in messages -%}\n"
    "{%- if m.role == 'user' -%}U:{{ m.content }};\n"
    "{%- else -%}A:{%- if loop.last -%}<think>{{ m.reasoning_content or '' }}</think>{%- endif -%}"
    "{{ m.content }};{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}A:{%- endif -%}";

static void a_template_that_rewrites(void **state)
{
    static const struct chat_message messages[] = {
        { "user", "q", NULL },
        { "assistant", "r", "{\"reasoning_content\": \"hm\"}" },
        { "user", "s", NULL },
        { "assistant", "t", "{\"reasoning_content\": \"so\"}" },
    };
    struct chat_template *t = open_text(forgetful);
    struct chat_parts parts = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(chat_template_parts(t, messages, 4, CHAT_MARK_ALL, &parts, &err), 0);
    assert_int_equal(parts.n_rewritten, 1);
    chat_parts_release(&parts);
    parts_are(t, messages, 4, CHAT_MARK_ALL, "U:q;A:r;U:s;A:«<think>so</think>t;»");
    parts_are(t, messages, 4, CHAT_MARK_LAST, "U:q;A:r;U:s;A:«<think>so</think>t;»");
    parts_are(t, messages, 2, CHAT_MARK_ALL, "U:q;A:«<think>hm</think>r;»");
    chat_template_close(t);
}

/* As ChatML, but nothing is written for add_generation_prompt. */
static const char promptless[] = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n"
                                 "{{ m.content }}<|im_end|>\n{% endfor -%}";

static void a_header_is_no_answer(void **state)
{
    static const struct chat_message alike[] = {
        { "user", "q", NULL },
        { "assistant", "Answer0prone", NULL },
        { "user", "r", NULL },
        { "assistant", "9", NULL },
    };
    struct chat_template *t = open_text(promptless);

    (void)state;
    parts_are(t, two_turns, 5, CHAT_MARK_ALL,
              "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
              "<|im_start|>assistant\n«Hi!<|im_end|>»\n<|im_start|>user\nAnd now?<|im_end|>\n"
              "<|im_start|>assistant\n«Bye<|im_end|>»\n");
    parts_are(t, alike, 4, CHAT_MARK_ALL,
              "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«Answer0prone<|im_end|>»\n"
              "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n«9<|im_end|>»\n");
    chat_template_close(t);
    /* A header that ends in a space goes with the others. */
    t = open_text("{%- for m in messages -%}{{ m.role }}: {{ m.content }}{{ '\n' }}{%- endfor -%}");
    parts_are(t, alike, 4, CHAT_MARK_ALL,
              "user: q\nassistant: «Answer0prone»\nuser: r\nassistant: «9»\n");
    chat_template_close(t);
}

/* What transformers' AssistantTracker notes; a block in a macro is where the macro's text will
 * begin. */
static void generation_blocks_are_answers(void **state)
{
    struct chat_template *t =
        open_text("{%- for m in messages -%}[{{ m.role }}]{% if m.role == 'assistant' %}"
                  "{% generation %}{{ m.content }};{% endgeneration %}-{% generation %}"
                  "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{%- endfor -%}");

    (void)state;
    parts_are(t, two_turns, 5, CHAT_MARK_ALL,
              "[system]Be kind.[user]Hello[assistant]«Hi!;»-[user]And now?[assistant]«Bye;»-");
    parts_are(t, two_turns, 5, CHAT_MARK_LAST,
              "[system]Be kind.[user]Hello[assistant]Hi!;-[user]And now?[assistant]«Bye;»-");
    parts_are(t, two_turns, 2, CHAT_MARK_ALL, "[system]Be kind.[user]Hello");
    chat_template_close(t);
    t = open_text("{%- macro say(c) %}<{% generation %}{{ c }}{% endgeneration %}>{% endmacro -%}"
                  "{% for m in messages %}{{ say(m.content) }}{% endfor %}");
    parts_are(t, two_turns + 1, 2, CHAT_MARK_ALL, "«<Hell»o>«<Hi»!>");
    chat_template_close(t);
}

static void messages_have_fields(void **state)
{
    static const struct chat_message messages[] = {
        { "assistant", NULL, "{\"tool_calls\": [{\"n\": 1}, {\"n\": 2.5}]}" },
    };
    struct chat_template *t =
        open_text("{{ messages[0].content }}{% for c in messages[0].tool_calls %}"
                  " {{ c.n }}{% endfor %} {{ tools[0] | tojson }}");
    struct err err;

    (void)state;
    assert_int_equal(chat_template_set(t, "tools", "[{\"a\": [true, null]}]", &err), 0);
    renders(t, messages, 1, 0, "None 1 2.5 {\"a\": [true, null]}");
    assert_int_equal(chat_template_set(t, "tools", "[1", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    chat_template_close(t);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    struct str path = { 0 };
    struct err err;

    str_printf(&path, "%s/%s", folder, name);
    if (file_write(str_text(&path), text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
    str_release(&path);
}

static void opens(const char *name, const char *folder, const char *wanted)
{
    struct chat_template *t;
    struct err err;

    if (chat_template_open(&t, name, folder, &err) < 0)
        fail_msg("%s", err.text);
    renders(t, two_turns + 1, 1, 0, wanted);
    chat_template_close(t);
}

static void refused(const char *name, const char *folder, enum err_code code, const char *says)
{
    struct chat_template *t;
    struct err err;

    assert_int_equal(chat_template_open(&t, name, folder, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, says))
        fail_msg("'%s' does not say '%s'", err.text, says);
}

static void folders(void **state)
{
    char folder[256];
    struct err err;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    refused(NULL, folder, ERR_CONFIG, "has no chat template");
    assert_false(chat_template_is_in(folder));
    write_text(folder, "special_tokens_map.json",
               "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<other>\"}");
    write_text(folder, "tokenizer_config.json",
               "{\"eos_token\": \"<e>\", \"pad_token\": null, \"model_max_length\": "
               "1000000000000000019884624838656, \"chat_template\": "
               "\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}\"}");
    assert_true(chat_template_is_in(folder));
    opens(NULL, folder, "<b>Hello<e>");
    opens("empty", folder, "<b>Hello");
    write_text(folder, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"R\"}, "
               "{\"name\": \"default\", \"template\": \"D\"}]}");
    opens(NULL, folder, "D");
    write_text(folder, "chat_template.jinja", "{{ messages[0].role }}\n");
    opens(NULL, folder, "user");
    struct str path = { 0 };
    str_printf(&path, "%s/chat_template.jinja", folder);
    opens(str_text(&path), NULL, "user");
    str_release(&path);
    write_text(folder, "chat_template.jinja", "ab\n{% include 'x' %}");
    refused(NULL, folder, ERR_DATA, "chat template:2: {% include %} is not supported");
    write_text(folder, "tokenizer_config.json", "{\"chat_template\": 1");
    refused(NULL, folder, ERR_DATA, "tokenizer_config.json");
    refused("chatlm", NULL, ERR_CONFIG, "hint: chatml");
    refused("nothing like it", NULL, ERR_CONFIG, "llama3");
    refused("no/such.jinja", NULL, ERR_CONFIG, "no such file");
    assert_int_equal(file_remove_tree(folder, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_ins_are_what_models_know),
        cmocka_unit_test(only_the_last_can_be_marked),
        cmocka_unit_test(a_template_that_rewrites),
        cmocka_unit_test(a_header_is_no_answer),
        cmocka_unit_test(generation_blocks_are_answers),
        cmocka_unit_test(messages_have_fields),
        cmocka_unit_test(folders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
