/*
 * parameter_update.c - see the header
 */
#include "program/parameter_update.h"

struct parameter_update parameter_update_of(const struct update_options *options,
                                            const struct parameter *parameter)
{
    return (struct parameter_update){ .optimizer = optimizer_row(options->optimizer),
                                      /* Vectors (norms, biases) do not decay. */
                                      .weight_decay =
                                          parameter->n_dims > 1 ? options->weight_decay : 0 };
}
