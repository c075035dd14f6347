/*
 * timeline_counters.c - what varies over a step
 */
#include "base/num.h"
#include "plan/timeline_impl.h"

/* Bytes that a micro-batch of a chunk keeps from its forward to its backward: all chunks' share
 * alike. */
static int64_t slot_bytes(const struct program *program)
{
    int64_t n = 0;
    int n_chunks = 1;

    for (int i = 0; i < program->n_stashes; i++)
        n += (int64_t)program->stashes[i].slot_bytes;
    for (int f = 0; f < program->n_functions; f++)
        n_chunks = max_int(n_chunks, program->functions[f].chunk + 1);
    return n / n_chunks;
}

/* +1: the function is a forward, whose values are kept from now on; -1: the last that reads
 * them. */
static int change_of(const struct program *program, const struct function *f)
{
    bool has_weight = false;

    for (int i = 0; i < program->n_functions; i++)
        has_weight |= str_starts_with(program->functions[i].name, "weight");
    if (str_starts_with(f->name, "forward"))
        return 1;
    return str_starts_with(f->name, has_weight ? "weight" : "backward") ? -1 : 0;
}

void timeline_print_counters(struct printing *p, const struct timeline_rank *r)
{
    int64_t each = slot_bytes(r->program), alive = 0;
    int last = -1;

    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];

        if (s->action == last || s->stream != STREAM_COMPUTE || s->op < 0)
            continue;
        last = s->action;
        int change = change_of(r->program, timeline_function(r, s));
        if (!change)
            continue;
        alive += change;
        timeline_begin_event(p);
        str_printf(p->out,
                   "{\"ph\":\"C\",\"name\":\"stash "
                   "bytes\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"bytes\":%lld}}",
                   timeline_pid(r), timeline_us(s->begin - p->first[r->is_measured]),
                   (long long)(alive * each));
    }
}
