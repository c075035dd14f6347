/*
 * plan_codec.c - compressed gradients, of the pipeline rank that would send most without
 */
#include "plan_codec.h"

#include "base/str.h"
#include "plan/codec_bytes.h"

static struct codec_bytes find_bytes(const struct plan *plan)
{
    struct codec_bytes most = { 0 };

    for (int rank = 0; rank < plan->job->parallel.pp; rank++) {
        struct codec_bytes bytes = codec_bytes_of(&plan->programs[rank]);

        if (bytes.whole > most.whole)
            most = bytes;
    }
    return most;
}

void plan_print_codec(const struct plan *plan, struct str *out)
{
    const struct job *job = plan->job;
    struct codec_choice codec = job_codec(job);
    char sent[32], whole[32], errors[32], sums[32];

    if (!codec.codec)
        return;
    struct codec_bytes bytes = find_bytes(plan);
    str_bytes(sent, sizeof sent, (uint64_t)bytes.sent);
    str_bytes(whole, sizeof whole, (uint64_t)bytes.whole);
    str_bytes(errors, sizeof errors, (uint64_t)bytes.errors);
    str_bytes(sums, sizeof sums, (uint64_t)bytes.sums);
    str_printf(out, "compressed gradients: %s", choice_word(codec_choices, (int)codec.codec));
    if (codec.codec == CODEC_TOP_K)
        str_printf(out, " %g", codec.ratio);
    if (codec.codec == CODEC_POWERSGD)
        str_printf(out, " rank %d", codec.rank);
    str_printf(out, ", a rank sends %s a step in place of %s", sent, whole);
    if (codec.start)
        str_printf(out, ", after %lld update%s", (long long)codec.start, str_s((int)codec.start));
    str_printf(out, "\n  what is lost is kept: %s of states", errors);
    if (job->parallel.zero >= 2)
        str_printf(out, ", and whole sums: %s of gradients, which zero %d alone would shard", sums,
                   job->parallel.zero);
    str_add(out, "\n");
    if (job->parallel.zero_group && job->parallel.zero_group < job->parallel.dp)
        str_printf(out, "  sums over the %d groups of %d ranks are not compressed\n",
                   job->parallel.dp / job->parallel.zero_group, job->parallel.zero_group);
    if (job->parallel.cp > 1)
        str_printf(out, "  sums over cp %d are not compressed\n", job->parallel.cp);
    if (job->parallel.ep > 1)
        str_printf(out, "  gradients of experts: %s\n",
                   job->parallel.ep == job->parallel.dp
                       ? "not exchanged, each rank has others (ep is dp)"
                       : "between the ranks that have the same ones");
}

void plan_add_codec(const struct plan *plan, cJSON *json)
{
    struct codec_choice codec = job_codec(plan->job);

    if (!codec.codec)
        return;
    struct codec_bytes bytes = find_bytes(plan);
    cJSON *object = cJSON_AddObjectToObject(json, "compress");
    cJSON_AddStringToObject(object, "codec", choice_word(codec_choices, (int)codec.codec));
    cJSON_AddNumberToObject(object, "start", (double)codec.start);
    cJSON_AddNumberToObject(object, "sent_bytes", (double)bytes.sent);
    cJSON_AddNumberToObject(object, "whole_bytes", (double)bytes.whole);
    cJSON_AddNumberToObject(object, "error_bytes", (double)bytes.errors);
    cJSON_AddNumberToObject(object, "sum_bytes", (double)bytes.sums);
}
