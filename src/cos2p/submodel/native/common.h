/* Passes over float32 matrices for which torch needs several: the same values, bit for bit.

   No Python in here: `submodel.native` calls the functions with ctypes, so that other threads run meanwhile, and one
   build serves every Python. What is not static is called from there.

   Every such function returns DONE, or NOT_MINE if it has changed nothing: it is torch's then to do or to refuse. That is
   so of indices that are out of range or do not ascend, of lengths below zero, and where there is no memory.

   To be compiled with -ffp-contract=off: a product is rounded before it is added, unless fmaf is written. */

#ifndef COS2P_NATIVE_COMMON_H
#define COS2P_NATIVE_COMMON_H

#include <stdint.h>

#if !defined(__GNUC__)
#error "written for gcc and clang; without them torch does all of it"
#endif

typedef int64_t i64;

enum { DONE = 0, NOT_MINE = 1 };

/* On x86 everything needs AVX2 and FMA, which torch uses too where they are; `cos2p_can_run` says whether they are. */
#if defined(__x86_64__)
#define FAST __attribute__((target("avx2,fma")))
#else
#define FAST
#endif

/* How many runs of consecutive entries there are; -1 unless 0 <= index[0] < index[1] < ... < length. */
i64 cos2p_runs(const i64 *index, i64 kept, i64 length);

#endif
