/*
 * one_by_one.c - see the header
 */
#include "run/one_by_one.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "run/run_impl.h"

int one_by_one_is_wanted(const struct device *device)
{
    const char *text = getenv("LMTRAIN_CUDA_SYNC");

    return !device_is_host(device) && text && *text && strcmp(text, "0") != 0;
}

static void add_operands(const struct tensor *tensors, const struct op_operand *names, int n,
                         struct str *out)
{
    for (int i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];

        if (tensor_given(t))
            str_printf(out, "\n  %s [%" PRId64 " x %" PRId64 "] %s, row stride %" PRId64 ", at %p",
                       names[i].name, t->rows, t->cols, dtype_name(t->dtype), t->stride, t->data);
    }
}

int one_by_one_wait(struct run *run, const struct resolved_op *op, int queue, struct err *err)
{
    const struct op_shape *shape = &op->call.op;
    const struct op_info *info = op_info(shape->kind);
    struct str text = { 0 };
    struct err failure;

    if (!run->is_one_by_one || run->device->ops->wait(run->device, queue, &failure) == 0)
        return 0;
    add_operands(shape->in, info->inputs, info->n_inputs, &text);
    str_add(&text, "\n ->");
    add_operands(shape->out, info->outputs, info->n_outputs, &text);
    err_set(err, failure.code, "%s: %s%s", op->text, failure.text, str_text(&text));
    str_release(&text);
    return -1;
}
