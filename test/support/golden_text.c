#include "support/golden_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LIMIT_BYTES ((size_t)1 << 20)

static void rewrite(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    if (!file || fputs(text, file) < 0 || fclose(file))
        fail_msg("cannot write %s", path);
}

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "r");
    char *data = calloc(1, LIMIT_BYTES + 1);

    if (!file || !data)
        fail_msg("cannot read %s (hint: LMTRAIN_UPDATE_GOLDEN=1 writes it)", path);
    size_t n = fread(data, 1, LIMIT_BYTES, file);
    assert_true(n < LIMIT_BYTES);
    fclose(file);
    return data;
}

static size_t line_length(const char *text)
{
    return strcspn(text, "\n");
}

void golden_text_check(const char *path, const char *text)
{
    const char *update = getenv("LMTRAIN_UPDATE_GOLDEN");

    if (update && !strcmp(update, "1")) {
        rewrite(path, text);
        return;
    }
    char *golden = read_whole(path);
    const char *want = golden, *got = text;
    for (int line = 1; *want || *got; line++) {
        size_t n_want = line_length(want), n_got = line_length(got);

        if (n_want != n_got || memcmp(want, got, n_want) || (want[n_want] != got[n_got]))
            fail_msg("%s:%d: wanted\n%.*s\n  but got\n%.*s\n"
                     "(hint: LMTRAIN_UPDATE_GOLDEN=1 rewrites it)",
                     path, line, (int)n_want, want, (int)n_got, got);
        want += n_want + (want[n_want] == '\n');
        got += n_got + (got[n_got] == '\n');
    }
    free(golden);
}
