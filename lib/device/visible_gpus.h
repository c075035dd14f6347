/*
 * visible_gpus.h - which GPUs of a machine $CUDA_VISIBLE_DEVICES leaves to a process
 *
 * The variable is a list with commas between, of numbers ("0,3") or of UUIDs ("GPU-8932f937,..."),
 * which may be cut to as many digits as no other GPU's begins with; what its first entry is, all
 * are. The process counts its GPUs in the order of the list. The first entry that names no GPU ends
 * the list; a GPU that is named twice leaves none at all (CUDA C++ Programming Guide, "CUDA
 * Environment Variables"; of repeated ones _parse_visible_devices of torch/cuda/__init__.py). Of
 * parts of GPUs ("MIG-...") a process gets the first alone.
 */
#ifndef DEVICE_VISIBLE_GPUS_H
#define DEVICE_VISIBLE_GPUS_H

enum { MACHINE_GPUS_MAX = 64 };

/* An entry of the list that counts. */
struct visible_gpu {
    int index; /* of the machine's GPUs; -1: not known, as of UUIDs without a table of them */
    const char *name; /* where the entry begins in the list; NULL: there is no list */
    int n_bytes;
};

/*
 * list: the variable's value, NULL if it is not set, then all GPUs are visible. n_gpus: of the
 * machine. uuids[n_gpus]: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", or NULL: not known, and each
 * UUID of the list is taken for one of a GPU, up to n_gpus. gpus has room for n_gpus, at least one;
 * names lie in the list. Returns how many are visible.
 */
int visible_gpus_find(struct visible_gpu *gpus, const char *list, int n_gpus,
                      const char *const *uuids);

#endif
