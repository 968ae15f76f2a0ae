/* The planes of a baseline image, at the wanted scale, and rows of pixels made from them.
 *
 * The pixels are libjpeg's to the bit: jdmaster.c's sizes, jdsample.c's h2v2_fancy_upsample and h2v1_fancy_upsample,
 * and jdcolor.c's conversion with 16 fractional bits. */
#include "codec.h"

#include <string.h>
#ifdef GT_V3
#include <immintrin.h>

gt_picture gt_picture_of(const gt_frame *f, int eighths, int parts) {
  gt_picture p = {.parts = parts, .eighths = eighths};
  int side = eighths; /* of chroma, which may be larger: less is left to upsampling then */
  while (f->parts == 3 && side < 8 && f->h * eighths % (2 * side) == 0 && f->v * eighths % (2 * side) == 0) side *= 2;
  p.h = f->h * eighths / side;
  p.v = f->v * eighths / side;
  for (int c = 0; c < parts; c++) {
    int h = c ? f->h : 1, v = c ? f->v : 1;
    p.side[c] = c ? side : eighths;
    p.size[c].height = (f->height * p.side[c] + 8 * v - 1) / (8 * v);
    p.size[c].width = (f->width * p.side[c] + 8 * h - 1) / (8 * h);
  }
  return p;
}

/* Units of `side` pixels, at most `most`, that hold the pixels `from` to `from + n` and `margin` more. */
static int units(int from, int n, int margin, int side, int most, int *first) {
  int end = (from + n + margin + side - 1) / side;
  *first = from > margin ? (from - margin) / side : 0;
  return (end < most ? end : most) - *first;
}

int gt_read_planes(gt_decoder *d, gt_picture *p, gt_box wanted) {
  const gt_frame *f = &d->frame;
  int wide = (f->width + 8 * f->h - 1) / (8 * f->h), high = (f->height + 8 * f->v - 1) / (8 * f->v);
  gt_region g = {.parts = p->parts, .side = {p->side[0], p->side[1], p->side[2]}};
  g.rows = units(wanted.top, wanted.height, p->v - 1, f->v * p->eighths, high, &g.row);
  g.columns = units(wanted.left, wanted.width, 2 * (p->h - 1), f->h * p->eighths, wide, &g.column);
  p->top = g.row * f->v * p->eighths;
  p->left = g.column * f->h * p->eighths;
  for (int c = 0; c < p->parts; c++) {
    gt_plane *plane = &d->planes[c];
    size_t across = (size_t)(c ? p->side[c] : f->h * p->eighths), down = (size_t)(c ? p->side[c] : f->v * p->eighths);
    plane->stride = (size_t)g.columns * across;
    plane->width = p->size[c].width;
    plane->height = p->size[c].height;
    if (!gt_grow((void **)&plane->data, &plane->have, plane->stride * (size_t)g.rows * down + 64)) return 0;
    p->plane[c] = g.plane[c] = plane->data;
    p->stride[c] = g.stride[c] = plane->stride;
  }
  return gt_scan(&d->baseline, f, &g);
}

/* All by 16 at a time: what is behind the last one is read and written, too, up to the next multiple of 16. */

/* Chroma to twice as many columns: `sum` holds 3 * near + far rows, or one row times 4, and a column more at each end. */
GT_V3 static void widen(uint8_t *restrict out, const int16_t *restrict sum, int n, int even, int odd) {
  const __m256i evens = _mm256_set1_epi16((int16_t)even), odds = _mm256_set1_epi16((int16_t)odd);
  for (int i = 0; i < n; i += 16) {
    __m256i s = _mm256_loadu_si256((const __m256i *)(sum + i)), s3 = _mm256_add_epi16(_mm256_add_epi16(s, s), s);
    __m256i a = _mm256_add_epi16(s3, _mm256_loadu_si256((const __m256i *)(sum + i - 1)));
    __m256i b = _mm256_add_epi16(s3, _mm256_loadu_si256((const __m256i *)(sum + i + 1)));
    a = _mm256_srli_epi16(_mm256_add_epi16(a, evens), 4);
    b = _mm256_srli_epi16(_mm256_add_epi16(b, odds), 4);
    _mm256_storeu_si256((__m256i *)(out + 2 * i), _mm256_or_si256(a, _mm256_slli_epi16(b, 8)));
  }
}

#define WIDE(p) _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p)))
GT_V3 static void add(int16_t *restrict sum, const uint8_t *restrict near, const uint8_t *restrict far, int n) {
  for (int i = 0; i < n; i += 16) {
    __m256i a = WIDE(near + i), three = _mm256_add_epi16(_mm256_add_epi16(a, a), a);
    _mm256_storeu_si256((__m256i *)(sum + i), _mm256_add_epi16(three, WIDE(far + i)));
  }
}

/* (x * factor + 32768) >> 16. Of a factor of more than 15 bits, whole ones are added apart. */
GT_V3 GT_INLINE __m256i scaled(__m256i x, int factor) {
  x = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((int16_t)factor));
  return _mm256_srai_epi16(_mm256_add_epi16(x, _mm256_set1_epi16(1)), 1);
}

GT_V3 static void convert(uint8_t *restrict out, const uint8_t *restrict y, const uint8_t *restrict cb,
                             const uint8_t *restrict cr, int n) {
  const __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(32768), full = _mm256_set1_epi16(255);
  const __m256i pair = _mm256_set1_epi32((int)((uint32_t)18734 << 16 | (uint16_t)-22554)); /* 65536 - 46802 */
  for (int i = 0; i < n; i += 16) {
    __m256i v = WIDE(y + i), u = _mm256_sub_epi16(WIDE(cb + i), middle), w = _mm256_sub_epi16(WIDE(cr + i), middle);
    __m256i red = _mm256_add_epi16(_mm256_add_epi16(v, w), scaled(w, 91881 - 65536));
    __m256i blue = _mm256_add_epi16(_mm256_add_epi16(v, _mm256_add_epi16(u, u)), scaled(u, 116130 - 131072));
    __m256i low = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(u, w), pair), half);
    __m256i high = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(u, w), pair), half);
    __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16));
    green = _mm256_add_epi16(_mm256_sub_epi16(v, w), green);
    __m256i rb = _mm256_packus_epi16(red, blue), gx = _mm256_packus_epi16(green, full);
    __m256i rg = _mm256_unpacklo_epi8(rb, gx), bx = _mm256_unpackhi_epi8(rb, gx);
    __m256i first = _mm256_unpacklo_epi16(rg, bx), second = _mm256_unpackhi_epi16(rg, bx);
    _mm256_storeu_si256((__m256i *)(out + 4 * i), _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(out + 4 * i + 32), _mm256_permute2x128_si256(first, second, 0x31));
  }
}
#undef WIDE
GT_V3 void gt_pixels(const gt_picture *p, int y, int from, int n, int pixel, uint8_t *out) {
  const uint8_t *luma = p->plane[0] + (size_t)(y - p->top) * p->stride[0] + (from - p->left), *chroma[2];
  int first = from / p->h, end = (from + n - 1) / p->h + 1; /* columns of chroma */
  if (pixel == 1) {
    memcpy(out, luma, (size_t)n);
    return;
  }
  if (p->parts == 1) {
    for (int i = 0; i < n; i++) memset(out + 4 * i, luma[i], 4);
    return;
  }
  for (int c = 0; c < 2; c++) {
    int at = y / p->v, other = at;
    if (p->v == 2) other = y % 2 ? at + (at + 1 < p->size[1].height) : at - (at > 0);
    const uint8_t *near = p->plane[1 + c] + (size_t)(at - p->top / p->v) * p->stride[1 + c];
    const uint8_t *far = p->plane[1 + c] + (size_t)(other - p->top / p->v) * p->stride[1 + c];
    int skipped = p->left / p->h;
    chroma[c] = near + (first - skipped);
    if (p->h == 1) continue;
    int left = first > 0 ? first - 1 : first, right = end < p->size[1].width ? end + 1 : end;
    int16_t *sum = p->sums + 1; /* of column `first` */
    add(sum + (left - first), near + (left - skipped), far + (left - skipped), right - left);
    if (left == first) sum[-1] = sum[0];
    if (right == end) sum[end - first] = sum[end - first - 1];
    widen(p->wide[c], sum, end - first, p->v == 2 ? 8 : 4, p->v == 2 ? 7 : 8);
    chroma[c] = p->wide[c] + (from - 2 * first);
  }
  convert(out, luma, chroma[0], chroma[1], n);
}
#endif
