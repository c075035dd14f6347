/*
 * generation_config_test.c - what is said, what is not, what is refused
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "serve/generation_config.h"
#include "support/temporary.h"

/* The config of this text; NULL: of no file. The status of reading it. */
static int read_text(struct generation_config *config, const char *text, struct err *err)
{
    char folder[128], path[160];

    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    if (text)
        assert_int_equal(file_write(path, text, strlen(text), err), 0);
    int status = generation_config_read(config, folder, err);
    struct err removing;
    assert_int_equal(file_remove_tree(folder, &removing), 0);
    return status;
}

static void nothing_said(void **state)
{
    static const char *const texts[] = { NULL, "{}", "{\"top_k\": null, \"max_length\": 9}" };
    struct generation_config config;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(read_text(&config, texts[i], &err), 0);
        assert_int_equal(config.n_ends, 0);
        assert_int_equal(config.samples, -1);
        assert_int_equal(config.top_k, -1);
        assert_true(config.temperature < 0 && config.top_p < 0 && config.repetition_penalty < 0);
    }
}

static void all_said(void **state)
{
    struct generation_config config;
    struct err err;

    (void)state;
    assert_int_equal(read_text(&config,
                               "{\"eos_token_id\": [128001, 128009], \"do_sample\": true, "
                               "\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 20, "
                               "\"repetition_penalty\": 1.05}",
                               &err),
                     0);
    assert_int_equal(config.n_ends, 2);
    assert_int_equal(config.ends[1], 128009);
    assert_int_equal(config.samples, 1);
    assert_int_equal(config.top_k, 20);
    assert_true(config.temperature == 0.6 && config.top_p == 0.9);
    assert_true(config.repetition_penalty == 1.05);
    assert_int_equal(read_text(&config, "{\"eos_token_id\": 2, \"do_sample\": false}", &err), 0);
    assert_int_equal(config.n_ends, 1);
    assert_int_equal(config.ends[0], 2);
    assert_int_equal(config.samples, 0);
}

static void refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "", "not a JSON object" },
        { "[1]", "not a JSON object" },
        { "{\"temperature\": \"hot\"}", "temperature is not a number from 0 to 100" },
        { "{\"top_p\": 1.5}", "top_p is not a number from 0 to 1" },
        { "{\"repetition_penalty\": 0}", "repetition_penalty" },
        { "{\"top_k\": -3}", "top_k" },
    };
    struct generation_config config;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(&config, cases[i].text, &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_non_null(strstr(err.text, "generation_config.json"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(all_said),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
