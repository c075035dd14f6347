/*
 * agree.c - settle among ranks what may differ, from one gather
 */
#include <stdlib.h>

#include "base/num.h"
#include "comm/comm.h"
#include "comm/comm_impl.h"

/* Everybody's 8 bytes, on the heap; NULL with err set on failure. */
static void *gather_words(struct comm_group *group, const void *word, struct err *err)
{
    void *words = malloc(8 * (size_t)group->size);

    CHECK(words);
    if (comm_all_gather(group, word, words, 8, err)) {
        free(words);
        return NULL;
    }
    return words;
}

int comm_agree(struct comm_group *group, enum comm_choice choice, int64_t *value, struct err *err)
{
    int64_t *values = gather_words(group, value, err);

    if (!values)
        return -1;

    int64_t chosen = values[0];

    for (int i = 1; i < group->size; i++)
        chosen = choice == COMM_MAX ? max_i64(chosen, values[i]) : min_i64(chosen, values[i]);
    *value = chosen;
    free(values);
    return 0;
}

int comm_agree_equal(struct comm_group *group, const char *what, uint64_t value, struct err *err)
{
    uint64_t *values = gather_words(group, &value, err);
    int status = 0;

    if (!values)
        return -1;
    for (int i = 1; i < group->size && !status; i++)
        if (values[i] != values[0])
            status = err_set(err, ERR_CONFIG,
                             "%s differs between ranks: %016llx on rank %d, "
                             "%016llx on rank %d",
                             what, (unsigned long long)values[0], group->ranks[0],
                             (unsigned long long)values[i], group->ranks[i]);
    free(values);
    return status;
}
