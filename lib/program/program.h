/*
 * program.h - a training step as data
 *
 * A program holds values (what ops read and write), functions (lists of ops: one chunk's forward,
 * its backward, the update, ...) and entries (lists of actions that bind functions to micro-batches
 * and slots). It is built by model/ and by the passes, checked by verify, placed by place, and then
 * executed by run, priced by plan and printed by print. Pure: it knows no memory, device or rank
 * number; ranks of one layout class share one program.
 *
 * A value is a logical rectangle of numbers with a dtype. Most are written once, by one op. A
 * *cell* (parameter, optimizer state, gradient accumulator, KV cache, run-time scalar, input) has a
 * role and lives across steps or micro-batches; ops that accumulate into it or update it say so in
 * the catalogue. A *view* names a part of another value, its base: lifetime, place and overlap are
 * the base's. An *own part* is a view that means another part on each rank of an axis: the
 * coordinate-th of as many equal ones. So ranks that keep shards of one cell share one program.
 * A value may lie *over* another, or a view of one: in its memory, before or after it. The op that
 * reads the earlier of the two last writes the later.
 *
 * Ids are indices into the program's tables; 0 is no value. Everything lives in the program's
 * arena.
 */
#ifndef PROGRAM_PROGRAM_H
#define PROGRAM_PROGRAM_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/init.h"
#include "layout/mesh.h"
#include "ops/op_info.h"

/* Where a value lives. place decides it for plain values from who writes and reads them. */
enum scope {
    SCOPE_PASS,  /* within one run of one function */
    SCOPE_STASH, /* from one function of a micro-batch to another: a copy per slot */
    SCOPE_JOB,   /* always */
    N_SCOPES
};

enum cell_role {
    ROLE_NONE,   /* a value, no cell */
    ROLE_WEIGHT, /* parameter as the forward reads it */
    ROLE_MASTER, /* fp32 copy that the optimizer updates, where the weight is not updated itself */
    ROLE_MOMENT1,
    ROLE_MOMENT2,
    ROLE_GRADIENT, /* accumulator, or a bucket of them */
    ROLE_INPUT,    /* tokens, targets, ...: written by a LOAD action, a copy per slot */
    ROLE_SCALAR,   /* written or read by the host */
    ROLE_CONSTANT, /* rope table */
    ROLE_CACHE,    /* keys and values of generation */
    N_ROLES
};

enum phase { PHASE_F, PHASE_R, PHASE_B, PHASE_W, PHASE_U, N_PHASES };

/*
 * Ops of one stream run in the order of the list; those of other streams wait where they must.
 * Boundaries of the pipeline have one stream for each neighbour, each way, forward and backward: so
 * that no transfer waits for one that is not its business.
 */
enum stream {
    STREAM_COMPUTE,
    STREAM_TP,
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
    FIRST_NEVER,       /* adds to what is there */
};

/*
 * Memory is allocated by segment: one block each, of exactly the planned size, in the segment's
 * space. Of the host's, cells are in one, slots in one, and what lives within one pass in one.
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
    N_SEGMENTS
};
enum space segment_space(enum segment segment);

/*
 * n elements, each `step` more than the one before it; and that n_times, each time `apart` more than
 * the time before: i32 or fp64, exact as such.
 */
struct content_run {
    double first, step, apart;
    int64_t n, n_times;
};

/* Elements behind the last run are 0. */
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
    int over;         /* the value or view in whose memory it lies, as its offset and stride then
                       say, since an op works in place between the two; else 0 */
    int shard_axis;   /* 1 + axis: a view that begins its coordinate * rows * cols further */
    int bucket;       /* 1 + that whose weights these are: a shard, gathered, or one of such */
    /* A constant's elements, where the program knows them; else the host does. Long tables are
     * said as runs, and written out only where they are to be read (program_fill_content). */
    const void *content;
    const struct content_runs *runs;
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
    int layer;            /* for people; -1 outside layers */
    size_t scratch_bytes; /* by program_size_scratch */
};

/* The ops of one chunk and phase. */
struct function {
    const char *name; /* "forward 0" */
    int chunk;
    struct op *ops;
    int n_ops, capacity;
};

#define TENSOR_MAX_USES 4
#define PARAMETER_MAX_PIECES 3 /* q, k and v */

/*
 * What an axis' ranks have of a parameter. Split along rows or columns, each of its pieces (q heads,
 * k heads, v heads; gate, up) by itself into as many equal parts as there are ranks, of which a rank
 * has one of each, one after the other. A piece that does not divide (a vocabulary) is padded with
 * zeros at its end, so that all ranks' parts are alike. The pieces may come again and again: gate
 * and up of each expert.
 */
struct parameter_split {
    enum spread along; /* SPREAD_SAME: every rank has all of it */
    int n_pieces;
    int64_t pieces[PARAMETER_MAX_PIECES]; /* extents in what is split */
    int n_repeats;                        /* of all pieces; 0 is once */
    enum mesh_axis axis;                  /* set by program_split_parameter */
};

/* An expert's matrix may be split by experts, and each of them again. */
#define PARAMETER_MAX_SPLITS 2

/* Rows or columns [local, local + n) of a rank's part are the whole's from there. */
struct parameter_range {
    int64_t local, n, whole;
};

/*
 * Parameters whose gradients travel together. Where the optimizer is sharded (zero 1) their weights
 * and states lie like the gradients, in flat cells or shards of such: a parameter begins at the
 * same element of each, at an edge of a norm block, and all its elements follow each other. Each
 * shard is the dp_size-th part. 0 where there is none.
 */
struct bucket {
    int64_t n_elements;             /* a multiple of dp_size * OPS_NORM_BLOCK */
    int n_uses;                     /* one accumulator of all the parameters a use; 0: frozen */
    int gradients[TENSOR_MAX_USES]; /* whole: sums of this rank */
    int shards[TENSOR_MAX_USES];    /* sums over dp; where dp has more ranks than one */
    int weights;                  /* whole: as the forward reads them; 0 where no cell holds that */
    int weight_shard;             /* the rank's own part of weights, or (zero 3) its shard */
    int master, moment1, moment2; /* shards; master is weight_shard where those are updated */
};

/* A parameter with everything that belongs to it. */
struct parameter {
    const char *name;               /* global: "layers.0.qkv.weight" */
    int64_t rows, cols;             /* of the rank's part */
    int64_t whole_rows, whole_cols; /* of all of it: equal but where it is split */
    int n_splits;                   /* each of the part that the one before has left */
    struct parameter_split splits[PARAMETER_MAX_SPLITS];
    int n_dims; /* 1: rows is 1 and the logical shape is [cols] */
    enum init_kind init;
    double init_std; /* of INIT_UNIFORM the bound: from -init_std to init_std */
    int trainable;
    int weight, master, moment1, moment2; /* cells; master is weight where there is no other: it is
                                             fp32, or states are bf16; the last
                                             three are 0 where a bucket has the states. weight is
                                             a mere name where hold_weights gathers it */
    int gradients[TENSOR_MAX_USES];       /* one accumulator a use, in use order */
    int n_gradients;
    int n_uses_found;      /* by program_add_gradient, since program_repeat_uses */
    int is_copy;           /* of a tied parameter: another stage's is saved and counted */
    int tied_peer;         /* +1, -1: the rank along pp that has another use of it; 0: none */
    int bucket;            /* the sharded bucket it lies in, or -1 */
    int64_t bucket_offset; /* its first element there */
};

enum action_kind { ACTION_LOAD, ACTION_RUN, ACTION_GATE };

/* What one rank does next, in at most 16 bytes. */
struct action {
    uint8_t kind;
    uint8_t first;       /* RUN: accumulators start over where they follow micro-batches */
    int16_t function;    /* RUN */
    int32_t micro_batch; /* LOAD, RUN; -1 where there is none */
};
_Static_assert(sizeof(struct action) <= 16, "actions are at most 16 bytes");

enum entry_kind {
    ENTRY_STEP,
    ENTRY_GATHER, /* makes weights whole, before EVALUATE and whoever reads them between steps;
                     empty where nothing is to be held so long (zero 3) */
    ENTRY_EVALUATE,
    ENTRY_EVALUATE_END,
    ENTRY_PREFILL,
    ENTRY_DECODE,
    ENTRY_FEED,  /* rows into the cache and, of the last layer, into ports.stream */
    ENTRY_SCORE, /* what the next tokens of some of them are worth */
    N_ENTRIES
};

struct entry {
    struct action *actions;
    int n_actions;
};

/* Cells that the host fills or reads; 0 where a program has none. */
struct ports {
    int tokens, targets, positions, samples; /* inputs */
    int starts; /* input, where sequences are packed: each row's sample's first, in its sequence */
    int loss_scale;     /* [1 x 1] fp32: gradient_scale / learned tokens of the global batch */
    int gradient_scale; /* [1 x 1] fp32: by which gradients are too large, a power of two; 0: by 1 */
    int scalars;        /* [1 x OPS_N_SCALARS] */
    int loss, loss_total;                 /* [1 x 1] fp64: of this rank, over all */
    int router_stats, router_stats_total; /* [1 x L (1 + m)] fp64: router's of each layer that has
                                             experts; likewise. 0 where none has */
    int norm, clip_factor, skip_update;   /* gradient_norm's outputs */
    int eval_loss, eval_total;
    int rope_table;
    int last_rows; /* [S x 1] i32: rows whose logits are wanted */
    int logits;    /* [S x V] fp32; over tp ranks' parts of V, padded, one after the other:
                      [tp S x ceil(V / tp)] */
    /* Scoring: each row's segment of the cache, the segments, the residual stream behind the last
     * layer, rows of it that are asked for, the tokens hoped for there, what is to be known of
     * their logits (over tp of each rank's part of them, one after the other). Of these, and of
     * logits and last_rows, a stage has what it uses. */
    int segment, segments, stream, query_rows, target_tokens, stats;
};

/*
 * Values of SCOPE_STASH, of one space, that lie together. Micro-batch m lies in slot m % n_slots,
 * where no two that live at one time meet. Every schedule runs each function on its micro-batches in increasing order;
 * where these follow one another (they are all of one size) n_slots is how many live at one time at
 * most. Or (stash_share.c) a table says the slot: that of a micro-batch which lies nowhere means
 * nothing. Stashes of one number `shared`, each of another chunk, have one set of slots: of all that
 * lie in it at one time each has a slot to itself, and their values lie in it at equal places or
 * apart from each other's.
 */
struct stash {
    int n_slots;
    const int *slots; /* by micro-batch of all entries; NULL: as said above */
    int shared;       /* 0: its slots are its own */
    enum segment segment;
    size_t slot_bytes, begin_bytes; /* in the segment */
};

struct program {
    struct arena arena;
    struct mesh mesh;
    enum dtype gradient_dtype; /* of accumulators of what has two dims; DTYPE_F32 at first */
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
    size_t segment_bytes[N_SEGMENTS]; /* by place */
    size_t stream_scratch[N_STREAMS]; /* by place: where a stream's part of SEGMENT_COMM begins */
};

/* An empty program; release frees all that it holds. */
void program_init(struct program *program, const struct mesh *mesh);
void program_release(struct program *program);

/*
 * A plain value, dense, in the device's memory, or in the host's. Its spreads are set by the op that
 * writes it.
 */
int program_host_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype);
int program_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype);

/* A cell, `same` on every axis until told otherwise. The name is copied. */
int program_cell(struct program *program, enum cell_role role, const char *name, int64_t rows,
                 int64_t cols, enum dtype dtype);

/*
 * A view of base (or, if base is a view, of its base): rows x cols from element `offset` of base,
 * with `stride` between rows. It has the base's dtype, spreads, role and scope.
 */
int program_view(struct program *program, int base, int64_t offset, int64_t rows, int64_t cols,
                 int64_t stride);

/* Mark a value of tokens: the ranks of each axis that divides them have other rows each. */
void program_split_rows(struct program *program, int id);

/*
 * The rank's own part over the axis of a dense value: of its rows, split(rows) there, or, if it has
 * one row, of its columns, split(cols). name: NULL for none.
 */
int program_local_shard(struct program *program, const char *name, int value, enum mesh_axis axis);

/* How a flat cell lies over an axis that has a tensor of this spread in it: by elements, if split. */
static inline enum spread spread_flat(enum spread spread)
{
    return spread == SPREAD_ROWS ? SPREAD_COLS : spread;
}

/* A flat cell of a bucket lies as `like` does, over every axis but the one that shards. */
void program_lie_like(struct program *program, int id, int like);

/* What id is a view of, or id itself. */
static inline int program_whole(const struct program *program, int id)
{
    return program->values[id].base ? program->values[id].base : id;
}

/*
 * Do two values have an element in common, as views of one base? Of columns of the same rows this is
 * exact; other views may lie between each other's rows.
 */
int program_overlap(const struct program *program, int a, int b);

/* The value that owns the memory: base, or what that lies over, or id itself. */
int program_base(const struct program *program, int id);

/* A parameter with its weight cell (dtype; 1-D ones are fp32 always). Returns its index. */
int program_parameter(struct program *program, const char *name, int n_dims, int64_t rows,
                      int64_t cols, enum dtype dtype, enum init_kind init, double init_std);

/*
 * Give each rank of the axis its part of a new parameter; rows or columns are from now on those of
 * the part, which may be split again over another axis. One-dimensional ones are split along
 * columns. Nothing happens where the axis has one rank, or along is SPREAD_SAME.
 */
void program_split_parameter(struct program *program, int parameter, enum mesh_axis axis,
                             const struct parameter_split *split);

/* Whether ranks of the axis have different parts; and whether ranks of any axis have. */
int program_parameter_is_split(const struct program *program, int parameter, enum mesh_axis axis);
int program_parameter_is_part(const struct program *program, int parameter);

/*
 * Which rows (along is SPREAD_ROWS) or columns (SPREAD_COLS) of the whole a rank has: so many
 * ranges, in local order, without padding, of which some may be empty. One range of all where the
 * parameter is not split so.
 */
int program_parameter_n_ranges(const struct program *program, int parameter, enum spread along);
struct parameter_range program_parameter_range(const struct program *program, int parameter,
                                               enum spread along, const struct mesh_place *place,
                                               int i);

/*
 * What a rank keeps of its part of a parameter's master and moments: elements [begin, end), maybe
 * none, which lie from element `offset` of those cells. All of it where nothing is sharded.
 */
struct parameter_part {
    int64_t begin, end, offset;
    int master, moment1, moment2, weight; /* weight: its part alike, rounded from the master */
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
 * What is emitted from now on does again what was emitted so far (for micro-batches of another
 * size), with as many uses of each parameter in the same order, and adds to the same accumulators.
 */
void program_repeat_uses(struct program *program);

/* On which sums over an axis travel, but those of boundaries. */
enum stream stream_of_axis(enum mesh_axis axis);

/* A new function; returns its index (pointers to functions do not survive this). */
int program_function(struct program *program, const char *name, int chunk);

/*
 * Append op to function. Checks shapes (op_check) and derives the outputs' spreads; either failing
 * is a bug of the caller. Attributes beyond kind default to zero. Returns the op's index.
 */
int program_emit(struct program *program, int function, const struct op *op);

/* Same, but in front of ops[index]. */
int program_insert(struct program *program, int function, int index, const struct op *op);

/*
 * Whether the op says how its outputs lie over the axis, given its inputs. Stages of a pipeline
 * hold values of their own, so over pp only its collectives do; what is received lies as it was
 * sent.
 */
int program_has_spread(const struct program *program, const struct op *op, int axis);

/* The op's operands as shapes, for op_check, op_flops, kernels. */
struct op_shape program_op_shape(const struct program *program, const struct op *op);

/*
 * Whether an output is added to what is there, where op.first says so: the catalogue's "+=", and
 * gradients' shards of a reduce_scatter, which run adds to.
 */
int program_accumulates(const struct program *program, const struct op *op, int output);

/*
 * When this output of an accumulating op starts over. Sums that are no gradients (the loss) are of
 * all the rank's micro-batches, also where gradients are of one; what is added up in a plain value
 * (the gradient of what was computed from a parameter) is of one micro-batch always.
 */
enum first_mode program_first_mode(const struct program *program, const struct op *op, int output);

/* The slot of a stash value, or input, that holds micro-batch m; 0 for others and for m < 0. */
int program_slot(const struct program *program, int id, int micro_batch);

/* Where it begins in its segment, for that micro-batch and the first rank of an own part's axis. */
size_t program_place(const struct program *program, int id, int micro_batch);

/* Does the program know what a constant holds? Then write its elements, dense. */
int program_has_content(const struct program *program, int id);
void program_fill_content(const struct program *program, int id, void *elements);

/* Bytes of a dense value. */
size_t program_value_bytes(const struct program *program, int id);

/*
 * Ask for each op's scratch: bytes(context, shape). For compute ops it is the backend's, for
 * collectives run's.
 */
typedef size_t (*program_scratch_fn)(void *context, const struct op_shape *shape);
void program_size_scratch(struct program *program, program_scratch_fn scratch, void *context);

const char *phase_name(enum phase phase);       /* "F" */
const char *stream_name(enum stream stream);    /* "dp_reduce" */
const char *segment_name(enum segment segment); /* "weights" */
const char *role_name(enum cell_role role);
const char *entry_name(enum entry_kind entry);

#endif
