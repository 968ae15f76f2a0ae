/* Decodes the wanted part of a JPEG image, at the wanted scale, and resizes it into a batch. */
#include "codec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static void clip(int *first, int *count, int size) {
  if (*count > size) *count = size;
  if (*first > size - *count) *first = size - *count;
  if (*first < 0) *first = 0;
}

GT_CLONES
static void blend_rows(int16_t *restrict to, const uint8_t *restrict a, const uint8_t *restrict b, int w, int n) {
  int v = 128 - w;
  for (int i = 0; i < n; i++) to[i] = (int16_t)(a[i] * v + b[i] * w);
}

/* One row of the result from a blended row (7 fractional bits), by columns and pairs of weights (14 bits each:
 * the left pixel's in the low half, the right one's in the high half, as _mm_madd_epi16 takes them). */
static void blend_columns(uint8_t *to, const int16_t *row, const int *xs, const int32_t *w, int n, int pixel) {
  int x = 0;
  if (pixel == 4) {
#ifdef __SSE2__
    const __m128i half = _mm_set1_epi32(1 << 20);
    for (; x + 2 < n; x += 2) { /* writes 4 bytes a pixel, so the last one is left to the plain loop */
      __m128i a = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x]));
      __m128i b = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x + 1]));
      a = _mm_madd_epi16(_mm_unpacklo_epi16(a, _mm_srli_si128(a, 8)), _mm_set1_epi32(w[x]));
      b = _mm_madd_epi16(_mm_unpacklo_epi16(b, _mm_srli_si128(b, 8)), _mm_set1_epi32(w[x + 1]));
      a = _mm_srai_epi32(_mm_add_epi32(a, half), 21);
      b = _mm_srai_epi32(_mm_add_epi32(b, half), 21);
      a = _mm_packs_epi32(a, b);
      a = _mm_packus_epi16(a, a);
      int first = _mm_cvtsi128_si32(a), second = _mm_cvtsi128_si32(_mm_srli_si128(a, 4));
      memcpy(to + 3 * x, &first, 4);
      memcpy(to + 3 * x + 3, &second, 4);
    }
#endif
    for (; x < n; x++) {
      const int16_t *p = row + 4 * xs[x];
      int right = w[x] >> 16, left = w[x] & 0xFFFF;
      for (int k = 0; k < 3; k++) to[3 * x + k] = (uint8_t)((p[k] * left + p[k + 4] * right + (1 << 20)) >> 21);
    }
  } else {
    for (; x < n; x++) {
      const int16_t *p = row + xs[x];
      to[x] = (uint8_t)((p[0] * (w[x] & 0xFFFF) + p[1] * (w[x] >> 16) + (1 << 20)) >> 21);
    }
  }
}

/* Half-pixel centres, edges replicated, as cv2.INTER_LINEAR; a mirrored result by mirrored columns. */
static int resize(gt_decoder *d, const uint8_t *from, size_t stride, int h, int w, uint8_t *to, int out_h, int out_w,
                  int pixel, int flip) {
  if (!gt_grow((void **)&d->xs, &d->xs_size, (size_t)out_w * sizeof(int)) ||
      !gt_grow((void **)&d->weights, &d->weights_size, (size_t)out_w * sizeof(int32_t)) ||
      !gt_grow((void **)&d->row, &d->row_size, ((size_t)w + 4) * pixel * 2 + 32))
    return 0;
  for (int x = 0; x < out_w; x++) {
    double at = (x + 0.5) * w / out_w - 0.5;
    if (at < 0) at = 0;
    int first = (int)at;
    if (first > w - 1) first = w - 1;
    int place = flip ? out_w - 1 - x : x;
    d->xs[place] = first;
    int right = first >= w - 1 ? 0 : (int)((at - first) * 16384 + 0.5);
    d->weights[place] = (16384 - right) | right << 16;
  }
  memset(d->row + (size_t)w * pixel, 0, 4 * pixel * 2);
  for (int y = 0; y < out_h; y++) {
    double at = (y + 0.5) * h / out_h - 0.5;
    if (at < 0) at = 0;
    int first = (int)at;
    if (first > h - 1) first = h - 1;
    int next = first < h - 1 ? first + 1 : first;
    blend_rows(d->row, from + first * stride, from + next * stride, (int)((at - first) * 128 + 0.5), w * pixel);
    blend_columns(to + (size_t)y * out_w * (pixel == 4 ? 3 : 1), d->row, d->xs, d->weights, out_w, pixel);
  }
  return 1;
}

/* Decode the box (in pixels of the full image) at eighths/8 of the size into out (out_h, out_w, channels). */
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, int top, int left, int height, int width,
              int eighths, int out_h, int out_w, int channels, int flip, uint8_t *out) {
  struct jpeg_decompress_struct *j = &d->c.j;
  d->truncated = 0;
  d->err.num_warnings = 0;
  d->message[0] = 0;
  if (setjmp(d->escape)) {
    jpeg_abort_decompress(j);
    return GT_BROKEN;
  }
  jpeg_mem_src(j, data, (unsigned long)length);
  jpeg_read_header(j, 1);
  int full_h = (int)j->image_height, full_w = (int)j->image_width;
  if (j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK || top < 0 || left < 0 || height < 1 ||
      width < 1 || top + height > full_h || left + width > full_w) {
    jpeg_abort_decompress(j);
    return GT_UNSUPPORTED;
  }
  j->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  j->scale_num = (unsigned)eighths;
  j->scale_denom = 8;
  jpeg_start_decompress(j);
  int all_h = (int)j->output_height, all_w = (int)j->output_width;
  double by_h = (double)all_h / full_h, by_w = (double)all_w / full_w;
  int h = (int)nearbyint(height * by_h), w = (int)nearbyint(width * by_w);
  int y = (int)nearbyint(top * by_h), x = (int)nearbyint(left * by_w);
  if (h < 1) h = 1;
  if (w < 1) w = 1;
  clip(&y, &h, all_h);
  clip(&x, &w, all_w);
  /* Two columns of margin, so that smooth upsampling of the chroma sees its neighbours. */
  unsigned from = (unsigned)(x > 2 ? x - 2 : 0), columns = (unsigned)(x + w + 2 < all_w ? x + w + 2 : all_w) - from;
  if ((int)columns < all_w) jpeg_crop_scanline(j, &from, &columns);
  int pixel = channels == 1 ? 1 : 4;
  size_t stride = (size_t)j->output_width * pixel;
  if (!gt_grow((void **)&d->pixels, &d->pixels_size, stride * h + 64)) {
    jpeg_abort_decompress(j);
    snprintf(d->message, sizeof d->message, "no memory for %d x %d pixels", w, h);
    return GT_BROKEN;
  }
  if (y) jpeg_skip_scanlines(j, (unsigned)y);
  unsigned char *rows[16];
  for (int done = 0; done < h;) {
    int n = h - done < 16 ? h - done : 16;
    for (int k = 0; k < n; k++) rows[k] = d->pixels + (size_t)(done + k) * stride;
    int got = (int)jpeg_read_scanlines(j, rows, (unsigned)n);
    if (got < 1) break;
    done += got;
  }
  jpeg_abort_decompress(j);
  if (d->truncated) return GT_TRUNCATED;
  if (!resize(d, d->pixels + (size_t)(x - (int)from) * pixel, stride, h, w, out, out_h, out_w, pixel, flip)) {
    snprintf(d->message, sizeof d->message, "no memory to resize to %d x %d", out_h, out_w);
    return GT_BROKEN;
  }
  return GT_OK;
}
