/*
 * newton_schulz.c - see the header
 */
#include "ops/newton_schulz.h"

#include <math.h>

#include "base/err.h"
#include "base/num.h"
#include "ops/newton_schulz_choices.h"

const struct choice newton_schulz_choices[] = {
    { "original", NEWTON_SCHULZ_ORIGINAL },
    { "quintic", NEWTON_SCHULZ_QUINTIC },
    { "polar_express", NEWTON_SCHULZ_POLAR_EXPRESS },
    { 0 },
};

enum { N_STEPS_MAX = 8 };

static const struct {
    int n, enough; /* of steps that differ; of steps */
    struct newton_schulz_step steps[N_STEPS_MAX];
} sets[N_NEWTON_SCHULZ] = {
    [NEWTON_SCHULZ_ORIGINAL] = { 1, 5, { { 3.4445, -4.7750, 2.0315 } } },
    [NEWTON_SCHULZ_QUINTIC] = { 5,
                                5,
                                { { 4.0848, -6.8946, 2.9270 },
                                  { 3.9505, -6.3029, 2.6377 },
                                  { 3.7418, -5.5913, 2.3037 },
                                  { 2.8769, -3.1427, 1.2046 },
                                  { 2.8366, -3.0525, 1.2012 } } },
    [NEWTON_SCHULZ_POLAR_EXPRESS] = { 8,
                                      8,
                                      { { 8.2051, -22.9019, 16.4607 },
                                        { 4.0664, -2.8612, 0.5184 },
                                        { 3.9096, -2.8234, 0.5250 },
                                        { 3.2856, -2.4153, 0.4853 },
                                        { 2.2779, -1.6198, 0.3985 },
                                        { 1.8726, -1.2307, 0.3585 },
                                        { 1.8564, -1.2132, 0.3568 },
                                        { 1.8750, -1.2500, 0.3750 } } },
};

struct newton_schulz_step newton_schulz_step(enum newton_schulz set, int step)
{
    CHECK((unsigned)set < N_NEWTON_SCHULZ && step >= 0);
    return sets[set].steps[min_int(step, sets[set].n - 1)];
}

int newton_schulz_steps(enum newton_schulz set)
{
    CHECK((unsigned)set < N_NEWTON_SCHULZ);
    return sets[set].enough;
}

const struct choice muon_scale_choices[] = {
    { "match_rms_adamw", MUON_SCALE_MATCH_RMS_ADAMW },
    { "original", MUON_SCALE_ORIGINAL },
    { "spectral", MUON_SCALE_SPECTRAL },
    { "unit_rms", MUON_SCALE_UNIT_RMS },
    { 0 },
};

double muon_scale_of(enum muon_scale scale, double rows, double cols)
{
    switch (scale) {
    case MUON_SCALE_ORIGINAL:
        return sqrt(fmax(1, rows / cols));
    case MUON_SCALE_SPECTRAL:
        return sqrt(fmax(rows, cols));
    case MUON_SCALE_UNIT_RMS:
        return sqrt(rows / cols);
    default:
        return 0.2 * sqrt(fmax(rows, cols));
    }
}
