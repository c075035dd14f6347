/*
 * eval_tasks.h - lmtrain eval with tasks: benchmarks as others publish their scores
 */
#ifndef EVAL_TASKS_H
#define EVAL_TASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "eval/sandbox.h"
#include "serving.h"

struct eval_request {
    const char *model, *ensemble, *adapter, *weights, *task, *data, *style, *subjects, *output,
        *tokenizer;
    int64_t limit;
    int threads;
    bool json;
    int shots; /* -1: as the style says */
    bool allow_code, print_prompts;
    bool no_chat_template;
    int max_new_tokens; /* 0: as the style says */
    struct serving *serving;
    struct sandbox *sandbox; /* NULL where no code is to be run, or by another rank */
};

/*
 * Put the tasks to the model; what is to be printed goes to out, on the first rank. Where ranks are
 * to do it: see whether they could.
 */
int eval_tasks(const struct eval_request *request, struct str *out, struct err *err);

#endif
