/*
 * tokenizer_spm.c - from a SentencePiece .model to tables
 *
 * The file is a protobuf (ModelProto of sentencepiece_model.proto); few of its fields matter, so it
 * is read by hand, every length checked. SentencePiece joins whatever neighbours make a piece, the
 * best score first: so a merge for every way to cut a piece in two that can come up gives its
 * result with the machinery of tokenizer.json.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode/unicode.h"

enum { HIDDEN_MAX = 4096 };
#define PIECE_BYTES_MAX (1 << 12)
#define ALL_BYTES_MAX (1 << 23)

enum piece_type {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE,
};
enum { MODEL_UNIGRAM = 1, MODEL_BPE };

struct bytes {
    const char *data;
    size_t n;
};

struct spm_piece {
    struct bytes text;
    float score;
    uint64_t type;
    int32_t rank; /* by score; equal scores have equal ranks */
};

struct spm_reader {
    const char *name;
    struct err *err;
    struct tokenizer *tokenizer;
    struct spm_piece *pieces; /* heap */
    int n_pieces, n_hidden;
    bool failed; /* a part found no room; err says so */
    uint64_t model_type, byte_fallback, dummy_is_suffix;
    uint64_t add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
    struct bytes charsmap, unknown_surface;
    int32_t end;
};

#define REFUSE(r, ...) err_set((r)->err, ERR_DATA, __VA_ARGS__)

/* ---- protobuf ---- */

struct protobuf_field {
    uint64_t number, value; /* value: of a varint or of four or eight bytes */
    unsigned wire;
    struct bytes bytes;
};

static int read_varint(struct bytes *in, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && in->n > 0; shift += 7) {
        unsigned char byte = (unsigned char)*in->data;

        in->data++;
        in->n--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return 0;
    }
    return -1;
}

/* The next field: 1, 0 at the end, -1 if it is broken. */
static int next_field(struct bytes *in, struct protobuf_field *field)
{
    uint64_t key, n;

    *field = (struct protobuf_field){ .number = 0 };
    if (in->n == 0)
        return 0;
    if (read_varint(in, &key) < 0)
        return -1;
    field->number = key >> 3;
    field->wire = (unsigned)(key & 7);
    switch (field->wire) {
    case 0:
        return read_varint(in, &field->value) < 0 ? -1 : 1;
    case 1:
    case 5:
        n = field->wire == 1 ? 8 : 4;
        if (n > in->n)
            return -1;
        memcpy(&field->value, in->data, n); /* little-endian, as all machines of ours are */
        break;
    case 2:
        if (read_varint(in, &n) < 0 || n > in->n)
            return -1;
        field->bytes = (struct bytes){ in->data, n };
        break;
    default:
        return -1;
    }
    in->data += n;
    in->n -= n;
    return 1;
}

static int broken(struct spm_reader *r, const char *what)
{
    return REFUSE(r, "%s: not a SentencePiece model: %s is cut off or broken", r->name, what);
}

static int read_piece(struct spm_reader *r, struct bytes in)
{
    struct spm_piece *piece = &r->pieces[r->n_pieces];
    struct protobuf_field field;
    int rc;

    *piece = (struct spm_piece){ .type = PIECE_NORMAL };
    while ((rc = next_field(&in, &field)) > 0) {
        uint32_t bits = (uint32_t)field.value;

        if (field.number == 1 && field.wire == 2)
            piece->text = field.bytes;
        else if (field.number == 2 && field.wire == 5)
            memcpy(&piece->score, &bits, sizeof bits);
        else if (field.number == 3 && field.wire == 0)
            piece->type = field.value;
    }
    if (rc < 0)
        return broken(r, "a piece");
    if (piece->text.n == 0 || piece->text.n > PIECE_BYTES_MAX ||
        memchr(piece->text.data, 0, piece->text.n) ||
        tokenizer_utf8_end(piece->text.data, piece->text.n) < piece->text.n)
        return REFUSE(r, "%s: piece %d is empty, too long or not valid UTF-8", r->name,
                      r->n_pieces);
    if (!isfinite(piece->score) || piece->type < PIECE_NORMAL || piece->type > PIECE_BYTE)
        return REFUSE(r, "%s: piece %d has a non-finite score or an unknown type", r->name,
                      r->n_pieces);
    r->n_pieces++;
    return 0;
}

static int read_trainer(struct spm_reader *r, struct bytes in)
{
    struct protobuf_field field;
    int rc;

    while ((rc = next_field(&in, &field)) > 0) {
        if (field.wire == 2 && field.number == 44)
            r->unknown_surface = field.bytes;
        if (field.wire != 0)
            continue;
        if (field.number == 3)
            r->model_type = field.value;
        else if (field.number == 24)
            r->dummy_is_suffix = field.value;
        else if (field.number == 35)
            r->byte_fallback = field.value;
        else if (field.number == 42)
            r->end = field.value < TOKENIZER_IDS_MAX ? (int32_t)field.value : -1;
    }
    return rc < 0 ? broken(r, "trainer_spec") : 0;
}

static int read_normalizer(struct spm_reader *r, struct bytes in)
{
    struct protobuf_field field;
    int rc;

    while ((rc = next_field(&in, &field)) > 0) {
        if (field.number == 2 && field.wire == 2)
            r->charsmap = field.bytes;
        if (field.wire != 0)
            continue;
        if (field.number == 3)
            r->add_dummy_prefix = field.value;
        else if (field.number == 4)
            r->remove_extra_whitespaces = field.value;
        else if (field.number == 5)
            r->escape_whitespaces = field.value;
    }
    return rc < 0 ? broken(r, "normalizer_spec") : 0;
}

static int count_pieces(struct spm_reader *r, struct bytes in)
{
    struct protobuf_field field;
    int rc, n = 0;

    while ((rc = next_field(&in, &field)) > 0)
        n += field.number == 1 && field.wire == 2;
    if (rc < 0)
        return broken(r, "the file");
    if (n == 0 || n > TOKENIZER_IDS_MAX - HIDDEN_MAX)
        return REFUSE(r, "%s: not a SentencePiece model: it has %d pieces", r->name, n);
    r->pieces = calloc((size_t)n, sizeof *r->pieces);
    return r->pieces ? 0 : err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
}

static int read_model(struct spm_reader *r, struct bytes in)
{
    struct protobuf_field field;
    size_t n_bytes = 0;

    if (count_pieces(r, in) < 0)
        return -1;
    while (next_field(&in, &field) > 0) {
        int rc = field.wire != 2     ? 0
                 : field.number == 1 ? read_piece(r, field.bytes)
                 : field.number == 2 ? read_trainer(r, field.bytes)
                 : field.number == 3 ? read_normalizer(r, field.bytes)
                                     : 0;

        if (rc < 0)
            return -1;
        n_bytes += field.number == 1 ? field.bytes.n : 0;
    }
    if (n_bytes > ALL_BYTES_MAX)
        return REFUSE(r, "%s: its pieces have more than %d bytes", r->name, ALL_BYTES_MAX);
    if (r->model_type != MODEL_UNIGRAM && r->model_type != MODEL_BPE)
        return REFUSE(r, "%s: model type %llu is not supported (only unigram and BPE)", r->name,
                      (unsigned long long)r->model_type);
    return 0;
}

/* ---- the vocabulary ---- */

static int add_pieces(struct spm_reader *r)
{
    struct tokenizer *t = r->tokenizer;
    bool is_bpe = r->model_type == MODEL_BPE;
    int unknown = -1;

    bpe_init(&t->bpe, &t->arena, false, r->n_pieces + HIDDEN_MAX, r->n_pieces + HIDDEN_MAX);
    t->bpe.n_visible = t->vocab_size = r->n_pieces;
    for (int i = 0; i < r->n_pieces; i++) {
        const struct spm_piece *piece = &r->pieces[i];

        if (bpe_add_token(&t->bpe, i, piece->text.data, piece->text.n) < 0)
            return REFUSE(r, "%s: piece %d occurs twice", r->name, i);
        if (piece->type == PIECE_UNKNOWN && unknown >= 0)
            return REFUSE(r, "%s: pieces %d and %d are both unknown", r->name, unknown, i);
        unknown = piece->type == PIECE_UNKNOWN ? i : unknown;
        if (piece->type == PIECE_CONTROL)
            t->bpe.tokens[i].n_bytes = 0;
        if (piece->type == PIECE_UNUSED && is_bpe)
            bpe_set_unused(&t->bpe, i);
        if (piece->type == PIECE_BYTE && !r->byte_fallback)
            return REFUSE(r, "%s: piece %d is a byte, but byte_fallback is off", r->name, i);
    }
    if (unknown < 0)
        return REFUSE(r, "%s: there is no unknown piece", r->name);
    t->bpe.unknown = unknown;
    t->bpe.fuse_unknown = 1;
    t->bpe.tokens[unknown].bytes =
        arena_strndup(&t->arena, r->unknown_surface.data, r->unknown_surface.n);
    t->bpe.tokens[unknown].n_bytes = (uint32_t)r->unknown_surface.n;
    int missing = r->byte_fallback ? bpe_find_fallback(&t->bpe) : -1;
    if (missing >= 0)
        return REFUSE(r, "%s: byte_fallback without a piece <0x%02X>", r->name, (unsigned)missing);
    return 0;
}

/* User-defined pieces: found first, by the normalizer as by the model. */
static void add_whole(struct spm_reader *r)
{
    struct tokenizer *t = r->tokenizer;
    struct added_token *items = arena_array(&t->arena, struct added_token, r->n_pieces);
    int n = 0;

    for (int i = 0; i < r->n_pieces; i++)
        if (r->pieces[i].type == PIECE_USER_DEFINED)
            items[n++] = (struct added_token){ .text = t->bpe.tokens[i].spelling,
                                               .n_bytes = r->pieces[i].text.n,
                                               .id = i };
    added_init(&t->bpe.whole, items, n);
}

/* ---- BPE ---- */

static int compare_scores(const void *x, const void *y)
{
    const struct spm_piece *a = *(struct spm_piece *const *)x, *b = *(struct spm_piece *const *)y;

    return (a->score < b->score) - (a->score > b->score);
}

static int rank_pieces(struct spm_reader *r)
{
    struct spm_piece **order = calloc((size_t)r->n_pieces, sizeof(struct spm_piece *));
    int32_t rank = 0;

    if (!order)
        return err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
    for (int i = 0; i < r->n_pieces; i++)
        order[i] = &r->pieces[i];
    qsort(order, (size_t)r->n_pieces, sizeof *order, compare_scores);
    for (int i = 0; i < r->n_pieces; i++) {
        rank += i > 0 && order[i]->score < order[i - 1]->score;
        order[i]->rank = rank;
    }
    free(order);
    return 0;
}

static size_t character_length(const char *text)
{
    size_t n;

    unicode_decode((const unsigned char *)text, &n);
    return n;
}

/* Whether merging makes it. */
static bool is_made(const struct spm_piece *piece)
{
    return piece->type == PIECE_NORMAL || piece->type == PIECE_UNUSED;
}

/* The symbol that a part of a piece would be: one that merging makes, or a character; -1: it never
 * is. */
static int32_t find_part(struct spm_reader *r, const char *text, size_t n)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    int32_t id = bpe_find(bpe, text, n);

    if (id >= r->n_pieces || (id >= 0 && is_made(&r->pieces[id])))
        return id;
    if (n > character_length(text) || (id >= 0 && r->pieces[id].type == PIECE_USER_DEFINED))
        return -1;
    if (id >= 0)
        return id;
    id = r->n_pieces + r->n_hidden;
    r->failed |= r->n_hidden == HIDDEN_MAX || bpe_add_token(bpe, id, text, n) < 0;
    if (r->failed)
        return REFUSE(r, "%s: more than %d characters of its pieces are not pieces", r->name,
                      HIDDEN_MAX);
    r->n_hidden++;
    return id;
}

/* Go through the merges; count them, or add them too. -1 on failure. */
static int64_t go_through_merges(struct spm_reader *r, int adds)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    int64_t n = 0;

    for (int i = 0; i < r->n_pieces; i++) {
        const char *text = bpe->tokens[i].spelling;
        size_t length = r->pieces[i].text.n;

        if (!is_made(&r->pieces[i]))
            continue;
        for (size_t at = character_length(text); at < length; at += character_length(text + at)) {
            int32_t left = find_part(r, text, at), right = find_part(r, text + at, length - at);

            if (r->failed)
                return -1;
            if (left < 0 || right < 0)
                continue;
            n++;
            if (adds)
                bpe_add_merge(bpe, left, right, r->pieces[i].rank, i);
        }
    }
    return n;
}

static int build_bpe(struct spm_reader *r)
{
    int64_t n = rank_pieces(r) < 0 ? -1 : go_through_merges(r, 0);

    if (n < 0)
        return -1;
    bpe_init_merges(&r->tokenizer->bpe, (int)n);
    go_through_merges(r, 1);
    bpe_find_ascii(&r->tokenizer->bpe);
    bpe_index_ascii(&r->tokenizer->bpe, r->tokenizer->keeps_spaces);
    return 0;
}

/* ---- unigram ---- */

static int build_unigram(struct spm_reader *r)
{
    struct tokenizer *t = r->tokenizer;
    struct unigram_piece *pieces = arena_array(&t->arena, struct unigram_piece, r->n_pieces);
    int n = 0, n_normal = 0;

    t->is_unigram = true;
    for (int i = 0; i < r->n_pieces; i++) {
        const struct spm_piece *piece = &r->pieces[i];

        n_normal += piece->type == PIECE_NORMAL;
        if (piece->type == PIECE_NORMAL || piece->type == PIECE_USER_DEFINED)
            pieces[n++] =
                (struct unigram_piece){ .text = t->bpe.tokens[i].spelling,
                                        .n_bytes = piece->text.n,
                                        .id = i,
                                        .score = piece->score,
                                        .is_user_defined = piece->type == PIECE_USER_DEFINED };
    }
    if (n_normal == 0)
        return REFUSE(r, "%s: it has no normal piece", r->name);
    return unigram_init(&t->unigram, &t->arena, pieces, n, true) < 0
               ? err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name)
               : 0;
}

/* ---- the normalizer ---- */

static int build_charsmap(struct spm_reader *r)
{
    struct tokenizer *t = r->tokenizer;
    struct charsmap *map = &t->charsmap;

    *map = (struct charsmap){ .whole = &t->bpe.whole,
                              .add_dummy_prefix = r->add_dummy_prefix != 0,
                              .remove_extra_whitespaces = r->remove_extra_whitespaces != 0,
                              .escape_whitespaces = r->escape_whitespaces != 0,
                              .dummy_is_suffix = r->dummy_is_suffix != 0 };
    t->normal[0] = (struct normal_step){ .kind = NORMAL_CHARSMAP };
    t->n_normal = 1;
    t->keeps_spaces = map->escape_whitespaces;
    t->strips_space = map->add_dummy_prefix && !map->dummy_is_suffix;
    if (r->charsmap.n > 0 && charsmap_read(map, &t->arena, r->charsmap.data, r->charsmap.n) < 0)
        return broken(r, "precompiled_charsmap");
    charsmap_index(map);
    return 0;
}

static int build(struct spm_reader *r, struct bytes in)
{
    struct tokenizer *t = r->tokenizer;

    if (read_model(r, in) < 0 || add_pieces(r) < 0)
        return -1;
    add_whole(r);
    if (build_charsmap(r) < 0)
        return -1;
    if ((r->model_type == MODEL_BPE ? build_bpe(r) : build_unigram(r)) < 0)
        return -1;
    t->added_by_id = arena_array(&t->arena, const struct added_token *, t->vocab_size);
    added_init(&t->passes[0], NULL, 0);
    added_init(&t->passes[1], NULL, 0);
    tokenizer_index_words(t);
    t->takes_frame = true;
    t->end_of_text = r->end >= 0 && r->end < t->vocab_size ? r->end : -1;
    return 0;
}

int tokenizer_parse_spm(struct tokenizer **out, const char *name, const char *data, size_t n_bytes,
                        struct err *err)
{
    static const char surface[] = " \xe2\x81\x87 ";
    struct spm_reader r = {
        .name = name,
        .err = err,
        .model_type = MODEL_UNIGRAM,
        .add_dummy_prefix = 1,
        .remove_extra_whitespaces = 1,
        .escape_whitespaces = 1,
        .unknown_surface = { surface, sizeof surface - 1 },
        .end = 2,
    };

    r.tokenizer = calloc(1, sizeof *r.tokenizer);
    if (!r.tokenizer)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", name);
    r.tokenizer->name = arena_strdup(&r.tokenizer->arena, name);
    int rc = build(&r, (struct bytes){ data, n_bytes });
    free(r.pieces);
    tokenizer_hash_file(r.tokenizer, data, n_bytes, NULL);
    if (rc == 0)
        *out = r.tokenizer;
    else
        tokenizer_close(r.tokenizer);
    return rc;
}
