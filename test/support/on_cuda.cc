/*
 * on_cuda.cc - linked into the tests of the emulated GPU: op_case and kernel_case run there
 */
#include <stdlib.h>

__attribute__((constructor)) static void choose_cuda()
{
    setenv("LMTRAIN_TEST_DEVICE", "cuda", 1);
}
