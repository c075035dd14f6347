/*
 * newton_schulz.h - the coefficients of the polynomials of newton_schulz, step by step
 *
 * A step is X = a X + b (X X') X + c (X X')^2 X: of each singular value x of X it makes a x + b x^3
 * + c x^5. Steps beyond a set's last repeat that.
 *
 *   original       Jordan et al. 2024: the steepest at 0 that does not grow; values end in about
 *                  0.7 .. 1.2
 *   quintic        Jordan's later five steps, found for an error of all five together
 *   polar_express  Amsel et al. 2025 (arXiv 2505.16932): each step is the best for the interval
 *                  that those before leave, of values from 0.001 on; the eighth is the limit
 *                  (15, -10, 3) / 8, and values end within rounding of 1
 */
#ifndef OPS_NEWTON_SCHULZ_H
#define OPS_NEWTON_SCHULZ_H

enum newton_schulz {
    NEWTON_SCHULZ_ORIGINAL,
    NEWTON_SCHULZ_QUINTIC,
    NEWTON_SCHULZ_POLAR_EXPRESS,
    N_NEWTON_SCHULZ
};

enum { NEWTON_SCHULZ_STEPS_MAX = 99 };

struct newton_schulz_step {
    double a, b, c;
};

/* Of the step-th step, from 0 on. */
struct newton_schulz_step newton_schulz_step(enum newton_schulz set, int step);

/* The step with which a matrix is divided by its norm divides by no less. */
#define NEWTON_SCHULZ_EPS 1e-7

/* How many steps of a set are enough, as those that found it use it. */
int newton_schulz_steps(enum newton_schulz set);

/*
 * The factor of an update's matrix that makes up for its shape [rows x cols], as the singular
 * values of what the steps give are about 1 in any shape:
 *
 *   match_rms_adamw  0.2 sqrt(max(rows, cols)): the root mean square of elements is AdamW's, so
 *                    that its learning rate and decay are right (Liu et al. 2025, section 2.2)
 *   original         sqrt(max(1, rows / cols))
 *   spectral         sqrt(max(rows, cols))
 *   unit_rms         sqrt(rows / cols)
 */
enum muon_scale {
    MUON_SCALE_MATCH_RMS_ADAMW,
    MUON_SCALE_ORIGINAL,
    MUON_SCALE_SPECTRAL,
    MUON_SCALE_UNIT_RMS,
    N_MUON_SCALES
};
double muon_scale_of(enum muon_scale scale, double rows, double cols);

#endif
