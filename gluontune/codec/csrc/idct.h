/* The inverse DCT of a block, and at a half, a quarter and an eighth of its size: to the bit libjpeg-turbo's "islow" one.
 *
 * The same sums of the same integers (13 fractional bits in the factors, 2 kept between the passes). Damaged data bring
 * values that no image has: they wrap and saturate where they do in its vectors, so the pixels stay the same.
 * Source: Loeffler, Ligtenberg and Moschytz, ICASSP 1989; the factors are those of IJG's jidctint.c and jidctred.c, the
 * widths of sums those of libjpeg-turbo's jidctint-avx2.asm and jidctred-sse2.asm.
 */
#ifndef GT_IDCT_H
#define GT_IDCT_H
#include "dct.h"
#ifdef GT_V3

GT_INLINE int32_t gt_times(int16_t a, int16_t b) { return (int16_t)(uint16_t)((uint32_t)a * (uint32_t)b); }

GT_INLINE int32_t gt_shorten(int32_t v) { return v < -32768 ? -32768 : v > 32767 ? 32767 : v; }

/* A value of the first row, where all others are 0: four times it wraps at 16 bits, which otherwise saturates. */
GT_INLINE int32_t gt_alone(int32_t v) { return (int16_t)(uint16_t)((uint32_t)v << 2) >> 2; }

GT_INLINE uint8_t gt_sample(int32_t v) { return (uint8_t)(v < -128 ? 0 : v > 127 ? 255 : v + 128); }

/* A line of 8 to 4 or 2, `step` apart: in place, `bits` fractional bits fewer. */
GT_INLINE void gt_line4(int32_t *p, int step, int bits) {
  uint32_t i0 = (uint32_t)p[0], i1 = (uint32_t)p[step], i2 = (uint32_t)p[2 * step], i3 = (uint32_t)p[3 * step],
           i5 = (uint32_t)p[5 * step], i6 = (uint32_t)p[6 * step], i7 = (uint32_t)p[7 * step], half = 1u << bits;
  uint32_t a = i2 * 15137 - i6 * 6270, e0 = i0 * 16384 + half + a, e1 = i0 * 16384 + half - a;
  uint32_t o0 = i1 * 20995 + i3 * 7373 - i5 * 4926 - i7 * 4176;
  uint32_t o1 = i1 * 8697 - i3 * 17799 + i5 * 11893 - i7 * 1730;
  p[0] = (int32_t)(e0 + o0) >> (bits + 1);
  p[3 * step] = (int32_t)(e0 - o0) >> (bits + 1);
  p[step] = (int32_t)(e1 + o1) >> (bits + 1);
  p[2 * step] = (int32_t)(e1 - o1) >> (bits + 1);
}

GT_INLINE void gt_line2(int32_t *p, int step, int bits) {
  uint32_t i1 = (uint32_t)p[step], i3 = (uint32_t)p[3 * step], i5 = (uint32_t)p[5 * step], i7 = (uint32_t)p[7 * step];
  uint32_t e = (uint32_t)p[0] * 32768 + (2u << bits), o = i1 * 29692 - i3 * 10426 + i5 * 6967 - i7 * 5906;
  p[0] = (int32_t)(e + o) >> (bits + 2);
  p[step] = (int32_t)(e - o) >> (bits + 2);
}

/* A block to its pixels, at the side 4 or 2: to `out`, whose rows are `stride` apart. The block is all 0 then. */
GT_INLINE void gt_idct_small(int16_t *block, const int16_t *quant, int side, uint8_t *out, size_t stride) {
  int32_t at[64];
  int others = 0;
  for (int i = 0; i < 64; i++) at[i] = gt_times(block[i], quant[i]);
  for (int i = 8; i < 64; i++) others |= i / 8 == 4 ? 0 : block[i];
  for (int x = 0; x < 8 && side == 4 && !others; x++) at[x] = gt_alone(at[x]);
  memset(block, 0, 128);
  for (int x = 0; x < 8; x++) {
    if (side == 4) gt_line4(at + x, 8, 11);
    else gt_line2(at + x, 8, 11);
  }
  for (int y = 0; y < side; y++) {
    for (int x = side == 4 ? 0 : 1; x < 8; x++) at[8 * y + x] = gt_shorten(at[8 * y + x]);
    if (side == 4) gt_line4(at + 8 * y, 1, 18);
    else gt_line2(at + 8 * y, 1, 18);
    for (int x = 0; x < side; x++) out[(size_t)y * stride + (size_t)x] = gt_sample(at[8 * y + x]);
  }
}

/* The same, at any side, where only the first coefficient is not 0. */
GT_INLINE void gt_idct_flat(const int16_t *block, const int16_t *quant, int side, uint8_t *out, size_t stride) {
  int32_t dc = gt_times(block[0], quant[0]);
  int lost = side == 2 ? 17 : 18; /* bits of 32 that are wrapped away; of one pixel 22, in the end */
  dc = (((int32_t)((uint32_t)dc << lost) >> lost) + 4) >> 3;
  if (side == 1) dc = (int32_t)((uint32_t)((block[0] * quant[0] + 4) >> 3) << 22) >> 22;
  uint8_t v = gt_sample(dc);
  uint64_t row = v * 0x0101010101010101u;
  for (int y = 0; y < side; y++, out += stride) {
    if (side == 8) memcpy(out, &row, 8);
    else if (side == 4) memcpy(out, &row, 4);
    else for (int x = 0; x < side; x++) out[x] = v;
  }
}

/* Lines of 8 to 8 of four columns of two blocks. 16-bit sums of two rows: 0 + 4 and 0 - 4, each behind `below`, and
 * 3 + 7 beside 1 + 5; rows interleaved: 2 with 6, 7 with 1, 5 with 3. */
GT_V3 GT_INLINE void gt_lines8(__m256i sum, __m256i rest, __m256i z, __m256i p26, __m256i p71, __m256i p53, int bits,
                               __m256i out[8]) {
  sum = _mm256_srai_epi32(sum, 3);
  rest = _mm256_srai_epi32(rest, 3);
  if (bits > 13) { /* otherwise a half came from below */
    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(1 << (bits - 1)));
    rest = _mm256_add_epi32(rest, _mm256_set1_epi32(1 << (bits - 1)));
  }
  __m256i a = GT_BY(p26, 10703, 4433), b = GT_BY(p26, 4433, -10704);
  __m256i z3 = GT_BY(z, -6436, 9633), z4 = GT_BY(z, 9633, 6437);
  __m256i e[4] = {_mm256_add_epi32(sum, a), _mm256_add_epi32(rest, b), _mm256_sub_epi32(rest, b),
                  _mm256_sub_epi32(sum, a)};
  __m256i o[4] = {_mm256_add_epi32(GT_BY(p71, -7373, 4926), z4), _mm256_add_epi32(GT_BY(p53, -20995, 4177), z3),
                  _mm256_add_epi32(GT_BY(p53, -4176, -20995), z4), _mm256_add_epi32(GT_BY(p71, -4927, -7373), z3)};
  for (int k = 0; k < 4; k++) {
    out[k] = _mm256_srai_epi32(_mm256_add_epi32(e[k], o[k]), bits);
    out[7 - k] = _mm256_srai_epi32(_mm256_sub_epi32(e[k], o[k]), bits);
  }
}

/* All columns of two blocks; a row of the one is in the lower half of each r[k], of the other in the upper. */
GT_V3 GT_INLINE void gt_pass8(__m256i r[8], int bits) {
  const __m256i below = _mm256_set1_epi16(bits > 13 ? 0 : 1 << (bits + 2));
  __m256i low[8], high[8], sum = _mm256_add_epi16(r[0], r[4]), rest = _mm256_sub_epi16(r[0], r[4]);
  __m256i z3 = _mm256_add_epi16(r[3], r[7]), z4 = _mm256_add_epi16(r[1], r[5]);
#define MIX(f) f(below, sum), f(below, rest), f(z3, z4), f(r[2], r[6]), f(r[7], r[1]), f(r[5], r[3])
  gt_lines8(MIX(_mm256_unpacklo_epi16), bits, low);
  gt_lines8(MIX(_mm256_unpackhi_epi16), bits, high);
#undef MIX
  for (int k = 0; k < 8; k++) r[k] = _mm256_packs_epi32(low[k], high[k]);
}

typedef struct { /* a block that waits for another one: two take little more time than one */
  int16_t *block;
  const int16_t *quant;
  uint8_t *out;
  size_t stride;
} gt_waiting;

/* The first rows of two blocks, whose values are large: where all other rows are 0, they wrap. */
GT_V3 static GT_COLD __m256i gt_first_rows(const gt_waiting two[2], __m256i row) {
  int16_t at[16], others[2] = {0, 0};
  _mm256_storeu_si256((__m256i *)at, row);
  for (int i = 8; i < 64; i++)
    for (int b = 0; b < 2; b++) others[b] |= two[b].block[i];
  for (int i = 0; i < 16; i++)
    if (!others[i / 8]) at[i] = (int16_t)gt_alone(at[i]);
  return _mm256_loadu_si256((const __m256i *)at);
}

/* Two blocks to their 8 x 8 pixels each. The blocks are all 0 then. */
GT_V3 static void gt_idct_two(const gt_waiting two[2]) {
  const __m256i middle = _mm256_set1_epi8((char)128), zero = _mm256_setzero_si256();
  __m256i r[8];
#define BOTH(member, k) \
  _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(two[1].member + 8 * (k))), \
                   _mm_loadu_si128((const __m128i *)(two[0].member + 8 * (k))))
  __m256i first = _mm256_mullo_epi16(BOTH(block, 0), BOTH(quant, 0)), large = _mm256_slli_epi16(first, 2);
  large = _mm256_xor_si256(_mm256_srai_epi16(large, 2), first);
  if (!GT_LIKELY(_mm256_testz_si256(large, large))) first = gt_first_rows(two, first);
  r[0] = first;
  for (int k = 1; k < 8; k++) r[k] = _mm256_mullo_epi16(BOTH(block, k), BOTH(quant, k));
#undef BOTH
  for (int b = 0; b < 2; b++)
    for (int k = 0; k < 4; k++) _mm256_storeu_si256((__m256i *)(two[b].block + 16 * k), zero);
  gt_pass8(r, 11);
  gt_transpose(r);
  gt_pass8(r, 18);
  gt_transpose(r);
  for (int k = 0; k < 8; k += 2) {
    __m256i rows = _mm256_add_epi8(_mm256_packs_epi16(r[k], r[k + 1]), middle);
    __m128i a = _mm256_castsi256_si128(rows), b = _mm256_extracti128_si256(rows, 1);
    _mm_storel_epi64((__m128i *)(two[0].out + (size_t)k * two[0].stride), a);
    _mm_storel_epi64((__m128i *)(two[0].out + (size_t)(k + 1) * two[0].stride), _mm_unpackhi_epi64(a, a));
    _mm_storel_epi64((__m128i *)(two[1].out + (size_t)k * two[1].stride), b);
    _mm_storel_epi64((__m128i *)(two[1].out + (size_t)(k + 1) * two[1].stride), _mm_unpackhi_epi64(b, b));
  }
}
#endif
#endif
