/*
 * price_impl.h - what the formulas of price.c and price_products.c share
 *
 * Shares of a device's peak and of its memory's bandwidth are what kernels of any vendor reach at
 * sustained clocks. Nothing here knows a cluster's links.
 */
#ifndef PLAN_PRICE_IMPL_H
#define PLAN_PRICE_IMPL_H

#include "plan/price.h"

/* Of the memory's bandwidth, by kernels that do little else. */
#define MEMORY_REACH 0.78

/* Time of an op. */
struct formula {
    double ns;
    int n_kernels; /* that it launches */
    enum price_bound bound;
};

/* Whether the kind is matrix products, or attention. */
bool price_is_product(enum op_kind kind);
bool price_is_attention(enum op_kind kind);

/* The longer of the two times. */
struct formula price_longer(double flop_ns, double byte_ns);

struct formula price_products(const struct prices *prices, const struct op_shape *op);
struct formula price_attention(const struct prices *prices, const struct op_shape *op);

/* One product: the result is m x n, k is summed; `times` such are one launch (experts). */
struct product {
    double m, n, k, times;
};
enum { N_PRODUCTS_MAX = 6 }; /* of an op: three, of whole chunks and of the rest */

/* The products of an op of such a kind. Returns how many. */
int price_list_products(const struct op_shape *op, struct product products[N_PRODUCTS_MAX]);

/* The share of the peak that a product of this shape reaches, (0, 1]. n_sms 0: a CPU. */
double price_product_efficiency(const struct product *product, enum device_format format,
                                int n_sms);

/* The format that multiplies operands of this dtype. */
enum device_format price_format(enum dtype dtype);

/* FLOP/s by the data sheet; where the device has no such unit, of the next wider one that it has.
 * *reach: the share of it that products reach within a step. */
double price_peak(const struct prices *prices, enum device_format format, double *reach);

/* ns to move bytes at this share of the memory's bandwidth. */
double price_memory_ns(const struct prices *prices, double n_bytes, double reach);

#endif
