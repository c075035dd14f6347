/*
 * tensor_hashes.c - hashes of their tensors, taken while they go by
 */
#include "convert/tensor_hashes.h"

#include <xxhash.h>

void tensor_hashes_init(struct tensor_hash *s, enum dtype dtype, int64_t n_elements)
{
    *s = (struct tensor_hash){ .dtype = dtype, .n_elements = n_elements };
}

void tensor_hashes_release(struct tensor_hash *s)
{
    XXH3_freeState(s->hashing);
    s->hashing = NULL;
}

static void lose(struct tensor_hash *s)
{
    tensor_hashes_release(s);
    s->state = SEEN_LOST;
}

void tensor_hashes_take(struct tensor_hash *s, int64_t at, const void *data, enum dtype dtype,
                        int64_t n)
{
    if (s->state != SEEN_SOME || (at + n <= s->next && dtype == s->dtype))
        return;
    if (!s->hashing && (s->hashing = XXH3_createState()))
        XXH3_64bits_reset(s->hashing);
    if (at != s->next || dtype != s->dtype || !s->hashing) {
        lose(s);
        return;
    }
    XXH3_64bits_update(s->hashing, data, (size_t)n * dtype_bytes(dtype));
    s->next += n;
    if (s->next < s->n_elements)
        return;
    s->hash = XXH3_64bits_digest(s->hashing);
    tensor_hashes_release(s);
    s->state = SEEN_WHOLE;
}
