#include "eval/sandbox.h"
int sandbox_open(struct sandbox **sandbox, int layers, struct err *err)
{ (void)sandbox;(void)layers; return err_set(err, ERR_FAILED, "not yet"); }
void sandbox_close(struct sandbox *sandbox) { (void)sandbox; }
const char *sandbox_enforced(const struct sandbox *sandbox) { (void)sandbox; return ""; }
int sandbox_layers(const struct sandbox *sandbox) { (void)sandbox; return 0; }
int sandbox_run(struct sandbox *sandbox, const char *program, double deadline,
                enum sandbox_outcome *outcome, struct err *err)
{ (void)sandbox;(void)program;(void)deadline;(void)outcome; return err_set(err, ERR_FAILED, "not yet"); }
const char *sandbox_outcome_name(enum sandbox_outcome outcome) { (void)outcome; return ""; }
