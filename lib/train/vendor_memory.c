/*
 * vendor_memory.c - see the header
 */
#include "train/vendor_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#define LINE_MAX_BYTES 1024

/* 0 where there is no home to remember things in. */
static int path_of(struct str *path, int make)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct err ignored;

    if (cache && *cache)
        str_printf(path, "%s/lmtrain", cache);
    else if (home && *home)
        str_printf(path, "%s/.cache/lmtrain", home);
    else
        return 0;
    if (make && file_make_folders(str_text(path), &ignored) < 0)
        return 0;
    str_add(path, "/gpu-account");
    return 1;
}

void vendor_memory_take(const struct engine *engine, size_t planned_bytes)
{
    struct device *device = engine->device;
    char used_text[32], planned_text[32], vendor_text[32];
    struct str line = { 0 }, path = { 0 };
    struct err ignored;

    if (device_is_host(device) || engine->rank.local_size > device_cuda_count(NULL))
        return;
    struct device_memory memory = device->ops->memory(device);
    size_t used = memory.total_bytes - memory.free_bytes;
    size_t vendor = used > planned_bytes ? used - planned_bytes : 0;
    log_info("device memory: %s in use, %s planned, %s of the vendor (context, modules, graphs, "
             "libraries)",
             str_bytes(used_text, sizeof used_text, used),
             str_bytes(planned_text, sizeof planned_text, planned_bytes),
             str_bytes(vendor_text, sizeof vendor_text, vendor));
    str_printf(&line, "%zu %s\n", vendor, device->description);
    if (engine->rank.local_rank == 0 && path_of(&path, 1) &&
        file_write(str_text(&path), str_text(&line), line.length, &ignored) < 0)
        log_debug("%s", ignored.text);
    str_release(&line);
    str_release(&path);
}

int vendor_memory_recall(size_t *vendor_bytes, char *name, size_t size)
{
    char *text = NULL, *end;
    struct str path = { 0 };
    struct err ignored;
    size_t n_bytes;

    int failed = !path_of(&path, 0) || file_read(str_text(&path), LINE_MAX_BYTES, ERR_FAILED, &text,
                                                 &n_bytes, &ignored) < 0;
    str_release(&path);
    if (failed)
        return 0;
    unsigned long long vendor = strtoull(text, &end, 10);
    int found = end > text && *end == ' ';
    if (found) {
        *vendor_bytes = (size_t)vendor;
        snprintf(name, size, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
    }
    free(text);
    return found;
}
