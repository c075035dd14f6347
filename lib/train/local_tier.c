/*
 * local_tier.c - which local checkpoints there are, and which go
 */
#include "train/local_tier.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "launch/excluded.h"
#include "train/trainer_impl.h"

/* What a rank has, for all others. */
struct offer {
    int64_t step; /* its newest; -1: none */
    uint64_t identity;
    uint64_t inode; /* of the base folder, by which ranks of a node are known; 0: none */
    char host[64];
    char why[160]; /* a newer one cannot be used; "": there is none */
};

struct local_tier {
    struct trainer *trainer;
    struct arena arena;
    int local_rank, keep;
    const char *base, *folder; /* of the run on this node, of this rank */
    char run[17];              /* the first half of identities */
    char identity[40];
    int64_t whole_step;   /* the newest that all ranks have; -1: none */
    struct offer *offers; /* of the last find, of all ranks; NULL: none yet */
    int n_hosts;
    char lack[320];
};

/* ---- whose they are ---- */

/* From rank 0. */
struct identity {
    uint64_t path, run, attempt;
    char name[48];
};

static uint64_t random_number(void)
{
    uint64_t n = 0;

    CHECK(getrandom(&n, sizeof n, 0) == (ssize_t)sizeof n);
    return n;
}

/* The run's number, from its folder or, where it has none, made and kept there. */
static uint64_t number_of_run(const char *output, bool is_new)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, "%s/checkpoints/.local", output);
    char text[32], *old = NULL;
    uint64_t run = 0;
    size_t n_bytes;
    struct err err;

    if (!is_new && file_exists(path) && file_read(path, 64, ERR_DATA, &old, &n_bytes, &err) == 0)
        run = strtoull(old, NULL, 16);
    free(old);
    if (!run) {
        run = random_number() | 1;
        snprintf(text, sizeof text, "%016" PRIx64 "\n", run);
        if (file_write(path, text, strlen(text), &err) < 0)
            log_warn("%s: no restart will find the local checkpoints", err.text);
    }
    arena_release(&arena);
    return run;
}

static void identify(struct identity *id, const char *output, bool is_new)
{
    char *path = realpath(output, NULL);
    const char *whole = path ? path : output, *slash = strrchr(whole, '/');
    size_t n = 0;

    for (const char *c = slash ? slash + 1 : whole; *c && n + 1 < sizeof id->name; c++)
        id->name[n++] = isalnum((unsigned char)*c) || *c == '-' || *c == '_' ? *c : '_';
    id->path = XXH3_64bits(whole, strlen(whole));
    id->run = number_of_run(output, is_new);
    id->attempt = random_number();
    free(path);
}

int local_tier_open(struct local_tier **out, struct trainer *trainer, int local_rank, bool is_new,
                    struct err *err)
{
    const struct job *job = trainer->job;
    struct identity id = { 0 };

    *out = NULL;
    if (!job->checkpoint.local)
        return 0;
    if (trainer->world_rank == 0)
        identify(&id, job->output, is_new);
    if (trainer_broadcast(trainer, &id, sizeof id, 0, err) < 0)
        return -1;
    struct local_tier *tier = calloc(1, sizeof *tier);
    CHECK(tier);
    tier->trainer = trainer;
    tier->local_rank = local_rank;
    tier->keep = job->checkpoint.local_keep;
    tier->whole_step = -1;
    id.name[sizeof id.name - 1] = '\0';
    tier->base =
        arena_printf(&tier->arena, "%s/%s-%016" PRIx64, job->checkpoint.local, id.name, id.path);
    tier->folder = arena_printf(&tier->arena, "%s/rank-%05d", tier->base, trainer->world_rank);
    snprintf(tier->run, sizeof tier->run, "%016" PRIx64, id.run);
    snprintf(tier->identity, sizeof tier->identity, "%s-%016" PRIx64, tier->run, id.attempt);
    *out = tier;
    return 0;
}

void local_tier_close(struct local_tier *tier)
{
    if (!tier)
        return;
    free(tier->offers);
    arena_release(&tier->arena);
    free(tier);
}

const char *local_tier_identity(const struct local_tier *tier)
{
    return tier->identity;
}

const char *local_tier_base(const struct local_tier *tier)
{
    return tier->base;
}

int local_tier_path(const struct local_tier *tier, int64_t step, char *path, size_t size,
                    struct err *err)
{
    if (snprintf(path, size, "%s/step-%08" PRId64, tier->folder, step) >= (int)size)
        return err_set(err, ERR_FAILED, "checkpoint.local: path too long");
    return 0;
}

/* Another user could have made the folder, in a public /tmp, and put checkpoints there. */
static int check_owner(const struct local_tier *tier, struct stat *info, struct err *err)
{
    if (lstat(tier->base, info) < 0)
        return err_set_errno(err, ERR_FAILED, "%s", tier->base);
    if (!S_ISDIR(info->st_mode) || info->st_uid != geteuid())
        return err_set(err, ERR_FAILED, "%s is not a folder of this user", tier->base);
    return 0;
}

/* ---- which of them all ranks have ---- */

/* Step and identity of what can be restored; or -1 and why it cannot. */
static int examine(const struct local_tier *tier, const char *path, struct offer *offer,
                   struct err *err)
{
    char *text;

    if (trainer_examine_local(tier->trainer, path, &text, err) < 0)
        return -1;
    cJSON *state = cJSON_Parse(text);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(state, "step");
    const cJSON *identity =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(state, "run"), "local");
    const char *whose = cJSON_IsString(identity) ? identity->valuestring : "";
    int status = cJSON_IsNumber(step) && str_starts_with(whose, tier->run)
                     ? 0
                     : err_set(err, ERR_DATA, "it is of another run");

    if (!status) {
        offer->step = (int64_t)step->valuedouble;
        offer->identity = XXH3_64bits(whose, strlen(whose));
    }
    cJSON_Delete(state);
    free(text);
    return status;
}

static int64_t step_of(const char *path)
{
    return strtoll(strrchr(path, '/') + strlen("/step-"), NULL, 10);
}

/* The newest of this rank before a step. */
static void make_offer(const struct local_tier *tier, int64_t before, struct offer *offer)
{
    struct arena arena = { 0 };
    struct stat info;
    struct err err;
    const char *path;

    *offer = (struct offer){ .step = -1 };
    snprintf(offer->host, sizeof offer->host, "%s", launch_host());
    if (file_exists(tier->base) && check_owner(tier, &info, &err) < 0)
        snprintf(offer->why, sizeof offer->why, "%.*s", (int)sizeof offer->why - 1, err.text);
    else if (file_exists(tier->base))
        offer->inode = (uint64_t)info.st_ino;
    while (offer->inode && offer->step < 0 && store_count(tier->folder, &err) > 0 &&
           (path = store_newest_before(tier->folder, before, &arena, &err))) {
        if (examine(tier, path, offer, &err) < 0 && !*offer->why)
            snprintf(offer->why, sizeof offer->why, "%.*s", (int)sizeof offer->why - 1, err.text);
        before = step_of(path);
    }
    arena_release(&arena);
}

static int compare_hosts(const void *a, const void *b)
{
    return strcmp(((const struct offer *)a)->host, ((const struct offer *)b)->host);
}

static int count_hosts(const struct offer *offers, int n)
{
    struct offer *sorted = calloc((size_t)n, sizeof *sorted);
    int n_hosts = 1;

    CHECK(sorted);
    memcpy(sorted, offers, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_hosts);
    for (int i = 1; i < n; i++)
        n_hosts += compare_hosts(&sorted[i - 1], &sorted[i]) != 0;
    free(sorted);
    return n_hosts;
}

/* Who has the least and the most; and whether all have the same step, of the same attempt. */
static bool is_common(const struct offer *offers, int n, int *least, int *most)
{
    bool is_same = true;

    *least = *most = 0;
    for (int i = 1; i < n; i++) {
        if (offers[i].step < offers[*least].step)
            *least = i;
        if (offers[i].step > offers[*most].step)
            *most = i;
        is_same = is_same && offers[i].identity == offers[0].identity;
    }
    return is_same && offers[*least].step == offers[*most].step;
}

/* Why not the newest that any rank has. */
static void note_lack(struct local_tier *tier, int least, int64_t newest)
{
    const struct offer *who = &tier->offers[least];

    if (who->step == newest)
        snprintf(tier->lack, sizeof tier->lack,
                 "the local checkpoints of step %" PRId64 " are of different attempts", newest);
    else
        snprintf(tier->lack, sizeof tier->lack,
                 "rank %d on %s has no local checkpoint of step %" PRId64 "%s%s%s", least,
                 who->host, newest, *who->why ? " (" : "", who->why, *who->why ? ")" : "");
}

int local_tier_find(struct local_tier *tier, int64_t before, int64_t after, int64_t *step,
                    struct err *err)
{
    struct trainer *t = tier->trainer;
    struct offer own;

    *step = -1;
    if (!tier->offers)
        tier->offers = calloc((size_t)t->world_size, sizeof *tier->offers);
    CHECK(tier->offers);
    tier->lack[0] = '\0';
    for (;;) {
        int least, most;

        make_offer(tier, before, &own);
        if (trainer_gather(t, &own, tier->offers, sizeof own, err) < 0)
            return -1;
        tier->n_hosts = count_hosts(tier->offers, t->world_size);
        bool all = is_common(tier->offers, t->world_size, &least, &most);
        int64_t newest = tier->offers[most].step, oldest = tier->offers[least].step;
        if (newest <= after && !*tier->lack && *tier->offers[0].why)
            snprintf(tier->lack, sizeof tier->lack, "rank 0 on %s has no local checkpoint (%s)",
                     tier->offers[0].host, tier->offers[0].why);
        if (newest > after && !all && !*tier->lack)
            note_lack(tier, least, newest);
        if (oldest <= after)
            return 0;
        if (all) {
            *step = oldest;
            return 0;
        }
        before = oldest == newest ? oldest : oldest + 1;
    }
}

int local_tier_n_hosts(const struct local_tier *tier)
{
    return tier->n_hosts;
}

const char *local_tier_lack(const struct local_tier *tier)
{
    return tier->lack;
}

/* ---- which of them go ---- */

static void remove_tree(const char *path)
{
    struct err err;

    if (file_remove_tree(path, &err) < 0)
        log_warn("local checkpoints: %s", err.text);
}

/* Folders of ranks that see another folder, or are no more. */
static void remove_strays(struct local_tier *tier)
{
    const struct trainer *t = tier->trainer;
    uint64_t inode = tier->offers ? tier->offers[t->world_rank].inode : 0;
    DIR *dir = inode ? opendir(tier->base) : NULL;
    struct dirent *entry;
    int rank;

    while (dir && (entry = readdir(dir)))
        if (sscanf(entry->d_name, "rank-%d", &rank) == 1 &&
            (rank < 0 || rank >= t->world_size || tier->offers[rank].inode != inode))
            remove_tree(arena_printf(&tier->arena, "%s/%s", tier->base, entry->d_name));
    if (dir)
        closedir(dir);
}

static void remove_later(const struct local_tier *tier, int64_t step)
{
    struct err err;

    if (store_remove_later(tier->folder, step, &err) < 0)
        log_warn("local checkpoints: %s", err.text);
}

void local_tier_go_on(struct local_tier *tier, int64_t step)
{
    tier->whole_step = step;
    if (step >= 0) {
        remove_later(tier, step);
        if (tier->local_rank == 0)
            remove_strays(tier);
    } else if (tier->local_rank == 0) {
        remove_tree(tier->base);
    }
}

/* The last whole one is kept, too, wherever the newest ones come from. */
static int clean(const struct local_tier *tier, struct err *err)
{
    const struct store_kept kept = {
        .n_newest = tier->keep, .old_step = STORE_NO_OLD, .held = &tier->whole_step, .n_held = 1
    };

    return store_clean_but(tier->folder, &kept, err);
}

int local_tier_prepare(const struct local_tier *tier, struct err *err)
{
    struct stat info;

    if (file_make_folder(tier->base, err) < 0 || check_owner(tier, &info, err) < 0 ||
        file_make_folder(tier->folder, err) < 0)
        return -1;
    return clean(tier, err);
}

void local_tier_keep(struct local_tier *tier, int64_t step)
{
    struct err err;

    tier->whole_step = step;
    if (store_clean(tier->folder, tier->keep, &err) < 0)
        log_warn("local checkpoints: %s: it is not removed for now", err.text);
}

void local_tier_drop(const struct local_tier *tier)
{
    struct err ignored;

    remove_later(tier, tier->whole_step);
    clean(tier, &ignored);
}

void local_tier_remove(const struct local_tier *tier)
{
    if (tier->local_rank == 0)
        remove_tree(tier->base);
}
