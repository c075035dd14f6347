/*
 * cautions_test.c - which losses stand still, and which values are worth a word
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "train/cautions.h"

static char said[1024];

static void keep(void *context, enum log_level level, const char *line)
{
    (void)context;
    assert_int_equal(level, LOG_WARN);
    strncat(said, line, sizeof said - strlen(said) - 1);
}

static const char *cautions(double lr, int seq_len)
{
    struct job job = { .optimizer.lr = lr, .data.seq_len = seq_len, .model.max_seq_len = 64 };

    *said = '\0';
    log_set_sink(keep, NULL);
    cautions_of_job(&job);
    log_set_sink(NULL, NULL);
    return said;
}

static void values(void **state)
{
    (void)state;
    assert_string_equal(cautions(0.1, 64), "");
    assert_non_null(strstr(cautions(0.11, 64), "optimizer.lr is 0.11"));
    assert_non_null(strstr(cautions(1e-3, 65), "data.seq_len is 65"));
    assert_non_null(strstr(said, "hint: model.max_seq_len: 65"));
}

/* At which of the logged steps (one each 10) a word is said: 0 none. */
static int64_t reported_at(int64_t warmup, int64_t n, const double *losses)
{
    struct job job = { .model.vocab_size = 4096,
                       .optimizer.lr = 50,
                       .optimizer.warmup_steps = warmup };
    struct flat_loss flat = { 0 };
    char text[512];
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        int reported = flat_loss_note(&flat, &job, 10 * (i + 1), losses[i], text, sizeof text);

        assert_true(!reported || !at); /* once */
        if (reported) {
            at = 10 * (i + 1);
            assert_non_null(strstr(text, "the vocabulary size 4096"));
            assert_non_null(strstr(text, "optimizer.lr 50 is too large"));
        }
    }
    return at;
}

static void a_loss_that_stands(void **state)
{
    double losses[40];

    (void)state;
    for (int i = 0; i < 40; i++)
        losses[i] = log(4096) + (i % 2 ? 0.009 : -0.009);
    assert_int_equal(reported_at(0, 40, losses), 100);
    assert_int_equal(reported_at(0, 9, losses), 0);
    /* A model that warms up knows nothing yet. */
    assert_int_equal(reported_at(100, 40, losses), 200);
    losses[8] = log(4096) + 0.02;
    assert_int_equal(reported_at(0, 40, losses), 190);
    for (int i = 8; i < 40; i += 9)
        losses[i] = NAN;
    assert_int_equal(reported_at(0, 40, losses), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(a_loss_that_stands),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
