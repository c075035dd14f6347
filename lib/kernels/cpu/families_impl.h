/*
 * families_impl.h - one source, three instruction sets
 *
 * The op families other than products (embed, norm, rope, attention, elementwise, dropout, optimizer)
 * are written once over the vectors of vector_impl.h, whose width follows from the flags of the file
 * that is compiled: the family's own .c file for any x86-64, families_avx2.c and families_avx512.c by
 * including the same text. Each copy fills its entries through the functions below; families.c picks
 * the copy once, when the backend is made.
 */
#ifndef KERNELS_CPU_FAMILIES_IMPL_H
#define KERNELS_CPU_FAMILIES_IMPL_H

#include "kernels/kernels.h"

#ifndef CPU_ISA
#define CPU_ISA base
#endif

#define CPU_PASTE_(a, b) a##_##b
#define CPU_PASTE(a, b) CPU_PASTE_(a, b)
/* This copy's name of a symbol that others see. */
#define CPU_ISA_NAME(name) CPU_PASTE(name, CPU_ISA)

#define CPU_DECLARE_FAMILY(name) \
    void name##_base(struct kernels_backend *backend); \
    void name##_avx2(struct kernels_backend *backend); \
    void name##_avx512(struct kernels_backend *backend)

CPU_DECLARE_FAMILY(cpu_fill_embed);
CPU_DECLARE_FAMILY(cpu_fill_norm);
CPU_DECLARE_FAMILY(cpu_fill_rope);
CPU_DECLARE_FAMILY(cpu_fill_attention);
CPU_DECLARE_FAMILY(cpu_fill_attention_cached);
CPU_DECLARE_FAMILY(cpu_fill_elementwise);
CPU_DECLARE_FAMILY(cpu_fill_dropout);
CPU_DECLARE_FAMILY(cpu_fill_optimizer);

#endif
