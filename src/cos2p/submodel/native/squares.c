/* Of tensors that lie in one piece of memory: the norm of each, and Σx² of each of their segments, in torch's order.

   What is to be done is a table of numbers, made once for tensors of a kind (`submodel.square_sums`). A row of it is of
   `members` tensors alike, `step` numbers apart. */

#include "order.h"

enum { TENSORS = 4 };

/* √Σx² as torch's vector_norm has it: a vector of sums, then their sum, then what does not fill a vector.
   Of that, as its compiler has it, four squares are rounded before they are added and the others are not. A few tensors
   side by side: each addition waits for the one before. */
static inline FAST __attribute__((always_inline)) void norms_of(float *out, const float *a, i64 step, i64 length,
                                                                int tensors) {
  vector sum[TENSORS];
  memset(sum, 0, sizeof sum);
  i64 at = 0;
  for (; at + LANES <= length; at += LANES)
    for (int k = 0; k < tensors; k++) add_terms(SQUARES, sum + k, a + k * step + at, NULL);
  for (int k = 0; k < tensors; k++) {
    float total = sum[k][0];
    for (int lane = 1; lane < LANES; lane++) total += sum[k][lane];
    const i64 rounded = at + (length - at) / 4 * 4;
    for (i64 i = at; i < length; i++) {
      const float x = a[k * step + i];
      total = i < rounded ? total + x * x : fmaf(x, x, total);
    }
    out[k] = sqrtf(total);
  }
}

typedef struct {
  i64 begin, step, members, length;
} Tensors;

FAST int cos2p_norms(float *out, const float *memory, const Tensors *table, i64 rows) {
  for (const Tensors *own = table; own < table + rows; own++) {
    const float *a = memory + own->begin;
    i64 m = 0;
    for (; m + TENSORS <= own->members; m += TENSORS) norms_of(out + m, a + m * own->step, own->step, own->length, TENSORS);
    for (; m < own->members; m++) norms_of(out + m, a + m * own->step, own->step, own->length, 1);
    out += own->members;
  }
  return DONE;
}

enum { WHOLE, ROWS, COLUMNS, SINGLE };

typedef struct {
  i64 begin, step, members;
  i64 along; /* what a number is of, at first: WHOLE a tensor, ROWS and COLUMNS of a matrix, SINGLE entries of a vector */
  i64 rows, width;
  i64 group; /* so many of these numbers make a segment */
  i64 to;    /* where the first tensor's sums go; those of the next follow */
  i64 first; /* whether they are the first to go there; others are added */
} Segments;

static i64 numbers(const Segments *own) {
  return own->along == WHOLE ? 1 : own->along == COLUMNS ? own->width : own->rows;
}

/* A row that does not fill a vector: four sums, the first of which takes what is left over. */
static inline FAST __attribute__((always_inline)) float short_sum(int what, const float *a, i64 width) {
  float sum[SIDE] = {0.0f, 0.0f, 0.0f, 0.0f};
  const i64 full = width < SIDE ? 0 : SIDE;
  for (i64 i = 0; i < width; i++) sum[i < full ? i : 0] += term(what, a + i, NULL);
  for (int k = 1; k < SIDE; k++) sum[0] += sum[k];
  return sum[0];
}

static inline FAST __attribute__((always_inline)) float any_sum(int what, const float *a, i64 width) {
  return width < LANES ? short_sum(what, a, width) : row_sum(what, a, NULL, width);
}

static inline FAST __attribute__((always_inline)) void sums_of(float *to, const float *a, const Segments *own,
                                                               float *room) {
  const i64 count = numbers(own), segments = count / own->group;
  float *sums = room, *levels = room + count;
  if (own->along == COLUMNS)
    piece_sums(SQUARES, sums, a, NULL, own->rows, own->width, NULL, levels);
  else
    for (i64 r = 0; r < count; r++)
      sums[r] = own->along == SINGLE ? a[r] * a[r] : any_sum(SQUARES, a + r * own->width, own->width);
  for (i64 s = 0; s < segments; s++) {
    const float sum = own->group == 1 ? sums[s] : any_sum(VALUES, sums + s * own->group, own->group);
    to[s] = own->first ? sum : to[s] + sum;
  }
}

FAST int cos2p_segment_squares(float *out, const float *memory, const Segments *table, i64 rows) {
  i64 most = 0;
  for (const Segments *own = table; own < table + rows; own++) {
    if (own->along == COLUMNS && own->width < LANES) return NOT_MINE; /* torch adds these up in another way */
    const i64 needed = numbers(own) + (own->along == COLUMNS ? LEVELS * (own->width + SIDE * SIDE * LANES) : 0);
    if (needed > most) most = needed;
  }
  float *room = malloc((size_t)(most + 1) * sizeof *room);
  if (!room) return NOT_MINE;
  for (const Segments *own = table; own < table + rows; own++) {
    const i64 segments = numbers(own) / own->group;
    for (i64 m = 0; m < own->members; m++)
      sums_of(out + own->to + m * segments, memory + own->begin + m * own->step, own, room);
  }
  free(room);
  return DONE;
}
