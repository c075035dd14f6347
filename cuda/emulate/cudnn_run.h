/*
 * cudnn_run.h - a graph of cuDNN's operations, and running it by plain loops
 */
#ifndef EMULATE_CUDNN_RUN_H
#define EMULATE_CUDNN_RUN_H

#include <stdint.h>

#include <map>
#include <vector>

struct tensor_info {
    int64_t uid, dims[4], strides[4];
    int data_type;
    bool is_virtual, by_value;

    int64_t elements() const
    {
        return dims[0] * dims[1] * dims[2] * dims[3];
    }
};

struct operation {
    int kind, mode, axis;
    tensor_info x, b, condition, y;
    bool has_b, has_condition;
};

typedef std::vector<float> dense;

/* What a run starts from, by uid: numbers that were passed by value, and where tensors lie. */
struct graph_run {
    std::map<int64_t, dense> values;
    std::map<int64_t, void *> memory;
};

/* One operation after the other; each result is a dense tensor in memory, stored where it is not
 * virtual. */
void emulate_run_graph(graph_run *run, const std::vector<operation> &operations);

#endif
