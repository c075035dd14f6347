/*
 * thread.h - threads that leave signals to the main thread
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/*
 * Starts a thread with all signals blocked: they are delivered to the thread that handles them, and
 * SIGXFSZ becomes an error of write. attributes NULL: the defaults. thread NULL: detached.
 * 0, or a number of errno, which is not set.
 */
int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *),
                 void *context);

#endif
