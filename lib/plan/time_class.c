/*
 * time_class.c - names, and what an op's time counts as
 */
#include "plan/time_class.h"

#include "plan/price.h"
#include "program/order.h"

const char *time_class_name(enum time_class class)
{
    static const char *const names[N_TIME_CLASSES] = {
        "products",        "attention",        "memory bound",    "recompute", "update",
        "tensor parallel", "context parallel", "expert parallel", "stages",    "transfers",
        "gradients",       "gathers",          "copies",          "overlap",   "issue",
    };

    return names[class];
}

enum time_class time_class_of_stream(enum stream stream)
{
    switch (stream) {
    case STREAM_CP:
        return TIME_CONTEXT;
    case STREAM_EP:
        return TIME_EXPERTS;
    case STREAM_DP_GATHER:
        return TIME_GATHERS;
    case STREAM_DP_REDUCE:
        return TIME_GRADIENTS;
    case STREAM_PP:
    case STREAM_F_TO_NEXT:
    case STREAM_F_TO_PREVIOUS:
    case STREAM_F_FROM_NEXT:
    case STREAM_F_FROM_PREVIOUS:
    case STREAM_B_TO_NEXT:
    case STREAM_B_TO_PREVIOUS:
    case STREAM_B_FROM_NEXT:
    case STREAM_B_FROM_PREVIOUS:
        return TIME_STAGES;
    case STREAM_COPY_IN:
    case STREAM_COPY_OUT:
        return TIME_COPIES;
    default:
        return TIME_TENSOR;
    }
}

static enum time_class class_of_compute(const struct op *op)
{
    enum price_class class = price_class_of(op->kind);

    if (op->phase == PHASE_U)
        return TIME_UPDATE;
    if (op->phase == PHASE_R)
        return TIME_RECOMPUTE;
    return class == PRICE_PRODUCT     ? TIME_PRODUCTS
           : class == PRICE_ATTENTION ? TIME_ATTENTION
                                      : TIME_MEMORY;
}

static bool is_transfer(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

enum time_class time_class_of(const struct op *op)
{
    if (is_transfer(op))
        return TIME_TRANSFERS;
    if (op_is_collective(op->kind) && op->stream == STREAM_COMPUTE)
        return time_class_of_stream(stream_of_axis(op->attributes.axis));
    return order_is_async(op) ? time_class_of_stream(op->stream) : class_of_compute(op);
}
