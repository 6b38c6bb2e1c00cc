/* Σ|a| and Σ|a - b| of rows and of columns, in torch's order. */

#include "order.h"

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
    piece_sums(sums + pieces * width, a + r * width, BESIDE(b, r * width), rows - r < piece ? rows - r : piece,
               width, inverse, room);
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
