/*
 * kernels.h - the interface of kernels with shape checks, and the function table of a backend
 *
 * A backend has one function per op kind. Shapes are checked here, once, when a call is prepared;
 * the functions themselves do not check. Preparing may allocate, and creates the state that a
 * backend keeps for a call of these shapes (such as a plan of a vendor library; none on the CPU);
 * running allocates nothing. Pointers of operands may change between runs of a prepared call
 * (slots), shapes may not.
 *
 * Numerics: the bits of a result depend on operands, attributes and the backend's ISA alone, never
 * on the number of threads, on addresses or on load.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"
#include "device/device.h"
#include "device/pool.h"
#include "ops/op_info.h"

struct kernels;

struct kernel_call {
    struct op_shape op; /* operands with their memory */
    void *scratch;      /* kernels_scratch_bytes of it, aligned to 64 */
    void *state;        /* of the backend, created by prepare; NULL if it has none */
    int beside;         /* multiprocessors that concurrent collectives may use: changes no bit;
                           known when the call is prepared */
};

/*
 * first: bit k is set if accumulated output k is overwritten instead of added to.
 * Kinds with one such output, or only gradients, may treat it as a flag.
 */
#define KERNELS_FIRST (-1) /* all of them */
typedef void (*kernel_fn)(struct kernels *kernels, const struct kernel_call *call, int first);

struct kernel_entry {
    kernel_fn run; /* NULL: not supported */
    size_t (*scratch_bytes)(struct kernels *kernels, const struct op_shape *op); /* optional */
    int (*prepare)(struct kernels *kernels, struct kernel_call *call,
                   struct err *err);                       /* optional */
    void (*release)(struct kernels *kernels, void *state); /* optional */
};

/* out = or (adds) += the sum of terms at k * stride, in the order of comm/reduce.h's reduce_tree;
 * terms is left unspecified, out may be one of them. n elements each. */
struct kernels_sum {
    enum dtype dtype; /* with adds: DTYPE_F32, or DTYPE_BF16, which is rounded before and after */
    void *out, *terms;
    int n_terms;
    int64_t stride, n;
    int adds;
};

/* Copy [rows x cols] elements; strides in elements. Where n_blocks is not 0: so many of these, with
 * steps from each to the next, also in elements, which may be negative. */
struct kernels_columns {
    void *to;
    int64_t to_stride;
    const void *from;
    int64_t from_stride;
    int64_t rows, cols;
    size_t element_bytes; /* 1, 2, 4 or 8 */
    int n_blocks;
    int64_t to_step, from_step;
};

/*
 * Rows that go to the ranks that have their experts (send_rows), and back (return_rows), as one of
 * n_ranks sees them, whose number is `rank`. All operands are dense. What is sent to the other
 * ranks, and received from them, are pieces of piece_rows rows, one behind the other, of which the
 * first are used. The rank has no piece of its own, so that of a higher rank r is the piece r - 1.
 */
struct kernels_rows {
    enum op_kind kind;
    int rank, n_ranks, n_experts;
    int first, end;         /* what is moved, of each rank's experts */
    const int32_t *choices; /* [n_ranks n_tokens x n_chosen] */
    int64_t n_tokens, n_chosen;
    const void *in;
    int64_t in_rows;
    void *out;
    size_t row_bytes;
    int64_t piece_rows;
    void *sent;     /* pieces; NULL: they are sent as they lie (kernels_rows_are_packed) */
    void *received; /* pieces, of send_rows */
    /* [3 x n_ranks]: rows sent to each rank, and received from each, its own, too; of return_rows
     * the first row in `out` of those from each. */
    int32_t *counts;
    int32_t *lists; /* kernels_rows_list_length of them: pack's, for itself and for unpack */
};

static inline int kernels_rows_own_experts(const struct kernels_rows *rows)
{
    return rows->n_experts / rows->n_ranks;
}

/* Of return_rows with one expert a rank, each rank's rows lie together. */
static inline bool kernels_rows_are_packed(const struct kernels_rows *rows)
{
    return rows->kind == OP_SEND_ROWS || kernels_rows_own_experts(rows) > 1;
}

/*
 * send_rows: the tokens whose rows are sent to each rank, then those of each rank that are
 * received, of n_tokens each; return_rows: of each rank and each expert here the first row in `in`,
 * then of each how many there are, then of each the first row in the rank's piece or, of the rank's
 * own, in `out`.
 */
static inline int64_t kernels_rows_list_length(const struct kernels_rows *rows)
{
    return rows->n_ranks * (rows->kind == OP_SEND_ROWS
                                ? 2 * rows->n_tokens
                                : 3 * (int64_t)kernels_rows_own_experts(rows));
}

static inline int kernels_rows_piece(const struct kernels_rows *rows, int rank)
{
    return rank - (rank > rows->rank);
}

/* Computations of collectives around their transfers, enqueued on any queue of the device. */
struct kernels_traffic {
    void (*sum)(struct kernels *kernels, int queue, const struct kernels_sum *sum);
    void (*copy_columns)(struct kernels *kernels, int queue, const struct kernels_columns *columns);
    /* Fill counts, lists and what is sent, and copy what stays on the rank; and, of send_rows, put
     * what was received into its place. */
    void (*pack_rows)(struct kernels *kernels, int queue, const struct kernels_rows *rows);
    void (*unpack_rows)(struct kernels *kernels, int queue, const struct kernels_rows *rows);
    void (*load)(struct kernels *kernels,
                 int queue); /* load all code of these, before any of them waits */
};

struct kernels_backend {
    const char *name;
    struct kernel_entry entries[N_OP_KINDS];
    const struct kernels_traffic *traffic; /* NULL: the comm thread executes collectives */
    void (*destroy)(struct kernels *kernels);
    /* Optional: see kernels_choices_print, _load and _forget. */
    void (*choices_print)(struct kernels *kernels, struct str *text);
    int (*choices_load)(struct kernels *kernels, const char *text, struct err *err);
    void (*choices_forget)(struct kernels *kernels);
    /* Optional, of kernels_prepare_early: load the backend's own code of a prepared call. */
    void (*load)(struct kernels *kernels, const struct kernel_call *call);
};

/* A backend's instance starts with this. */
struct kernels {
    const struct kernels_backend *backend;
    struct device *device; /* where operands and scratch lie, and what runs the calls; borrowed */
    struct pool *pool;     /* the CPU's; NULL elsewhere */
    const char *identity;  /* the instance's memory */
    bool is_early;         /* kernels_prepare_early is preparing */
};

/* Also for kernels that only compute sizes (kernels_gpu_sizes_create). */
static inline int kernels_are_gpu(const struct kernels *kernels)
{
    return kernels && !kernels->pool;
}

/*
 * The CPU's kernels on this pool (borrowed). *isa_note (may be NULL) gets a sentence if an
 * instruction set is missing ("this CPU has no AVX-512 bf16: bf16 is stored, but computed in
 * fp32"), else "".
 */
int kernels_cpu_create(struct kernels **kernels, struct pool *pool, const char **isa_note,
                       struct err *err);
/* A GPU's kernels (device_cuda_open's device, borrowed). ERR_DEVICE in builds without CUDA. */
int kernels_cuda_create(struct kernels **kernels, struct device *device, struct err *err);
/* Only the scratch sizes of these kernels (gpu_sizes.h), in any build and without a device, for
 * planning. */
int kernels_gpu_sizes_create(struct kernels **kernels, struct err *err);
void kernels_destroy(struct kernels *kernels);

/* The properties of machine and libraries that determine the bits: "cpu avx512_bf16 gemm 1 ...";
 * borrowed from the kernels. */
const char *kernels_identity(struct kernels *kernels);

/*
 * Append to *text the algorithms that the backend selected for all calls prepared so far, among
 * algorithms that differ in bits: sorted lines of text. Nothing if it has no alternatives (the
 * CPU).
 */
void kernels_choices_print(struct kernels *kernels, struct str *text);

/*
 * Make calls that are prepared from now on use the algorithms in the text, so that a resumed run
 * has the same bits as the original one; algorithms for other shapes are selected as usual. Returns
 * 0, or -1: ERR_FAILED (text of another format), or ERR_DEVICE (printed with another version of a
 * library, or on another kind of GPU). If the library still refuses an algorithm, kernels_prepare
 * of its call fails.
 */
int kernels_choices_load(struct kernels *kernels, const char *text, struct err *err);

/* Forget all selections, as in a new instance. There must be no prepared call. */
void kernels_choices_forget(struct kernels *kernels);

/* Scratch that a call of these shapes needs, for this backend's threads. 0 for most. Pure,
 * but may ask a library; op must pass op_check. */
size_t kernels_scratch_bytes(struct kernels *kernels, const struct op_shape *op);

/*
 * Check the call's shapes, dtypes and alignment of rows, and make its state. Returns 0, or -1 and
 * ERR_FAILED (shape) or ERR_DEVICE (library, or a kind the backend lacks).
 */
int kernels_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err);
void kernels_release(struct kernels *kernels, struct kernel_call *call);

/*
 * Called before operands are allocated: lets the backend's libraries select algorithms for calls of
 * these shapes, allocate their own device memory besides scratch, and load all code. The free
 * memory afterwards accounts for all of that, but not for later allocations of the driver (queues,
 * graphs, communicators). Candidate algorithms are measured, and the selected ones are run once, in
 * free memory, which takes some seconds. Addresses of operands must be the final ones, or have the
 * same alignment; they are not read. beside: a kernel_call's; of calls that are otherwise alike
 * those with collectives beside them should come first, as the algorithm is selected for the first.
 * Errors as kernels_prepare. A no-op on the CPU.
 */
int kernels_prepare_early(struct kernels *kernels, const struct op_shape *op, int beside,
                          struct err *err);

/* Run a prepared call: on the CPU by all threads of the pool, completed on return; on a GPU it is
 * enqueued on the device's compute queue (device/device.h). */
static inline void kernels_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    kernels->backend->entries[call->op.kind].run(kernels, call, first);
}

#endif
