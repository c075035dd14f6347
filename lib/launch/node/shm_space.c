/*
 * shm_space.c - whether shared memory suffices
 *
 * Measured with Open MPI 4.1.4 and PMIx 4.2: each rank maps a segment of 4 MiB and 8 bytes in the
 * job's folder (btl_vader_segment_size) and fills it as it sends; PMIx keeps two stores of 4 MiB
 * and a few pages a rank; the progress page is one union progress_place a rank.
 */
#include "launch/node/shm_space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/str.h"
#include "launch/environment_impl.h"
#include "progress/progress_page.h"

#define PAGE_BYTES ((uint64_t)4096)
#define STORE_BYTES ((uint64_t)8 << 20)
#define SEGMENT_BYTES ((uint64_t)4 << 20)
#define RANK_BYTES (6 * PAGE_BYTES) /* PMIx's job data, progress, the segment's odd page */

_Static_assert(sizeof(union progress_place) <= PAGE_BYTES, "progress is one of these pages");

static uint64_t needed(int n_ranks, uint64_t segment_bytes)
{
    return STORE_BYTES + (uint64_t)n_ranks * (segment_bytes + RANK_BYTES);
}

uint64_t shm_space_needed(int n_ranks)
{
    return needed(n_ranks, SEGMENT_BYTES);
}

static int judge(const char *folder, int n_ranks, uint64_t segment_bytes, uint64_t free_bytes,
                 uint64_t total_bytes, struct err *err)
{
    char wanted[32], there[32], all[32];
    uint64_t need = needed(n_ranks, segment_bytes);

    if (need <= free_bytes)
        return 0;
    str_bytes(wanted, sizeof wanted, need);
    str_bytes(there, sizeof there, free_bytes);
    str_bytes(all, sizeof all, total_bytes);
    if (need <= total_bytes)
        return err_set(err, ERR_DEVICE,
                       "%s has %s of %s free, %d ranks take %s there (hint: check its contents; in "
                       "a container: --shm-size=1g; without shared memory: LMTRAIN_COMM=tcp)",
                       folder, there, all, n_ranks, wanted);
    return err_set(err, ERR_DEVICE,
                   "%s has %s, %d ranks take %s there (hint: in a container: --shm-size=1g; "
                   "elsewhere: mount -o remount,size=1g %s; without shared memory: "
                   "LMTRAIN_COMM=tcp)",
                   folder, all, n_ranks, wanted, folder);
}

int shm_space_judge(const char *folder, int n_ranks, uint64_t free_bytes, uint64_t total_bytes,
                    struct err *err)
{
    return judge(folder, n_ranks, SEGMENT_BYTES, free_bytes, total_bytes, err);
}

/* What the user's settings make of a rank's segment, which only MPI has. */
static uint64_t segment_bytes_set(char *const *environment)
{
    const char *comm = environment_get(environment, "LMTRAIN_COMM");
    const char *transports = environment_get(environment, "OMPI_MCA_btl");
    const char *size = environment_get(environment, "OMPI_MCA_btl_vader_segment_size");
    int64_t n_bytes;

    if (comm && *comm ? strcmp(comm, "mpi") != 0 : !LMTRAIN_MPI)
        return 0;
    if (transports && *transports && *transports != '^' && !strstr(transports, "vader"))
        return 0;
    if (transports && *transports == '^' && strstr(transports, "vader"))
        return 0;
    if (size && str_to_i64(size, &n_bytes) == 0 && n_bytes > 0 && n_bytes < INT64_C(1) << 40)
        return (uint64_t)n_bytes;
    return SEGMENT_BYTES;
}

int shm_space_check_for(const char *folder, int n_ranks, char *const *environment, struct err *err)
{
    struct statvfs system;

    if (statvfs(folder, &system) < 0 || system.f_blocks == 0)
        return 0;
    return judge(folder, n_ranks, segment_bytes_set(environment),
                 (uint64_t)system.f_bavail * system.f_frsize,
                 (uint64_t)system.f_blocks * system.f_frsize, err);
}

int shm_space_check(const char *folder, int n_ranks, struct err *err)
{
    return shm_space_check_for(folder, n_ranks, environ, err);
}
