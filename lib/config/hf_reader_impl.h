/*
 * hf_reader_impl.h - what the readers of families share
 *
 * A reader takes values out of one config.json and gives them to fields of a job's model, through
 * the table of fields, so ranges and messages are those of YAML. Mistakes are collected, not
 * returned: a reader goes on after one, and `failed` says that there was one. Each key that is read
 * is recorded, whether it is there or not (hf_keys_impl.h).
 */
#ifndef CONFIG_HF_READER_IMPL_H
#define CONFIG_HF_READER_IMPL_H

#include <cjson/cJSON.h>

#include "config/hf_keys_impl.h"
#include "config/read_impl.h"

struct hf_reader {
    struct job_reader *job;
    const char *path; /* names config.json in messages */
    const cJSON *json;
    const char *model_type, *like; /* in small letters; the family that reads it */
    struct hf_keys keys;           /* of json that were read */
    int failed;
};

/* Put down a mistake. */
void hf_refuse(struct hf_reader *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put down a key that lmtrain does not read, with its value; place ("" or words) is what it is
 * in. */
void hf_refuse_key(struct hf_reader *h, const char *place, const cJSON *item);

/* The member, or NULL if it is absent or null. */
const cJSON *hf_member(const cJSON *object, const char *name);

/* A member of config.json, which counts as read; NULL if it is absent or null. */
const cJSON *hf_key(struct hf_reader *h, const char *name);

/* The first that is there of names separated by "|", all of which count as read. */
const cJSON *hf_key_of(struct hf_reader *h, const char *names);

/* A flag of config.json, or initial if it is absent or null. */
int hf_flag(struct hf_reader *h, const char *name, int initial);

/* A JSON scalar in the words of YAML, in the arena; NULL for an object or array. */
const char *hf_scalar_text(struct hf_reader *h, const cJSON *item);

/* Give a field ("model.head_dim") this text; plain: not quoted, so that it may be a number. */
void hf_set(struct hf_reader *h, const char *ours, const char *text, int plain);

/*
 * A number `theirs` of an object about rope into model.rope_scaling.`ours`; where it is absent,
 * initial, and if that is NULL it must be there.
 */
void hf_take_rope_number(struct hf_reader *h, const cJSON *from, const char *theirs,
                         const char *ours, const char *initial);

/* rope_theta, rope_scaling (transformers 4) and rope_parameters (5). */
void hf_take_rope(struct hf_reader *h);

#endif
