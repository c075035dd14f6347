/*
 * pmix_version.c - versions of PMIx in messages
 */
#include "launch/pmix_version_impl.h"

#include <stdlib.h>
#include <string.h>

/* "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.1, ...)" begins here: "4.2.2rc2". */
static const char *find_number(const char *text)
{
    return text + strcspn(text, "0123456789");
}

int pmix_version_refuse(const char *call, const char *reason, const char *server,
                        const char *client, struct err *err)
{
    const char *ours = find_number(client), *theirs = find_number(server ? server : "");
    int n_ours = (int)strcspn(ours, " ,("), n_theirs = (int)strcspn(theirs, " ,(");

    if (!n_theirs)
        return err_set(err, ERR_PEER,
                       "%s: %s; the launcher's PMIx does not say its version, lmtrain's is %.*s "
                       "(hint: in a container, mount the launcher's temporary folder, "
                       "$PMIX_SERVER_TMPDIR, under the same path)",
                       call, reason, n_ours, ours);
    if (strtol(ours, NULL, 10) != strtol(theirs, NULL, 10))
        return err_set(
            err, ERR_CONFIG,
            "%s: %s; the launcher's PMIx is version %.*s, lmtrain's is %.*s, and they do "
            "not understand each other (hint: build lmtrain, or its container, with PMIx "
            "%ld; or start ranks with --ranks or --hosts)",
            call, reason, n_theirs, theirs, n_ours, ours, strtol(theirs, NULL, 10));
    return err_set(err, ERR_PEER,
                   "%s: %s; the launcher's PMIx is version %.*s, lmtrain's %.*s (hint: in a "
                   "container, mount the launcher's temporary folder, $PMIX_SERVER_TMPDIR, under "
                   "the same path)",
                   call, reason, n_theirs, theirs, n_ours, ours);
}
