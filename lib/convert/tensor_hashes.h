/*
 * tensor_hashes.h - hashes of tensors, computed while they are read
 *
 * A tensor that is read from front to back, also in the parts of several ranks, is hashed on the
 * way. Tensors that are read in another order have no hash here and must be read again.
 */
#ifndef CONVERT_TENSOR_HASHES_H
#define CONVERT_TENSOR_HASHES_H

#include <stdint.h>

#include "base/dtype.h"

enum tensor_hashes_state { SEEN_SOME, SEEN_WHOLE, SEEN_LOST };

struct tensor_hash {
    enum dtype dtype;   /* in which it is hashed; what goes by in another is lost */
    int64_t n_elements; /* of all */
    int64_t next;       /* element that goes by next */
    enum tensor_hashes_state state;
    void *hashing;
    uint64_t hash; /* XXH3-64, when whole */
};

void tensor_hashes_init(struct tensor_hash *seen, enum dtype dtype, int64_t n_elements);
void tensor_hashes_release(struct tensor_hash *seen);

/* n elements from `at` on go by; those that did before are passed over. */
void tensor_hashes_take(struct tensor_hash *seen, int64_t at, const void *data, enum dtype dtype,
                        int64_t n);

#endif
