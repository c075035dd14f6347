/*
 * parquet_value.c - a stored value as JSON
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/parquet/parquet_impl.h"
#include "data/rows/json_value.h"

/* The shortest of these digits that reads back as the same number. */
static void print_double(double value, int digits, int digits_max, struct str *out)
{
    char text[40];

    if (!isfinite(value)) {
        str_add(out, "null");
        return;
    }
    for (; digits <= digits_max; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (digits_max < 10 ? (float)back == (float)value : back == value)
            break;
    }
    str_add(out, text);
}

static double half(unsigned bits)
{
    int exponent = (int)(bits >> 10 & 31), sign = bits & 0x8000 ? -1 : 1;
    double fraction = bits & 1023;

    if (exponent == 31)
        return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

/* An unscaled whole number with `scale` digits behind the point. */
static void print_decimal(__int128 value, int scale, struct str *out)
{
    char digits[48];
    int n = 0;
    bool is_negative = value < 0;
    unsigned __int128 rest = is_negative ? -(unsigned __int128)value : (unsigned __int128)value;

    while (rest > 0 || n == 0) {
        digits[n++] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    }
    if (is_negative)
        str_add_char(out, '-');
    if (n <= scale)
        str_add(out, "0.");
    for (int zeros = n; zeros < scale; zeros++)
        str_add_char(out, '0');
    for (int i = n - 1; i >= 0; i--) {
        str_add_char(out, digits[i]);
        if (i == scale && i > 0)
            str_add_char(out, '.');
    }
}

/* Big-endian two's complement of up to 16 bytes. */
static __int128 whole_of(struct parquet_slice slice)
{
    unsigned __int128 value = slice.n > 0 && slice.at[0] & 0x80 ? ~(unsigned __int128)0 : 0;

    for (size_t i = 0; i < slice.n; i++)
        value = value << 8 | slice.at[i];
    return (__int128)value;
}

static void print_slice(const struct parquet_node *node, struct parquet_slice slice,
                        struct str *out)
{
    if (node->meaning == MEANING_DECIMAL && slice.n <= 16)
        print_decimal(whole_of(slice), node->scale, out);
    else if (node->meaning == MEANING_FLOAT16 && slice.n == 2)
        print_double(half(slice.at[0] | (unsigned)slice.at[1] << 8), 5, 9, out);
    else
        json_value_print_text((const char *)slice.at, slice.n, out);
}

/* Nanoseconds since 1970 of an INT96: those of the day, then the Julian day. */
static void print_int96(struct parquet_slice slice, struct str *out)
{
    uint64_t nanoseconds;
    uint32_t day;

    memcpy(&nanoseconds, slice.at, 8);
    memcpy(&day, slice.at + 8, 4);
    print_decimal(((__int128)day - 2440588) * 86400000000000 + (__int128)nanoseconds, 0, out);
}

static void print_whole(const struct parquet_node *node, uint64_t number, struct str *out)
{
    int64_t value = node->type == PARQUET_INT32 ? (int32_t)(uint32_t)number : (int64_t)number;

    if (node->meaning == MEANING_DECIMAL)
        print_decimal(value, node->scale, out);
    else if (node->meaning == MEANING_UNSIGNED)
        str_printf(out, "%llu", (unsigned long long)number);
    else
        str_printf(out, "%lld", (long long)value);
}

void parquet_print_value(const struct parquet_node *node, const struct parquet_values *values,
                         int64_t i, struct str *out)
{
    uint32_t bits;
    float single;
    double number;

    switch (node->type) {
    case PARQUET_BOOLEAN:
        str_add(out, values->numbers[i] ? "true" : "false");
        break;
    case PARQUET_FLOAT:
        bits = (uint32_t)values->numbers[i];
        memcpy(&single, &bits, sizeof single);
        print_double((double)single, 6, 9, out);
        break;
    case PARQUET_DOUBLE:
        memcpy(&number, &values->numbers[i], sizeof number);
        print_double(number, 15, 17, out);
        break;
    case PARQUET_INT96:
        print_int96(values->slices[i], out);
        break;
    case PARQUET_BYTES:
    case PARQUET_FIXED:
        print_slice(node, values->slices[i], out);
        break;
    default:
        print_whole(node, values->numbers[i], out);
    }
}
