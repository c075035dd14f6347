/*
 * doctor_report.c - the findings, for people and for programs
 */
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "doctor_impl.h"

static const char *const state_names[N_DOCTOR_STATES] = { "ok", "note", "warning", "problem" };

void doctor_add(struct doctor *doctor, enum doctor_state state, const char *name,
                const char *advice, const char *format, ...)
{
    char value[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    doctor->findings = arena_grow(doctor->arena, doctor->findings, sizeof *doctor->findings,
                                  &doctor->capacity, doctor->n_findings + 1);
    doctor->findings[doctor->n_findings++] =
        (struct doctor_finding){ .part = doctor->part,
                                 .name = name,
                                 .state = state,
                                 .value = arena_strdup(doctor->arena, value),
                                 .advice = advice };
}

int doctor_count(const struct doctor *doctor, enum doctor_state state)
{
    int n = 0;

    for (int i = 0; i < doctor->n_findings; i++)
        n += doctor->findings[i].state == state;
    return n;
}

static void print_verdict(struct str *out, const struct doctor *doctor)
{
    int n_problems = doctor_count(doctor, DOCTOR_PROBLEM);
    int n_warnings = doctor_count(doctor, DOCTOR_WARNING);

    str_printf(out, "\n%s",
               n_problems == 0 ? "this machine can train" : "this machine cannot train");
    if (n_problems > 0)
        str_printf(out, ": %d problem%s", n_problems, n_problems == 1 ? "" : "s");
    if (n_warnings > 0)
        str_printf(out, "%s%d warning%s", n_problems > 0 ? ", " : "; ", n_warnings,
                   n_warnings == 1 ? "" : "s");
    str_add_char(out, '\n');
}

void doctor_print(struct str *out, const struct doctor *doctor)
{
    const char *part = "";

    for (int i = 0; i < doctor->n_findings; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];

        if (strcmp(part, finding->part) != 0)
            str_printf(out, "%s\n", finding->part);
        part = finding->part;
        str_printf(out, "  %-8s %-16s %s\n", state_names[finding->state], finding->name,
                   finding->value);
        if (finding->advice != NULL)
            str_printf(out, "  %-8s %-16s %s\n", "", "", finding->advice);
    }
    print_verdict(out, doctor);
}

static cJSON *finding_to_json(const struct doctor_finding *finding)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "part", finding->part);
    cJSON_AddStringToObject(object, "name", finding->name);
    cJSON_AddStringToObject(object, "state", state_names[finding->state]);
    cJSON_AddStringToObject(object, "value", finding->value);
    if (finding->advice != NULL)
        cJSON_AddStringToObject(object, "advice", finding->advice);
    return object;
}

void doctor_print_json(struct str *out, const struct doctor *doctor)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *findings = cJSON_AddArrayToObject(root, "findings");

    for (int i = 0; i < doctor->n_findings; i++)
        cJSON_AddItemToArray(findings, finding_to_json(&doctor->findings[i]));
    cJSON_AddBoolToObject(root, "can_train", doctor_count(doctor, DOCTOR_PROBLEM) == 0);
    cJSON_AddNumberToObject(root, "problems", doctor_count(doctor, DOCTOR_PROBLEM));
    cJSON_AddNumberToObject(root, "warnings", doctor_count(doctor, DOCTOR_WARNING));
    char *text = cJSON_Print(root);
    CHECK(text != NULL);
    str_printf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
}
