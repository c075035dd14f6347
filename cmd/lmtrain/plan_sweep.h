/*
 * plan_sweep.h - `lmtrain plan --sweep`: predicted times for several numbers of ranks
 */
#ifndef CMD_PLAN_SWEEP_H
#define CMD_PLAN_SWEEP_H

#include "base/str.h"
#include "plan_subject.h"

/*
 * Append a table of the job for the ranks of "ranks=8,16": with the same global batch (strong
 * scaling), or with one that grows with the ranks (weak); each with its own best layout, if the job
 * leaves that to a search. is_json: as an array instead. Returns an exit status, after a message if
 * it is not 0.
 */
int plan_sweep(const struct plan_reading *reading, const char *path, const char *sweep,
               bool is_weak, bool is_json, struct arena *arena, struct str *out);

#endif
