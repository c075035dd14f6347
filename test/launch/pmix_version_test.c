/*
 * pmix_version_test.c - the versions of PMIx that a rank which cannot join names
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "launch/pmix_version_impl.h"

static const char ours[] = "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.1, Stable ABI: 0.0)";

static void check(const char *server, enum err_code code, const char *text)
{
    struct err err;

    assert_int_equal(pmix_version_refuse("PMIx_Init", "UNREACHABLE", server, ours, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, text) || !strstr(err.text, "PMIx_Init: UNREACHABLE; "))
        fail_msg("%s", err.text);
}

static void test_versions(void **state)
{
    (void)state;
    check("5.0.3", ERR_CONFIG, "the launcher's PMIx is version 5.0.3, lmtrain's is 4.2.2rc2, and");
    check("OpenPMIx 3.1.5 (x)", ERR_CONFIG, "with PMIx 3;");
    check("4.1.0", ERR_PEER, "the launcher's PMIx is version 4.1.0, lmtrain's 4.2.2rc2 (hint:");
    check(NULL, ERR_PEER, "does not say its version, lmtrain's is 4.2.2rc2");
    check("", ERR_PEER, "does not say its version");
    check("unknown", ERR_PEER, "does not say its version");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_versions) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
