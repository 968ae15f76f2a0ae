/* The encoder of what gt_recode makes: one scan of baseline Huffman codes, grey or 4:2:0. */
#ifndef GT_ENCODE_H
#define GT_ENCODE_H
#include "dct.h"

#include <stdlib.h>

enum { GT_CHUNK = 8192, GT_NONE = 64 }; /* bytes of bits that are gathered; the code of a value of 0 */

typedef struct { uint16_t reciprocal[8][16], half[8][16], scale[8][16]; } gt_quantizer; /* each row twice */

typedef struct { /* codes: their bits << 8 | how many */
  uint32_t dc[16], ac[256]; /* of symbols */
  uint32_t values[65][256]; /* of a symbol and its value, by how far it is behind the last one, and the value; or 0 */
} gt_codes;

typedef struct { /* a block's coefficients, quantized */
  int8_t values[65]; /* in the order of the file, and a 0 behind them; the first one is not here but in `dc` */
  int16_t whole[64]; /* where one is too large for that: row by row */
  uint64_t some;     /* bit k: value k is not 0; of the first one never set */
  int dc, is_large;
} gt_coded;

struct gt_encoder {
  int count, quality;      /* of parts; 0: there are no tables */
  size_t header, place;    /* bytes, and where the height stands */
  uint8_t file[2048];      /* the header, and a unit behind it */
  uint8_t order[4][4][32]; /* of 16 values in the file, from rows 0 and 1, 2 and 3, ...: where each stands; twice */
  gt_quantizer quant[2];   /* of luma and of chroma */
  gt_codes codes[2];
  uint8_t data[GT_CHUNK + 6 * 256 + 8]; /* a unit more: a block takes less than 256 bytes */
};

/* The decoder's encoder with tables for files of so many parts and such a quality; NULL: they are not for it. */
struct gt_encoder *gt_encoder_of(gt_decoder *d, int count, int quality);

/* The size of a value, in bits, and those bits as a code. */
GT_INLINE int gt_size(int v) { return 31 - __builtin_clz(2u * (unsigned)abs(v) + 1); }

GT_INLINE uint32_t gt_value(int v, int size) {
  return ((uint32_t)(v < 0 ? v - 1 : v) & ((1u << size) - 1)) << 8 | (uint32_t)size;
}

/* The DCT of two blocks, quantized: to the bit libjpeg-turbo's "islow" one.
 *
 * First along the rows (2 fractional bits are kept), then down the columns, with 13 fractional bits in the factors. Of
 * samples from 0 to 255 no sum of 16 bits overflows. Quantizing is a division that rounds halves away from 0, by a
 * multiplication: |x| + half, below 2^15, times 2^(16 + s) / divisor, rounded up, where 2^s < divisor <= 2^(s + 1).
 * Source: Loeffler, Ligtenberg and Moschytz, ICASSP 1989; the factors are those of IJG's jfdctint.c.
 */
#ifdef GT_V3
/* All columns of two blocks, as in gt_pass8. */
GT_V3 GT_INLINE void gt_forward8(__m256i r[8], int is_second) {
  const int bits = is_second ? 15 : 11;
  const __m256i half = _mm256_set1_epi32(1 << (bits - 1)), two = _mm256_set1_epi16(2);
  __m256i sum[4], rest[4];
  for (int k = 0; k < 4; k++) {
    sum[k] = _mm256_add_epi16(r[k], r[7 - k]);
    rest[k] = _mm256_sub_epi16(r[k], r[7 - k]);
  }
  __m256i outer = _mm256_add_epi16(sum[0], sum[3]), inner = _mm256_add_epi16(sum[1], sum[2]);
  __m256i outer_rest = _mm256_sub_epi16(sum[0], sum[3]), inner_rest = _mm256_sub_epi16(sum[1], sum[2]);
  r[0] = _mm256_add_epi16(outer, inner);
  r[4] = _mm256_sub_epi16(outer, inner);
  if (!is_second) r[0] = _mm256_sub_epi16(r[0], _mm256_set1_epi16(8 * 128)); /* samples are from -128 on */
  for (int k = 0; k < 8; k += 4)
    r[k] = is_second ? _mm256_srai_epi16(_mm256_add_epi16(r[k], two), 2) : _mm256_slli_epi16(r[k], 2);
  __m256i z3 = _mm256_add_epi16(rest[3], rest[1]), z4 = _mm256_add_epi16(rest[2], rest[0]), odd[4][2], even[2][2];
#define ADD _mm256_add_epi32
#define LINES(n, mix) do { \
    __m256i a = mix(outer_rest, inner_rest), z = mix(z3, z4), b = mix(rest[3], rest[0]), c = mix(rest[2], rest[1]); \
    __m256i y3 = ADD(GT_BY(z, -6436, 9633), half), y4 = ADD(GT_BY(z, 9633, 6437), half); \
    even[0][n] = ADD(GT_BY(a, 10703, 4433), half); \
    even[1][n] = ADD(GT_BY(a, 4433, -10704), half); \
    odd[0][n] = ADD(GT_BY(b, -7373, 4926), y4); \
    odd[1][n] = ADD(GT_BY(c, -20995, 4177), y3); \
    odd[2][n] = ADD(GT_BY(c, -4176, -20995), y4); \
    odd[3][n] = ADD(GT_BY(b, -4927, -7373), y3); \
  } while (0)
  LINES(0, _mm256_unpacklo_epi16);
  LINES(1, _mm256_unpackhi_epi16);
#undef LINES
#undef ADD
#define SHORT(of) _mm256_packs_epi32(_mm256_srai_epi32(of[0], bits), _mm256_srai_epi32(of[1], bits))
  for (int k = 0; k < 2; k++) r[4 * k + 2] = SHORT(even[k]);
  for (int k = 0; k < 4; k++) r[2 * k + 1] = SHORT(odd[k]);
#undef SHORT
}

/* The blocks at `a` and `b`, rows `stride` apart. */
GT_V3 static void gt_fdct_two(const uint8_t *a, const uint8_t *b, size_t stride, const gt_quantizer *q,
                              const uint8_t order[4][4][32], gt_coded out[2]) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i r[8], most = zero, bytes[4], ordered[4];
  for (int k = 0; k < 8; k++) {
    __m128i row = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(a + (size_t)k * stride)),
                                     _mm_loadl_epi64((const __m128i *)(b + (size_t)k * stride)));
    r[k] = _mm256_cvtepu8_epi16(row);
  }
  gt_transpose(r);
  gt_forward8(r, 0);
  gt_transpose(r);
  gt_forward8(r, 1);
  for (int k = 0; k < 8; k++) {
#define ROW(member) _mm256_loadu_si256((const __m256i *)q->member[k])
    __m256i v = _mm256_mulhi_epu16(_mm256_add_epi16(_mm256_abs_epi16(r[k]), ROW(half)), ROW(reciprocal));
    v = _mm256_mulhi_epu16(v, ROW(scale));
#undef ROW
    most = _mm256_max_epi16(most, k ? v : _mm256_and_si256(v, _mm256_setr_epi64x(~0xFFFF, -1, ~0xFFFF, -1)));
    r[k] = _mm256_sign_epi16(v, r[k]);
  }
  out[0].dc = (int16_t)_mm256_extract_epi16(r[0], 0);
  out[1].dc = (int16_t)_mm256_extract_epi16(r[0], 8);
  out[0].is_large = out[1].is_large = _mm256_movemask_epi8(_mm256_cmpgt_epi16(most, _mm256_set1_epi16(127))) != 0;
  if (!GT_LIKELY(!out[0].is_large))
    for (int k = 0; k < 8; k++) {
      _mm_storeu_si128((__m128i *)(out[0].whole + 8 * k), _mm256_castsi256_si128(r[k]));
      _mm_storeu_si128((__m128i *)(out[1].whole + 8 * k), _mm256_extracti128_si256(r[k], 1));
    }
  for (int k = 0; k < 4; k++) bytes[k] = _mm256_packs_epi16(r[2 * k], r[2 * k + 1]);
  for (int k = 0; k < 4; k++) {
    ordered[k] = zero;
    for (int from = 0; from < 4; from++) {
      if (k - from == 3 || from - k == 3) continue; /* the last rows have none of the first values, nor the other way */
      __m256i places = _mm256_loadu_si256((const __m256i *)order[k][from]);
      ordered[k] = _mm256_or_si256(ordered[k], _mm256_shuffle_epi8(bytes[from], places));
    }
  }
  for (int k = 0; k < 2; k++) {
    uint64_t none = 0;
    for (int part = 0; part < 2; part++) {
      __m256i two = k ? _mm256_permute2x128_si256(ordered[2 * part], ordered[2 * part + 1], 0x31)
                      : _mm256_permute2x128_si256(ordered[2 * part], ordered[2 * part + 1], 0x20);
      _mm256_storeu_si256((__m256i *)(out[k].values + 32 * part), two);
      none |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(two, zero)) << (32 * part);
    }
    out[k].values[64] = 0;
    out[k].some = ~none & ~(uint64_t)1;
  }
}
#endif
#endif
