/*
 * hf_folder.c - which files a folder has, and what they hold
 */
#include "ckpt/hf_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hub.h"
#include "base/json_reader.h"
#include "base/num.h"
#include "base/str.h"
#include "ckpt/convert_dtype.h"
#include "ckpt/fp8.h"
#include "ckpt/hf_folder_impl.h"

#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_MAX_BYTES ((size_t)64 << 20)
#define FP8_BLOCK \
    128 /* rows and columns that have one scale, where they do not divide the matrix */

/* ---- what is there ---- */

static int has(const char *folder, const char *name)
{
    struct str path = { 0 };

    str_printf(&path, "%s/%s", folder, name);
    int there = file_exists(str_text(&path));
    str_release(&path);
    return there;
}

bool hf_folder_is(const char *path)
{
    return has(path, "config.json") || has(path, "model.safetensors") || has(path, INDEX_NAME);
}

static bool is_pickle(const char *name)
{
    return str_ends_with(name, ".bin") || str_ends_with(name, ".pt") ||
           str_ends_with(name, ".pth") || str_ends_with(name, ".ckpt");
}

/* Weights in formats that are not read: what to call them; NULL if it is none. */
static const char *other_format(const char *name)
{
    static const char *const formats[][2] = {
        { ".gguf", "GGUF" },       { ".ggml", "GGML" }, { ".h5", "TensorFlow's" },
        { ".msgpack", "Flax's" },  { ".onnx", "ONNX" }, { ".npz", "NumPy's" },
        { ".tflite", "TFLite's" },
    };

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (str_ends_with(name, formats[i][0]))
            return formats[i][1];
    return NULL;
}

/* The first name in the folder for which `is` is true, or "". */
static void find_file(const char *folder, bool (*is)(const char *name), char *found, size_t size)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    *found = '\0';
    while (dir && (entry = readdir(dir)))
        if (is(entry->d_name) && (!*found || strcmp(entry->d_name, found) < 0))
            snprintf(found, size, "%s", entry->d_name);
    if (dir)
        closedir(dir);
}

static bool is_other(const char *name)
{
    return other_format(name) != NULL;
}

/* A folder's weights, or a file itself, that is not read; 0 if there is none. */
static int refuse_format(const char *path, struct err *err)
{
    char name[256];

    find_file(path, is_pickle, name, sizeof name);
    if (*name)
        return err_set(err, ERR_DATA,
                       "%s/%s is a pickle, which can run code when it is read: lmtrain never does "
                       "(hint: save it as safetensors, in Python: AutoModelForCausalLM"
                       ".from_pretrained(\"%s\").save_pretrained(\"%s-safetensors\"))",
                       path, name, path, path);
    find_file(path, is_other, name, sizeof name);
    if (*name)
        return err_set(err, ERR_DATA,
                       "%s/%s: weights in %s format are not supported (hint: the original "
                       "safetensors files from the model's page)",
                       path, name, other_format(name));
    if (!file_exists(path) || file_is_folder(path))
        return 0;
    if (other_format(path))
        return err_set(err, ERR_DATA,
                       "%s: weights in %s format are not supported (hint: the folder with the "
                       "original safetensors files)",
                       path, other_format(path));
    return err_set(err, ERR_DATA, "%s is a file%s", path,
                   str_ends_with(path, ".safetensors") ? " (hint: give its folder)"
                   : str_ends_with(path, ".yaml")
                       ? ", not a folder (hint: for a job give its output folder, runs/NAME)"
                       : ", not a folder");
}

int hf_folder_refuse(const char *path, struct err *err)
{
    char hint[HUB_HINT_MAX];

    if (refuse_format(path, err) < 0)
        return -1;
    if (file_exists(path))
        return err_set(err, ERR_DATA,
                       "%s is neither a checkpoint nor a folder with config.json and "
                       "model.safetensors (hint: a run's folder, as runs/NAME, has checkpoints/)",
                       path);
    if (hub_is_name(path))
        return err_set(err, ERR_DATA, "%s is not a folder here%s", path,
                       hub_hint(hint, sizeof hint, path, HUB_MODEL));
    return err_set(
        err, ERR_DATA,
        "%s does not exist (hint: a run's folder, a checkpoint, or a Hugging Face folder)", path);
}

/* ---- the index ---- */

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct hf_entry *)a)->name, ((const struct hf_entry *)b)->name);
}

static struct hf_entry *hf_folder_entry(const struct hf_folder *f, const char *name)
{
    struct hf_entry key = { .name = name };

    if (!f->n_entries)
        return NULL;
    return bsearch(&key, f->entries, (size_t)f->n_entries, sizeof key, compare_entries);
}

static struct hf_entry *new_entry(struct hf_folder *f)
{
    f->entries =
        arena_grow(&f->arena, f->entries, sizeof *f->entries, &f->entry_capacity, f->n_entries + 1);
    f->entries[f->n_entries] = (struct hf_entry){ 0 };
    return &f->entries[f->n_entries++];
}

/* The file's number by its name, which is taken in if it is new. Few names: shards. */
static int file_number(struct hf_folder *f, const char *name)
{
    for (int i = f->n_files; i-- > 0;)
        if (!strcmp(f->file_names[i], name))
            return i;
    if (f->n_files == HF_FOLDER_FILES_MAX)
        return -1;
    f->file_names[f->n_files] = name;
    return f->n_files++;
}

static bool is_plain_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && str_ends_with(name, ".safetensors");
}

static int take_entry(struct hf_folder *f, const char *path, const char *name, const char *file,
                      struct err *err)
{
    if (!is_plain_name(file))
        return err_set(err, ERR_DATA,
                       "%s: tensor %.200s is listed in \"%.200s\", which is not a safetensors file "
                       "of this folder",
                       path, name, file);
    int number = file_number(f, file);
    if (number < 0)
        return err_set(err, ERR_DATA, "%s names more than %d files", path, HF_FOLDER_FILES_MAX);
    struct hf_entry *entry = new_entry(f);
    entry->name = name;
    entry->file = number;
    return 0;
}

static int read_index(struct hf_folder *f, struct err *err)
{
    const char *path = arena_printf(&f->arena, "%s/" INDEX_NAME, f->path);
    struct json_reader reader;
    char *text;
    size_t n_bytes;
    int status = 0, n_maps = 0;

    if (file_read(path, INDEX_MAX_BYTES, ERR_DATA, &text, &n_bytes, err) < 0)
        return -1;
    json_reader_init(&reader, text, n_bytes, &f->arena);
    json_open(&reader, '{');
    while (!status && json_next(&reader, '}')) {
        if (strcmp(json_key(&reader), "weight_map") != 0) {
            json_skip(&reader);
            continue;
        }
        n_maps++;
        json_open(&reader, '{');
        while (!status && json_next(&reader, '}')) {
            const char *name = json_key(&reader), *file = json_string(&reader);

            if (!reader.problem)
                status = take_entry(f, path, name, file, err);
        }
    }
    if (!status && json_end(&reader) < 0)
        status =
            err_set(err, ERR_DATA, "%s: byte %zu: %s", path, reader.problem_at, reader.problem);
    else if (!status && n_maps != 1)
        status =
            err_set(err, ERR_DATA, "%s has %s weight_map", path, n_maps ? "more than one" : "no");
    free(text);
    if (status < 0)
        return -1;
    if (f->n_entries)
        qsort(f->entries, (size_t)f->n_entries, sizeof *f->entries, compare_entries);
    for (int i = 1; i < f->n_entries; i++)
        if (!strcmp(f->entries[i - 1].name, f->entries[i].name))
            return err_set(err, ERR_DATA, "%s names tensor %.200s twice", path, f->entries[i].name);
    return 0;
}

/* ---- the files ---- */

static int open_files(struct hf_folder *f, struct err *err)
{
    f->files = arena_array(&f->arena, struct safetensors *, f->n_files);
    for (int i = 0; i < f->n_files; i++) {
        const char *path = arena_printf(&f->arena, "%s/%s", f->path, f->file_names[i]);

        if (safetensors_open(&f->files[i], path, err) < 0)
            return -1;
    }
    return 0;
}

/* What the index says and what the shards hold must be the same. */
static int match_index(struct hf_folder *f, struct err *err)
{
    for (int i = 0; i < f->n_files; i++)
        for (int k = 0; k < f->files[i]->index.n_tensors; k++) {
            const struct safetensors_tensor *tensor = &f->files[i]->index.tensors[k];
            struct hf_entry *entry = hf_folder_entry(f, tensor->name);

            if (!entry || entry->file != i)
                return err_set(err, ERR_DATA, "%s holds tensor %.200s, which " INDEX_NAME " %s%s",
                               f->files[i]->path, tensor->name, entry ? "has in " : "does not list",
                               entry ? f->file_names[entry->file] : "");
            entry->tensor = tensor;
        }
    for (int i = 0; i < f->n_entries; i++)
        if (!f->entries[i].tensor)
            return err_set(err, ERR_DATA,
                           "%s does not have tensor %.200s, which " INDEX_NAME " says it holds",
                           f->files[f->entries[i].file]->path, f->entries[i].name);
    return 0;
}

static int open_single(struct hf_folder *f, struct err *err)
{
    f->file_names[f->n_files++] = "model.safetensors";
    if (open_files(f, err) < 0)
        return -1;
    for (int k = 0; k < f->files[0]->index.n_tensors; k++) {
        struct hf_entry *entry = new_entry(f);

        entry->tensor = &f->files[0]->index.tensors[k];
        entry->name = entry->tensor->name;
    }
    return 0;
}

/* ---- what they must hold ---- */

static void print_shape(const int64_t *shape, int n_dims, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");

    for (int i = 0; i < n_dims && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static int check_tensor(const struct hf_folder *f, const struct hf_tensor *want,
                        const struct hf_entry *entry, struct err *err)
{
    const struct safetensors_tensor *tensor = entry->tensor;
    int64_t shape[2] = { want->n_rows, want->whole->cols };
    int n_dims = want->whole->n_dims;
    bool same;
    char wanted[64], is[256];
    int dtype = safetensors_type_dtype(tensor->type);

    if (want->transposed) {
        shape[0] = want->whole->cols;
        shape[1] = want->n_rows;
    }
    same = tensor->n_dims == n_dims;
    for (int i = 0; i < n_dims && same; i++)
        same = tensor->shape[i] == shape[i];
    if (!same) {
        print_shape(shape, n_dims, wanted, sizeof wanted);
        print_shape(tensor->shape, tensor->n_dims, is, sizeof is);
        return err_set(err, ERR_DATA, "%s: tensor %.200s is %s, but %s according to config.json",
                       f->files[entry->file]->path, tensor->name, is, wanted);
    }
    if (!fp8_is(tensor->type) && (dtype < 0 || !convert_supported(DTYPE_F32, (enum dtype)dtype)))
        return err_set(err, ERR_DATA,
                       "%s: tensor %.200s is %s; F32, BF16, F16, F8_E4M3 and F8_E5M2 are supported",
                       f->files[entry->file]->path, tensor->name,
                       safetensors_type_name(tensor->type));
    return 0;
}

/* Their name in this folder: that of the table, or without the prefix in a bare model's. */
static struct hf_entry *find_theirs(const struct hf_folder *f, const char *name)
{
    const char *prefix = f->names.prefix;

    if (f->is_bare && str_starts_with(name, prefix))
        name += strlen(prefix);
    return hf_folder_entry(f, name);
}

int hf_folder_grid(const struct safetensors_tensor *scale, int64_t rows, int64_t cols,
                   struct hf_grid *grid)
{
    int64_t n_rows = scale->n_dims > 0 ? scale->shape[0] : 1;
    int64_t n_cols = scale->n_dims > 1 ? scale->shape[1] : 1;

    if (scale->n_dims > 2 || n_rows < 1 || n_cols < 1 || n_rows > rows || n_cols > cols)
        return -1;
    if (ceil_div(rows, FP8_BLOCK) == n_rows && ceil_div(cols, FP8_BLOCK) == n_cols)
        *grid = (struct hf_grid){ n_rows, n_cols, FP8_BLOCK, FP8_BLOCK };
    else if (rows % n_rows == 0 && cols % n_cols == 0)
        *grid = (struct hf_grid){ n_rows, n_cols, rows / n_rows, cols / n_cols };
    else
        return -1;
    return 0;
}

static int check_scale(const struct hf_folder *f, const struct hf_entry *entry, struct err *err)
{
    const struct safetensors_tensor *weight = entry->tensor, *scale = entry->scale->tensor;
    const char *path = f->files[entry->scale->file]->path;
    int dtype = safetensors_type_dtype(scale->type);
    struct hf_grid grid;
    char is[256];

    if (scale->type != SAFETENSORS_F8_E8M0 &&
        (dtype < 0 || !convert_supported(DTYPE_F32, (enum dtype)dtype)))
        return err_set(err, ERR_DATA,
                       "%s: tensor %.200s is %s; a scale is F32, BF16, F16 or F8_E8M0", path,
                       scale->name, safetensors_type_name(scale->type));
    if (hf_folder_grid(scale, weight->shape[0], weight->n_dims > 1 ? weight->shape[1] : 1, &grid) ==
        0)
        return 0;
    print_shape(scale->shape, scale->n_dims, is, sizeof is);
    return err_set(err, ERR_DATA,
                   "%s: tensor %.200s is %s, which is neither one scale, nor one for each row, nor "
                   "one for each block of its weight",
                   path, scale->name, is);
}

/* The scale of eight-bit numbers stands beside them: q_proj.weight, q_proj.weight_scale_inv. */
static int find_scale(const struct hf_folder *f, struct hf_entry *entry, struct err *err)
{
    static const char *const endings[] = { "_scale_inv", "_scale" };

    if (!fp8_is(entry->tensor->type))
        return 0;
    for (int i = 0; i < 2; i++) {
        struct str name = { 0 };

        str_printf(&name, "%s%s", entry->name, endings[i]);
        struct hf_entry *found = hf_folder_entry(f, str_text(&name));
        str_release(&name);
        if (!found)
            continue;
        if (entry->scale)
            return err_set(err, ERR_DATA, "%s: tensor %.200s has two scales: %.200s and %.200s",
                           f->source, entry->name, entry->scale->name, found->name);
        found->wanted = 1;
        entry->scale = found;
    }
    return entry->scale ? check_scale(f, entry, err) : 0;
}

/* What other programs need of an eight-bit layer: how its input was scaled. */
static bool is_scale_of_input(const struct hf_folder *f, const char *name)
{
    static const char *const endings[] = { "input_scale", "activation_scale", "input_scale_ub" };
    int is = 0;

    for (int i = 0; i < 3; i++)
        is |= str_ends_with(name, endings[i]);
    return is && hf_folder_has_fp8(f);
}

static int match_names(struct hf_folder *f, struct err *err)
{
    f->is_bare = true;
    for (int i = 0; i < f->n_entries; i++)
        f->is_bare &= !str_starts_with(f->entries[i].name, f->names.prefix);
    f->theirs = arena_array(&f->arena, const struct hf_entry *, f->names.n_tensors);
    for (int i = 0; i < f->names.n_tensors; i++) {
        const struct hf_tensor *want = &f->names.tensors[i];
        struct hf_entry *entry = find_theirs(f, want->name);

        if (!entry)
            return err_set(err, ERR_DATA, "%s: tensor %.200s is missing", f->source, want->name);
        entry->wanted = 1;
        f->theirs[i] = entry;
        if (check_tensor(f, want, entry, err) < 0 || find_scale(f, entry, err) < 0)
            return -1;
    }
    for (int i = 0; i < f->n_entries; i++) {
        const struct hf_entry *entry = &f->entries[i];

        if (entry->wanted || hf_names_is_buffer(entry->name) || is_scale_of_input(f, entry->name))
            continue;
        if (strcmp(entry->name, HF_NAMES_HEAD) != 0)
            return err_set(err, ERR_DATA,
                           "%s: tensor %.200s does not belong to a %s model with this config.json",
                           f->files[entry->file]->path, entry->name, f->names.family);
        f->tied_head = entry;
    }
    return 0;
}

static int open_folder(struct hf_folder *f, const char *family, const struct model_spec *spec,
                       struct err *err)
{
    if (hf_names_build(&f->names, family, spec, &f->arena, err) < 0)
        return err_add(err, "%s", f->path);
    if (has(f->path, "model.safetensors")) {
        f->source = arena_printf(&f->arena, "%s/model.safetensors", f->path);
        if (open_single(f, err) < 0)
            return -1;
    } else if (has(f->path, INDEX_NAME)) {
        f->source = arena_printf(&f->arena, "%s/" INDEX_NAME, f->path);
        if (read_index(f, err) < 0 || open_files(f, err) < 0 || match_index(f, err) < 0)
            return -1;
    } else {
        return refuse_format(f->path, err) < 0
                   ? -1
                   : err_set(err, ERR_DATA, "%s has no model.safetensors", f->path);
    }
    return match_names(f, err);
}

int hf_folder_open(struct hf_folder **folder, const char *path, const char *family,
                   const struct model_spec *spec, struct err *err)
{
    struct hf_folder *f = calloc(1, sizeof *f);

    if (!f)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", path);
    f->path = arena_strdup(&f->arena, path);
    f->file_names = arena_array(&f->arena, const char *, HF_FOLDER_FILES_MAX);
    if (open_folder(f, family, spec, err) < 0) {
        hf_folder_close(f);
        return -1;
    }
    *folder = f;
    return 0;
}

void hf_folder_close(struct hf_folder *f)
{
    if (!f)
        return;
    for (int i = 0; f->files && i < f->n_files; i++)
        if (f->files[i])
            safetensors_close(f->files[i]);
    free(f->buffer);
    free(f->scales);
    arena_release(&f->arena);
    free(f);
}

const struct hf_names *hf_folder_names(const struct hf_folder *f)
{
    return &f->names;
}

const struct safetensors *hf_folder_tensor(const struct hf_folder *f, int i,
                                           const struct safetensors_tensor **tensor)
{
    *tensor = f->theirs[i]->tensor;
    return f->files[f->theirs[i]->file];
}

bool hf_folder_is_bare(const struct hf_folder *f)
{
    return f->is_bare;
}

const struct safetensors *hf_folder_tied_head(const struct hf_folder *f,
                                              const struct safetensors_tensor **tensor)
{
    if (!f->tied_head)
        return NULL;
    *tensor = f->tied_head->tensor;
    return f->files[f->tied_head->file];
}

/* Eight-bit numbers are read as bf16, the type that the published models compute in. */
static enum dtype hf_folder_tensor_dtype(const struct hf_folder *f, int i)
{
    enum safetensors_type type = f->theirs[i]->tensor->type;

    return fp8_is(type) ? DTYPE_BF16 : (enum dtype)safetensors_type_dtype(type);
}

bool hf_folder_has_fp8(const struct hf_folder *f)
{
    bool has_fp8 = false;

    for (int i = 0; i < f->names.n_tensors && !has_fp8; i++)
        has_fp8 = fp8_is(f->theirs[i]->tensor->type);
    return has_fp8;
}

void hf_folder_watch(struct hf_folder *f, hf_seen_fn seen, void *context)
{
    f->seen = seen;
    f->seen_context = context;
}

enum dtype hf_folder_dtype(const struct hf_folder *f, const struct hf_whole *whole)
{
    enum dtype dtype = hf_folder_tensor_dtype(f, whole->first);

    for (int i = 1; i < whole->n; i++)
        if (hf_folder_tensor_dtype(f, whole->first + i) != dtype)
            return DTYPE_F32;
    return dtype;
}

enum dtype hf_folder_common_dtype(const struct hf_folder *f)
{
    enum dtype dtype = hf_folder_dtype(f, &f->names.wholes[0]);

    for (int i = 1; i < f->names.n_wholes; i++)
        if (!parameters_is_balance(f->names.wholes[i].id) &&
            hf_folder_dtype(f, &f->names.wholes[i]) != dtype)
            return DTYPE_F32;
    return dtype;
}
