/*
 * families_avx512.c - the op families compiled for AVX512; entered only where the CPU has it
 */
#define CPU_ISA avx512

#include "kernels/cpu/attention.c"
#include "kernels/cpu/attention_cached.c"
#include "kernels/cpu/dropout.c"
#include "kernels/cpu/elementwise.c"
#include "kernels/cpu/embed.c"
#include "kernels/cpu/norm.c"
#include "kernels/cpu/optimizer.c"
#include "kernels/cpu/rope.c"
