/*
 * nccl_sum.cc - see the header
 */
#include "nccl_sum.h"

#include <stdint.h>

extern "C" {
#include "base/dtype.h"
}

static float element_of(const void *from, size_t i, bool is_bf16)
{
    return is_bf16 ? bf16_to_float(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

void emulate_ring_sum(const ring_sum &s, void *to, size_t first, size_t n, size_t last)
{
    size_t size = s.terms.size();

    for (size_t i = 0; i < n; i++) {
        float sum = element_of(s.terms[(last + 1) % size], first + i, s.is_bf16);

        for (size_t k = 2; k <= size; k++) {
            sum += element_of(s.terms[(last + k) % size], first + i, s.is_bf16);
            if (s.is_bf16)
                sum = bf16_to_float(bf16_from_float(sum));
        }
        if (s.is_bf16)
            ((uint16_t *)to)[i] = bf16_from_float(sum);
        else
            ((float *)to)[i] = sum;
    }
}

void emulate_ring_sum_all(const ring_sum &s, char *to, size_t n_bytes)
{
    size_t element = s.is_bf16 ? 2 : 4, n = n_bytes / element;
    size_t size = s.terms.size(), part = (n + size - 1) / size;

    for (size_t r = 0; r < size && r * part < n; r++)
        emulate_ring_sum(s, to + r * part * element, r * part,
                         n - r * part < part ? n - r * part : part, r);
}
