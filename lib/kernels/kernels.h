/*
 * kernels.h - the checked front door to the ops' code, and the table that a backend fills
 *
 * A backend brings one function per op kind. Shapes are checked here, once, when a call is
 * prepared; the functions themselves trust them. Preparing may allocate, and make what a backend
 * keeps for a call of these shapes (a vendor library's plan; the CPU keeps nothing); running
 * allocates nothing. Pointers of operands may change between runs of a prepared
 * call (slots), shapes may not.
 *
 * Numerics: the bits of a result depend on operands, attributes and the backend's ISA alone, never
 * on the number of threads, on addresses or on load.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/err.h"
#include "base/str.h"
#include "device/device.h"
#include "device/pool.h"
#include "ops/op_info.h"

struct kernels;

struct kernel_call {
    struct op_shape op; /* operands with their memory */
    void *scratch;      /* kernels_scratch_bytes of it, aligned to 64 */
    void *state;        /* the backend's, made by prepare; NULL where it keeps none */
    int beside; /* multiprocessors that collectives may take meanwhile: no bit depends on it;
                           known when the call is prepared */
};

/*
 * first: which accumulated outputs start at zero instead of at what is there, output k by bit k.
 * Kinds with one such output, or gradients alone, need not tell them apart.
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

/* [rows x cols] elements from a place to another; strides in elements, too. */
struct kernels_columns {
    void *to;
    int64_t to_stride;
    const void *from;
    int64_t from_stride;
    int64_t rows, cols;
    size_t element_bytes; /* 1, 2, 4 or 8 */
};

/* What collectives compute around their moves, given to any of the device's queues. */
struct kernels_traffic {
    void (*sum)(struct kernels *kernels, int queue, const struct kernels_sum *sum);
    void (*copy_columns)(struct kernels *kernels, int queue, const struct kernels_columns *columns);
    void (*load)(struct kernels *kernels, int queue); /* all code of these, before any waits */
};

struct kernels_backend {
    const char *name;
    struct kernel_entry entries[N_OP_KINDS];
    const struct kernels_traffic *traffic; /* NULL: collectives are the comm thread's */
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
    int is_early;          /* kernels_prepare_early is preparing */
};

/* Also those that can be asked for sizes alone. */
static inline int kernels_are_gpu(const struct kernels *kernels)
{
    return kernels && !kernels->pool;
}

/*
 * The CPU's kernels on this pool (borrowed). *isa_note (may be NULL) gets a sentence where a wanted
 * instruction set is missing ("no AVX-512 bf16 here: bf16 is stored, fp32 computed"), else "".
 */
int kernels_cpu_create(struct kernels **kernels, struct pool *pool, const char **isa_note,
                       struct err *err);
/* A GPU's kernels (device_cuda_open's device, borrowed). ERR_DEVICE in builds without CUDA. */
int kernels_cuda_create(struct kernels **kernels, struct device *device, struct err *err);
/* The same kernels' sizes alone (gpu_sizes.h), in any build: without a device, to plan with. */
int kernels_gpu_sizes_create(struct kernels **kernels, struct err *err);
void kernels_destroy(struct kernels *kernels);

/* What of the machine and libraries decides the bits: "cpu avx512_bf16 gemm 1 ..."; the kernels'
 * memory. */
const char *kernels_identity(struct kernels *kernels);

/*
 * What the backend chose among algorithms that differ in bits, for all calls prepared so far: lines
 * of text, in an order of their own, added to *text. Nothing where it has no choice (the CPU).
 */
void kernels_choices_print(struct kernels *kernels, struct str *text);

/*
 * Have calls that are prepared from now on take what is printed there, so that a resumed run has
 * the bits of the one that it goes on with; calls of other shapes are chosen for as ever. Returns
 * 0, or -1: ERR_FAILED (text that nobody printed), or ERR_DEVICE (printed with another version of a
 * library, or on another kind of GPU). A choice that the library refuses all the same is an error of
 * its call's kernels_prepare.
 */
int kernels_choices_load(struct kernels *kernels, const char *text, struct err *err);

/* Have no choices, as a new instance. No call may be prepared. */
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
 * Before memory is taken for any operands: have the backend's libraries choose for calls of these
 * shapes, take what they want of the device's memory beside scratch, and load their code and the
 * calls' own. What is free then tells of all that, and of nothing that the driver takes later: for
 * queues, graphs, communicators. What the libraries offer is measured, and what they will run is run
 * once, in memory that is still free, so it takes some seconds. Addresses of operands are those that
 * they will have, or others as well aligned; nothing is read there. beside: a kernel_call's; of calls
 * that are alike those with others beside them should come first, as the first is chosen for. Errors
 * as kernels_prepare's. Nothing to do for the CPU.
 */
int kernels_prepare_early(struct kernels *kernels, const struct op_shape *op, int beside,
                          struct err *err);

/* Run a prepared call: on the CPU by all threads of the pool, and done on return; on a GPU it is
 * given to the device's compute queue (device/device.h). */
static inline void kernels_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    kernels->backend->entries[call->op.kind].run(kernels, call, first);
}

#endif
