/* Σ|a| and Σ|a - b| of rows and of columns, in torch's order.

   Of float32 numbers the order decides the last bits. Torch (aten/src/ATen/native/cpu/SumKernel.cpp) adds up runs of
   numbers one by one, runs of runs likewise, on four levels. Along a row that is done for four vectors of eight numbers
   side by side; down the columns for each by itself, except that of the last columns, which do not fill four vectors,
   every fourth row makes a sum of its own. Rows that do not fill a vector are left to torch. `submodel.native` looks whether the torch that is there does the same. */

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

/* |a|, or |a - b| if there is a b. */
static inline FAST float size_of(const float *a, const float *b) { return fabsf(b ? *a - *b : *a); }

static inline FAST __attribute__((always_inline)) void add_sizes(vector *sum, const float *a, const float *b) {
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
      for (int k = 0; k < SIDE; k++) add_sizes(own + k, a + at + k * LANES, BESIDE(b, at + k * LANES));
    memcpy(sum[0], own, sizeof own);
    for (int level = 1; level < LEVELS; level++) {
      for (int k = 0; k < SIDE; k++) sum[level][k] += sum[level - 1][k];
      memset(sum[level - 1], 0, sizeof sum[0]);
      if (i & (mask << (level * power))) break;
    }
  }
  for (; i < size; i++, at += SIDE * LANES)
    for (int k = 0; k < SIDE; k++) add_sizes(sum[0] + k, a + at + k * LANES, BESIDE(b, at + k * LANES));
  for (int level = 1; level < LEVELS; level++)
    for (int k = 0; k < SIDE; k++) sum[0][k] += sum[level][k];
  for (i64 v = size * SIDE; v < vectors; v++, at += LANES) add_sizes(sum[0], a + at, BESIDE(b, at));
  for (int k = 1; k < SIDE; k++) sum[0][0] += sum[0][k];
  float total = 0.0f;
  for (; at < width; at++) total += size_of(a + at, BESIDE(b, at));
  for (int k = 0; k < LANES; k++) total += sum[0][0][k];
  return total;
}

/* Of the rows in the index; of the first `kept` if that is NULL. */
FAST int cos2p_row_sums(float *out, const float *a, const float *b, i64 rows, i64 width, const i64 *index, i64 kept) {
  if (rows < 0 || width < LANES || kept < 0 || kept > rows) return NOT_MINE;
  if (index && cos2p_runs(index, kept, rows) < 0) return NOT_MINE;
  for (i64 k = 0; k < kept; k++) {
    const i64 at = (index ? index[k] : k) * width;
    out[k] = b ? row_sum(a + at, b + at, width) : row_sum(a + at, NULL, width);
  }
  return DONE;
}

/* ----------------------------------------------------------------------------------------------------- columns */

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
static inline FAST __attribute__((always_inline)) void down(float *restrict sum, const float *a, const float *b,
                                                            i64 stride, i64 size, i64 count, const float *inverse) {
  const i64 power = run_power(size), run = (i64)1 << power, mask = run - 1;
  memset(sum, 0, (size_t)(LEVELS * count) * sizeof *sum);
  for (i64 i = 0; i < size;) {
    if (inverse)
      step_and_add((float *)a + i * stride, b + i * stride, inverse, count, sum);
    else
      for (i64 c = 0; c < count; c++) sum[c] += size_of(a + i * stride + c, BESIDE(b, i * stride + c));
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
static inline FAST __attribute__((always_inline)) void piece_sums(float *out, const float *a, const float *b, i64 rows,
                                                                  i64 width, const float *inverse, float *room) {
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
      for (i64 c = 0; c < rest; c++) part[0][c] += size_of(a + r * width + c, BESIDE(b, r * width + c));
  for (int k = 1; k < SIDE; k++)
    for (i64 c = 0; c < rest; c++) part[0][c] += part[k][c];
  memcpy(out + full, part[0], (size_t)rest * sizeof *out);
}

/* Room for the levels of all columns and for those of the last ones, and then for the sums of each piece. */
static float *make_room(i64 rows, i64 width, i64 piece, float **sums) {
  const i64 levels = LEVELS * (width + SIDE * SIDE * LANES), pieces = (rows + piece - 1) / piece;
  float *room = malloc((size_t)(levels + pieces * width) * sizeof *room);
  *sums = room ? room + levels : NULL;
  return room;
}

/* Of every column, `piece` rows at a time, and then of the pieces. */
static inline FAST __attribute__((always_inline)) int all_pieces(float *out, const float *a, const float *b, i64 rows,
                                                                 i64 width, i64 piece, const float *inverse) {
  if (rows < 1 || width < LANES || piece < 1) return NOT_MINE;
  float *sums, *room = make_room(rows, width, piece, &sums);
  if (!room) return NOT_MINE;
  i64 pieces = 0;
  for (i64 r = 0; r < rows; r += piece, pieces++)
    piece_sums(sums + pieces * width, a + r * width, BESIDE(b, r * width), rows - r < piece ? rows - r : piece, width,
               inverse, room);
  piece_sums(out, sums, NULL, pieces, width, NULL, room);
  free(room);
  return DONE;
}

FAST int cos2p_column_sums(float *out, const float *a, const float *b, i64 rows, i64 width, i64 piece) {
  return b ? all_pieces(out, a, b, rows, width, piece, NULL) : all_pieces(out, a, NULL, rows, width, piece, NULL);
}

/* --------------------------------------------------------------------------------------------- closing a round */

/* `total` becomes current - total * inverse, with an inverse for each row. While a row is in the cache the way it went
   is measured: `way` gets Σ|total - current|, as cos2p_row_sums gives it. */
FAST int cos2p_step_rows(float *restrict total, const float *restrict current, const float *inverse, i64 rows, i64 width,
                         float *way) {
  if (rows < 0 || width < LANES) return NOT_MINE;
  for (i64 r = 0; r < rows; r++, total += width, current += width) {
    const float own = inverse[r];
    for (i64 c = 0; c < width; c++) total[c] = fmaf(-total[c], own, current[c]);
    way[r] = row_sum(total, current, width);
  }
  return DONE;
}

/* Likewise with an inverse for each column, and the way of each column. */
FAST int cos2p_step_columns(float *total, const float *current, const float *inverse, i64 rows, i64 width, float *way,
                            i64 piece) {
  return all_pieces(way, total, current, rows, width, piece, inverse);
}
