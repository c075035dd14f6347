/*
 * hub_test.c - what is taken for a name on the Hugging Face hub, and what is said of it
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
#include <unistd.h>

#include "base/file.h"
#include "base/hub.h"
#include "support/temporary.h"

static void names(void **state)
{
    static const struct {
        const char *path;
        int is;
    } cases[] = {
        { "openai-community/gpt2", 1 },
        { "HuggingFaceTB/SmolLM2-135M", 1 },
        { "cais/mmlu", 1 },
        { "a/b_c.d", 1 },
        { "gpt2", 0 },
        { "", 0 },
        { "/", 0 },
        { "/gpt2", 0 },
        { "org/", 0 },
        { "org/name/part", 0 },
        { "./org", 0 },
        { "../org", 0 },
        { "~/org", 0 },
        { "org/na me", 0 },
        { "org/*.jsonl", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (hub_is_name(cases[i].path) != cases[i].is)
            fail_msg("%s", cases[i].path);
}

/* What is there is no name. */
static void paths(void **state)
{
    char folder[128], was[512];
    struct err err;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    assert_non_null(getcwd(was, sizeof was));
    assert_int_equal(chdir(folder), 0);
    assert_true(hub_is_name("org/name"));
    assert_int_equal(file_make_folders("org/name", &err), 0);
    assert_false(hub_is_name("org/name"));
    assert_int_equal(chdir(was), 0);
    assert_int_equal(file_remove_tree(folder, &err), 0);
}

static void hints(void **state)
{
    char hint[HUB_HINT_MAX], longest[200];

    (void)state;
    assert_string_equal(hub_hint(hint, sizeof hint, "org/name", HUB_MODEL),
                        " (hint: if it is a name on the Hugging Face hub: hf download org/name "
                        "--local-dir name, then give that folder)");
    assert_string_equal(hub_hint(hint, sizeof hint, "org/name", HUB_DATASET),
                        " (hint: if it is a name on the Hugging Face hub: hf download org/name "
                        "--repo-type dataset --local-dir name, then give that folder)");
    assert_string_equal(hub_hint(hint, sizeof hint, "name", HUB_MODEL), "");
    memset(longest, 'x', sizeof longest);
    longest[1] = '/';
    longest[150] = '\0';
    assert_non_null(strstr(hub_hint(hint, sizeof hint, longest, HUB_DATASET), "that folder)"));
    longest[150] = 'x';
    longest[151] = '\0';
    assert_string_equal(hub_hint(hint, sizeof hint, longest, HUB_DATASET), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(paths),
        cmocka_unit_test(hints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
