/*
 * passes.h - the passes over a step program, in the order in which model/compile.c runs them
 *
 * Each takes a program to a program and can be read, printed and tested alone. None looks at a
 * device, a clock or a rank. What fails because the job asks for what cannot be is an error; else
 * they CHECK.
 */
#ifndef PROGRAM_PASSES_H
#define PROGRAM_PASSES_H

#include "base/bitset.h"
#include "base/str.h"
#include "layout/pipeline.h"
#include "program/program.h"

/*
 * differentiate.c: build function `backward` from function `forward` by a reverse walk. seeds:
 * pairs of a forward value and the value that is its gradient already (the head gives one).
 * Gradients of trainable parameters go to new accumulators. A value read several times gets the sum
 * of its readers' gradients, in reverse order of reading. Ops that lead to no trainable parameter
 * give nothing.
 */
struct gradient_seed {
    int value, gradient;
};
/*
 * boundary: a value that the forward reads and another stage has made, 0 if there is none. Returns
 * its gradient, 0 if nothing of it is needed.
 */
int differentiate(struct program *program, int forward, int backward,
                  const struct gradient_seed *seeds, int n_seeds, int boundary);

/*
 * fuse.c: add + rmsnorm -> add_rmsnorm, add + layernorm -> add_layernorm, where nothing reads the
 * sum in between. Bit-equal by the ops' contracts. Returns how many were fused.
 */
int fuse(struct program *program, int function);

/*
 * fuse.c: rmsnorm_grad + cast, layernorm_grad + cast -> the norm's gradient with a copy, which the
 * product of the block before reads. Bit-equal as above. Returns how many casts are gone.
 */
int fuse_casts(struct program *program, int function);

/*
 * recompute.c: which forward values stay for the backward. NONE keeps all that it reads; SELECTIVE
 * drops what is cheap to make again from what is kept (norms, activations, dropout, casts); FULL
 * keeps the layers' inputs only; LIST drops what ops make whose kinds are in `ops` (else NULL). Layers' inputs and, but
 * under FULL, rows' statistics are kept; a fused op is an add and a norm. What is gathered over tp
 * is kept under none of them. What is dropped is emitted again in `backward`, phase R, ahead of
 * its first use, and only as far as the backward reads it.
 */
enum recompute_kind {
    RECOMPUTE_KIND_NONE,
    RECOMPUTE_KIND_SELECTIVE,
    RECOMPUTE_KIND_FULL,
    RECOMPUTE_KIND_LIST
};
_Static_assert(N_OP_KINDS <= BITSET_MAX, "a set has room for each kind");
void recompute(struct program *program, int forward, int backward, enum recompute_kind kind,
               const struct bitset *ops);

/*
 * split.c: move what makes weights' gradients (class W, and what was recomputed for it alone) out
 * of `backward` into `weight`, which may then run later: zero-bubble schedules.
 */
void split_backward(struct program *program, int backward, int weight);

/*
 * overlap.c: issue what goes over tp as early as its input is there, so that it travels while
 * products run that do not need it. After the last pass that adds such ops, before those that count
 * ops (shard_gradients). Never changes a bit.
 */
void overlap_collectives(struct program *program, int function);

/*
 * The functions of a chunk, as indices. Where micro-batches are of several sizes there are such for
 * each size: chunks[size * n_chunks + chunk], the same ops in the same order over other numbers of
 * rows, but that a larger one may have more pieces of the head (model.c).
 */
struct chunk_functions {
    int forward;
    int backward; /* B and W; only B and what it needs where the schedule splits them */
    int weight;   /* W; backward where they are not split */
    int last;     /* by shard_gradients: what the last micro-batch runs in weight's place */
    /* Each one send or receive of a boundary; -1 where the neighbouring stage is on this rank. */
    int receive_forward, send_forward, receive_backward, send_backward;
};

/*
 * shard.c: gather the accumulators into buckets of about bucket_bytes, in the order in which the
 * backward completes them (of the last chunk first; no bucket has parameters of two chunks), and,
 * where the dp axis has more than one rank, reduce each as soon as it is complete. Late: in `last`,
 * a copy of `weight` that the step's last micro-batch runs. Early: in the function that completes
 * it, every micro-batch. Under zero 0 the update finds whole gradients in
 * the parameters' gradient cells, gathered by ops put at the front of `update` or, late, behind the
 * reduces. Under zero 1 it finds shards, and a bucket's parameters are of one weight dtype and
 * number of uses, so that weights and states can lie like their gradients. Zero 2 is zero 1 with,
 * early, whole gradients only while they are under way: the rest of the step holds shards. Zero 3 is
 * zero 2 with buckets of weights that are read together: matrices of one layer, or vectors of any;
 * one parameter each where weights are held by `op`. With one data-parallel rank all are zero 0.
 * Of several sizes (n_sizes, 0 is 1) all that is early is in the functions of each, and what is late
 * in `last` of last_size, which is that of the last micro-batch.
 */
enum zero3_gather { ZERO3_GATHER_PASS, ZERO3_GATHER_OP, ZERO3_GATHER_RUN, ZERO3_GATHER_STEP };
struct shard_options {
    int zero; /* 0 .. 3 */
    int early;
    size_t bucket_bytes;
    enum zero3_gather zero3; /* zero 3 */
    int n_sizes, last_size;
};
void shard_gradients(struct program *program, struct chunk_functions *chunks, int n_chunks,
                     int update, const struct shard_options *options);

/*
 * zero_gather.c: under zero 1 and 2 each bucket's weights become one flat cell, of which a rank updates its
 * own part; `gather` is filled with the collectives that make them whole, on stream dp_gather, in
 * the order in which the chunks' forwards (of one size, whichever) first read of them. Run ahead of
 * the forward, its first op then waits for its own bucket alone while later ones still travel.
 */
void gather_parameters(struct program *program, const struct chunk_functions *chunks, int n_chunks,
                       int gather);

/*
 * zero3.c: under zero 3 a rank keeps a shard of each bucket's weights, as a cell, and parameters'
 * weights are mere names (zero3_shard_weights, behind shard_gradients) until all functions and entries are
 * there. hold_weights then lets every op read gathered weights instead, and puts the gathers, on
 * stream dp_gather, where the kind says: into the functions (op, pass), or into functions of their
 * own that it puts into the entries (run). No gathered value outlives its function but under `run`.
 * Where zero3_gathers_once, weights are to be as under zero 2 instead: one gather_parameters a step.
 *
 * Frozen weights are in no bucket of gradients and stay whole on every rank, but under zero 3: there
 * zero3_shard_frozen, ahead of zero3_shard_weights, makes buckets of them alone, by the same rules.
 */
int zero3_gathers_once(enum zero3_gather kind, int n_chunks);
void zero3_shard_frozen(struct program *program, const struct chunk_functions *chunks, int n_chunks,
                        const struct shard_options *options);
void zero3_shard_weights(struct program *program);
void zero3_gather_weights(struct program *program, enum zero3_gather kind);

/*
 * update.c: append to `update`: the uses of tied parameters summed, block sums of squares, gradient
 * norm, optimizer. Creates masters and moments. Where buckets are sharded all of it is done on
 * shards, whose block sums are gathered: the norm adds the same numbers in the same order.
 */
struct update_options {
    double clip, beta1, beta2, eps, weight_decay;
    enum dtype states; /* moments', DTYPE_F32 or DTYPE_BF16; then weights are their own masters */
    uint64_t seed;     /* of the rounding to bf16 */
    /* With several stages or ranks that divide the model: every stage's trainable parameters but copies, in any order.
     */
    const struct norm_part {
        const char *name;
        unsigned split_axes; /* the set of axes whose ranks have parts of it each: 1 << axis */
        int pp_rank;
    } * norm_parts;
    int n_norm_parts;
};
void build_update(struct program *program, int update, const struct update_options *options);

/*
 * schedule.c: the step's actions: gather the weights, if there is such a function (-1: none), then
 * the rank's list of the pipeline, each micro-batch loaded ahead of its first forward, boundaries
 * sent when they are made and received from that moment on, then the update. The pipeline's lists
 * are such as pipeline_verify accepts. size_of says by micro-batch which size's functions it runs;
 * NULL: there is one size.
 */
void schedule_step(struct program *program, const struct pipeline *pipeline, int rank,
                   const struct chunk_functions *chunks, const int *size_of, int gather,
                   int update);

/* One micro-batch through this rank's chunks, forward only. */
void schedule_forward(struct program *program, enum entry_kind entry,
                      const struct chunk_functions *chunks, int n_chunks);

/*
 * in_place.c: where an op may write over its first input (OPERAND_IN_PLACE), and no function reads
 * that afterwards or has it from another, it does: the output lies over the input, or, where the
 * output alone is a view, the input over the output (program.h).
 * After the last pass that adds or moves ops, before place. Returns how many do.
 */
int work_in_place(struct program *program);

/*
 * place.c: decide scopes of plain values (read by another function than the writer: stash),
 * lifetimes, and an offset in its segment for every value that owns memory; fills segment_bytes.
 * Values that live at the same time never overlap; operands of ops on other streams than compute
 * live until run is known to have waited for those.
 */
void place(struct program *program);

/*
 * After place of both: put all that program has where larger has it. They are programs of one job
 * that differ in how long its sequences are, so that all but the sizes is the same; one memory then
 * serves both, and what the one leaves in cells is there for the other. What the host does not fill
 * and that differs (constants with content) gets places of its own, by which larger grows. program
 * borrows larger's stashes, as long as it is. Returns 0, or -1 and ERR_CONFIG if something else
 * differs.
 */
int place_within(struct program *program, struct program *larger, struct err *err);

/*
 * verify.c: all that can be known to be right before a step runs: shapes, dtypes and spreads of
 * every op; written before read, and not over what is still read; written once; accumulators in increasing micro-batch order; no two
 * live values overlapping (after place); no sum over ranks read before it is whole, nor added to
 * after; no sum of one micro-batch begun where another still waits for its sum over ranks; nothing
 * read as whole of which each rank has updated its own part alone; no weight read that no gather
 * made whole, or where another bucket's were gathered since. Returns 0, or -1 and ERR_FAILED naming
 * function, op and value.
 */
int verify(const struct program *program, struct err *err);

/*
 * verify_ranks.c: the programs of a mesh's ranks together, by world rank: every send meets a
 * receive of the same micro-batch, type and bytes; ranks of one group enter its collectives in one
 * order, the n-th of each the same thing of the same kind, type and bytes; all pass the same gates;
 * and none waits for ever, even if nothing is buffered. Over an axis that has one rank in this mesh
 * and more in the programs' own, nobody is met: a mesh of pp alone, with [pp] programs, is enough
 * for compiled ones. For ranks of one stage run one program: what the ranks at one place of the
 * other axes can do by themselves, all can do in step, entering what they have in common at one
 * time; and if one order of doing things comes to its end every order does, since nobody is ever
 * kept from what he could have done. Returns 0, or -1 and ERR_FAILED naming ranks, functions, ops,
 * micro-batches, and where nobody can go on who waits in what for whom.
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
 * print.c: what place has decided: the bytes of each segment, the slots of each stash, and every value
 * that owns memory with its bytes, in the order of addresses.
 */
void print_memory_map(const struct program *program, struct str *out);

/* What each segment holds, for people: name, bytes, what. */
struct memory_row {
    const char *name, *what;
    size_t n_bytes;
};
/* Fills at most capacity rows, biggest segments in table order; returns how many. */
int program_memory_table(const struct program *program, struct memory_row *rows, int capacity);
size_t program_memory_bytes(const struct program *program);

/* FLOPs of one step on one rank: all actions of the entry, recomputation included. */
double program_entry_flops(const struct program *program, enum entry_kind entry);

#endif
