/*
 * log.h - lines for people, to one sink
 *
 * A line has a level and no newline at its end. The sink is stderr with the level in front, unless
 * another one was set (by the progress display, a rank's log file, a test). Safe from any thread.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

struct log_file;

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

typedef void (*log_sink_fn)(void *context, enum log_level level, const char *line);

/* sink NULL restores stderr. Call it while no other thread logs. */
void log_set_sink(log_sink_fn sink, void *context);

/*
 * For a process whose stderr is a file: warnings, errors and CHECK's last words go to screen_fd as
 * well, with prefix ("rank 3: ") in front, each line in one write. -1: there is none, as at the
 * start.
 */
void log_set_screen(int screen_fd, const char *prefix);

/*
 * PREFIX, line and a newline to the screen, if there is one. Takes no lock. A screen that does not
 * take the line within a fifth of a second misses it; after one that is gone there is none.
 */
void log_to_screen(const char *line);

/*
 * Copy every line that is logged, and those of log_to_file, to a file, which belongs to the log
 * from then on, in place of one set before. NULL: to none, as at the start.
 */
void log_set_file(struct log_file *file);

/* A line for the file alone, without its newline. */
void log_to_file(const char *line);

/* Lines below the level are dropped; the start is LOG_INFO, or $LMTRAIN_LOG (debug, info, warn,
 * error). */
void log_set_level(enum log_level level);

/* "warn" */
const char *log_level_name(enum log_level level);

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
