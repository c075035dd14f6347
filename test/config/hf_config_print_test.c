/*
 * hf_config_print_test.c - what a conversion changes in a config.json, and what it leaves
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <cjson/cJSON.h>
#include <string.h>

#include "config/hf_config.h"

static cJSON *changed(const char *text, struct hf_config_changes changes)
{
    struct str out = { 0 };
    struct err err;

    assert_int_equal(hf_config_print_changed(text, strlen(text), &changes, &out, &err), 0);
    cJSON *json = cJSON_Parse(str_text(&out));
    assert_non_null(json);
    str_release(&out);
    return json;
}

static const char *text_of(const cJSON *json, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));

    return text ? text : "";
}

static void only_what_is_asked_for(void **state)
{
    static const char old[] = "{\"model_type\": \"llama\", \"torch_dtype\": \"float32\", "
                              "\"vocab_size\": 7, \"quantization_config\": {\"a\": 1}}";
    static const char new[] = "{\"dtype\": \"float32\", \"vocab_size\": 7, \"rope\": [1, 2]}";
    cJSON *json = changed(old, (struct hf_config_changes){ .dtype = DTYPE_BF16 });

    (void)state;
    assert_string_equal(text_of(json, "torch_dtype"), "bfloat16");
    assert_string_equal(text_of(json, "model_type"), "llama");
    assert_true(cJSON_HasObjectItem(json, "quantization_config"));
    assert_false(cJSON_HasObjectItem(json, "dtype"));
    assert_int_equal(cJSON_GetObjectItem(json, "vocab_size")->valueint, 7);
    cJSON_Delete(json);

    json = changed(old, (struct hf_config_changes){ .dtype = -1, .vocab_size = 9, .is_plain = 1 });
    assert_string_equal(text_of(json, "torch_dtype"), "float32");
    assert_int_equal(cJSON_GetObjectItem(json, "vocab_size")->valueint, 9);
    assert_false(cJSON_HasObjectItem(json, "quantization_config"));
    cJSON_Delete(json);

    /* transformers 5 calls it dtype, and goes on to. */
    json = changed(new, (struct hf_config_changes){ .dtype = DTYPE_F16 });
    assert_string_equal(text_of(json, "dtype"), "float16");
    assert_false(cJSON_HasObjectItem(json, "torch_dtype"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rope")), 2);
    cJSON_Delete(json);
}

static void what_is_no_object_is_refused(void **state)
{
    const struct hf_config_changes changes = { .dtype = -1 };
    struct str out = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(hf_config_print_changed("[1]", 3, &changes, &out, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(hf_config_print_changed("{", 1, &changes, &out, &err), -1);
    str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_asked_for),
        cmocka_unit_test(what_is_no_object_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
