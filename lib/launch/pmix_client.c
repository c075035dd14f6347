/*
 * pmix_client.c - PMIx_Init and what follows
 *
 * Open MPI initialises the same library in the same process; it counts, so leaving undoes all that
 * is still open, lest exit 0 look like a rank that ran away.
 */
#include "launch/pmix_client_impl.h"

#include <math.h>
#include <pmix.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "launch/pmix_version_impl.h"

/* Who we are to PMIx; one per process, as the library is. */
static pmix_proc_t self;

static int peer_failed(struct err *err, const char *call, pmix_status_t status)
{
    return err_set(err, ERR_PEER, "%s: %s", call, PMIx_Error_string(status));
}

enum number_owner { OF_RANK, OF_JOB };

/* A number that PMIx provides of this rank, or of the whole job. */
static int get_number(const char *key, enum number_owner owner, int *number, struct err *err)
{
    pmix_proc_t proc = self;
    pmix_value_t *value = NULL;

    if (owner == OF_JOB)
        proc.rank = PMIX_RANK_WILDCARD;
    pmix_status_t status = PMIx_Get(&proc, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS || !value)
        return pmix_version_refuse(key, PMIx_Error_string(status), getenv("PMIX_VERSION"),
                                   PMIx_Get_version(), err);
    if (value->type == PMIX_UINT16)
        *number = value->data.uint16;
    else if (value->type == PMIX_UINT32 && value->data.uint32 <= INT32_MAX)
        *number = (int)value->data.uint32;
    else
        status = PMIX_ERR_TYPE_MISMATCH;
    PMIX_VALUE_RELEASE(value);
    if (status != PMIX_SUCCESS)
        return err_set(err, ERR_FAILED, "PMIx provides %s with a wrong type", key);
    return 0;
}

int launch_client_join(struct launch_rank *rank, struct err *err)
{
    struct launch_rank found = { .under_pmix = true };
    pmix_status_t status = PMIx_Init(&self, NULL, 0);

    if (status != PMIX_SUCCESS)
        return pmix_version_refuse("PMIx_Init", PMIx_Error_string(status), getenv("PMIX_VERSION"),
                                   PMIx_Get_version(), err);
    found.world_rank = (int)self.rank;
    if (get_number(PMIX_JOB_SIZE, OF_JOB, &found.world_size, err) ||
        get_number(PMIX_LOCAL_RANK, OF_RANK, &found.local_rank, err) ||
        get_number(PMIX_LOCAL_SIZE, OF_JOB, &found.local_size, err))
        return -1;
    if (self.rank >= (pmix_rank_t)found.world_size || found.local_rank >= found.local_size)
        return err_set(err, ERR_FAILED, "PMIx reports rank %u of %d, %d of %d on this node",
                       (unsigned)self.rank, found.world_size, found.local_rank, found.local_size);
    *rank = found;
    return 0;
}

void launch_client_leave(void)
{
    while (PMIx_Initialized())
        if (PMIx_Finalize(NULL, 0) != PMIX_SUCCESS)
            break;
}

void launch_client_abort(int status, const char *text)
{
    PMIx_Abort(status, text, NULL, 0);
}

int launch_client_put(const char *key, const void *value, size_t n_bytes, struct err *err)
{
    pmix_value_t wrapped;
    pmix_byte_object_t bytes = { .bytes = (char *)(uintptr_t)value, .size = n_bytes };

    PMIX_VALUE_LOAD(&wrapped, &bytes, PMIX_BYTE_OBJECT);
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &wrapped);
    PMIX_VALUE_DESTRUCT(&wrapped);
    return status == PMIX_SUCCESS ? 0 : peer_failed(err, "PMIx_Put", status);
}

/* PMIx counts whole seconds, and 0 is for ever. */
static int whole_seconds(double seconds)
{
    return seconds >= 1e9 ? 1000000000 : max_int(1, (int)ceil(seconds));
}

/* PMIx tells them as "0,1,5". */
static int parse_ranks(const char *text, int *ranks, int n)
{
    for (int i = 0; i < n; i++) {
        char *end;
        long rank = strtol(text, &end, 10);

        if (end == text || rank < 0 || rank > INT32_MAX || *end != (i + 1 < n ? ',' : '\0'))
            return -1;
        ranks[i] = (int)rank;
        text = end + 1;
    }
    return 0;
}

int launch_client_local_peers(int *ranks, int local_size, struct err *err)
{
    pmix_proc_t proc = self;
    pmix_value_t *value = NULL;

    proc.rank = PMIX_RANK_WILDCARD;
    pmix_status_t status = PMIx_Get(&proc, PMIX_LOCAL_PEERS, NULL, 0, &value);
    if (status != PMIX_SUCCESS || !value)
        return err_set(err, ERR_FAILED, "PMIx does not provide the ranks of this node: %s",
                       PMIx_Error_string(status));
    bool failed = value->type != PMIX_STRING || !value->data.string ||
                  parse_ranks(value->data.string, ranks, local_size);
    PMIX_VALUE_RELEASE(value);
    return failed
               ? err_set(err, ERR_FAILED, "PMIx does not provide %d ranks of this node", local_size)
               : 0;
}

int launch_client_fence(double timeout_seconds, struct err *err)
{
    pmix_info_t info[2];
    bool collect = true;
    int seconds = whole_seconds(timeout_seconds);
    pmix_status_t status = PMIx_Commit();

    if (status != PMIX_SUCCESS)
        return peer_failed(err, "PMIx_Commit", status);
    PMIX_INFO_LOAD(&info[0], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    status = PMIx_Fence(NULL, 0, info, 2);
    PMIX_INFO_DESTRUCT(&info[0]);
    PMIX_INFO_DESTRUCT(&info[1]);
    if (status == PMIX_ERR_TIMEOUT)
        return err_set(err, ERR_PEER, "not all ranks came to a fence within %d s", seconds);
    return status == PMIX_SUCCESS ? 0 : peer_failed(err, "PMIx_Fence", status);
}

int launch_client_get(const char *key, int rank, void *value, size_t *n_bytes,
                      double timeout_seconds, struct err *err)
{
    pmix_proc_t proc = self;
    pmix_value_t *found = NULL;
    pmix_info_t info[1];
    int seconds = whole_seconds(timeout_seconds), result = 0;

    proc.rank = (pmix_rank_t)rank;
    PMIX_INFO_LOAD(&info[0], PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Get(&proc, key, info, 1, &found);
    PMIX_INFO_DESTRUCT(&info[0]);
    if (status != PMIX_SUCCESS || !found)
        return err_set(err, ERR_PEER, "rank %d's %s: %s", rank, key, PMIx_Error_string(status));
    if (found->type != PMIX_BYTE_OBJECT) {
        result = err_set(err, ERR_PEER, "rank %d's %s is not a byte object", rank, key);
    } else if (found->data.bo.size > *n_bytes) {
        result = err_set(err, ERR_PEER, "rank %d's %s has %zu bytes, at most %zu are expected",
                         rank, key, found->data.bo.size, *n_bytes);
    } else {
        *n_bytes = found->data.bo.size;
        if (*n_bytes)
            memcpy(value, found->data.bo.bytes, *n_bytes);
    }
    PMIX_VALUE_RELEASE(found);
    return result;
}
