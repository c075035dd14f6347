/*
 * overlap_test.c - which jobs may hide collectives of layers in slices or halves
 */
#include "config_fixture.h"

static const struct {
    const char *parallel, *train, *model;
    const char *refusal, *note; /* NULL: accepted; none */
} jobs[] = {
    { "tp: 2, overlap: slices, overlap_slices: 4", "", "", NULL, NULL },
    { "tp: 2, overlap: halves", ", micro_batch: 4", "", NULL, NULL },
    { "tp: 2, overlap: auto, overlap_slices: 4", "", "",
      "parallel.overlap_slices is for overlap: slices, and overlap is auto", NULL },
    { "overlap: slices", "", "", NULL, "parallel.overlap has no effect: tp and ep are 1" },
    { "tp: 2, cp: 2, overlap: halves", "", "",
      "halves are of whole sequences, and cp 2 cuts them (hint: slices, or auto)", NULL },
    { "cp: 2, cp_kind: gather, overlap: slices", "", "", NULL, NULL },
    { "cp: 2, cp_kind: gather, overlap: halves", "", "",
      "halves are of whole sequences, and cp 2 cuts them (hint: slices, or auto)", NULL },
    { "cp: 2, cp_kind: ulysses, overlap: slices", "", "", NULL, NULL },
    { "cp: 2, cp_kind: fastseq, overlap: slices", "", "", NULL, NULL },
    { "cp: 2, cp_kind: ring, overlap: slices", "", "", NULL,
      "parallel.overlap has no effect: tp and ep are 1, and cp exchanges nothing that is cut" },
    { "tp: 2, cp: 2, cp_kind: ring, overlap: slices", "", "", NULL,
      "parallel.overlap leaves a ring's steps whole: they travel while attention computes the one "
      "before" },
    { "cp: 4, cp_kind: {ulysses: 2, gather: 2}, overlap: slices", "", "", NULL,
      "parallel.overlap cuts exchanges of heads, and leaves the gathers of keys behind them "
      "whole" },
    { "tp: 2, overlap: halves", ", micro_batch: 2", "",
      "halves need 2 sequences of a micro-batch on each tensor-parallel rank, and micro_batch is "
      "2 (hint: micro_batch: 4, or overlap: slices or auto)",
      NULL },
    { "tp: 2, overlap: halves, sequence_parallel: false", ", micro_batch: 1", "",
      "halves need 2 sequences of a micro-batch, and micro_batch is 1", NULL },
    { "tp: 2, overlap: halves", ", micro_batch: 4", ", attention_dropout: 0.1", NULL,
      "parallel.overlap: halves leave attention whole: dropout draws by its sequences' numbers" },
};

static void jobs_are_read(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char text[1000];
        struct err err = { 0 };
        struct job job;

        snprintf(text, sizeof text,
                 "model: {vocab_size: 64, hidden_size: 32, n_layers: 2, n_heads: 4, n_kv_heads: 4, "
                 "ffn_size: 48, max_seq_len: 32%s}\n"
                 "data: {train: x, tokenizer: none, seq_len: 32}\n"
                 "train: {steps: 4, global_batch: 8%s}\n"
                 "parallel: {%s}\n",
                 jobs[i].model, jobs[i].train, jobs[i].parallel);
        int status = read_job(&job, text, &arena, &err);

        if (!jobs[i].refusal && status)
            fail_msg("%s: %s", jobs[i].parallel, err.text);
        if (jobs[i].refusal && (!status || !strstr(err.text, jobs[i].refusal)))
            fail_msg("%s: \"%s\", not \"%s\"", jobs[i].parallel, err.text, jobs[i].refusal);
        if (jobs[i].note && !has_note(&job, jobs[i].note))
            fail_msg("%s: no note \"%s\"", jobs[i].parallel, jobs[i].note);
    }
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
