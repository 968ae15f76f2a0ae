/* Resizing a plane without aliasing: a triangle filter as wide as the step, as in Pillow's BILINEAR and in
 * torchvision's antialias=True. First down the columns (8-bit weights, 7 fractional bits kept), then along the
 * rows (14-bit weights). */
#include "codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef GT_V3
#include <immintrin.h>
#endif

#define TWO(p, taps) /* four values at each of two columns' first taps */ \
  _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)((p) + (taps)[0].start)), \
                     _mm_loadl_epi64((const __m128i *)((p) + (taps)[1].start)))

/* floor(), which is a call of the C library without SSE4.1. */
static int below(double v) {
  int i = (int)v;
  return i - (v < i);
}

#define WIDE(n) (((size_t)(n) + 7) & ~(size_t)7)
#define PLACE(n, i, k) (((size_t)(k) / 4 * WIDE(n) + (size_t)(i)) * 4 + (size_t)(k) % 4) /* of the weight of a tap */

/* The filter for `n` samples, the centre of sample i at first + (i + 0.5) * step; its weights add up to `one`. 0: no
 * memory. Files of one size share it, and so do the two planes of chroma. */
static int set_filter(gt_filter *f, double first, double step, int from, int n, int one) {
  if (f->n == n && f->from == from && f->first == first && f->step == step) return 1;
  double radius = step > 1 ? step : 1, slope = 1 / radius;
  int groups = ((int)(2 * radius) + 1 + 3) / 4; /* so many centres lie between its ends at the most */
  size_t wide = WIDE(n), most = (size_t)groups * 4;
  f->n = 0;
  if (!gt_grow((void **)&f->taps, &f->taps_size, wide * sizeof(gt_taps)) ||
      !gt_grow((void **)&f->weights, &f->weights_size, wide * most * sizeof(int16_t)) ||
      !gt_grow((void **)&f->shares, &f->shares_size, most * sizeof(double)))
    return 0;
  memset(f->taps, 0, wide * sizeof(gt_taps));
  memset(f->weights, 0, wide * most * sizeof(int16_t));
#define WEIGHT(k) f->weights[PLACE(n, i, k)]
  for (int i = 0; i < n; i++) {
    double centre = first + (i + 0.5) * step, total = 0;
    int start = below(centre - radius + 0.5), behind = below(centre + radius + 0.5);
    if (start < 0) start = 0;
    if (start > from - 1) start = from - 1;
    if (behind > from) behind = from;
    if (behind <= start) behind = start + 1;
    int count = behind - start < (int)most ? behind - start : (int)most, sum = 0, best = 0;
    for (int k = 0; k < count; k++) {
      double share = 1 - fabs(start + k + 0.5 - centre) * slope;
      if (share < 1e-9) share = k || count > 1 ? 0 : 1;
      f->shares[k] = share;
      total += share;
    }
    double scale = total > 0 ? one / total : 0;
    for (int k = 0; k < count; k++) {
      int weight = total > 0 ? (int)(f->shares[k] * scale + 0.5) : k == 0 ? one : 0;
      WEIGHT(k) = (int16_t)weight;
      sum += weight;
      if (weight > WEIGHT(best)) best = k;
    }
    WEIGHT(best) = (int16_t)(WEIGHT(best) + one - sum);
    f->taps[i] = (gt_taps){start, count};
  }
#undef WEIGHT
  f->first = first;
  f->step = step;
  f->from = from;
  f->groups = groups;
  f->n = n;
  return 1;
}

static void add_row(uint16_t *restrict sum, const uint8_t *restrict row, int weight, int n, int first) {
  uint16_t w = (uint16_t)weight;
  if (first)
    for (int i = 0; i < n; i++) sum[i] = (uint16_t)(row[i] * w);
  else
    for (int i = 0; i < n; i++) sum[i] = (uint16_t)(sum[i] + row[i] * w);
}

/* One row of the result, from column x on. */
static void along(uint8_t *to, const int16_t *row, const gt_filter *f, int x) {
  const gt_taps *t = f->taps;
  int n = f->n;
#ifdef __SSE2__
  const __m128i half = _mm_set1_epi32(1 << 20);
  for (; x + 4 <= n; x += 4) {
    __m128i low = _mm_setzero_si128(), high = low;
    for (int g = 0; g < f->groups; g++) {
      const int16_t *w = f->weights + PLACE(n, x, 4 * g), *p = row + 4 * g;
      low = _mm_add_epi32(low, _mm_madd_epi16(TWO(p, t + x), _mm_loadu_si128((const __m128i *)w)));
      high = _mm_add_epi32(high, _mm_madd_epi16(TWO(p, t + x + 2), _mm_loadu_si128((const __m128i *)(w + 8))));
    }
    __m128 a = _mm_castsi128_ps(low), b = _mm_castsi128_ps(high);
    __m128i sum = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
    sum = _mm_add_epi32(sum, _mm_castps_si128(_mm_shuffle_ps(a, b, 0xDD)));
    sum = _mm_srai_epi32(_mm_add_epi32(sum, half), 21);
    sum = _mm_packs_epi32(sum, sum);
    int four = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    memcpy(to + x, &four, 4);
  }
#endif
  for (; x < n; x++) {
    int sum = 1 << 20;
    for (int k = 0; k < 4 * f->groups; k++) sum += row[t[x].start + k] * f->weights[PLACE(n, x, k)];
    sum >>= 21;
    to[x] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
}

static void down(uint16_t *sum, const gt_plane *from, const gt_filter *f, int y) {
  int n = from->width;
  for (int k = 0; k < f->taps[y].count; k++)
    add_row(sum, from->data + (size_t)(f->taps[y].start + k) * from->stride, f->weights[PLACE(f->n, y, k)], n, k == 0);
  for (int i = 0; i < n; i++) sum[i] >>= 1;
}

#ifdef GT_V3
/* The same by 8 columns, up to a multiple of 8. */
GT_V3 GT_INLINE void along_by8(uint8_t *to, const int16_t *row, const gt_filter *f, int groups) {
  const __m256i quarter = _mm256_set1_epi32(1 << 19); /* in each of two sums */
  const gt_taps *t = f->taps;
  const int16_t *weights = f->weights;
  const int n = f->n;
  for (int x = 0; x < n; x += 8) {
    __m256i low = quarter, high = quarter;
    for (int g = 0; g < groups; g++) {
      const __m256i *w = (const __m256i *)(const void *)(weights + PLACE(n, x, 4 * g));
      const int16_t *p = row + 4 * g;
      __m256i a = _mm256_set_m128i(TWO(p, t + x + 2), TWO(p, t + x));
      __m256i b = _mm256_set_m128i(TWO(p, t + x + 6), TWO(p, t + x + 4));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(a, _mm256_loadu_si256(w)));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(b, _mm256_loadu_si256(w + 1)));
    }
    __m256 a = _mm256_castsi256_ps(low), b = _mm256_castsi256_ps(high);
    __m256i sum = _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                   _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)));
    sum = _mm256_srai_epi32(sum, 21);
    sum = _mm256_packs_epi32(sum, sum);
    sum = _mm256_packus_epi16(sum, sum); /* columns 0, 1, 4 and 5, and 2, 3, 6 and 7 */
    __m128i first = _mm256_castsi256_si128(sum), second = _mm256_extracti128_si256(sum, 1);
    _mm_storel_epi64((__m128i *)(to + x), _mm_unpacklo_epi16(first, second));
  }
}

GT_V3 static void along_v3(uint8_t *to, const int16_t *row, const gt_filter *f) {
  if (f->groups == 1) along_by8(to, row, f, 1);
  else along_by8(to, row, f, f->groups);
}

/* By 32 columns, whose sums stay in registers; what is behind the last one is read and written, too. */
GT_V3 GT_INLINE void down_by32(uint16_t *sum, const gt_plane *from, const gt_filter *f, int y, int count) {
  const size_t stride = from->stride;
  const uint8_t *rows = from->data + (size_t)f->taps[y].start * stride;
  const int16_t *weights = f->weights;
  const int width = from->width, n = f->n;
  for (int x = 0; x < width; x += 32) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int k = 0; k < count; k++) {
      const __m128i *p = (const __m128i *)(const void *)(rows + (size_t)k * stride + x);
      __m256i w = _mm256_set1_epi16(weights[PLACE(n, y, k)]);
      low = _mm256_add_epi16(low, _mm256_mullo_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), w));
      high = _mm256_add_epi16(high, _mm256_mullo_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p + 1)), w));
    }
    _mm256_storeu_si256((__m256i *)(sum + x), _mm256_srli_epi16(low, 1));
    _mm256_storeu_si256((__m256i *)(sum + x + 16), _mm256_srli_epi16(high, 1));
  }
}

GT_V3 static void down_v3(uint16_t *sum, const gt_plane *from, const gt_filter *f, int y) {
  int count = f->taps[y].count;
  if (count == 2) down_by32(sum, from, f, y, 2);
  else if (count == 3) down_by32(sum, from, f, y, 3);
  else if (count == 4) down_by32(sum, from, f, y, 4);
  else down_by32(sum, from, f, y, count);
}
#endif

int gt_resample(gt_decoder *d, gt_filter filters[2], const gt_plane *from, gt_plane *to, const double first[2],
                const double step[2]) {
  int w = from->width, n = to->width;
  if (first[0] == 0 && first[1] == 0 && step[0] == 1 && step[1] == 1 && n <= w && to->height <= from->height) {
    for (int y = 0; y < to->height; y++) memcpy(to->data + y * to->stride, from->data + y * from->stride, (size_t)n);
    return 1;
  }
  if (!set_filter(&filters[0], first[0], step[0], from->height, to->height, 256) ||
      !set_filter(&filters[1], first[1], step[1], w, n, 1 << 14))
    return 0;
  size_t beyond = (size_t)filters[1].groups * 4 + 40;
  if (!gt_grow((void **)&d->row, &d->row_size, ((size_t)w + beyond) * sizeof(int16_t))) return 0;
  memset(d->row + w, 0, beyond * sizeof(int16_t));
  for (int y = 0; y < to->height; y++) {
    uint8_t *out = to->data + (size_t)y * to->stride;
#ifdef GT_V3
    if (d->own) {
      down_v3((uint16_t *)d->row, from, &filters[0], y);
      along_v3(out, d->row, &filters[1]);
      continue;
    }
#endif
    down((uint16_t *)d->row, from, &filters[0], y);
    along(out, d->row, &filters[1], 0);
  }
  return 1;
}
