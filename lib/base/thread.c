/*
 * thread.c - signals are blocked in the caller while it starts a thread, which inherits that
 */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *),
                 void *context)
{
    sigset_t all, before;
    pthread_t made;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread ? thread : &made, attributes, fn, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed && !thread)
        pthread_detach(made);
    return failed;
}
