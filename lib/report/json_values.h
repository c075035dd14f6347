/*
 * json_values.h - members of JSON that may be missing or of another type
 */
#ifndef REPORT_JSON_VALUES_H
#define REPORT_JSON_VALUES_H

#include <cjson/cJSON.h>

/* The member's number, or `otherwise`: it is missing, or no number. object may be NULL. */
static inline double json_number(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

/* Likewise, its text, which is the object's. */
static inline const char *json_text(const cJSON *object, const char *key, const char *otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    return cJSON_IsString(item) ? item->valuestring : otherwise;
}

#endif
