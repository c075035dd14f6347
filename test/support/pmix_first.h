/*
 * pmix_first.h - the first message of a PMIx client, as bytes
 */
#ifndef SUPPORT_PMIX_FIRST_H
#define SUPPORT_PMIX_FIRST_H

#include <stddef.h>
#include <stdint.h>

enum { PMIX_FIRST_MAX = 512 };

struct pmix_first {
    const char *nspace, *version;
    uint32_t rank, credential_bytes; /* as announced; there are 8, which claim uid 0 and gid 0 */
    unsigned char kind;
};

/* As PMIx 4.2's client writes it. Returns how many bytes. */
size_t pmix_first_make(const struct pmix_first *first, unsigned char bytes[PMIX_FIRST_MAX]);

/* A connection to a port of 127.0.0.1; -1 if there is none. */
int pmix_first_connect(int port);

/* Whether the other end closes before it has sent anything; waits for a minute. */
int pmix_first_is_refused(int fd);

#endif
