/* Sums of rows and of columns in torch's order.

   Of float32 numbers the order decides the last bits. Torch (aten/src/ATen/native/cpu/SumKernel.cpp) adds up runs of
   numbers one by one, runs of runs likewise, on four levels. Along a row that is done for four vectors of eight numbers
   side by side; down the columns for each by itself, except that of the last columns, which do not fill four vectors,
   every fourth row makes a sum of its own. Rows that do not fill a vector are left to torch. `submodel.native` looks
   whether the torch that is there does the same. */

#ifndef COS2P_NATIVE_ORDER_H
#define COS2P_NATIVE_ORDER_H

#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, SIDE = 4, LEVELS = 4 };

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t bits __attribute__((vector_size(LANES * sizeof(float))));

/* A run has so many numbers, as a power of two. */
static i64 run_power(i64 size) {
  i64 log = 0;
  while (((i64)1 << log) < size) log++;
  return log / LEVELS > 4 ? log / LEVELS : 4;
}

/* One number of a sum: |a|, or |a - b| if there is a b. */
static inline FAST __attribute__((always_inline)) float term(const float *a, const float *b) {
  return fabsf(b ? *a - *b : *a);
}

static inline FAST __attribute__((always_inline)) void add_terms(vector *sum, const float *a, const float *b) {
  vector x, y;
  memcpy(&x, a, sizeof x);
  if (b) {
    memcpy(&y, b, sizeof y);
    x -= y;
  }
  *sum += (vector)((bits)x & 0x7fffffff);
}

/* -------------------------------------------------------------------------------------------------------- rows */

#define BESIDE(p, at) ((p) ? (p) + (at) : NULL)

static inline FAST __attribute__((always_inline)) float row_sum(const float *a, const float *b, i64 width) {
  const i64 vectors = width / LANES, size = vectors / SIDE, power = run_power(size);
  const i64 run = (i64)1 << power, mask = run - 1;
  vector sum[LEVELS][SIDE];
  memset(sum, 0, sizeof sum);
  i64 i = 0, at = 0;
  while (i + run <= size) {
    vector own[SIDE];
    memset(own, 0, sizeof own);
    for (i64 j = 0; j < run; j++, i++, at += SIDE * LANES)
      for (int k = 0; k < SIDE; k++) add_terms(own + k, a + at + k * LANES, BESIDE(b, at + k * LANES));
    memcpy(sum[0], own, sizeof own);
    for (int level = 1; level < LEVELS; level++) {
      for (int k = 0; k < SIDE; k++) sum[level][k] += sum[level - 1][k];
      memset(sum[level - 1], 0, sizeof sum[0]);
      if (i & (mask << (level * power))) break;
    }
  }
  for (; i < size; i++, at += SIDE * LANES)
    for (int k = 0; k < SIDE; k++) add_terms(sum[0] + k, a + at + k * LANES, BESIDE(b, at + k * LANES));
  for (int level = 1; level < LEVELS; level++)
    for (int k = 0; k < SIDE; k++) sum[0][k] += sum[level][k];
  for (i64 v = size * SIDE; v < vectors; v++, at += LANES) add_terms(sum[0], a + at, BESIDE(b, at));
  for (int k = 1; k < SIDE; k++) sum[0][0] += sum[0][k];
  float total = 0.0f;
  for (; at < width; at++) total += term(a + at, BESIDE(b, at));
  for (int k = 0; k < LANES; k++) total += sum[0][0][k];
  return total;
}

/* A row of a round that is closed: `to` becomes from - to * inverse, and the way it went is added to the sums. */
static inline FAST __attribute__((always_inline)) void step_and_add(float *restrict to, const float *restrict from,
                                                                    const float *restrict inverse, i64 count,
                                                                    float *restrict sum) {
  for (i64 c = 0; c < count; c++) {
    const float x = fmaf(-to[c], inverse[c], from[c]);
    to[c] = x;
    sum[c] += fabsf(x - from[c]);
  }
}

/* `count` sums down `size` rows that lie `stride` numbers apart. They end in the first of the levels, each of `count`.
   If there is an inverse, a step is made of every row before. */
static inline FAST __attribute__((always_inline)) void down(float *restrict sum, const float *a,
                                                            const float *b, i64 stride, i64 size, i64 count,
                                                            const float *inverse) {
  const i64 power = run_power(size), run = (i64)1 << power, mask = run - 1;
  memset(sum, 0, (size_t)(LEVELS * count) * sizeof *sum);
  for (i64 i = 0; i < size;) {
    if (inverse)
      step_and_add((float *)a + i * stride, b + i * stride, inverse, count, sum);
    else
      for (i64 c = 0; c < count; c++) sum[c] += term(a + i * stride + c, BESIDE(b, i * stride + c));
    i++;
    for (int level = 1; level < LEVELS && !(i & (mask << ((level - 1) * power))); level++) {
      float *restrict low = sum + (level - 1) * count, *restrict high = low + count;
      for (i64 c = 0; c < count; c++) high[c] += low[c];
      memset(low, 0, (size_t)count * sizeof *low);
    }
  }
  for (int level = 1; level < LEVELS; level++)
    for (i64 c = 0; c < count; c++) sum[c] += sum[level * count + c];
}

/* Of all columns, with room for the levels. */
static inline FAST __attribute__((always_inline)) void piece_sums(float *out, const float *a,
                                                                  const float *b, i64 rows, i64 width,
                                                                  const float *inverse, float *room) {
  const i64 rest = width % (SIDE * LANES), full = width - rest, quarter = rows / SIDE;
  down(room, a, b, width, rows, full, inverse);
  memcpy(out, room, (size_t)full * sizeof *out);
  if (!rest) return;
  a += full, b = BESIDE(b, full), inverse = BESIDE(inverse, full);
  float *part[SIDE];
  for (int k = 0; k < SIDE; k++) {
    part[k] = room + k * LEVELS * rest;
    down(part[k], a + k * width, BESIDE(b, k * width), SIDE * width, quarter, rest, inverse);
  }
  for (i64 r = quarter * SIDE; r < rows; r++)
    if (inverse)
      step_and_add((float *)a + r * width, b + r * width, inverse, rest, part[0]);
    else
      for (i64 c = 0; c < rest; c++) part[0][c] += term(a + r * width + c, BESIDE(b, r * width + c));
  for (int k = 1; k < SIDE; k++)
    for (i64 c = 0; c < rest; c++) part[0][c] += part[k][c];
  memcpy(out + full, part[0], (size_t)rest * sizeof *out);
}

#endif
