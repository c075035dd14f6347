/*
 * passes.h - the passes over a step program, in the order in which model/compile.c runs them
 *
 * Each pass changes a program in place and can be read, printed and tested alone: `lmtrain plan JOB
 * --print-after PASS` prints the program after it, and test/program/golden has its text for two
 * tiny models. No pass looks at a device, a clock or a rank number. A job that cannot be compiled
 * is an error; a broken precondition is a CHECK.
 *
 * Invariants that every pass keeps: a value is written once in a function, and before it is read;
 * ops of one stream stay in one order; no pass changes a bit of the loss, the gradients or the
 * parameters, except where its comment names a setting that does (train/numerics.c).
 */
#ifndef PROGRAM_PASSES_H
#define PROGRAM_PASSES_H

#include <stdbool.h>

#include "base/bitset.h"
#include "base/str.h"
#include "layout/pipeline.h"
#include "ops/keep_set.h"
#include "ops/optimizers.h"
#include "ops/row_codec.h"
#include "program/program.h"

/* A value of the forward whose gradient exists already: the head computes it with the loss. */
struct gradient_seed {
    int value, gradient;
};

/*
 * differentiate.c: fill function `backward` with the backward of function `forward`. Gradients of
 * trainable parameters go to new accumulators. A value that is read several times gets the sum of
 * its readers' gradients, in reverse order of reading. Ops that lead to no trainable parameter get
 * no backward. boundary: a value that the forward reads and another stage writes, or 0. Returns its
 * gradient, or 0 if no trainable parameter is on earlier stages or there is no boundary.
 */
int differentiate(struct program *program, int forward, int backward,
                  const struct gradient_seed *seeds, int n_seeds, int boundary);

/*
 * ring.c: replace attention over keys that are gathered over cp, with its gradient, by steps in
 * which keys go from rank to rank. Another numerics than what it replaces. backward: -1 if there is
 * none.
 */
void ring(struct program *program, int forward, int backward);

/*
 * slice_heads.c: keys and values that attention reads are gathered over cp in n_slices slices of kv
 * heads, and so are the sums of their gradients, where that many divide the kv heads of the op and
 * it neither drops nor has slopes. No bit changes. backward: -1 if there is none.
 */
void slice_heads(struct program *program, int forward, int backward, int n_slices);

/*
 * fuse.c: add + rmsnorm -> add_rmsnorm, add + layernorm -> add_layernorm, where no op reads the sum
 * before the norm does. Bit-equal by the ops' contracts. Returns how many were fused.
 */
int fuse(struct program *program, int function);

/*
 * fuse.c: rmsnorm_grad + cast, layernorm_grad + cast -> the norm's gradient with a second output of
 * the cast's dtype. Bit-equal as above. Returns how many casts were removed.
 */
int fuse_casts(struct program *program, int function);

/*
 * recompute.c: which values of the forward are kept for the backward.
 *
 *   NONE       all that the backward reads
 *   SELECTIVE  all but what is cheap to compute from kept values: norms, activations, dropout,
 *              casts
 *   FULL       the layers' inputs only
 *   LIST       all but the outputs of ops whose kinds are in `ops`; a fused op counts as an add and
 *              a norm.
 *
 * Inputs of layers and, except under FULL, row statistics (of norms, attention) are always kept.
 * What is gathered over tp is never kept. What is not kept is computed again in `backward`, phase
 * R, before its first use, and only as far as the backward reads it.
 *
 * Layers may differ: each has a keep_set, which says the same of that layer's ops alone.
 */
enum recompute_kind {
    RECOMPUTE_KIND_NONE,
    RECOMPUTE_KIND_SELECTIVE,
    RECOMPUTE_KIND_FULL,
    RECOMPUTE_KIND_LIST
};
_Static_assert(N_OP_KINDS <= BITSET_MAX, "a set has room for each kind");

struct recompute_levels {
    enum recompute_kind kind; /* of all ops, but for those of the layers below */
    struct bitset ops;        /* of LIST */
    /* Layers first_layer, first_layer + 1, ...: sets[set_of_layer[i]] is of first_layer + i. */
    const struct keep_set *sets;
    const unsigned char *set_of_layer; /* [n_layers] */
    int first_layer, n_layers;
    bool drops_rows; /* whatever the sets say, rows of experts (TRAIT_EXPERT_ROWS) are not kept */
};
void recompute(struct program *program, int forward, int backward,
               const struct recompute_levels *levels);

/* The set of one of these kinds; ops: of LIST. */
struct keep_set recompute_keep_set(enum recompute_kind kind, const struct bitset *ops);

/*
 * The kind of op to which an output of a forward's op is counted: fused ops are an add and a norm,
 * the steps of a ring are attention, a linear_fp8 is a linear. N_OP_KINDS: row statistics, which
 * are small, and kept where not all is recomputed.
 */
enum op_kind recompute_kind_of(const struct op *op, int output);

/* The kinds of which a set can drop something in this layer of a forward. */
struct bitset recompute_droppable(const struct program *program, int forward, int layer);

/*
 * split.c: move the ops that compute weights' gradients (class W, and recomputation for them alone)
 * from `backward` to `weight`, which may then run later: zero-bubble schedules.
 */
void split_backward(struct program *program, int backward, int weight);

/*
 * recompute_early.c: in `backward`, move the recomputation of the layers first_layer, first_layer +
 * 1, ... to before the first op that reads `gradient`, which another stage sends: the rank
 * recomputes while it waits. What gathers again and does not recompute stays. After
 * split_backward: what the weights' gradients alone need runs later anyway. No bit changes; what
 * is recomputed early lives longer. Returns how many ops moved.
 */
int recompute_early(struct program *program, int backward, int gradient, int first_layer,
                    int n_layers);

struct chunk_functions;
struct page_options {
    double factor; /* pages for so many times the rows that ops expect (attributes.n_rows) */
    const struct keep_set *sets;       /* of which `away` stays where offload puts it */
    const unsigned char *set_of_layer; /* of all layers of the model; NULL: nothing is away */
};

/*
 * pages.c: of a chunk, put what is kept of experts' rows into pages, where fewer are planned than
 * there may be. Runs before shard_gradients, which copies functions.
 */
void page_rows(struct program *program, const struct chunk_functions *chunk,
               const struct page_options *options);

/* After schedule_step, where something is in pages: ENTRY_STEP begins with all pages free. */
void page_step(struct program *program);

/* ENTRY_RERUN: the step's actions, with the functions of rerun[i] in place of chunks[i]'s, n of
 * both. After all that changes the step's. */
void rerun_step(struct program *program, const struct chunk_functions *chunks,
                const struct chunk_functions *rerun, int n);

/* By place, when the stashes' slots are known: as many pages as they take. */
void page_size_pool(struct program *program);

/*
 * overlap.c: issue collectives over tp as soon as their input is written, so that they overlap with
 * products that do not depend on them. Runs after the last pass that adds such ops, and before
 * those that store numbers of ops (shard_gradients).
 */
void overlap_collectives(struct program *program, int function);

/* How long ops take: of kernels, and of collectives over an axis. */
struct slice_times {
    int64_t (*op_ns)(void *context, const struct op_shape *shape);
    int64_t (*collective_ns)(void *context, const struct op_shape *shape);
    /* While a collective over the axis is under way, ops take (1 + this) times as long; NULL: 0. */
    double (*slowdown)(void *context, enum mesh_axis axis);
    void *context; /* NULL: nominal times, of no device */
};

enum overlap_kind {
    OVERLAP_NONE,   /* overlap_collectives alone */
    OVERLAP_AUTO,   /* what takes least time of all of these; none where times are not known */
    OVERLAP_SLICES, /* in n_slices, or, where that is 0, in as many as take least time */
    OVERLAP_HALVES
};

struct slice_options {
    enum overlap_kind kind;
    int n_slices;
    int64_t rows; /* of tokens, on all tensor-parallel ranks together */
    int seq_len;
    bool experts_alone; /* other rows stay whole, and sums keep their order: two functions that add
                           to the same gradients may be cut in other ways */
    bool is_rerun;      /* its sites are not said again */
    struct slice_times times;
};

/*
 * slice.c: in place of overlap_collectives: cut ops and the collectives between them, over tp and
 * over cp (gathers and sums of rows of sequences, exchanges of heads), into slices of rows, what
 * goes to experts and back into groups of experts (slice_experts.c), and order them so that a slice
 * travels while others are computed. What sums over rows, and attention, is done on all rows; with
 * halves, which are of whole sequences, attention is cut as well. No bit changes: a row's result
 * does not depend on the rows beside it. Returns whether anything was cut; else the function is as
 * it was.
 */
bool slice(struct program *program, int function, const struct slice_options *options);

/*
 * What slice.c has made of the ops of a function between two that need all rows, or of all of them,
 * where it was given prices: times of what computes, of what travels, and of both, cut and not cut.
 */
struct slice_site {
    int function, layer; /* of its first collective */
    int n_slices;        /* 1: it is not cut */
    bool has_sequences;  /* each slice is whole sequences */
    bool has_experts;    /* or the rows of some of a rank's experts */
    bool has_ring;       /* keys go from rank to rank while attention computes: it is not cut */
    int64_t compute_ns, moved_ns, ns, whole_ns; /* compute: beside nothing that travels */
    struct slice_site *next; /* in the order of ops, functions as they were compiled */
};

/*
 * The functions of a chunk, as indices. If micro-batches have several sizes, each size has its own:
 * chunks[size * n_chunks + chunk], with the same ops in the same order on other numbers of rows,
 * except that a larger size may have more pieces of the head (model.c).
 */
struct chunk_functions {
    int forward;
    int backward; /* B and W; if the schedule splits them, B and what it needs */
    int weight;   /* W; equal to backward if they are not split */
    int last;     /* by shard_gradients: what the last micro-batch runs instead of weight */
    /* Each has one send or receive of a boundary; -1 if the neighbouring stage is on this rank. */
    int receive_forward, send_forward, receive_backward, send_backward;
    int uncompressed; /* as last, with a codec, in steps before its first; 0: none */
};

/* How long gathered weights are kept under zero 3: within a pass (forward or backward), for one op,
 * for a run of actions of one chunk, for the step (zero3.c). */
enum zero3_gather { ZERO3_GATHER_PASS, ZERO3_GATHER_OP, ZERO3_GATHER_RUN, ZERO3_GATHER_STEP };

struct shard_options {
    int zero;  /* 0 .. 3 */
    int early; /* reduce every micro-batch's sums; 0: those of all micro-batches, in the last one */
    size_t bucket_bytes;
    enum zero3_gather zero3;
    int n_ahead; /* under PASS: buckets that are gathered ahead, also of their function; 0: one, and
                    none of their function */
    bool matrices_apart;    /* matrices have another optimizer than other parameters, and buckets of
                            their own */
    int n_sizes, last_size; /* of micro-batches: 0 is 1; the size of the last micro-batch */
    struct codec_choice codec; /* of what is reduced; late sums only */
    int n_variants; /* of the functions of all sizes, one behind the other; 0 is 1: ENTRY_RERUN has
                       others (pages.c) */
};

/*
 * shard.c: put the accumulators into buckets of about bucket_bytes, in the order in which the
 * backward completes them (the last chunk's first; no bucket has parameters of two chunks), and, if
 * some axis of tokens has more than one rank, reduce each as soon as it is complete. Late: in
 * `last`, a copy of `weight` that the step's last micro-batch runs. Early, if the sharding axis has
 * more than one rank: in the function that completes it, in every micro-batch.
 *
 *   zero 0  the update finds whole gradients in the parameters' gradient cells, gathered by ops at
 *           the front of `update` or, late, after the reduces
 *   zero 1  the update finds shards; the parameters of a bucket have one weight dtype and number of
 *           uses, so that weights and states can have the layout of their gradients
 *   zero 2  zero 1, and early unreduced gradients exist only while they are in flight
 *   zero 3  zero 2, with buckets of weights that are read together: matrices of one layer, or
 *           vectors of any; one parameter each under ZERO3_GATHER_OP
 *
 * With one data-parallel rank all are zero 0. The zero stage changes no bit; early sums are
 * numerics, because they are summed over ranks first and over micro-batches then.
 */
void shard_gradients(struct program *program, struct chunk_functions *chunks, int n_chunks,
                     int update, const struct shard_options *options);

/*
 * compress.c: with a codec, what shard_gradients emits for each flat cell in place of a
 * reduce_scatter: the error of earlier steps is added, codes are exchanged and decoded by the owner
 * of each part, and the cell then has what the codec has lost. Another numerics. Behind the op that
 * writes ports.skip_update, compress_keep makes that the error of the steps to come, unless the
 * step is skipped. What is lost, relative to what is to be sent, is the square root of the quotient
 * of ports.codec_total's numbers.
 *
 * Under zero 0 the sums are gathered as they are, in fp32: each rank has the bits of zero 1, and
 * there is one error, that of the rank's own summands. Sums are late under zero 2 and 3, too: if
 * each micro-batch's were encoded, they would be sent as many times, and what is lost would take
 * the memory that whole sums do.
 *
 * low_rank.c: with powersgd two all-reduces of factors are in the place of the exchange; the right
 * ones are kept as the error is. Factors are of a parameter's matrices (each expert's, where ranks
 * divide one each rank's part), so that bits hang on buckets no more than codes do.
 */
void compress_sum(struct program *program, int update);
void compress_keep(struct program *program, int update);

/* ENTRY_UNCOMPRESSED: the step's actions, with functions `uncompressed` in place of `last` of these
 * n. After all that changes the step's; nothing where the codec starts at once. */
void uncompressed_step(struct program *program, const struct chunk_functions *chunks, int n);

/*
 * compress_rows.c: between layers, rows that tensor-parallel ranks gather and sum (by rows:
 * sequence parallelism) travel as codes, most of them quantised; by what attention the layer before
 * gave them. After all passes of a chunk that add collectives, ahead of overlap_collectives. New
 * numerics. n_layers: of the model.
 */
void compress_rows(struct program *program, const struct chunk_functions *chunk,
                   const struct row_codec_choice *choice, int n_layers);

/*
 * fp8_scales.c: of a chunk's products of fp8 with one scale of an operand, those whose operands are
 * parts of tensors, or are read by several: the largest elements of all parts are found ahead of
 * the first reader, and are operands of all; of weights only if has_weights; by the op that makes
 * an operand, of whichever products, if it may (is_fused; fp8_codes.c). Behind overlap_collectives;
 * no bit changes where ranks do not divide tensors.
 */
void fp8_scales(struct program *program, const struct chunk_functions *chunk, bool has_weights,
                bool is_fused);

/*
 * fp8_codes.c: of a chunk's products of fp8 with scales of blocks, those whose rows were made by an
 * op that can round them read its codes. Behind overlap_collectives; no bit changes.
 *
 * fp8_most_of_rows: the largest elements of x's rows, found by the op among the function's first n
 * that makes x; 0: that op does not find them.
 */
void fp8_codes(struct program *program, const struct chunk_functions *chunk);
int fp8_most_of_rows(struct program *program, int function, int n, int x);

/*
 * fp8_weights.c: a function ahead of a step's micro-batches rounds the weights of products of fp8,
 * and these read the codes; where weights are sharded codes are gathered in their place. No bit
 * changes. gather: the function that gathers weights once a step, in whose place it then runs; -1:
 * there is none. After all entries are there, before zero3_gather_weights. Returns the function, or
 * -1 if there is nothing to round.
 */
int fp8_weights(struct program *program, int gather);

/*
 * zero_gather.c: under zero 1 and 2 each bucket's weights become one flat cell, of which a rank
 * updates its local shard; `gather` is filled with the all_gathers, on stream dp_gather, in the
 * order in which the chunks' forwards (of any one size) first read the weights. `gather` runs
 * before the forward, whose first op then waits for its own bucket alone while later ones are in
 * flight.
 */
void gather_parameters(struct program *program, const struct chunk_functions *chunks, int n_chunks,
                       int gather);

/* Whether buckets of gathered_ahead are whole when it begins: the step's, and what repeats it. */
static inline bool entry_begins_whole(enum entry_kind entry)
{
    return entry_is_step(entry) || entry == ENTRY_RECHECK;
}

/*
 * zero_ahead.c: after the step and what repeats it have been scheduled: what `gather` gathers first
 * is gathered in the update of the step before, as soon as it is there, while others are updated.
 * n_ahead: this number of buckets that products read, with vectors that are read before the next;
 * -1: one, and as many as, by these times, travel while the optimizer of the others works. The step
 * then begins with these buckets whole (bucket.gathered_ahead): ENTRY_GATHER must have run once
 * before it, and since shards were written from outside. No bit changes. `gather` may round weights
 * ahead of its gathers (fp8_weights). Returns how many are gathered so.
 */
struct ahead_options {
    int n_ahead;
    struct slice_times times;
};
int zero_gather_ahead(struct program *program, int gather, const struct ahead_options *options);

/*
 * zero3.c: under zero 3 a rank keeps a shard of each bucket's weights, as a cell. After
 * shard_gradients, zero3_shard_weights makes these cells; parameters' weights have no memory from
 * then on. When all functions and entries exist, zero3_gather_weights makes every op read gathered
 * weights instead and emits the gathers, on stream dp_gather: into the functions (OP, PASS), or
 * into functions of their own that it adds to the entries (RUN). Except under RUN no gathered value
 * outlives its function, but for PASS with n_ahead: gathers come so many buckets ahead, and those
 * of the first n_ahead buckets that products of a function read, with what it reads before them,
 * come ahead of the function before it, into cells (zero3_prefetch.c). If zero3_gathers_once,
 * weights are handled as under zero 2 instead, with one gather_parameters a step.
 *
 * Frozen weights are in no bucket of gradients and are whole on every rank in other stages of zero;
 * zero3_shard_frozen, before zero3_shard_weights, makes buckets of them alone, by the same rules.
 */
int zero3_gathers_once(enum zero3_gather kind, int n_chunks);
void zero3_shard_frozen(struct program *program, const struct chunk_functions *chunks, int n_chunks,
                        const struct shard_options *options);
void zero3_shard_weights(struct program *program);
void zero3_gather_weights(struct program *program, enum zero3_gather kind, int n_ahead);

/* Of whole matrices: update_muon.c. */
struct muon_options {
    double momentum;
    bool nesterov;
    enum newton_schulz coefficients;
    int steps;
    enum muon_scale scale;
};

struct update_options {
    enum optimizer_rule optimizer;
    double clip, beta1, beta2, momentum, eps, weight_decay;
    bool nesterov;               /* sgd */
    struct update_groups groups; /* of parameters; what they point to outlives the pass */
    double ema;                  /* decay of the masters' moving averages; 0: there are none */
    enum dtype states; /* moments', as optimizer_state_dtype has them; beside DTYPE_BF16 weights are
                          their own masters */
    uint64_t seed;     /* of stochastic rounding to bf16 */
    bool half_away;    /* bf16 weights are rounded from masters so (base/halves.h), not to even */
    struct muon_options muon;
    bool split; /* and masters are kept as what such a weight leaves out */
    /* With several stages, or ranks that divide the model: the trainable parameters of every stage
     * except copies, in any order. */
    const struct norm_part {
        const char *name;
        unsigned split_axes; /* axes whose ranks have different parts of it: a set of 1 << axis */
        int pp_rank;
    } * norm_parts;
    int n_norm_parts;
};

/* update_groups.c: find the group of each parameter. Before shard_gradients: where the optimizer is
 * sharded a bucket has parameters of one group. */
void update_find_groups(struct program *program, const struct update_options *options);

/*
 * update.c: append to `update`: the sum over uses of tied parameters, sums of squares of norm
 * blocks, the gradient norm, the optimizer. Creates masters, moments and averages. Where buckets
 * are sharded all of it works on shards, and ranks gather the sums of squares: the norm adds the
 * same numbers in the same order.
 */
void build_update(struct program *program, int update, const struct update_options *options);

/*
 * update.c: move n ops of the update from ops[first] on, sums over ranks that the host alone reads,
 * behind the op that writes ports.skip_update, where they travel under the optimizer and no op of
 * the norm comes after them; or (is_before) before that op, where the host reads them at a gate.
 */
void update_move_behind_norm(struct program *program, int update, int first, int n, bool is_before);

/*
 * schedule.c: the actions of ENTRY_STEP: function `gather`, if there is one (-1: none), then the
 * rank's list of the pipeline, with each micro-batch loaded before its first forward, boundaries
 * sent as soon as they are computed and received from that point on, then the update. The
 * pipeline's lists must be such as pipeline_verify accepts. size_of: by micro-batch, the size whose
 * functions it runs; NULL if there is one size.
 */
void schedule_step(struct program *program, const struct pipeline *pipeline, int rank,
                   const struct chunk_functions *chunks, const int *size_of, int gather,
                   int update);

/*
 * update.c: after schedule_step: what follows the op that writes ports.skip_update, the optimizer,
 * becomes a function of its own, behind a second gate at which the host may set skip_update.
 */
void split_optimizer(struct program *program, int update);

/*
 * recheck.c: the actions of ENTRY_RECHECK, those of the step's first micro-batch up to its
 * gradients. After schedule_step, before zero3_gather_weights.
 */
void recheck_step(struct program *program);

/* The actions of an entry with one micro-batch through this rank's chunks, forward only. */
void schedule_forward(struct program *program, enum entry_kind entry,
                      const struct chunk_functions *chunks, int n_chunks);

/* What the points where copies are posted and awaited are computed from (gaps.h). */
struct copy_times {
    /* The time of an op; NULL: they are posted one op ahead, whatever it takes. */
    int64_t (*op_ns)(void *context, const struct op_shape *shape);
    void *context;
    double out_rate, in_rate; /* bytes/s between the device's memory and homes */
    int64_t latency_ns;       /* of each copy */
};

/*
 * offload.c: give values a home in other memory (program.h), and insert the copies there and back.
 * No bit changes, and no op's operands, but those of updates that run on the host. Cells of each
 * kind go (ops/keep_set.h) in the order in which ops first touch them; of what the forwards keep
 * for the backwards, in each layer, the outputs of ops whose kinds are in the `away` of its
 * keep-set. Small vectors stay. Runs behind the last pass that adds ops which touch such values,
 * before in_place.
 */
struct offload_options {
    struct rank_offload rank;
    const struct keep_set *sets;
    const unsigned char *set_of_layer; /* of all layers of the model; NULL: none goes */
    int n_micro_batches;               /* of a step; with one, sums of gradients start in it */
    struct copy_times times;
};
void offload(struct program *program, const struct offload_options *options);

/* What a value is to it; N_AWAY_KINDS: no cell that may go. */
enum away_kind offload_kind_of(const struct value *value);

/* The cells of a kind that may go, in the order in which they do: ids, at most n_values of them.
 * Returns how many. */
int offload_list_cells(const struct program *program, enum away_kind kind, int *list);

/*
 * in_place.c: an op that may write over its first input (OPERAND_IN_PLACE) does so if no function
 * reads that input afterwards, or has it from another function: the output is over the input, or,
 * if the output alone is a view, the input over the output (program.h). Runs after the last pass
 * that adds or moves ops, before place. Returns how many ops work in place.
 */
int work_in_place(struct program *program);

/*
 * place.c: decide the scope of plain values (stash: read by another function than the writer),
 * their lifetimes, and the offset in its segment of every value that owns memory; sets
 * segment_bytes. Values that live at the same time never overlap; operands of async ops live until
 * run is known to have waited for those ops (order.h).
 */
#define PLACE_ALIGNMENT ((size_t)64) /* of the bytes of each value */
void place(struct program *program);

/*
 * After place of both: give each value of program the offset that it has in larger. Both are
 * programs of one job that differ in the length of its sequences, so that all but the sizes is the
 * same. One memory then serves both, and each finds in cells what the other left there. Constants
 * whose content differs get memory of their own, by which larger grows. program borrows larger's
 * stashes, which must live as long as it does. Returns 0, or -1 and ERR_CONFIG if something else
 * differs.
 */
int place_within(struct program *program, struct program *larger, struct err *err);

/*
 * verify.c: the static checks of a program. Shapes, dtypes and spreads of every op; every value is
 * written once, and before it is read; accumulators see micro-batches in increasing order; after
 * place, no two live values overlap, and in-place ops destroy nothing that is read later; no sum
 * over ranks is read before it is complete, nor added to afterwards; no accumulator of one
 * micro-batch is overwritten before its sum over ranks; no value is read as whole of which each
 * rank has updated its local shard alone; no weight is read that was not gathered, or where another
 * bucket has been gathered since. Returns 0, or -1 and ERR_FAILED naming function, op and value.
 */
int verify(const struct program *program, struct err *err);

/*
 * verify_ranks.c: the checks of all ranks' programs together; programs: by world rank of the mesh.
 * Every send meets a receive of the same micro-batch, dtype and bytes; ranks of one group enter
 * their collectives in one order, and the n-th of each is the same op of the same kind, dtype and
 * bytes; all ranks pass the same gates; and there is no deadlock, even if nothing is buffered.
 *
 * Over an axis that has one rank in `mesh` and more in the programs' own meshes nothing is checked:
 * for compiled programs a mesh of pp alone, with programs [pp], is enough. The ranks of one stage
 * run one program, so whatever the ranks with one coordinate on the other axes can do by
 * themselves, all can do in lockstep, entering their common collectives together; and if one order
 * of events comes to its end then every order does, because an enabled event stays enabled. Returns
 * 0, or -1 and ERR_FAILED naming ranks, functions, ops and micro-batches, and, on deadlock, the
 * ranks that wait and what for.
 */
int verify_ranks(const struct program *const *programs, const struct mesh *mesh, struct err *err);

/*
 * print.c: the program as text: cells, the ops of each function, the actions of each entry. After
 * place each line ends with the segment of its value, or with the address in it.
 */
enum print_places { PRINT_SEGMENTS, PRINT_ADDRESSES };
void print_program(const struct program *program, enum print_places places, struct str *out);
void print_function(const struct program *program, int function, enum print_places places,
                    struct str *out);

/*
 * print.c: the result of place: the bytes of each segment, the slots of each stash, and every value
 * that owns memory with its bytes, in the order of addresses.
 */
void print_memory_map(const struct program *program, struct str *out);

/* A segment of a placed program, for output: its name, its contents in words, its bytes. */
struct memory_row {
    const char *name, *what;
    enum space space;
    size_t n_bytes;
};
/* Fills at most capacity rows, one for each segment that is not empty; returns how many. */
int program_memory_table(const struct program *program, struct memory_row *rows, int capacity);
/* Of all segments in the space; and of those in memory: the device's and the host's. */
size_t program_space_bytes(const struct program *program, enum space space);
size_t program_memory_bytes(const struct program *program);

/* The op during which most of the device's scratch is in use, the bytes of values there. */
struct fullest_op {
    const char *function; /* NULL: there is none */
    enum op_kind kind;
    int layer;
    size_t bytes;
};
void program_fullest_op(const struct program *program, struct fullest_op *fullest);

/* FLOPs of one step on one rank: all actions of the entry, recomputation included. */
double program_entry_flops(const struct program *program, enum entry_kind entry);

/* Bytes of the outputs of all its compute ops. */
size_t program_entry_written_bytes(const struct program *program, enum entry_kind entry);

#endif
