/*
 * progress.c - a file of slots that the supervisor and its ranks map
 */
#include "progress/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress/progress_page.h"
#include "progress/status_file.h"

_Static_assert(sizeof(struct progress_slot) <= sizeof(union progress_place), "slot fits its place");

static size_t page_bytes(int n_slots)
{
    return sizeof(union progress_place) * (size_t)n_slots;
}

int progress_page_create(union progress_place **page, const char *path, int n_slots,
                         struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    void *mapped = MAP_FAILED;

    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "cannot make %s", path);
    /* Not ftruncate: a full /dev/shm is an error here and not by a SIGBUS later. */
    int status = posix_fallocate(fd, 0, (off_t)page_bytes(n_slots));

    if (status) {
        close(fd);
        return err_set(err, ERR_FAILED, "cannot make %s: %s", path, strerror(status));
    }
    mapped = mmap(NULL, page_bytes(n_slots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return err_set_errno(err, ERR_FAILED, "cannot map %s", path);
    *page = mapped;
    for (int i = 0; i < n_slots; i++)
        atomic_store(&(*page)[i].slot.op, -1);
    return 0;
}

void progress_page_close(union progress_place *page, int n_slots)
{
    if (page)
        munmap(page, page_bytes(n_slots));
}

/* This rank's place in the supervisor's page, or NULL. */
static struct progress_slot *slot_in_page(const char *path, int local_rank)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    union progress_place *page = MAP_FAILED;
    struct stat stat;

    if (fd < 0)
        return NULL;
    if (!fstat(fd, &stat) && (size_t)stat.st_size >= page_bytes(local_rank + 1))
        page = mmap(NULL, page_bytes(local_rank + 1), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? NULL : &page[local_rank].slot;
}

/* One per process, as the rank is. */
static struct progress_slot private_slot = { .op = -1 };
static struct progress_slot *mine;

struct progress_slot *progress_join(int local_rank)
{
    const char *path = getenv(PROGRESS_VARIABLE);

    if (!mine && path && local_rank >= 0)
        mine = slot_in_page(path, local_rank);
    if (!mine)
        return &private_slot;
    atomic_store(&mine->pid, (int32_t)getpid());
    return mine;
}

void progress_adopt(struct progress_slot *slot)
{
    mine = slot;
}

int progress_is_over(void)
{
    return mine && atomic_load(&mine->is_over);
}

void progress_end(enum progress_end end)
{
    if (!mine)
        return;
    status_look_at_peak(mine, getpid());
    atomic_store(&mine->end, (int32_t)end);
    progress_beat(mine);
}

/* A copy of the text that ends and prints: the rank writes on while we read. */
static const char *clean_text(const struct progress_slot *slot, char text[PROGRESS_TEXT_BYTES + 1])
{
    memcpy(text, slot->text, PROGRESS_TEXT_BYTES);
    text[PROGRESS_TEXT_BYTES] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    return text[0] ? text : "?";
}

static void add_number(char *buffer, size_t size, const char *name, long long number)
{
    size_t used = strlen(buffer);

    snprintf(buffer + used, size - used, ", %s %lld", name, number);
}

const char *progress_describe(const struct progress_slot *slot, char *buffer, size_t size)
{
    char text[PROGRESS_TEXT_BYTES + 1];
    long long step = atomic_load(&slot->step), micro_batch = atomic_load(&slot->micro_batch);
    int in_op = atomic_load(&slot->op) >= 0;

    if (!atomic_load(&slot->beat)) {
        snprintf(buffer, size, "starting");
        return buffer;
    }
    snprintf(buffer, size, "%s%s",
             atomic_load(&slot->waits) ? "waits in "
             : in_op                   ? "in "
                                       : "",
             clean_text(slot, text));
    if (step > 0)
        add_number(buffer, size, "step", step);
    if (in_op && micro_batch >= 0)
        add_number(buffer, size, "micro-batch", micro_batch);
    return buffer;
}

void progress_phase_path(struct progress_slot *slot, const char *what, const char *path)
{
    char text[PROGRESS_TEXT_BYTES];
    size_t room = sizeof text - 1 - strlen(what) - 1, n = strlen(path);

    CHECK(strlen(what) < sizeof text / 2);
    if (n <= room)
        snprintf(text, sizeof text, "%s %s", what, path);
    else /* where it is mounted, and which file it is */
        snprintf(text, sizeof text, "%s %.*s...%s", what, (int)(room / 2), path,
                 path + n - (room - room / 2 - 3));
    progress_phase(slot, text);
}
