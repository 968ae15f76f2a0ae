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

/* A value of the first row, where all others are 0: four times it wraps at 16 bits, which otherwise saturates. */
GT_INLINE int32_t gt_alone(int32_t v) { return (int16_t)(uint16_t)((uint32_t)v << 2) >> 2; }

GT_INLINE uint8_t gt_sample(int32_t v) { return (uint8_t)(v < -128 ? 0 : v > 127 ? 255 : v + 128); }

/* A block of which only the first coefficient is not 0 to its pixels, at any side: to `out`, whose rows are `stride`
 * apart. */
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

/* The first rows of two blocks, whose values are large: where all other rows that are `used` are 0, they wrap. */
GT_V3 static GT_COLD __m256i gt_first_rows(const gt_waiting two[2], __m256i row, int used) {
  int16_t at[16], others[2] = {0, 0};
  _mm256_storeu_si256((__m256i *)at, row);
  for (int i = 8; i < 64; i++)
    for (int b = 0; b < 2 && (used >> i / 8 & 1); b++) others[b] |= two[b].block[i];
  for (int i = 0; i < 16; i++)
    if (!others[i / 8]) at[i] = (int16_t)gt_alone(at[i]);
  return _mm256_loadu_si256((const __m256i *)at);
}

/* The rows of two blocks that are `used` (bit k: row k), times their quantizers. The blocks are all 0 then. */
GT_V3 GT_INLINE void gt_take_two(const gt_waiting two[2], int used, __m256i r[8]) {
  const __m256i zero = _mm256_setzero_si256();
#define BOTH(member, k) \
  _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(two[1].member + 8 * (k))), \
                   _mm_loadu_si128((const __m128i *)(two[0].member + 8 * (k))))
  for (int k = 0; k < 8; k++)
    if (used >> k & 1) r[k] = _mm256_mullo_epi16(BOTH(block, k), BOTH(quant, k));
#undef BOTH
  __m256i large = _mm256_slli_epi16(r[0], 2);
  large = _mm256_xor_si256(_mm256_srai_epi16(large, 2), r[0]);
  if (!GT_LIKELY(_mm256_testz_si256(large, large)) && (used & 4)) r[0] = gt_first_rows(two, r[0], used); /* not to 2 x 2 */
  for (int b = 0; b < 2; b++)
    for (int k = 0; k < 4; k++) _mm256_storeu_si256((__m256i *)(two[b].block + 16 * k), zero);
}

/* Two blocks to their 8 x 8 pixels each. */
GT_V3 static void gt_idct_two(const gt_waiting two[2]) {
  const __m256i middle = _mm256_set1_epi8((char)128);
  __m256i r[8];
  gt_take_two(two, 0xFF, r);
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

/* Lines of 8 to 4 of four columns of two blocks. Rows interleaved: 0 behind zeros, 2 with 6, 1 with 3, 5 with 7. */
GT_V3 GT_INLINE void gt_lines4(__m256i p0, __m256i p26, __m256i p13, __m256i p57, int bits, __m256i out[4]) {
  __m256i e = _mm256_add_epi32(_mm256_srai_epi32(p0, 2), _mm256_set1_epi32(1 << bits)), a = GT_BY(p26, 15137, -6270);
  __m256i e0 = _mm256_add_epi32(e, a), o0 = _mm256_add_epi32(GT_BY(p13, 20995, 7373), GT_BY(p57, -4926, -4176));
  __m256i e1 = _mm256_sub_epi32(e, a), o1 = _mm256_add_epi32(GT_BY(p13, 8697, -17799), GT_BY(p57, 11893, -1730));
  out[0] = _mm256_srai_epi32(_mm256_add_epi32(e0, o0), bits + 1);
  out[1] = _mm256_srai_epi32(_mm256_add_epi32(e1, o1), bits + 1);
  out[2] = _mm256_srai_epi32(_mm256_sub_epi32(e1, o1), bits + 1);
  out[3] = _mm256_srai_epi32(_mm256_sub_epi32(e0, o0), bits + 1);
}

/* Two blocks to 4 x 4 pixels each. */
GT_V3 static void gt_idct_two4(const gt_waiting two[2]) {
  const __m256i zero = _mm256_setzero_si256(), middle = _mm256_set1_epi8((char)128);
  const __m256i turn = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m256i r[8], low[4], high[4], c[4];
  gt_take_two(two, 0xEF, r);
#define MIX(f) f(zero, r[0]), f(r[2], r[6]), f(r[1], r[3]), f(r[5], r[7])
  gt_lines4(MIX(_mm256_unpacklo_epi16), 11, low);
  gt_lines4(MIX(_mm256_unpackhi_epi16), 11, high);
#undef MIX
  for (int k = 0; k < 4; k++) r[k] = _mm256_packs_epi32(low[k], high[k]);
  for (int k = 0; k < 4; k += 2) { /* four rows of each column: columns 0 and 1, 2 and 3, 4 and 5, 6 and 7 */
    __m256i a = k ? _mm256_unpackhi_epi16(r[0], r[1]) : _mm256_unpacklo_epi16(r[0], r[1]);
    __m256i b = k ? _mm256_unpackhi_epi16(r[2], r[3]) : _mm256_unpacklo_epi16(r[2], r[3]);
    c[k] = _mm256_unpacklo_epi32(a, b);
    c[k + 1] = _mm256_unpackhi_epi32(a, b);
  }
  gt_lines4(_mm256_unpacklo_epi16(zero, c[0]), _mm256_unpacklo_epi16(c[1], c[3]), _mm256_unpackhi_epi16(c[0], c[1]),
            _mm256_unpackhi_epi16(c[2], c[3]), 18, low);
  __m256i columns = _mm256_packs_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
  columns = _mm256_shuffle_epi8(_mm256_add_epi8(columns, middle), turn);
  for (int b = 0; b < 2; b++) {
    uint32_t rows[4];
    _mm_storeu_si128((__m128i *)rows, b ? _mm256_extracti128_si256(columns, 1) : _mm256_castsi256_si128(columns));
    for (int y = 0; y < 4; y++) memcpy(two[b].out + (size_t)y * two[b].stride, &rows[y], 4);
  }
}

/* Two blocks to 2 x 2 pixels each. */
GT_V3 static void gt_idct_two2(const gt_waiting two[2]) {
  const __m256i zero = _mm256_setzero_si256();
  const __m128i odd = _mm_setr_epi16(0, 29692, 0, -10426, 0, 6967, 0, -5906);
  __m256i r[8], line[2][2], sums[2]; /* rows 0 and 1: columns 0 to 3, 4 to 7 */
  gt_take_two(two, 0xAB, r);
  for (int k = 0; k < 2; k++) {
#define MIX(a, b) (k ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b))
    __m256i e = _mm256_add_epi32(_mm256_srai_epi32(MIX(zero, r[0]), 1), _mm256_set1_epi32(1 << 12));
    __m256i o = _mm256_add_epi32(GT_BY(MIX(r[1], r[3]), 29692, -10426), GT_BY(MIX(r[5], r[7]), 6967, -5906));
#undef MIX
    line[0][k] = _mm256_srai_epi32(_mm256_add_epi32(e, o), 13);
    line[1][k] = _mm256_srai_epi32(_mm256_sub_epi32(e, o), 13);
  }
  for (int y = 0; y < 2; y++)
    sums[y] = _mm256_madd_epi16(_mm256_packs_epi32(line[y][0], line[y][1]), _mm256_broadcastsi128_si256(odd));
  __m256i o = _mm256_hadd_epi32(sums[0], sums[1]), e = _mm256_unpacklo_epi32(line[0][0], line[1][0]);
  o = _mm256_hadd_epi32(o, o);
  e = _mm256_add_epi32(_mm256_slli_epi32(e, 15), _mm256_set1_epi32(1 << 19));
  __m256i left = _mm256_srai_epi32(_mm256_add_epi32(e, o), 20), right = _mm256_srai_epi32(_mm256_sub_epi32(e, o), 20);
  __m256i rows = _mm256_unpacklo_epi32(left, right);
  rows = _mm256_packs_epi32(rows, rows);
  rows = _mm256_add_epi8(_mm256_packs_epi16(rows, rows), _mm256_set1_epi8((char)128));
  for (int b = 0; b < 2; b++) {
    int four = _mm_cvtsi128_si32(b ? _mm256_extracti128_si256(rows, 1) : _mm256_castsi256_si128(rows));
    memcpy(two[b].out, &four, 2);
    memcpy(two[b].out + two[b].stride, (const uint8_t *)&four + 2, 2);
  }
}
#endif
#endif
