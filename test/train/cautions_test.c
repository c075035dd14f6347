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

/* At which step an event is reported: 0 none. It is reported once. */
static int64_t reported_at(const char *event, int64_t warmup, int64_t n, const double *losses)
{
    struct job job = { .model.vocab_size = 4096,
                       .optimizer.lr = 50,
                       .optimizer.warmup_steps = warmup };
    struct learning learning = { 0 };
    char text[512];
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        const char *found = learning_note(&learning, &job, i + 1, losses[i], text, sizeof text);

        if (!found || strcmp(found, event) != 0)
            continue;
        assert_int_equal(at, 0);
        at = i + 1;
        assert_non_null(strstr(text, "(hint: "));
        assert_non_null(strstr(text, "optimizer.lr"));
    }
    return at;
}

static void a_loss_that_stands(void **state)
{
    double losses[200];

    (void)state;
    for (int i = 0; i < 200; i++)
        losses[i] = log(4096) + (i % 2 ? 0.009 : -0.009);
    assert_int_equal(reported_at("flat loss", 0, 200, losses), 50);
    assert_int_equal(reported_at("flat loss", 0, 49, losses), 0);
    /* A model that warms up knows nothing yet. */
    assert_int_equal(reported_at("flat loss", 100, 200, losses), 150);
    losses[39] = log(4096) - 0.06;
    assert_int_equal(reported_at("flat loss", 0, 200, losses), 90);
    for (int i = 39; i < 200; i += 40)
        losses[i] = i % 80 == 39 ? NAN : log(4096) + 0.3;
    assert_int_equal(reported_at("flat loss", 0, 200, losses), 0);
    /* Random weights. */
    for (int i = 0; i < 200; i++)
        losses[i] = log(4096) + 0.15 + (i % 3) * 0.02;
    assert_int_equal(reported_at("flat loss", 0, 200, losses), 50);
}

static void a_loss_that_rises(void **state)
{
    double losses[200];

    (void)state;
    /* Down to 2 and up to 8 by 0.1 a step: the lowest mean is 2.4, the one of steps 144 to 163 is
     * more than 3 times that. */
    for (int i = 0; i < 200; i++)
        losses[i] = i < 100 ? 9 - 0.07 * i : fmin(8, 2 + 0.1 * (i - 100));
    int64_t at = reported_at("rising loss", 0, 200, losses);
    assert_int_equal(at, 163);
    /* A spike is none, nor are losses that are not finite. */
    for (int i = 0; i < 200; i++)
        losses[i] = i == 120 ? 60 : i % 7 == 3 ? NAN : 2;
    assert_int_equal(reported_at("rising loss", 0, 200, losses), 0);
    /* Of a model that knows its data by heart. */
    for (int i = 0; i < 200; i++)
        losses[i] = i < 100 ? 0.01 : 0.3;
    assert_int_equal(reported_at("rising loss", 0, 200, losses), 0);
    /* Three times is not yet more than that. */
    for (int i = 0; i < 200; i++)
        losses[i] = i < 100 ? 2 : 6;
    assert_int_equal(reported_at("rising loss", 0, 200, losses), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(a_loss_that_stands),
        cmocka_unit_test(a_loss_that_rises),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
