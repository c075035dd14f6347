/*
 * instruct_test.c - which tokens are learned, by a table that was written by hand; and what is
 * counted, refused and found again
 *
 * What is learned stands between [ and ] in the table, each row of data as its template has it.
 */
#include "data_fixture.h"

#include "data/instruct/instruct.h"
#include "data/instruct/samples.h"
#include "tokenizer/tokenizer.h"

#define KJV "data/kjv-tokenizer"
#define END "<|endoftext|>"
#define ALPACA \
    "{\"instruction\": \"Add\", \"input\": \"1+1\", \"output\": \"2\", \"system\": \"Be " \
    "brief.\", " \
    "\"history\": [[\"Hi\", \"Ho\"]]}"
#define SHAREGPT \
    "{\"system\": \"S\", \"conversations\": [{\"from\": \"human\", \"value\": \"A\"}, {\"from\": " \
    "\"gpt\", \"value\": \"B\"}, {\"from\": \"human\", \"value\": \"C\"}, {\"from\": \"gpt\", " \
    "\"value\": \"D\"}]}"
#define MESSAGES \
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"A\"}]}, " \
    "{\"role\": \"assistant\", \"content\": \"B\"}]}"
#define BELLE \
    "{\"instruction\": \"Human:A\\nAssistant:B\\nHuman: C\\nAssistant:\\n\", \"input\": \"\", " \
    "\"output\": \"D\"}"
#define MOSS \
    "{\"meta_instruction\": \"M\\n\", \"chat\": {\"turn_1\": {\"Human\": \"<|Human|>: " \
    "A<eoh>\\n\", " \
    "\"Inner Thoughts\": \"x\", \"MOSS\": \"<|MOSS|>: B<eom>\\n\"}, \"turn_2\": {\"Human\": " \
    "\"<|Human|>: C<eoh>\\n\", \"MOSS\": \"<|MOSS|>: D<eom>\\n\"}}}"
#define LEETCODE \
    "{\"code_with_problem\": \"# Two sums\\n\\n```python\\nx\\n```\", \"code_only\": \"y\", " \
    "\"explanation_only\": \"z\"}"
#define START(role) "<|im_start|>" role "\n"
#define STOP "<|im_end|>"
#define HEAD(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"

static const char *folder;
static struct tokenizer *tokenizer;

static int set_up(void **state)
{
    struct err err = { 0 };

    (void)state;
    folder = fixture_folder();
    return tokenizer_open(&tokenizer, KJV, &err);
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    tokenizer_close(tokenizer);
    return 0;
}

static char *write_input(const char *name, const char *text)
{
    char *path = fixture_path(folder, name);
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    return path;
}

static struct instruct_options base_options(const char *const *path)
{
    return (struct instruct_options){ .inputs = path,
                                      .n_inputs = 1,
                                      .tokenizer = KJV,
                                      .chat = "chatml",
                                      .max_tokens = 1000,
                                      .n_threads = 2 };
}

/* Sample i's text, what is learned between brackets. */
static void print_sample(const struct samples *samples, int64_t i, struct str *out)
{
    int32_t ids[1000];
    uint8_t learned[1000];
    struct err err = { 0 };
    int64_t n = samples_length(samples, i);

    assert_in_range(n, 1, 1000);
    assert_int_equal(samples_read(samples, i, ids, learned, &err), 0);
    for (int64_t start = 0, end; start < n; start = end) {
        for (end = start; end < n && learned[end] == learned[start]; end++)
            ;
        str_add(out, learned[start] ? "[" : "");
        tokenizer_decode(tokenizer, ids + start, end - start, out);
        str_add(out, learned[start] ? "]" : "");
    }
}

static void prepare(const struct instruct_options *options, struct instruct_report *report,
                    struct samples *samples)
{
    char *prefix = fixture_path(folder, "out");
    struct err err = { 0 };

    if (instruct_prepare(options, prefix, report, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(samples_open(samples, prefix, tokenizer_vocab_size(tokenizer), &err), 0);
    assert_int_equal(samples->n, report->n_samples);
    free(prefix);
}

static const struct masked {
    const char *row, *chat, *system;
    enum instruct_mask mask;
    const char *expected;
} table[] = {
    /* Formats, in one template. */
    { ALPACA, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("system") "Be brief." STOP "\n" START("user") "Hi" STOP "\n" START(
          "assistant") "[Ho" STOP "]\n" START("user") "Add\n1+1" STOP
                                                      "\n" START("assistant") "[2" STOP "]\n" },
    { SHAREGPT, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("system") "S" STOP "\n" START("user") "A" STOP "\n" START(
          "assistant") "[B" STOP "]\n" START("user") "C" STOP "\n" START("assistant") "[D" STOP
                                                                                      "]\n" },
    { MESSAGES, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("user") "A" STOP "\n" START("assistant") "[B" STOP "]\n" },
    { BELLE, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("user") "A" STOP "\n" START("assistant") "[B" STOP "]\n" START(
          "user") "C" STOP "\n" START("assistant") "[D" STOP "]\n" },
    { MOSS, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("system") "M\n" STOP "\n" START("user") "A" STOP "\n" START(
          "assistant") "[B" STOP "]\n" START("user") "C" STOP "\n" START("assistant") "[D" STOP
                                                                                      "]\n" },
    { LEETCODE, "chatml", NULL, INSTRUCT_MASK_PROMPT,
      START("user") "# Two sums" STOP "\n" START("assistant") "[y\nz" STOP "]\n" },
    { "{\"text\": \"In the beginning\"}", "chatml", NULL, INSTRUCT_MASK_PROMPT,
      "[In the beginning" END "]" },
    /* Masks, and a system message where there is none. */
    { SHAREGPT, "chatml", "T", INSTRUCT_MASK_HISTORY,
      START("system") "S" STOP "\n" START("user") "A" STOP "\n" START(
          "assistant") "B" STOP "\n" START("user") "C" STOP "\n" START("assistant") "[D" STOP
                                                                                    "]\n" },
    { MESSAGES, "chatml", "T", INSTRUCT_MASK_NONE,
      "[" START("system") "T" STOP "\n" START("user") "A" STOP "\n" START("assistant") "B" STOP
                                                                                       "\n]" },
    /* Templates. */
    { SHAREGPT, "llama3", NULL, INSTRUCT_MASK_PROMPT,
      HEAD("system") "S<|eot_id|>" HEAD("user") "A<|eot_id|>" HEAD(
          "assistant") "[B<|eot_id|>]" HEAD("user") "C<|eot_id|>" HEAD("assistant") "[D<|eot_id|>"
                                                                                    "]" },
    { SHAREGPT, "gemma", NULL, INSTRUCT_MASK_PROMPT,
      "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\n[B<end_of_turn>]\n"
      "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n[D<end_of_turn>]\n" },
    { SHAREGPT, "mistral", NULL, INSTRUCT_MASK_PROMPT,
      "[INST] S\n\nA [/INST][B" END "][INST] C [/INST][D" END "]" },
    { SHAREGPT, "llama2", NULL, INSTRUCT_MASK_PROMPT,
      "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST][ B " END "][INST] C [/INST][ D " END "]" },
    { SHAREGPT, "qwen", NULL, INSTRUCT_MASK_HISTORY,
      START("system") "S" STOP "\n" START("user") "A" STOP "\n" START(
          "assistant") "B" STOP "\n" START("user") "C" STOP "\n" START("assistant") "[D" STOP
                                                                                    "]\n" },
    { SHAREGPT, "empty", NULL, INSTRUCT_MASK_PROMPT, "SA[B" END "]C[D" END "]" },
};

static void test_masks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct masked *m = &table[i];
        char *path = write_input("row.jsonl", m->row);
        struct instruct_options options = base_options((const char *const *)&path);
        struct instruct_report report;
        struct samples samples;
        struct str shown = { 0 };

        options.chat = m->chat;
        options.system = m->system;
        options.mask = m->mask;
        prepare(&options, &report, &samples);
        assert_int_equal(samples.n, 1);
        print_sample(&samples, 0, &shown);
        if (strcmp(str_text(&shown), m->expected) != 0)
            fail_msg("row %zu is\n%s\nnot\n%s", i, str_text(&shown), m->expected);
        samples_close(&samples);
        str_release(&shown);
        free(path);
    }
}

/* Templates of files: headers without a generation prompt, one that ends in a space, blocks, and
 * one that drops what was thought. */
static const struct {
    const char *chat, *expected;
    int64_t n_rewritten;
} files[] = {
    { "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% "
      "endfor %}",
      START("system") "S" STOP START("user") "A" STOP START("assistant") "[B" STOP "]" START(
          "user") "C" STOP START("assistant") "[D" STOP "]",
      0 },
    { "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",
      "system: S\nuser: A\nassistant:[ B]\nuser: C\nassistant:[ D]\n", 0 },
    { "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }};{% endgeneration %}"
      "{% endfor %}",
      "system:[S;]user:[A;]assistant:[B;]user:[C;]assistant:[D;]", 0 },
    { "{% for m in messages %}{{ m.role + ':' }}{% if loop.last and m.role == 'assistant' "
      "%}<think>{% endif %}{{ m.content + "
      "';' }}"
      "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
      "system:S;user:A;assistant:B;user:C;assistant:[<think>D;]", 1 },
};

static void test_template_files(void **state)
{
    char *path = write_input("row.jsonl", SHAREGPT);

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct instruct_options options = base_options((const char *const *)&path);
        char *chat = write_input("one.jinja", files[i].chat);
        struct instruct_report report;
        struct samples samples;
        struct str shown = { 0 };

        options.chat = chat;
        prepare(&options, &report, &samples);
        print_sample(&samples, 0, &shown);
        assert_string_equal(str_text(&shown), files[i].expected);
        assert_int_equal(report.n_rewritten, files[i].n_rewritten);
        str_clear(&shown);
        instruct_describe(&report, &shown);
        assert_int_equal(strstr(str_text(&shown), "1 answer has no loss") != NULL,
                         files[i].n_rewritten);
        samples_close(&samples);
        str_release(&shown);
        free(chat);
    }
    free(path);
}

/* The same by other names, and a role that only this job knows. */
static void test_columns(void **state)
{
    char *path = write_input("columns.jsonl",
                             "{\"q\": \"A\", \"a\": \"B\"}\n"
                             "{\"turns\": [{\"who\": \"me\", \"says\": \"A\"}, {\"who\": \"gpt\", "
                             "\"says\": \"B\"}]}\n");
    const struct instruct_column columns[] = { { "instruction", "q" },       { "output", "a" },
                                               { "conversations", "turns" }, { "from", "who" },
                                               { "value", "says" },          { "user_tag", "me" } };
    struct instruct_options options = base_options((const char *const *)&path);
    struct instruct_report report;
    struct samples samples;

    (void)state;
    options.columns = columns;
    options.n_columns = 6;
    prepare(&options, &report, &samples);
    assert_int_equal(samples.n, 2);
    for (int i = 0; i < 2; i++) {
        struct str shown = { 0 };

        print_sample(&samples, i, &shown);
        assert_string_equal(str_text(&shown),
                            START("user") "A" STOP "\n" START("assistant") "[B" STOP "]\n");
        str_release(&shown);
    }
    samples_close(&samples);
    free(path);
}

static void test_too_long(void **state)
{
    static const struct {
        enum instruct_too_long how;
        int max_tokens;
        int64_t n_samples, n_cut, n_dropped, n_split;
    } cases[] = {
        { INSTRUCT_CUT, 30, 3, 2, 0, 0 },   { INSTRUCT_CUT, 3, 2, 2, 1, 0 },
        { INSTRUCT_DROP, 30, 1, 0, 2, 0 },  { INSTRUCT_SPLIT, 30, 4, 0, 1, 2 },
        { INSTRUCT_DROP, 900, 3, 0, 0, 0 },
    };
    struct str text = { 0 };

    (void)state;
    str_add(&text, "{\"messages\": [{\"role\": \"user\", \"content\": \"A\"}, {\"role\": "
                   "\"assistant\", \"content\": \"");
    for (int i = 0; i < 100; i++)
        str_add(&text, "light ");
    str_add(&text, "\"}]}\n{\"text\": \"");
    for (int i = 0; i < 59; i++)
        str_add(&text, i ? " God" : "God");
    str_add(&text, "\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"\xe4\xb8\xad\"}, "
                   "{\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    char *path = write_input("long.jsonl", str_text(&text));
    struct instruct_options options = base_options((const char *const *)&path);
    options.chat = "empty";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct instruct_report report;
        struct samples samples;

        options.too_long = cases[i].how;
        options.max_tokens = cases[i].max_tokens;
        prepare(&options, &report, &samples);
        assert_int_equal(report.n_rows, 3);
        assert_int_equal(report.n_samples, cases[i].n_samples);
        assert_int_equal(report.n_cut, cases[i].n_cut);
        assert_int_equal(report.n_dropped, cases[i].n_dropped);
        assert_int_equal(report.n_split, cases[i].n_split);
        for (int64_t s = 0; s < samples.n; s++)
            assert_in_range(samples_length(&samples, s), 2, cases[i].max_tokens);
        samples_close(&samples);
    }
    struct instruct_report report;
    struct err err = { 0 };
    char *prefix = fixture_path(folder, "refused");
    options.too_long = INSTRUCT_REFUSE;
    options.max_tokens = 30;
    assert_int_equal(instruct_prepare(&options, prefix, &report, &err), -1);
    assert_non_null(strstr(err.text, "long.jsonl:1: the sample has"));
    free(prefix);
    free(path);
    str_release(&text);
}

#define CONVERSATION(turns) "{\"conversations\": [" turns "]}"
#define TURN(from, value) "{\"from\": \"" from "\", \"value\": \"" value "\"}"

static const struct bad {
    const char *row, *text;
} bad[] = {
    { "{\"instruction\": \"A\", \"output\": \"\"}", "message 2 (assistant) is empty" },
    { "{\"instruction\": \"\", \"output\": \"B\"}", "message 1 (user) is empty" },
    { "{\"instruction\": \"A\"}", "output is missing, beside instruction" },
    { "{\"output\": \"A\", \"instruction\": null}", "instruction is missing, beside output" },
    { "{\"question\": \"A\"}", "its columns (question) match no known format" },
    { "{\"instruction\": \"A\", \"output\": 3}", "output is a number, not a string" },
    { "{\"instruction\": \"A\", \"output\": \"a\\u0000b\"}", "output has a zero byte" },
    { "{\"instruction\": \"A\", \"output\": \"B\", \"history\": [[\"x\"]]}",
      "history is not a list of pairs" },
    { "{\"instruction\": \"A\xff\", \"output\": \"B\"}",
      "byte 19 of the row (0xff) is not valid UTF-8" },
    { "{\"instruction\": \"A\", \"output\": \"\\ud800\"}", "an unpaired surrogate" },
    { "[1]", "the row is a list, not an object" },
    { "{\"instruction\" \"A\"}", "':' is expected" },
    { CONVERSATION(""), "conversations is empty" },
    { CONVERSATION(TURN("human", "A")), "the conversation ends without an answer" },
    { CONVERSATION(TURN("gpt", "A")), "message 1 is of role assistant: expected a prompt" },
    { CONVERSATION(TURN("human", "A") "," TURN("human", "B")),
      "message 2 is of role user: expected an answer" },
    { CONVERSATION(TURN("human", "A") "," TURN("gpt", "B") "," TURN("gpt", "C")),
      "message 3 is of role assistant: expected no second answer" },
    { CONVERSATION(TURN("alien", "A")), "from is 'alien', not human, gpt" },
    { CONVERSATION("{\"from\": \"human\"}"), "value is missing" },
    { "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
      "content has a part that is not {type: text}" },
    { "{\"instruction\": \"Human:A\\nAssistant:B\", \"output\": \"C\"}",
      "instruction does not end with 'Assistant:'" },
    { "{\"chat\": {\"turn_1\": {\"Human\": \"A\"}}}", "turn_1: MOSS is missing" },
    { "{\"code_with_problem\": \"A\", \"code_only\": \"B\"}", "explanation_only is missing" },
    { "{\"text\": [1]}", "text is a list, not a string" },
};

static struct str warnings;

static void warn(void *context, const char *text)
{
    (void)context;
    str_printf(&warnings, "%s\n", text);
}

/* Each is named with its line, alone and among good ones. */
static void test_bad_rows(void **state)
{
    static const char good[] = "{\"instruction\": \"A\", \"output\": \"B\"}\n";
    struct str all = { 0 };
    int n = sizeof bad / sizeof *bad;

    (void)state;
    for (int i = 0; i < n; i++) {
        struct instruct_report report;
        struct err err = { 0 };
        struct str text = { 0 }, expected = { 0 };

        str_printf(&text, "%s\n%s\n%s", good, bad[i].row, good);
        str_printf(&all, "%s\n%s", bad[i].row, good);
        char *path = write_input("bad.jsonl", str_text(&text));
        char *prefix = fixture_path(folder, "bad");
        struct instruct_options options = base_options((const char *const *)&path);
        assert_int_equal(instruct_prepare(&options, prefix, &report, &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        str_printf(&expected, "bad.jsonl:3: %s", bad[i].text);
        if (!strstr(err.text, str_text(&expected)))
            fail_msg("'%s' does not say '%s'", err.text, str_text(&expected));
        str_release(&text);
        str_release(&expected);
        free(prefix);
        free(path);
    }
    char *path = write_input("all.jsonl", str_text(&all));
    struct instruct_options options = base_options((const char *const *)&path);
    struct instruct_report report;
    struct samples samples;
    options.bad_rows = INSTRUCT_BAD_SKIP;
    options.warn = warn;
    prepare(&options, &report, &samples);
    samples_close(&samples);
    assert_int_equal(report.n_rows, 2 * n);
    assert_int_equal(report.n_bad, n);
    assert_int_equal(report.n_samples, n);
    assert_non_null(strstr(str_text(&warnings), "all.jsonl:1: message 2"));
    assert_non_null(strstr(str_text(&warnings), "all.jsonl:9: its columns"));
    struct str shown = { 0 };
    instruct_describe(&report, &shown);
    assert_non_null(strstr(str_text(&shown), "24 bad rows were skipped"));
    str_release(&shown);
    str_release(&warnings);
    str_release(&all);
    free(path);
}

/* A line of 100 MB is passed over, and its end found. */
static void test_giant_line(void **state)
{
    char *path = fixture_path(folder, "giant.jsonl");
    FILE *file = fopen(path, "w");
    struct instruct_options options = base_options((const char *const *)&path);
    struct instruct_report report;
    struct samples samples;

    (void)state;
    assert_non_null(file);
    fputs("{\"instruction\": \"A\", \"output\": \"B\"}\n{\"text\": \"", file);
    assert_int_equal(fseek(file, 100000000, SEEK_CUR), 0);
    fputs("\"}\n{\"instruction\": \"C\", \"output\": \"D\"}\n", file);
    fclose(file);
    options.bad_rows = INSTRUCT_BAD_SKIP;
    options.warn = warn;
    prepare(&options, &report, &samples);
    samples_close(&samples);
    assert_int_equal(report.n_samples, 2);
    assert_int_equal(report.n_bad, 1);
    assert_non_null(strstr(str_text(&warnings), "giant.jsonl:2: the row has 1000000"));
    str_release(&warnings);
    free(path);
}

/* Of bad rows in several jobs, the first is named. */
static void test_first_bad_row(void **state)
{
    struct str text = { 0 };
    struct instruct_report report;
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 20000; i++)
        str_add(&text, i % 900 == 899 ? "{}\n" : "{\"instruction\": \"A\", \"output\": \"B\"}\n");
    char *path = write_input("bad-later.jsonl", str_text(&text));
    char *prefix = fixture_path(folder, "bad-later");
    struct instruct_options options = base_options((const char *const *)&path);
    assert_int_equal(instruct_prepare(&options, prefix, &report, &err), -1);
    if (!strstr(err.text, "bad-later.jsonl:900: "))
        fail_msg("%s", err.text);
    free(prefix);
    free(path);
    str_release(&text);
}

/* What was made has a list for one of its counts. */
static void break_state(void)
{
    char *path = fixture_path(folder, "out.json"), *text;
    size_t n_bytes;
    struct str other = { 0 };
    struct err err;

    assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    char *count = strstr(text, "\"rows\":");
    assert_non_null(count);
    str_add_bytes(&other, text, (size_t)(count - text));
    str_add(&other, "\"rows\":[]");
    str_add(&other, strchr(count, ','));
    assert_int_equal(file_write(path, str_text(&other), other.length, &err), 0);
    str_release(&other);
    free(text);
    free(path);
}

/* Made once, found again, made anew when anything that matters is another; threads don't. */
static void test_found_again(void **state)
{
    struct str text = { 0 };

    (void)state;
    for (int i = 0; i < 3000; i++)
        str_printf(&text, "{\"instruction\": \"Add %d\", \"output\": \"%d\"}\n", i, i * 7);
    char *path = write_input("many.jsonl", str_text(&text));
    struct instruct_options options = base_options((const char *const *)&path);
    struct instruct_report report, again;
    struct samples samples;
    char *bin = fixture_path(folder, "out.bin"), *first, *second;
    size_t n_first, n_second;
    struct err err;

    options.n_threads = 3;
    prepare(&options, &report, &samples);
    samples_close(&samples);
    assert_false(report.is_old);
    assert_int_equal(report.n_samples, 3000);
    assert_int_equal(file_read(bin, 1 << 26, ERR_DATA, &first, &n_first, &err), 0);
    options.n_threads = 1;
    prepare(&options, &again, &samples);
    samples_close(&samples);
    assert_true(again.is_old);
    assert_int_equal(again.n_learned, report.n_learned);
    break_state();
    prepare(&options, &again, &samples);
    samples_close(&samples);
    assert_false(again.is_old);
    options.mask = INSTRUCT_MASK_NONE;
    prepare(&options, &again, &samples);
    samples_close(&samples);
    assert_false(again.is_old);
    assert_true(again.n_learned > report.n_learned);
    options.mask = INSTRUCT_MASK_PROMPT;
    prepare(&options, &again, &samples);
    samples_close(&samples);
    assert_false(again.is_old);
    assert_int_equal(file_read(bin, 1 << 26, ERR_DATA, &second, &n_second, &err), 0);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    str_add(&text, "{\"instruction\": \"one\", \"output\": \"more\"}\n");
    free(write_input("many.jsonl", str_text(&text)));
    prepare(&options, &again, &samples);
    samples_close(&samples);
    assert_int_equal(again.n_samples, 3001);
    free(first);
    free(second);
    free(bin);
    free(path);
    str_release(&text);
}

static void test_options(void **state)
{
    const char *path = "/nonexistent";
    const struct instruct_column column = { "instructoin", "q" };
    struct instruct_options options = base_options(&path);
    struct instruct_report report;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(instruct_prepare(&options, "/tmp/x", &report, &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent: there is no such file or folder"));
    options.columns = &column;
    options.n_columns = 1;
    assert_int_equal(instruct_prepare(&options, "/tmp/x", &report, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "(hint: instruction)"));
    options.n_columns = 0;
    options.chat = "chatlm";
    char *row = write_input("one.jsonl", MESSAGES);
    options.inputs = (const char *const *)&row;
    assert_int_equal(instruct_prepare(&options, "/tmp/x", &report, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    options.chat = NULL; /* the tokenizer's folder has none */
    options.bad_rows = INSTRUCT_BAD_SKIP;
    assert_int_equal(instruct_prepare(&options, "/tmp/x", &report, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "has no chat template (hint: data.template"));
    free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),         cmocka_unit_test(test_template_files),
        cmocka_unit_test(test_columns),       cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_bad_rows),      cmocka_unit_test(test_giant_line),
        cmocka_unit_test(test_found_again),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_first_bad_row),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
