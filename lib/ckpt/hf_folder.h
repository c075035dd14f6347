/*
 * hf_folder.h - the weights of a Hugging Face folder, read as if they were a checkpoint's
 *
 * model.safetensors, or several with model.safetensors.index.json. Every tensor that the family's
 * table wants must be there with its shape, and nothing else but known buffers, scales of eight-bit
 * weights and the head that old versions saved beside a tied embedding. Nothing is trusted before
 * that. Links are followed: the hub's cache is made of them. Pickles are never read.
 */
#ifndef CKPT_HF_FOLDER_H
#define CKPT_HF_FOLDER_H

#include <stdbool.h>

#include "ckpt/hf_names.h"
#include "ckpt/safetensors.h"

#define HF_FOLDER_FILES_MAX 4096

/* Whether path is a folder with config.json, or with weights as these folders have them. */
bool hf_folder_is(const char *path);

/* Why path, which is neither checkpoint nor HF folder, cannot be used, and what to do; ERR_DATA. */
int hf_folder_refuse(const char *path, struct err *err);

struct hf_folder;

/* Opens all files and checks names, types and shapes. ERR_DATA names file and tensor. */
int hf_folder_open(struct hf_folder **folder, const char *path, const char *family,
                   const struct model_spec *spec, struct err *err);
void hf_folder_close(struct hf_folder *folder);

const struct hf_names *hf_folder_names(const struct hf_folder *folder);

/* Tensor i of the names as it lies in its file, and that file. */
const struct safetensors *hf_folder_tensor(const struct hf_folder *folder, int i,
                                           const struct safetensors_tensor **tensor);

/* Whether some of the weights are of eight bits. */
bool hf_folder_has_fp8(const struct hf_folder *folder);

/* The type that holds all parts of one of ours exactly. */
enum dtype hf_folder_dtype(const struct hf_folder *folder, const struct hf_whole *whole);

/* The same for all of them but balance biases, which are of fp32 in models of other types. */
enum dtype hf_folder_common_dtype(const struct hf_folder *folder);

/* Whether its tensors' names lack the family's prefix, as published GPT-2 and BLOOM have them. */
bool hf_folder_is_bare(const struct hf_folder *folder);

/* A head that is stored although it is tied, with its file; NULL if there is none. */
const struct safetensors *hf_folder_tied_head(const struct hf_folder *folder,
                                              const struct safetensors_tensor **tensor);

/*
 * As store_read. Not from two threads at once. Weights of eight bits are multiplied in fp32 by
 * their weight_scale_inv or weight_scale: one for all, for each row, or for each block of 128 x 128
 * (or whatever divides the matrix).
 */
int hf_folder_read(struct hf_folder *folder, const struct store_slice *slice, struct err *err);

/* n rows of tensor i of the names as it lies there, from row begin on, converted to dtype. */
int hf_folder_read_rows(struct hf_folder *folder, int i, int64_t begin, int64_t n, enum dtype dtype,
                        void *out, struct err *err);

/*
 * Who is to see what hf_folder_read reads of tensor i of the names: n elements of dtype from its
 * element `at` on, in the order in which they lie there. What is read but not seen: parts of rows
 * that are converted.
 */
typedef void (*hf_seen_fn)(void *context, int i, int64_t at, const void *data, enum dtype dtype,
                           int64_t n);
void hf_folder_watch(struct hf_folder *folder, hf_seen_fn seen, void *context);

#endif
