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

/* floor(), which is a call of the C library without SSE4.1. */
static int below(double v) {
  int i = (int)v;
  return i - (v < i);
}

/* Weights of the samples around `centre`, summing to `one`; returns how many, the first in *start. */
static int triangle(double centre, double radius, int size, int one, int *start, int16_t *weights, int room) {
  int first = below(centre - radius + 0.5), behind = below(centre + radius + 0.5);
  if (first < 0) first = 0;
  if (first > size - 1) first = size - 1;
  if (behind > size) behind = size;
  if (behind <= first) behind = first + 1;
  int count = behind - first < room ? behind - first : room, sum = 0, best = 0;
  double total = 0, slope = 1 / radius, scale = 0;
  for (int pass = 0; pass < 2; scale = total > 0 ? one / total : 0, pass++)
    for (int k = 0; k < count; k++) {
      double w = 1 - fabs(first + k + 0.5 - centre) * slope;
      if (w < 1e-9) w = k || count > 1 ? 0 : 1;
      if (!pass) { total += w; continue; }
      weights[k] = (int16_t)(total > 0 ? w * scale + 0.5 : k == 0 ? one : 0);
      sum += weights[k];
      if (weights[k] > weights[best]) best = k;
    }
  weights[best] = (int16_t)(weights[best] + one - sum);
  *start = first;
  return count;
}

GT_CLONES
static void add_row(uint16_t *restrict sum, const uint8_t *restrict row, int weight, int n, int first) {
  uint16_t w = (uint16_t)weight;
  if (first)
    for (int i = 0; i < n; i++) sum[i] = (uint16_t)(row[i] * w);
  else
    for (int i = 0; i < n; i++) sum[i] = (uint16_t)(sum[i] + row[i] * w);
}

GT_CLONES
static void halve(uint16_t *sum, int n) {
  for (int i = 0; i < n; i++) sum[i] >>= 1;
}

/* One row of the result: for each column 4 * groups taps; `taps` holds (group, column, 4) weights. */
static void along(uint8_t *to, const int16_t *row, const int *xs, const int16_t *taps, int groups, int n) {
  int x = 0;
#ifdef __SSE2__
  const __m128i half = _mm_set1_epi32(1 << 20);
  for (; x + 4 <= n; x += 4) {
    __m128i low = _mm_setzero_si128(), high = low;
    for (int g = 0; g < groups; g++) {
      const int16_t *w = taps + ((size_t)g * n + x) * 4, *p = row + 4 * g;
#define TWO(a, b) _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(a)), _mm_loadl_epi64((const __m128i *)(b)))
      low = _mm_add_epi32(low, _mm_madd_epi16(TWO(p + xs[x], p + xs[x + 1]), _mm_loadu_si128((const __m128i *)w)));
      high = _mm_add_epi32(
          high, _mm_madd_epi16(TWO(p + xs[x + 2], p + xs[x + 3]), _mm_loadu_si128((const __m128i *)(w + 8))));
#undef TWO
    }
    __m128 a = _mm_castsi128_ps(low), b = _mm_castsi128_ps(high);
    __m128i sum = _mm_add_epi32(_mm_castps_si128(_mm_shuffle_ps(a, b, 0x88)), _mm_castps_si128(_mm_shuffle_ps(a, b, 0xDD)));
    sum = _mm_srai_epi32(_mm_add_epi32(sum, half), 21);
    sum = _mm_packs_epi32(sum, sum);
    int four = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    memcpy(to + x, &four, 4);
  }
#endif
  for (; x < n; x++) {
    int sum = 1 << 20;
    for (int g = 0; g < groups; g++)
      for (int k = 0; k < 4; k++) sum += row[xs[x] + 4 * g + k] * taps[((size_t)g * n + x) * 4 + k];
    sum >>= 21;
    to[x] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
}

int gt_resample(gt_decoder *d, const gt_plane *from, gt_plane *to, const double first[2], const double step[2]) {
  int w = from->width, n = to->width;
  if (first[0] == 0 && first[1] == 0 && step[0] == 1 && step[1] == 1 && n <= w && to->height <= from->height) {
    for (int y = 0; y < to->height; y++) memcpy(to->data + y * to->stride, from->data + y * from->stride, (size_t)n);
    return 1;
  }
  double radius[2] = {step[0] > 1 ? step[0] : 1, step[1] > 1 ? step[1] : 1};
  int groups = ((int)(2 * radius[1]) + 1 + 3) / 4, /* so many centres lie between its ends at the most */
      most = (int)ceil(2 * radius[0]) + 2;
  if (!gt_grow((void **)&d->xs, &d->xs_size, (size_t)n * sizeof(int)) ||
      !gt_grow((void **)&d->taps, &d->taps_size, ((size_t)groups * n * 4 + most + 4 * groups) * sizeof(int16_t)) ||
      !gt_grow((void **)&d->row, &d->row_size, ((size_t)w + 4 * groups + 8) * sizeof(int16_t)))
    return 0;
  int16_t *down = d->taps + (size_t)groups * n * 4, *one = down + most;
  memset(d->taps, 0, (size_t)groups * n * 4 * sizeof(int16_t));
  for (int x = 0; x < n; x++) {
    double centre = first[1] + (x + 0.5) * step[1];
    int count = triangle(centre, radius[1], w, 1 << 14, &d->xs[x], one, 4 * groups);
    for (int k = 0; k < count; k++) d->taps[((size_t)(k / 4) * n + x) * 4 + k % 4] = one[k];
  }
  memset(d->row + w, 0, (size_t)(4 * groups + 8) * sizeof(int16_t));
  for (int y = 0; y < to->height; y++) {
    int start, count = triangle(first[0] + (y + 0.5) * step[0], radius[0], from->height, 256, &start, down, most);
    for (int k = 0; k < count; k++)
      add_row((uint16_t *)d->row, from->data + (size_t)(start + k) * from->stride, down[k], w, k == 0);
    halve((uint16_t *)d->row, w);
    along(to->data + (size_t)y * to->stride, d->row, d->xs, d->taps, groups, n);
  }
  return 1;
}
