/*
 * man_fields_test.c - explanations, the JSON Schema and the manual's part know every field
 */
#include "config_fixture.h"

#include <cjson/cJSON.h>

#include "base/file.h"
#include "config/fields_impl.h"
#include "config/man_fields.h"

static void test_explain(void **state)
{
    struct str out = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(job_explain("train.global_batch", &out, &err), 0);
    assert_string_equal(
        out.data,
        "train.global_batch\n"
        "    sequences per optimizer step over all ranks; a multiple of micro_batch * dp; auto: "
        "64 for pretrain, 16 for finetune and lora.\n"
        "    a whole number from 1 to 1000000000 or auto, in sequences; default "
        "auto\n"
        "    Part of the numerics: another value changes bits, and a resume with it is "
        "refused.\n");
    str_clear(&out);
    assert_int_equal(job_explain("train.log_every", &out, &err), 0);
    assert_null(strstr(out.data, "numerics"));
    str_clear(&out);
    assert_int_equal(job_explain("data.train", &out, &err), 0);
    assert_non_null(strstr(out.data, "; required\n"));
    str_clear(&out);
    assert_int_equal(job_explain("eval", &out, &err), 0);
    assert_true(str_starts_with(out.data, "eval.every_steps\n"));
    assert_non_null(strstr(out.data, "\neval.early_stop.patience\n"));
    assert_null(strstr(out.data, "optimizer."));
    str_clear(&out);
    assert_int_equal(job_explain("", &out, &err), 0);
    for (int i = 0; i < n_job_fields; i++)
        assert_non_null(strstr(out.data, job_fields[i].key));
    str_clear(&out);
    assert_int_equal(job_explain("parallel.schedule", &out, &err), 0);
    assert_null(strstr(out.data, "not built"));
    str_clear(&out);
    assert_int_equal(job_explain("train.stesp", &out, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, "no field train.stesp (hint: train.steps)");
    assert_int_equal(job_explain("tensor_model_parallel_size", &out, &err), -1);
    assert_string_equal(err.text, "no field tensor_model_parallel_size (hint: parallel.tp)");
    assert_int_equal(job_explain("qqqqqqqqq", &out, &err), -1);
    assert_string_equal(err.text, "no field qqqqqqqqq (hint: lmtrain config --explain all)");
    str_release(&out);
}

/* The schema's node of a key: properties.NAME, through the anyOf of a group to its object. */
static const cJSON *schema_of(const cJSON *root, const char *key)
{
    char name[64];
    const cJSON *node = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "allOf"), 0);

    while (node) {
        size_t length = strcspn(key, ".");
        const cJSON *option;

        cJSON_ArrayForEach(option, cJSON_GetObjectItem(node, "anyOf"))
        {
            if (cJSON_GetObjectItem(option, "properties"))
                node = option;
        }
        snprintf(name, sizeof name, "%.*s", (int)length, key);
        node = cJSON_GetObjectItem(cJSON_GetObjectItem(node, "properties"), name);
        if (!key[length])
            break;
        key += length + 1;
    }
    return node;
}

static void test_schema(void **state)
{
    struct str out = { 0 };

    (void)state;
    job_schema(&out);
    cJSON *root = cJSON_Parse(out.data);
    assert_non_null(root);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(root, "$schema")),
                        "https://json-schema.org/draft/2020-12/schema");
    for (int i = 0; i < n_job_fields; i++) {
        const cJSON *field = schema_of(root, job_fields[i].key);
        const char *help = cJSON_GetStringValue(cJSON_GetObjectItem(field, "description"));

        if (!help)
            fail_msg("%s is not in the schema", job_fields[i].key);
        assert_true(str_starts_with(help, job_fields[i].help));
        assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(field, "anyOf")) >= 2);
    }
    assert_null(schema_of(root, "train.nothing"));
    const cJSON *steps =
        cJSON_GetArrayItem(cJSON_GetObjectItem(schema_of(root, "train.steps"), "anyOf"), 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(steps, "type")), "integer");
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(steps, "minimum")) == 1);
    /* What reading takes, editors take; what it refuses is said. */
    char *dtype = cJSON_PrintUnformatted(schema_of(root, "optimizer.states"));
    assert_non_null(
        strstr(dtype, "{\"enum\":[\"fp32\",\"bf16\",\"int8\"]},{\"const\":\"float32\"},{\"const\":"
                      "\"bfloat16\"},{\"type\""));
    cJSON_free(dtype);
    cJSON_Delete(root);
    str_release(&out);
}

/* man/lmtrain-job.5 holds what the table says; `lmtrain config --man` prints that part. */
static void test_manual(void **state)
{
    struct str out = { 0 };
    struct err err;
    char *page;
    size_t n_bytes;

    (void)state;
    job_manual(&out);
    if (file_read("man/lmtrain-job.5", 1 << 20, ERR_DATA, &page, &n_bytes, &err))
        fail_msg("%s", err.text);
    if (!strstr(page, out.data))
        fail_msg("man/lmtrain-job.5 is not what the fields say (hint: scripts/make-job-manual)");
    free(page);
    str_release(&out);
}

/* The table itself: groups stand together, defaults are good, every help is one line. */
static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];
        size_t group = strcspn(f->key, ".");

        assert_ptr_equal(field_find(f->key), f);
        assert_non_null(f->help);
        assert_null(strchr(f->help, '\n'));
        assert_false(str_ends_with(f->help, "."));
        assert_int_equal(!!f->choices, f->type == FIELD_CHOICE || f->type == FIELD_SIZES ||
                                           f->type == FIELD_KINDS);
        assert_int_equal(!!f->list_items, f->type == FIELD_KINDS);
        assert_int_equal(!!f->item, f->type == FIELD_KINDS);
        if (f->key[group])
            for (int k = i + 1; k < n_job_fields; k++)
                if (!strncmp(job_fields[k].key, f->key, group + 1))
                    assert_true(!strncmp(job_fields[k - 1].key, f->key, group + 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_manual),
        cmocka_unit_test(test_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
