/*
 * err.h - what went wrong in the world, and CHECK for what went wrong in us
 *
 * A function that can fail because of the world (files, jobs, data, peers, device memory) takes a
 * struct err as its last parameter and returns 0 or -1 (or a pointer or NULL). The error is set
 * where it arises and added to on the way up only where the caller knows more. It is a fixed
 * buffer, so failing never allocates. A broken invariant of ours is no error but a bug: CHECK.
 *
 * Messages are lower case without a full stop: the value, then what is allowed, then a hint:
 *     job.yaml:14: parallel.tp is 3, does not divide n_kv_heads 8 (hint: 1, 2, 4 or 8)
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

/* The values are the exit statuses of the commands (design.md §9). */
enum err_code {
    ERR_NONE = 0,
    ERR_FAILED = 1,
    ERR_CONFIG = 2,   /* usage or job file */
    ERR_DATA = 3,     /* data or checkpoint unreadable */
    ERR_DEVICE = 4,   /* device or memory */
    ERR_PEER = 5,     /* another rank died */
    ERR_REQUEUE = 75, /* saved; the rank requests a restart */
};

struct err {
    enum err_code code;
    char text[2048];
};

/*
 * Set code and text, cut at the buffer's end; whatever stood there is lost. What a terminal would
 * act on, or is not valid UTF-8, becomes '?': much of a text may come out of a damaged file. Always
 * returns -1.
 */
int err_set(struct err *err, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Like err_set, with ": " and the text of errno behind. */
int err_set_errno(struct err *err, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "CONTEXT: " in front of the text. Always returns -1. */
int err_add(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The rank that CHECK names; -1 (the start) is printed as no rank. */
void check_set_rank(int rank);

void check_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

/* A bug if cond is false: prints place and rank, exits by abort (status 134). On in release builds.
 */
#define CHECK(cond) \
    do { \
        if (__builtin_expect(!(cond), 0)) \
            check_failed(#cond, __FILE__, __LINE__); \
    } while (0)

#endif
