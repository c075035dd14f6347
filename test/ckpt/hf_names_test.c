/*
 * hf_names_test.c - names of a described family's tensors; rows that are packed by heads
 *
 * test/convert holds the tables against the models that are computed, and against real folders.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/hf_names.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

#define MINE "like: llama\nnames: {model: base, self_attn.q_proj: attn.wq, lm_head.weight: out}\n"

static const struct hf_tensor *find(const struct hf_names *names, const char *theirs)
{
    for (int i = 0; i < names->n_tensors; i++)
        if (!strcmp(names->tensors[i].name, theirs))
            return &names->tensors[i];
    fail_msg("no tensor %s", theirs);
    return NULL;
}

static void described(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    char folder[256], before[1024];
    struct arena arena = { 0 };
    struct hf_names names;
    struct err err;

    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(file_make_folders("configs/families", &err), 0);
    assert_int_equal(file_write("configs/families/mine.yaml", MINE, sizeof MINE - 1, &err), 0);
    assert_int_equal(hf_names_build(&names, "Mine", &spec, &arena, &err), 0);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(file_remove_tree(folder, &err), 0);
    assert_string_equal(names.family, "mine");
    assert_string_equal(names.prefix, "base.");
    assert_string_equal(find(&names, "base.layers.1.attn.wq.weight")->whole->name,
                        "layers.1.qkv.weight");
    assert_string_equal(find(&names, "base.layers.0.self_attn.k_proj.weight")->whole->name,
                        "layers.0.qkv.weight");
    assert_string_equal(find(&names, "out")->whole->name, "head.weight");
    /* Without its file there is no such family. */
    assert_int_equal(hf_names_build(&names, "mine", &spec, &arena, &err), -1);
    assert_string_equal(err.text, "model_type mine: its tensor names are not known");
    arena_release(&arena);
}

/* Bloom's, head by head: its query, its key, its value. */
static void packed_by_heads(void **state)
{
    static const struct hf_piece wanted[] = { { 0, 0, 8 },  { 8, 32, 8 },  { 16, 64, 8 },
                                              { 24, 8, 8 }, { 32, 40, 8 }, { 40, 72, 8 } };
    struct model_spec spec = tiny_spec("gpt2");
    struct arena arena = { 0 };
    struct hf_names names;
    struct err err;

    (void)state;
    spec.position = POSITION_ALIBI;
    spec.embedding_norm = 1;
    assert_int_equal(hf_names_build(&names, "bloom", &spec, &arena, &err), 0);
    const struct hf_tensor *t = find(&names, "transformer.h.1.self_attention.query_key_value.bias");
    assert_int_equal(t->n_pieces, 12);
    assert_int_equal(t->n_rows, 96);
    for (int i = 0; i < 6; i++)
        assert_memory_equal(&t->pieces[i], &wanted[i], sizeof wanted[i]);
    assert_string_equal(find(&names, "transformer.word_embeddings_layernorm.bias")->whole->name,
                        "embedding_norm.bias");
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(described),
        cmocka_unit_test(packed_by_heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
