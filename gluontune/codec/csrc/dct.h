/* What the DCT and its inverse share: blocks of 8 x 8 values of 16 bits, two at a time, a row of each in a register. */
#ifndef GT_DCT_H
#define GT_DCT_H
#include "codec.h"
#ifdef GT_V3
#include <immintrin.h>

/* Pairs of values: the one times a and the other times b, added. */
#define GT_BY(v, a, b) _mm256_madd_epi16(v, _mm256_set1_epi32((int)((uint32_t)(b) << 16 | (uint16_t)(a))))

GT_V3 GT_INLINE void gt_transpose(__m256i r[8]) { /* two blocks of 8 x 8, each by itself */
  for (int turn = 0; turn < 3; turn++) {
    __m256i a[8];
    for (int k = 0; k < 4; k++) {
      a[2 * k] = _mm256_unpacklo_epi16(r[k], r[k + 4]);
      a[2 * k + 1] = _mm256_unpackhi_epi16(r[k], r[k + 4]);
    }
    for (int k = 0; k < 8; k++) r[k] = a[k];
  }
}
#endif
#endif
