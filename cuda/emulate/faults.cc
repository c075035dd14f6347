/*
 * faults.cc - a kernel's thread that touches memory which is not its own, named
 *
 * The handler is put in place at every launch, before that of whoever else wants the signal
 * (cmocka has one for each test), and passes on what is no kernel's doing. A vector at an address
 * that is not aligned is found by UBSan, which says where in the source and ends the process.
 */
#include "emulate_impl.h"

#include <signal.h>

#include <mutex>

static const int signals[] = { SIGSEGV, SIGBUS };
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static struct sigaction before[N_SIGNALS];
static std::mutex *install_lock = new std::mutex();

static void on_fault(int signal, siginfo_t *info, void *)
{
    size_t beyond, n_bytes;

    if (emulate_is_in_kernel()) {
        if (emulate_is_behind_shared(info->si_addr, &beyond, &n_bytes))
            emulate_fail("touches byte %zu of its %zu bytes of dynamic shared memory", beyond,
                         n_bytes);
        if (emulate_is_behind_block(info->si_addr, &beyond, &n_bytes))
            emulate_fail("touches byte %zu of a device allocation of %zu bytes", beyond, n_bytes);
        emulate_fail("touches address %p, where nothing is", info->si_addr);
    }
    /* It happens again when this returns. */
    sigaction(signal, &before[signal == SIGBUS], NULL);
}

void emulate_name_faults(void)
{
    std::lock_guard<std::mutex> held(*install_lock);
    struct sigaction own = {};

    own.sa_sigaction = on_fault;
    own.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction now;

        sigaction(signals[i], NULL, &now);
        if (now.sa_sigaction == on_fault)
            continue;
        before[i] = now;
        sigaction(signals[i], &own, NULL);
    }
}

/* libubsan calls it before it prints. */
extern "C" void __ubsan_on_report(void)
{
    if (emulate_is_in_kernel())
        emulate_print_place();
}
