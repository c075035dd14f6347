/*
 * program.h - a training step as data
 *
 * A program holds values (what ops read and write), functions (lists of ops: the forward of one
 * chunk, its backward, the update, ...) and entries (lists of actions, each of which runs a
 * function for a micro-batch). It is built by model/ and by the passes, checked by verify, given
 * addresses by place, and then executed by run, priced by plan and printed by print. It is pure: it
 * knows no memory, device or rank number. Ranks that differ only in their coordinate on axes that
 * divide tokens or the model (dp, tp) share one program; pipeline ranks have one each.
 *
 *     function forward 0                                  entry step
 *     F  %23 = embed tokens, embedding.weight               load  micro-batch 0
 *     F  %24, %25 = rmsnorm %23, norm.weight                run   forward 0   micro-batch 0
 *     ...                                                   run   backward 0  micro-batch 0
 *
 * A *value* is a matrix of a dtype. Most values are written once, by one op. A *cell* (parameter,
 * optimizer state, gradient accumulator, KV cache, run-time scalar, input) has a role and lives
 * across steps or micro-batches; the catalogue of ops marks the operands that an op accumulates
 * into or updates. A *view* names a part of another value, its base, and has the base's lifetime
 * and memory. A *local shard* is a view that is another part on each rank of an axis: part number c
 * of as many equal parts as there are ranks, where c is the rank's coordinate. Ranks with different
 * shards of one cell can therefore share one program. A value may be *over* another value or view:
 * it uses the same memory, before or after it, since one op, the last reader of the earlier one,
 * works in place and writes the later one.
 *
 * A base may have a *home*: a value like it in host memory, where its bytes are while it is *away*.
 * It is then in the device's memory only during *stays*, each within one function: from the op that
 * brings it (to_device) or first writes it to the last op that touches it before it is brought
 * again. If a stay writes it, it is sent home (to_host) behind the last write. Its memory between
 * stays belongs to others.
 *
 *     U  layers.0.up.m = to_device layers.0.up.m.home        a stay begins
 *     U  adamw ..., ~layers.0.up.m, ...                      updates it
 *     U  layers.0.up.m.home = to_host layers.0.up.m
 *     U  await layers.0.up.m                                 and ends: the copy has left
 *
 * A *host op* is one whose first input lies in host memory: the host's kernels compute it, and all
 * its operands lie there. An optimizer's op may be one (TRAIT_ON_HOST): it then works on the homes
 * of its states, which come and go no more.
 *
 *     U  %90 = to_host layers.0.up.weight.grad
 *     U  %91 = adamw %90, ..., ~layers.0.up.m.home, ...
 *     U  layers.0.up.weight = to_device %91
 *
 * The *spread* of a value over an axis says how its ranks hold it: all the same, rows or columns
 * each, or partial (each rank has a summand of the sum that the value stands for).
 *
 * Ids are indices into the program's tables; id 0 is the absent operand. Everything is in the
 * program's arena.
 */
#ifndef PROGRAM_PROGRAM_H
#define PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/init.h"
#include "layout/mesh.h"
#include "ops/op_info.h"
#include "ops/update_groups.h"
#include "program/parameter.h"

/* The lifetime of a value. For plain values place decides it from the functions that use them. */
enum scope {
    SCOPE_PASS,  /* one run of one function: scratch memory */
    SCOPE_STASH, /* from one function of a micro-batch to another: one copy a slot */
    SCOPE_JOB,   /* the whole job: cells */
    N_SCOPES
};

enum cell_role {
    ROLE_NONE,   /* a plain value, not a cell */
    ROLE_WEIGHT, /* parameter as the forward reads it */
    ROLE_MASTER, /* fp32 copy that the optimizer updates, where the weight is not updated itself */
    ROLE_MOMENT1,
    ROLE_MOMENT2,
    ROLE_SCALE,    /* of blocks of a moment (ops.h: OPS_STATE_BLOCK) */
    ROLE_EMA,      /* fp32 moving average of the master */
    ROLE_GRADIENT, /* accumulator, or a bucket of them */
    ROLE_INPUT,    /* tokens, targets, ...: written by a LOAD action, a copy per slot */
    ROLE_SCALAR,   /* written or read by the host */
    ROLE_CONSTANT, /* rope table */
    ROLE_CACHE,    /* keys and values of generation */
    ROLE_HOME,     /* where a cell's bytes are while it is away */
    ROLE_ERROR,    /* what codecs have lost of a bucket's gradients: added to the next ones; what
                      else they keep from step to step */
    ROLE_CODES,    /* weights rounded for products, by each step (fp8_weights.c) */
    ROLE_PAGES,    /* the pool of pages, and the list of those that are free (pages.c) */
    N_ROLES
};

/* The class of an op: forward, recomputed, backward for inputs, for weights, update. */
enum phase { PHASE_F, PHASE_R, PHASE_B, PHASE_W, PHASE_U, N_PHASES };

/*
 * Ops of one stream run in the order of the list; streams wait for each other where values demand
 * it (order.h). Stage boundaries of the pipeline have one stream for each neighbour, direction, and
 * pass (forward, backward), so that no transfer is queued behind one that it does not depend on.
 */
enum stream {
    STREAM_COMPUTE,
    STREAM_TP,
    STREAM_CP, /* what attention exchanges, along ulysses and cp */
    STREAM_EP, /* what experts exchange */
    STREAM_DP_GATHER,
    STREAM_DP_REDUCE,
    STREAM_PP, /* scalars of all stages */
    STREAM_F_TO_NEXT,
    STREAM_F_TO_PREVIOUS,
    STREAM_F_FROM_NEXT,
    STREAM_F_FROM_PREVIOUS,
    STREAM_B_TO_NEXT,
    STREAM_B_TO_PREVIOUS,
    STREAM_B_FROM_NEXT,
    STREAM_B_FROM_PREVIOUS,
    STREAM_COPY_OUT, /* to_host */
    STREAM_COPY_IN,  /* to_device */
    N_STREAMS
};

/* When an accumulating op starts from zero. */
enum first_mode {
    FIRST_MICRO_BATCH, /* in the first micro-batch of the step (or as the action says) */
    FIRST_ALWAYS,      /* every time: the gradient of one micro-batch alone */
    FIRST_NEVER,       /* always adds */
};

/*
 * Memory is allocated by segment: one block of exactly the planned size, in the segment's space.
 * Host memory and the file have three segments each, for cells, for slots of the stash, and for
 * scratch.
 */
enum segment {
    SEGMENT_WEIGHTS,
    SEGMENT_GRADIENTS,
    SEGMENT_STATES,
    SEGMENT_STASH,
    SEGMENT_SCRATCH,
    SEGMENT_COMM,
    SEGMENT_LIBRARY,
    SEGMENT_CACHE,
    SEGMENT_INPUTS,
    SEGMENT_HOST_CELLS,
    SEGMENT_HOST_STASH,
    SEGMENT_HOST_SCRATCH,
    SEGMENT_FILE_CELLS,
    SEGMENT_FILE_STASH,
    SEGMENT_FILE_SCRATCH,
    N_SEGMENTS
};
enum space segment_space(enum segment segment);

/*
 * n elements first, first + step, first + 2 step, ...; repeated n_times, each time `apart` more
 * than the time before. All are exact in i32 or fp64.
 */
struct content_run {
    double first, step, apart;
    int64_t n, n_times;
};

/* Elements after the last run are 0. */
struct content_runs {
    const struct content_run *runs;
    int64_t n;
};

struct value {
    const char *name; /* a cell's global name; NULL for most plain values, printed as %id */
    int64_t rows, cols;
    int64_t stride; /* elements from row to row; cols but in views */
    enum dtype dtype;
    enum spread spread[N_AXES];
    enum cell_role role;
    enum scope scope;
    enum space space; /* a view's is its base's */
    int base;         /* a view's base (never a view itself), else 0 */
    int64_t offset;   /* a view's first element in its base */
    int over;         /* the value or view whose memory it uses, at its own offset and stride, since
                       an op works in place between the two; else 0 */
    int home;         /* a base's: the value in other memory where its bytes are while it is away
                         (offload.c); 0: it is never away */
    int shard_axis;   /* 1 + axis: a view that begins its coordinate * rows * cols further */
    int outer_shard_axis; /* 1 + axis: a shard of a shard, that begins its coordinate on this axis *
                             size of shard_axis * rows * cols further; else 0 */
    int bucket; /* 1 + the bucket whose weights these are, as a shard, gathered, or a view */
    /* A constant's elements where the program computes them, else NULL, and the host does. Long
     * tables are runs, which are expanded only when they are read (program_fill_content). */
    const void *content;
    const struct content_runs *runs;
    /* A base's that async ops write and read in parts (slice.c), so that each op waits for those
     * of its own parts alone: in each `part_period` rows the first part_rows are part 0, the next
     * part 1, ... 0: it is one part. */
    int64_t part_rows, part_period;
    /* A base's whose rows ops write and read in groups, and where a group's lie they alone know
     * (slice.c, slice_experts.c): each group is a part. Of a view, 1 + the first of its
     * `n_groups` groups. 0: none. */
    int n_groups, group;
    int boundary;         /* a layer's input: kept by full recomputation */
    enum segment segment; /* by place */
    int stash;            /* by place: which, for values of SCOPE_STASH */
    size_t place_bytes;   /* by place: offset in the segment (stash: in a slot) */
};

struct op {
    enum op_kind kind;
    struct op_attributes attributes;
    int in[OPS_MAX_INPUTS]; /* value ids, 0 absent */
    int out[OPS_MAX_OUTPUTS];
    enum phase phase;
    enum stream stream;
    enum first_mode first;
    int layer;            /* for output and error messages; -1 outside layers */
    size_t scratch_bytes; /* by program_size_scratch */
};

/* The ops of one chunk and phase. */
struct function {
    const char *name; /* "forward 0" */
    int chunk;
    struct op *ops;
    int n_ops, capacity;
};

enum action_kind { ACTION_LOAD, ACTION_RUN, ACTION_GATE };

/* One action of a rank. */
struct action {
    uint8_t kind;
    uint8_t first;    /* RUN: accumulators of FIRST_MICRO_BATCH start from zero; GATE: the norm is
                            known, and the host may set skip_update */
    int16_t function; /* RUN */
    int32_t micro_batch; /* LOAD, RUN; -1: not for a micro-batch */
};
_Static_assert(sizeof(struct action) <= 16, "actions are at most 16 bytes");

enum entry_kind {
    ENTRY_STEP,
    ENTRY_GATHER, /* all-gathers weights, before EVALUATE and before weights are read between steps;
                     empty where weights are gathered within the other entries (zero 3) */
    ENTRY_EVALUATE,
    ENTRY_EVALUATE_END,
    ENTRY_PREFILL,
    ENTRY_DECODE,
    ENTRY_FEED,         /* rows into the cache, and the last layer's output into ports.stream */
    ENTRY_SCORE,        /* logit statistics of target tokens at some of these rows */
    ENTRY_RECHECK,      /* the step's first micro-batch once more: recheck.c */
    ENTRY_RERUN,        /* the step once more, with experts' rows recomputed: pages.c */
    ENTRY_UNCOMPRESSED, /* the step before a codec's first (compress.c) */
    N_ENTRIES
};

/* Whether accumulators start in its first micro-batch, and it ends in an update. */
static inline bool entry_is_step(enum entry_kind entry)
{
    return entry == ENTRY_STEP || entry == ENTRY_RERUN || entry == ENTRY_UNCOMPRESSED;
}

struct entry {
    struct action *actions;
    int n_actions;
};

/* Cells that the host writes or reads; 0 where a program has none. */
struct ports {
    /*
     * Inputs. With parts of sequences on several ranks (layout/context.h) tokens, targets and
     * positions are of the rank's rows, and so are `rows`, their numbers among the micro-batch's;
     * what attention reads is of the rows that it has when heads are exchanged. Without,
     * attention_positions is 0: they are positions.
     */
    int tokens, targets, positions, samples, rows;
    int attention_positions;
    int starts; /* of packed sequences: for each row of attention, the first row of its document */
    int last;   /* for each row of attention, its own number in its sequence */
    int window_first, window_last; /* for each row of attention, what it sees of what
                                      gather_window has made; 0: no layer has it */
    int ring_first, ring_last; /* for each step of a ring and each row of attention, what it sees of
                                  the keys of that step */
    int loss_scale;     /* [1 x 1] fp32: gradient_scale / tokens with loss of the global batch */
    int gradient_scale; /* [1 x 1] fp32: factor in all gradients, a power of two; 0: it is 1 */
    int scalars;        /* [1 x OPS_N_SCALARS] */
    int group_scalars[UPDATE_GROUPS_MAX]; /* alike, of groups of parameters with a learning rate of
                                             their own; 0: scalars */
    int loss, loss_total;                 /* [1 x 1] fp64: of this rank, and summed over ranks */
    int squares, squares_total;           /* alike, of logits' log sum exp; 0 without z-loss */
    int router_stats, router_stats_total; /* [1 x L (1 + m)] fp64: of each of L layers with m
                                             experts; likewise. 0 without experts */
    int dropped, dropped_total;  /* [1 x L] fp64: choices that experts of each such layer have no
                                   capacity for; likewise. 0: all are kept */
    int codec_sums, codec_total; /* [1 x 2 n], [1 x 2] fp64: sums of squares that codecs have found,
                                    of n flat cells of this rank, and of all ranks; 0: no codec */
    int norm, clip_factor, skip_update; /* gradient_norm's outputs */
    int eval_loss, eval_total;
    int rope_table;
    int last_rows; /* [S x 1] i32: rows whose logits are computed */
    int logits;    /* [S x V] fp32; over tp ranks' parts of V, padded, one after the other:
                      [tp S x ceil(V / tp)] */
    /* Scoring: the cache segment of each row; the table of segments; the residual stream after the
     * last layer; rows of it to score; the target token of each; the statistics of their logits
     * (with tp those of each rank's part of the vocabulary, one after the other). Of these, and of
     * logits and last_rows, a stage has those that its ops use. */
    int segment, segments, stream, query_rows, target_tokens, stats;
};

/*
 * Values of SCOPE_STASH, of one space, that are in one slot. Micro-batch m is in slot m % n_slots,
 * and no two micro-batches that live at one time have one slot. Every schedule runs each function
 * on its micro-batches in increasing order; where all micro-batches have one size, n_slots is
 * therefore the number that live at one time. Alternatively (stash_share.c) a table maps
 * micro-batches to slots; its entry for a micro-batch that is not in the stash is undefined.
 * Stashes with equal `shared`, each of another chunk, have one set of slots: a slot belongs to one
 * of them at a time, and their values have equal offsets in it or do not overlap. Stashes that
 * ENTRY_RERUN alone uses lie where those do that it does not use.
 *
 *     n_slots 2:   | slot 0: %7 %9 %12 | slot 1: %7 %9 %12 |     m = 0 2 4 ... in slot 0
 */
struct stash {
    int n_slots;
    const int *slots; /* by micro-batch of all entries; NULL: m % n_slots */
    int shared;       /* 0: its slots are its own */
    enum segment segment;
    size_t slot_bytes, begin_bytes; /* in the segment */
};

/* A table of pages, in the stash, and the pages that are planned for it in a slot. */
struct paged {
    int table;
    int64_t n_pages;
    struct paged *next;
};

/* By pages.c: cells, 0 where nothing is in pages: [n x elements of one]; [1 x 2 + n] i32. */
struct page_pool {
    int pool, free;
    struct paged *tables;
};

struct slice_site; /* by slice.c (passes.h) */

struct program {
    struct arena arena;
    struct mesh mesh;
    struct codec_choice codec; /* of what gradients are exchanged as; by shard_gradients */
    enum dtype gradient_dtype; /* of accumulators of 2-D parameters; initially DTYPE_F32 */
    bool half_away;            /* how masters become bf16 weights; else nearest, halves to even */
    struct value *values;
    int n_values, values_capacity;
    struct parameter *parameters;
    int n_parameters, parameters_capacity;
    struct bucket *buckets; /* by shard_gradients */
    int n_buckets;
    struct function *functions;
    int n_functions, functions_capacity;
    struct entry entries[N_ENTRIES];
    struct ports ports;
    struct stash *stashes; /* by place */
    int n_stashes;
    struct page_pool pages;
    struct slice_site *slice_sites;
    size_t segment_bytes[N_SEGMENTS]; /* by place */
    size_t stream_scratch[N_STREAMS]; /* by place: where a stream's part of SEGMENT_COMM begins */
};

/* An empty program; release frees its arena, and with it everything in it. */
void program_init(struct program *program, const struct mesh *mesh);
void program_release(struct program *program);

/*
 * A plain dense value, in the device's memory or in the host's. Its spreads are derived when the op
 * that writes it is emitted.
 */
int program_host_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype);
int program_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype);

/* A cell, initially SPREAD_SAME on every axis. The name is copied. */
int program_cell(struct program *program, enum cell_role role, const char *name, int64_t rows,
                 int64_t cols, enum dtype dtype);

/*
 * A view of base (or, if base is a view, of its base): rows x cols from element `offset` of base,
 * with `stride` between rows. It has the base's dtype, spreads, role and scope.
 */
int program_view(struct program *program, int base, int64_t offset, int64_t rows, int64_t cols,
                 int64_t stride);

/*
 * n groups, from group `first` on, of a dense value that owns its memory and has `of` of them:
 * `rows` rows, all that an op may find there. What reads or writes it is given the whole.
 */
int program_groups(struct program *program, int base, int of, int first, int n, int64_t rows);

/* Of the same, one group whose rows lie together: `rows` of them from `row` on. */
int program_rows_of_group(struct program *program, int base, int of, int group, int64_t row,
                          int64_t rows);

/* Rows of the value are tokens: SPREAD_ROWS on each axis that divides tokens. Or sequences: on each
 * of them along which ranks have other sequences. */
void program_split_rows(struct program *program, int id);
void program_split_sequences(struct program *program, int id);

/*
 * The rank's local shard, over the axis, of a dense value: part of its rows, SPREAD_ROWS there, or,
 * if it has one row, of its columns, SPREAD_COLS. Of a local shard over another axis it is this
 * rank's shard of that. name: NULL for none.
 */
int program_local_shard(struct program *program, const char *name, int value, enum mesh_axis axis);

/* The spread of a flat cell that contains a tensor of this spread: if split, then by elements. */
static inline enum spread spread_flat(enum spread spread)
{
    return spread == SPREAD_ROWS ? SPREAD_COLS : spread;
}

/* Give a flat cell of a bucket the spreads of `like`, on every axis but the one that shards it. */
void program_lie_like(struct program *program, int id, int like, enum mesh_axis except);

/* Give a value the spread over the axis, which may be a composite. */
void program_spread_over(struct program *program, int id, enum mesh_axis axis, enum spread spread);

/* The base of a view, or id itself. */
static inline int program_whole(const struct program *program, int id)
{
    return program->values[id].base ? program->values[id].base : id;
}

/* The parts of a base, of rows or groups; and those of them in which elements of a value are. */
#define PROGRAM_MAX_PARTS 16
struct value_parts {
    int first, n;
};
int program_n_parts(const struct program *program, int base);
struct value_parts program_parts(const struct program *program, int id);

/*
 * Do two values have an element in common, as views of one base? Of columns of the same rows this
 * is exact; other views may lie between each other's rows.
 */
int program_overlap(const struct program *program, int a, int b);

/* The value that owns the memory of id: after bases and `over`. */
int program_base(const struct program *program, int id);

/* Whether a base keeps its bytes in the device's memory from one function to the next whatever
 * happens: cells, but for those with a home. */
static inline int program_is_lasting(const struct value *v)
{
    return v->role != ROLE_NONE && !v->home;
}

/* A parameter with its weight cell (dtype; 1-D ones are fp32 always). Returns its index. */
int program_parameter(struct program *program, const char *name, int n_dims, int64_t rows,
                      int64_t cols, enum dtype dtype, enum init_kind init, double init_std);

/*
 * Divide a new parameter among the ranks of an axis. Its rows or columns are then those of a rank's
 * part, which may be split again over another axis. One-dimensional parameters are split along
 * columns. No effect if the axis has one rank, or along is SPREAD_SAME.
 */
void program_split_parameter(struct program *program, int parameter, enum mesh_axis axis,
                             const struct parameter_split *split);

/* The axis over which ZeRO shards it; and into how many parts it shards a bucket. */
enum mesh_axis program_shard_axis(const struct program *program, int parameter);
int program_n_shards(const struct program *program, int bucket);

/* Whether ranks of this axis, or of any axis, have different parts. */
int program_parameter_is_split(const struct program *program, int parameter, enum mesh_axis axis);
int program_parameter_is_part(const struct program *program, int parameter);

/*
 * The rows (along is SPREAD_ROWS) or columns (SPREAD_COLS) of the whole parameter that a rank has:
 * this number of ranges, in local order, without padding; some may be empty. One range of
 * everything if the parameter is not split along this dimension.
 */
int program_parameter_n_ranges(const struct program *program, int parameter, enum spread along);
struct parameter_range program_parameter_range(const struct program *program, int parameter,
                                               enum spread along, const struct mesh_place *place,
                                               int i);

/*
 * The elements [begin, end) of its part of a parameter for which a rank has master and moments,
 * maybe none; in those cells they begin at element `offset`. All elements if the optimizer is not
 * sharded.
 */
struct parameter_part {
    int64_t begin, end, offset;
    int master, moment1, moment2, weight; /* weight: its part alike, rounded from the master */
    int low; /* where master is weight, and has the upper words alone; or 0 */
    int m_scale,
        v_scale; /* of the moments' blocks, whose first is that of element `offset`; or 0 */
    int ema;     /* the master's moving average, or 0 */
};
struct parameter_part program_parameter_part(const struct program *program, int parameter,
                                             const struct mesh_place *place);

/* Index of the parameter whose weight is this value, or -1. */
int program_parameter_of(const struct program *program, int weight);

/*
 * The accumulator for the next use of the parameter: a new one, or where the uses are repeated
 * that which it got before; 0 if it is not trainable.
 */
int program_add_gradient(struct program *program, int parameter);

/*
 * Ops emitted from now on repeat those emitted so far (for micro-batches of another size): with as
 * many uses of each parameter, in the same order, that add to the same accumulators.
 */
void program_repeat_uses(struct program *program);

/* The stream of collectives over an axis, except sends and receives between stages; and of sums
 * over the axis of gradients and of losses. */
enum stream stream_of_axis(enum mesh_axis axis);
enum stream stream_of_sums(enum mesh_axis axis);

/* A new function; returns its index (pointers to functions do not survive this). */
int program_function(struct program *program, const char *name, int chunk);

/*
 * Append op to function. Checks shapes (op_check) and derives the outputs' spreads; either failing
 * is a bug of the caller. Attributes beyond kind default to zero. Returns the op's index.
 */
int program_emit(struct program *program, int function, const struct op *op);

/* Same, but in front of ops[index], or in its place. */
int program_insert(struct program *program, int function, int index, const struct op *op);
void program_change(struct program *program, int function, int index, const struct op *op);

/*
 * Whether the spreads of the op's outputs over the axis follow from those of its inputs. Pipeline
 * stages have values of their own, so over pp that holds for collectives alone; a received value
 * has the spreads that the sender's has.
 */
int program_has_spread(const struct program *program, const struct op *op, int axis);

/* Whether it is a collective over the axis, or over a composite that has it. */
int program_is_over(const struct op *op, int axis);

/* Whether the host's kernels compute the op; whether some op of the program is such. */
bool program_is_host_op(const struct program *program, const struct op *op);
bool program_has_host_ops(const struct program *program);

/* By base value: that whose home it is, else 0. */
int *program_list_owners(const struct program *program, struct arena *arena);

/* Kind, attributes, and shapes of the operands, as op_check, op_flops and kernels take them. */
struct op_shape program_op_shape(const struct program *program, const struct op *op);

/*
 * Whether the op adds to this output instead of replacing it, except where op.first says that it
 * starts from zero: the catalogue's "+=", and gradients' shards of a reduce_scatter, which run adds
 * to.
 */
int program_accumulates(const struct program *program, const struct op *op, int output);

/*
 * When this output of an accumulating op starts from zero. Sums that are not gradients (the loss)
 * are over all the rank's micro-batches, also where gradients are over one; a sum in a plain value
 * (the gradient of something computed from a parameter) is over one micro-batch always.
 */
enum first_mode program_first_mode(const struct program *program, const struct op *op, int output);

/* The slot of a stash value, or input, that holds micro-batch m; 0 for others and for m < 0. */
int program_slot(const struct program *program, int id, int micro_batch);

/* The value's offset in its segment, for a micro-batch and the first rank of a local shard's
 * axis. */
size_t program_place(const struct program *program, int id, int micro_batch);

/* Whether the program computes the elements of a constant; writes them, dense. */
int program_has_content(const struct program *program, int id);
void program_fill_content(const struct program *program, int id, void *elements);

/* Bytes of a dense value. */
size_t program_value_bytes(const struct program *program, int id);

/*
 * Set each op's scratch_bytes by calling scratch(context, shape). Compute ops need the scratch of
 * the backend, collectives that of run, host ops none.
 */
typedef size_t (*program_scratch_fn)(void *context, const struct op_shape *shape);
void program_size_scratch(struct program *program, program_scratch_fn scratch, void *context);

const char *phase_name(enum phase phase);       /* "F" */
const char *stream_name(enum stream stream);    /* "dp_reduce" */
const char *segment_name(enum segment segment); /* "weights" */
const char *role_name(enum cell_role role);
const char *entry_name(enum entry_kind entry);

#endif
