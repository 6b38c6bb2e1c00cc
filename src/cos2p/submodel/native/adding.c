/* total[kept] += part * factor, for scattered rows and columns.

   `step` is 0 if all rows (columns) have one factor, else 1.
   `worth`: where runs of kept rows (columns) are that long on average, a product is not rounded before it is added, as in
   torch's addcmul_, by which submodel.kernels adds such runs; else it is, as in mul and index_add_.
   `first`: nothing was there before, and what is not kept becomes zero. A product of -0.0 becomes 0.0, as when it is added
   to zeros. */

#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

int cos2p_version(void) { return 1; }

int cos2p_can_run(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

i64 cos2p_runs(const i64 *index, i64 kept, i64 length) {
  i64 before = -2, runs = 0;
  for (i64 k = 0; k < kept; k++) {
    if (index[k] < 0 || index[k] <= before || index[k] >= length) return -1;
    runs += index[k] != before + 1;
    before = index[k];
  }
  return runs;
}

/* Past the cache, where it would not stay until the next update is added: a line is not read before it is written. */
enum { LARGE = 1 << 20 };

static int goes_past(const float *total, i64 rows, i64 width, i64 together) {
  return rows * width * (i64)sizeof *total >= LARGE && width % together == 0 &&
         (uintptr_t)total % ((uintptr_t)together * sizeof *total) == 0;
}

static inline FAST float plus_product(float sum, float x, float factor, int fused) {
  return fused ? fmaf(x, factor, sum) : sum + x * factor;
}

static void clear(float *from, i64 count) { memset(from, 0, (size_t)count * sizeof *from); }

static FAST void add_row(float *restrict to, const float *restrict part, i64 width, float factor, int fused) {
  for (i64 c = 0; c < width; c++) to[c] = plus_product(to[c], part[c], factor, fused);
}

static FAST void put_row(float *restrict to, const float *restrict part, i64 width, float factor, int fused) {
  for (i64 c = 0; c < width; c++) to[c] = plus_product(0.0f, part[c], factor, fused);
}

#if defined(__x86_64__)
static FAST void put_row_past(float *to, const float *part, i64 width, float factor, int fused) {
  const __m256 f = _mm256_set1_ps(factor), zero = _mm256_setzero_ps();
  for (i64 c = 0; c < width; c += 8) {
    const __m256 x = _mm256_loadu_ps(part + c);
    _mm256_stream_ps(to + c, fused ? _mm256_fmadd_ps(x, f, zero) : _mm256_add_ps(zero, _mm256_mul_ps(x, f)));
  }
}

static FAST void clear_past(float *to, i64 count) {
  for (i64 c = 0; c < count; c += 8) _mm256_stream_ps(to + c, _mm256_setzero_ps());
}

static void settle(void) { _mm_sfence(); }
#else
#define put_row_past put_row
#define clear_past clear
static void settle(void) {}
#endif

/* total[index, :] += part * factor, row by row. */
FAST int cos2p_add_rows(float *total, i64 rows, i64 width, const float *part, const i64 *index, i64 kept,
                        const float *factor, i64 step, i64 worth, int first) {
  const i64 runs = rows < 0 || width < 0 || kept < 0 ? -1 : cos2p_runs(index, kept, rows);
  if (runs < 0) return NOT_MINE;
  const int fused = runs * worth <= kept;
  if (!first) {
    for (i64 k = 0; k < kept; k++) add_row(total + index[k] * width, part + k * width, width, factor[k * step], fused);
    return DONE;
  }
  const int past = goes_past(total, rows, width, 8);
  i64 next = 0;
  for (i64 k = 0; k <= kept; k++) {
    const i64 row = k < kept ? index[k] : rows;
    (past ? clear_past : clear)(total + next * width, (row - next) * width);
    if (k < kept) (past ? put_row_past : put_row)(total + row * width, part + k * width, width, factor[k * step], fused);
    next = row + 1;
  }
  settle();
  return DONE;
}

/* total[:, index] += part * factor, column by column. */
FAST int cos2p_add_columns(float *restrict total, i64 rows, i64 width, const float *restrict part, const i64 *index,
                           i64 kept, const float *factor, i64 step, i64 worth, int first) {
  const i64 runs = rows < 0 || width < 0 || kept < 0 ? -1 : cos2p_runs(index, kept, width);
  if (runs < 0) return NOT_MINE;
  const int fused = runs * worth <= kept;
  for (i64 r = 0; r < rows; r++, total += width, part += kept) {
    if (first) clear(total, width);
    for (i64 k = 0; k < kept; k++) total[index[k]] = plus_product(total[index[k]], part[k], factor[k * step], fused);
  }
  return DONE;
}

/* The same where the processor can spread consecutive numbers over the places that a mask says. */
#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,avx2,fma")))

/* Sixteen neighbouring columns: which of them are there and which are kept, as bits; the same in every row. */
typedef struct {
  float factor[16];
  __mmask16 there, kept;
  int32_t count;
} Sixteen;

int cos2p_has_expand(void) { return cos2p_can_run() && __builtin_cpu_supports("avx512f"); }

WIDE static inline __attribute__((always_inline)) void add_sixteens(float *total, i64 rows, i64 width,
                                                                    const float *part, const Sixteen *sixteens,
                                                                    int first, int past, int fused) {
  for (i64 r = 0; r < rows; r++, total += width) {
    const Sixteen *own = sixteens;
    for (i64 c = 0; c < width; c += 16, part += own->count, own++) {
      const __m512 x = _mm512_maskz_expandloadu_ps(own->kept, part), factor = _mm512_loadu_ps(own->factor);
      const __m512 old = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(own->there, total + c);
      /* what is not kept stays as it is, -0.0 and all */
      const __m512 sum = fused ? _mm512_mask3_fmadd_ps(x, factor, old, own->kept)
                               : _mm512_mask_add_ps(old, own->kept, old, _mm512_mul_ps(x, factor));
      if (past)
        _mm512_stream_ps(total + c, sum);
      else
        _mm512_mask_storeu_ps(total + c, own->there, sum);
    }
  }
}

WIDE int cos2p_add_columns_expanded(float *total, i64 rows, i64 width, const float *part, const i64 *index, i64 kept,
                                    const float *factor, i64 step, i64 worth, int first) {
  const i64 runs = rows < 0 || width < 0 || kept < 0 ? -1 : cos2p_runs(index, kept, width);
  if (runs < 0) return NOT_MINE;
  const int fused = runs * worth <= kept, past = first && goes_past(total, rows, width, 16);
  Sixteen *sixteens = calloc((size_t)(width / 16 + 1), sizeof *sixteens);
  if (!sixteens) return NOT_MINE;
  for (i64 c = 0; c < width; c += 16) sixteens[c / 16].there = width - c < 16 ? (1 << (width - c)) - 1 : 0xffff;
  for (i64 k = 0; k < kept; k++) {
    Sixteen *own = sixteens + index[k] / 16;
    own->factor[index[k] % 16] = factor[k * step];
    own->kept |= (__mmask16)(1 << (index[k] % 16));
    own->count++;
  }
#define ADD(first, past) /* constants in each call, for a loop of its own */ \
  (fused ? add_sixteens(total, rows, width, part, sixteens, first, past, 1) \
         : add_sixteens(total, rows, width, part, sixteens, first, past, 0))
  past ? ADD(1, 1) : first ? ADD(1, 0) : ADD(0, 0);
#undef ADD
  settle();
  free(sixteens);
  return DONE;
}
#else
int cos2p_has_expand(void) { return 0; }

int cos2p_add_columns_expanded(float *total, i64 rows, i64 width, const float *part, const i64 *index, i64 kept,
                               const float *factor, i64 step, i64 worth, int first) {
  return cos2p_add_columns(total, rows, width, part, index, kept, factor, step, worth, first);
}
#endif
