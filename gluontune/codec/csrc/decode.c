/* Decodes the wanted part of a JPEG image, at the wanted scale, and resizes it into a batch. */
#include "codec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef GT_V3
#include <immintrin.h>
#endif

typedef struct { /* rows of pixels: of a decoded image, or made from planes when they are asked for */
  const uint8_t *data;
  size_t stride;
  const gt_picture *picture;
  int top, left, width, pixel; /* of the wanted part in the picture */
  uint8_t *row[2];
  int made[2];
} gt_source;

static const uint8_t *row_of(gt_source *s, int y) {
  if (s->data) return s->data + (size_t)y * s->stride;
#ifdef GT_V3
  if (s->made[y % 2] != y) gt_pixels(s->picture, s->top + y, s->left, s->width, s->pixel, s->row[y % 2]);
#endif
  s->made[y % 2] = y;
  return s->row[y % 2];
}

static void clip(int *first, int *count, int size) {
  if (*count > size) *count = size;
  if (*first > size - *count) *first = size - *count;
  if (*first < 0) *first = 0;
}

GT_INLINE void blend_plain(int16_t *restrict to, const uint8_t *restrict a, const uint8_t *restrict b, int w, int n) {
  int v = 128 - w;
  for (int i = 0; i < n; i++) to[i] = (int16_t)(a[i] * v + b[i] * w);
}

#ifdef GT_V3
GT_V3 static void blend_v3(int16_t *to, const uint8_t *a, const uint8_t *b, int w, int n) { blend_plain(to, a, b, w, n); }
#endif

static void blend_rows(int16_t *to, const uint8_t *a, const uint8_t *b, int w, int n) {
#ifdef GT_V3
  if (gt_cpu.v3) {
    blend_v3(to, a, b, w, n);
    return;
  }
#endif
  blend_plain(to, a, b, w, n);
}

/* One row of the result from a blended row (7 fractional bits), by columns and pairs of weights (14 bits each: the
 * left pixel's in the low half, the right one's in the high half, as _mm_madd_epi16 takes them; once per channel). */
static void blend_columns(uint8_t *to, const int16_t *row, const int *xs, const int32_t *w, int n, int pixel) {
  int x = 0;
  if (pixel == 1) {
    for (; x < n; x++) {
      const int16_t *p = row + xs[x];
      to[x] = (uint8_t)((p[0] * (w[4 * x] & 0xFFFF) + p[1] * (w[4 * x] >> 16) + (1 << 20)) >> 21);
    }
    return;
  }
#ifdef __SSE2__
  const __m128i half = _mm_set1_epi32(1 << 20);
  for (; x + 2 < n; x += 2) { /* writes 4 bytes a pixel, so the last one is left to the plain loop */
    __m128i a = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x]));
    __m128i b = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x + 1]));
    a = _mm_unpacklo_epi16(a, _mm_srli_si128(a, 8));
    b = _mm_unpacklo_epi16(b, _mm_srli_si128(b, 8));
    a = _mm_madd_epi16(a, _mm_loadu_si128((const __m128i *)(w + 4 * x)));
    b = _mm_madd_epi16(b, _mm_loadu_si128((const __m128i *)(w + 4 * x + 4)));
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
    int right = w[4 * x] >> 16, left = w[4 * x] & 0xFFFF;
    for (int k = 0; k < 3; k++) to[3 * x + k] = (uint8_t)((p[k] * left + p[k + 4] * right + (1 << 20)) >> 21);
  }
}

#ifdef GT_V3
/* How many pixels were done: four at a time, and 4 bytes behind them are written, too. */
GT_V3 static int blend_four(uint8_t *to, const int16_t *row, const int *xs, const int32_t *w, int n) {
  const __m256i half = _mm256_set1_epi32(1 << 20);
  const __m256i pairs = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11,
                                         4, 5, 12, 13, 6, 7, 14, 15);
  const __m128i dense = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  int x = 0;
  for (; x + 6 <= n; x += 4) {
#define AT(k) _mm_loadu_si128((const __m128i *)(row + 4 * xs[x + (k)]))
    __m256i a = _mm256_shuffle_epi8(_mm256_set_m128i(AT(1), AT(0)), pairs);
    __m256i b = _mm256_shuffle_epi8(_mm256_set_m128i(AT(3), AT(2)), pairs);
#undef AT
    a = _mm256_madd_epi16(a, _mm256_loadu_si256((const __m256i *)(w + 4 * x)));
    b = _mm256_madd_epi16(b, _mm256_loadu_si256((const __m256i *)(w + 4 * x + 8)));
    a = _mm256_srai_epi32(_mm256_add_epi32(a, half), 21);
    b = _mm256_srai_epi32(_mm256_add_epi32(b, half), 21);
    a = _mm256_packs_epi32(a, b); /* pixels 0 and 2, 1 and 3 */
    a = _mm256_packus_epi16(a, a);
    __m128i four = _mm_unpacklo_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128((__m128i *)(to + 3 * x), _mm_shuffle_epi8(four, dense));
  }
  return x;
}
#endif

/* A row that is not resized: three bytes of each four, from the left or from the right. */
static void copy_plain(uint8_t *restrict to, const uint8_t *restrict from, int x, int n, int flip) {
  for (; x < n; x++) {
    const uint8_t *p = from + 4 * (flip ? n - 1 - x : x);
    for (int k = 0; k < 3; k++) to[3 * x + k] = p[k];
  }
}

#ifdef GT_V3
GT_V3 static void copy_v3(uint8_t *restrict to, const uint8_t *restrict from, int n, int flip) {
  const __m256i dense = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10,
                                         12, 13, 14, -1, -1, -1, -1);
  const __m256i order = flip ? _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0) : _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  int x = 0;
  for (; x + 8 <= n; x += 8) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(from + 4 * (flip ? n - 8 - x : x)));
    v = _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(v, order), dense);
    __m128i second = _mm256_extracti128_si256(v, 1);
    int last = _mm_extract_epi32(second, 2);
    _mm_storeu_si128((__m128i *)(to + 3 * x), _mm256_castsi256_si128(v));
    _mm_storel_epi64((__m128i *)(to + 3 * x + 12), second);
    memcpy(to + 3 * x + 20, &last, 4);
  }
  copy_plain(to, from, x, n, flip);
}
#endif

static void copy_row(uint8_t *restrict to, const uint8_t *restrict from, int n, int pixel, int flip) {
  if (pixel == 1) {
    for (int x = 0; x < n; x++) to[x] = from[flip ? n - 1 - x : x];
    return;
  }
#ifdef GT_V3
  if (gt_cpu.v3) {
    copy_v3(to, from, n, flip);
    return;
  }
#endif
  copy_plain(to, from, 0, n, flip);
}

/* Half-pixel centres, edges replicated, as cv2.INTER_LINEAR; a mirrored result by mirrored columns. */
static int resize(gt_decoder *d, gt_source *from, int h, int w, uint8_t *to, int out_h, int out_w, int pixel, int flip) {
  size_t line = (size_t)out_w * (pixel == 4 ? 3 : 1);
  if (h == out_h && w == out_w) {
    for (int y = 0; y < h; y++) copy_row(to + (size_t)y * line, row_of(from, y), w, pixel, flip);
    return 1;
  }
  if (!gt_grow((void **)&d->xs, &d->xs_size, (size_t)out_w * sizeof(int)) ||
      !gt_grow((void **)&d->weights, &d->weights_size, (size_t)out_w * 4 * sizeof(int32_t)) ||
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
    for (int k = 0; k < 4; k++) d->weights[4 * place + k] = (16384 - right) | right << 16;
  }
  memset(d->row + (size_t)w * pixel, 0, 4 * pixel * 2);
  for (int y = 0; y < out_h; y++, to += line) {
    double at = (y + 0.5) * h / out_h - 0.5;
    if (at < 0) at = 0;
    int first = (int)at, x = 0;
    if (first > h - 1) first = h - 1;
    int next = first < h - 1 ? first + 1 : first;
    const uint8_t *a = row_of(from, first), *b = row_of(from, next);
    blend_rows(d->row, a, b, (int)((at - first) * 128 + 0.5), w * pixel);
#ifdef GT_V3
    if (pixel == 4 && gt_cpu.v3) x = blend_four(to, d->row, d->xs, d->weights, out_w);
#endif
    blend_columns(to + (size_t)x * (pixel == 4 ? 3 : 1), d->row, d->xs + x, d->weights + 4 * x, out_w - x, pixel);
  }
  return 1;
}

static int lies_in(gt_box b, int height, int width) {
  return b.top >= 0 && b.left >= 0 && b.height >= 1 && b.width >= 1 && b.top + b.height <= height &&
         b.left + b.width <= width;
}

/* The box in pixels of an image of full_h x full_w: in those of its decoded self of all_h x all_w. */
static gt_box scaled_box(gt_box b, int full_h, int full_w, int all_h, int all_w) {
  double by_h = (double)all_h / full_h, by_w = (double)all_w / full_w;
  int h = (int)nearbyint(b.height * by_h), w = (int)nearbyint(b.width * by_w);
  int y = (int)nearbyint(b.top * by_h), x = (int)nearbyint(b.left * by_w);
  if (h < 1) h = 1;
  if (w < 1) w = 1;
  clip(&y, &h, all_h);
  clip(&x, &w, all_w);
  return (gt_box){y, x, h, w};
}

#ifdef GT_V3
/* gt_decode without libjpeg: 0 where the file is of another kind, or broken. */
static int decode_baseline(gt_decoder *d, gt_box box, int eighths, int out_h, int out_w, int channels, int flip,
                           uint8_t *out) {
  const gt_frame *f = &d->frame;
  if (!lies_in(box, f->height, f->width)) return 0;
  gt_picture p = gt_picture_of(f, eighths, channels == 1 ? 1 : f->parts);
  if (p.parts == 3 && p.h == 2 && (eighths == 1 || p.size[1].width < 3)) return 0; /* upsampled in another way */
  gt_box b = scaled_box(box, f->height, f->width, p.size[0].height, p.size[0].width);
  if (!gt_read_planes(d, &p, b)) return 0;
  int pixel = channels == 1 ? 1 : 4;
  size_t row = ((size_t)b.width * (size_t)pixel + 127) & ~(size_t)63, chroma = ((size_t)b.width + 127) & ~(size_t)63;
  if (!gt_grow((void **)&d->pixels, &d->pixels_size, 2 * row + 4 * chroma)) return 0;
  p.sums = (int16_t *)(void *)(d->pixels + 2 * row);
  p.wide[0] = d->pixels + 2 * row + 2 * chroma;
  p.wide[1] = p.wide[0] + chroma;
  gt_source source = {.picture = &p, .top = b.top, .left = b.left, .width = b.width, .pixel = pixel,
                      .row = {d->pixels, d->pixels + row}, .made = {-1, -1}};
  d->baselines++;
  return resize(d, &source, b.height, b.width, out, out_h, out_w, pixel, flip);
}

#endif

/* Decode the box (in pixels of the full image) at eighths/8 of the size into out (out_h, out_w, channels). */
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, gt_box box, int eighths, int out_h, int out_w,
              int channels, int flip, uint8_t *out) {
  struct jpeg_decompress_struct *j = &d->c.j;
#ifdef GT_V3
  if (d->own && gt_parse(&d->baseline, data, length, &d->frame) &&
      decode_baseline(d, box, eighths, out_h, out_w, channels, flip, out))
    return GT_OK;
#endif
  if (setjmp(d->escape)) return gt_stop(d, GT_BROKEN);
  gt_begin(d, data, length);
  int full_h = (int)j->image_height, full_w = (int)j->image_width;
  if (j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK || !lies_in(box, full_h, full_w))
    return gt_stop(d, GT_UNSUPPORTED);
  j->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  j->scale_num = (unsigned)eighths;
  j->scale_denom = 8;
  jpeg_start_decompress(j);
  int all_w = (int)j->output_width;
  box = scaled_box(box, full_h, full_w, (int)j->output_height, all_w);
  int x = box.left, w = box.width, h = box.height;
  /* Two columns of margin, so that smooth upsampling of the chroma sees its neighbours. */
  unsigned from = (unsigned)(x > 2 ? x - 2 : 0), columns = (unsigned)(x + w + 2 < all_w ? x + w + 2 : all_w) - from;
  if ((int)columns < all_w) jpeg_crop_scanline(j, &from, &columns);
  int pixel = channels == 1 ? 1 : 4;
  size_t stride = (size_t)j->output_width * pixel;
  if (!gt_grow((void **)&d->pixels, &d->pixels_size, stride * h + 64)) {
    snprintf(d->message, sizeof d->message, "no memory for %d x %d pixels", w, h);
    return gt_stop(d, GT_BROKEN);
  }
  if (box.top) jpeg_skip_scanlines(j, (unsigned)box.top);
  unsigned char *rows[16];
  int done = 0;
  while (done < h) {
    int n = h - done < 16 ? h - done : 16;
    for (int k = 0; k < n; k++) rows[k] = d->pixels + (size_t)(done + k) * stride;
    int got = (int)jpeg_read_scanlines(j, rows, (unsigned)n);
    if (got < 1) break;
    done += got;
  }
  jpeg_abort_decompress(j);
  if (d->truncated || done < h) return GT_TRUNCATED;
  gt_source source = {.data = d->pixels + (size_t)(x - (int)from) * pixel, .stride = stride};
  if (!resize(d, &source, h, w, out, out_h, out_w, pixel, flip)) {
    snprintf(d->message, sizeof d->message, "no memory to resize to %d x %d", out_h, out_w);
    return GT_BROKEN;
  }
  return GT_OK;
}

int gt_check(gt_decoder *d, const uint8_t *data, size_t length) {
  struct jpeg_decompress_struct *j = &d->c.j;
#ifdef GT_V3
  const gt_frame *f = &d->frame;
  if (d->own && gt_parse(&d->baseline, data, length, &d->frame)) {
    gt_region nothing = {.rows = (f->height + 8 * f->v - 1) / (8 * f->v)};
    if (gt_scan(&d->baseline, f, &nothing)) return GT_OK;
  }
#endif
  if (setjmp(d->escape)) return gt_stop(d, GT_BROKEN);
  gt_begin(d, data, length);
  j->scale_num = 1;
  j->scale_denom = 8;
  jpeg_start_decompress(j);
  if (!gt_grow((void **)&d->pixels, &d->pixels_size, (size_t)j->output_width * (size_t)j->output_components))
    return gt_stop(d, GT_BROKEN);
  unsigned char *row = d->pixels;
  unsigned done = 0, got = 1;
  for (; done < j->output_height && got; done += got) got = jpeg_read_scanlines(j, &row, 1);
  int is_whole = done == j->output_height && !d->truncated && !d->hurt;
  return gt_stop(d, is_whole ? GT_OK : GT_TRUNCATED);
}
