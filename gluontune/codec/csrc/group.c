/* Small JPEG images of one kind, decoded as one tall image.
 *
 * Of a 32 x 32 image, most of libjpeg's time goes into what it does once a file: tables, memory, set-up. Images whose
 * headers are the same to the byte (what one encoder makes of images of one size) differ in their entropy-coded data
 * alone; put one after the other, with a restart marker after each, these are one image of their common width. It is
 * decoded to planes, and each image's rows are upsampled, converted, padded, cropped and flipped into their place. The
 * pixels are those of libjpeg's own way: its upsampling at an image's edge looks no further than the edge.
 *
 * Whatever libjpeg finds to complain of, in any of them, sends all of them through gt_decode, one by one.
 */
#include "codec.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MOST_SIDE = 128, MOST_PAD = 16, MOST_ROWS = 65500, ROW = MOST_SIDE + 2 * MOST_PAD + 32 };

/* What a header says, and where: `sof`, `sos` their markers, `start` the first byte of the entropy-coded data. */
int gt_kind_of(const uint8_t *p, size_t n, gt_kind *k) {
  size_t at = 2;
  memset(k, 0, sizeof *k);
  if (n < 4 || p[0] != 0xFF || p[1] != 0xD8) return 0;
  for (;;) {
    if (at + 4 > n || p[at] != 0xFF) return 0;
    int m = p[at + 1];
    size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
    if (length < 2 || at + 2 + length > n) return 0;
    if (m == 0xDA) {
      k->sos = at;
      k->start = at + 2 + length;
      return k->parts && length >= 6 && p[at + 4] == k->parts;
    }
    if (m == 0xC0) {
      int parts = length >= 8 ? p[at + 9] : 0;
      if (k->parts || p[at + 4] != 8 || (parts != 1 && parts != 3) || length != 8 + 3 * (size_t)parts) return 0;
      k->sof = at;
      k->height = p[at + 5] << 8 | p[at + 6];
      k->width = p[at + 7] << 8 | p[at + 8];
      k->parts = parts;
      k->h = p[at + 11] >> 4;
      k->v = p[at + 11] & 15;
      if (k->h < 1 || k->h > 2 || k->v < 1 || k->v > k->h || (parts == 1 && k->h != 1)) return 0;
      for (int c = 1; c < parts; c++)
        if (p[at + 11 + 3 * c] != 0x11) return 0;
    } else if ((m >= 0xC1 && m <= 0xCF && m != 0xC4) || m == 0xDD || m < 0xC0 || (m >= 0xD0 && m <= 0xD9)) {
      return 0; /* progressive and the like, restart intervals of its own, no segment */
    }
    at += 2 + length;
  }
}

/* May image `p` follow one of kind `k` whose header is `first`? */
int gt_is_of_kind(const gt_kind *k, const uint8_t *first, const uint8_t *p, size_t n) {
  return n > k->start + 2 && !memcmp(p, first, k->start) && p[n - 2] == 0xFF && p[n - 1] == 0xD9;
}

/* Columns of chroma to twice as many, the edges repeated: `sum` holds 3 * near + far rows, or one row times 4. The
 * roundings are jdsample.c's, of h2v2_fancy_upsample and h2v1_fancy_upsample. */
static void widen(uint8_t *restrict out, int16_t *restrict sum, int n, int shift) {
  int even = shift == 4 ? 8 : 4, odd = shift == 4 ? 7 : 8;
  sum[-1] = sum[0];
  sum[n] = sum[n - 1];
  int i = 0;
#ifdef __SSE2__
  const __m128i even8 = _mm_set1_epi16((int16_t)even), odd8 = _mm_set1_epi16((int16_t)odd);
  for (; i + 8 <= n; i += 8) {
    __m128i s = _mm_loadu_si128((const __m128i *)(sum + i)), s3 = _mm_add_epi16(_mm_add_epi16(s, s), s);
    __m128i a = _mm_add_epi16(_mm_add_epi16(s3, _mm_loadu_si128((const __m128i *)(sum + i - 1))), even8);
    __m128i b = _mm_add_epi16(_mm_add_epi16(s3, _mm_loadu_si128((const __m128i *)(sum + i + 1))), odd8);
    a = _mm_or_si128(_mm_srli_epi16(a, 4), _mm_slli_epi16(_mm_srli_epi16(b, 4), 8));
    _mm_storeu_si128((__m128i *)(out + 2 * i), a);
  }
#endif
  for (; i < n; i++) {
    out[2 * i] = (uint8_t)((3 * sum[i] + sum[i - 1] + even) >> 4);
    out[2 * i + 1] = (uint8_t)((3 * sum[i] + sum[i + 1] + odd) >> 4);
  }
}

GT_CLONES
static void add(int16_t *restrict sum, const uint8_t *restrict near, const uint8_t *restrict far, int n) {
  for (int i = 0; i < n; i++) sum[i] = (int16_t)(3 * near[i] + far[i]);
}

#ifdef __SSE2__
/* (x * factor + 32768) >> 16 */
static __m128i scaled(__m128i x, int factor) {
  x = _mm_mulhi_epi16(_mm_add_epi16(x, x), _mm_set1_epi16((int16_t)factor));
  return _mm_srai_epi16(_mm_add_epi16(x, _mm_set1_epi16(1)), 1);
}
#endif

/* jdcolor.c's integers: 16 fractional bits. Of a factor of more than 15 bits, whole ones are added apart. */
static void convert(uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, const uint8_t *restrict y,
                    const uint8_t *restrict cb, const uint8_t *restrict cr, int n) {
  int i = 0;
#ifdef __SSE2__
  const __m128i zero = _mm_setzero_si128(), middle = _mm_set1_epi16(128), half = _mm_set1_epi32(32768);
  const __m128i pair = _mm_set1_epi32((int)((uint32_t)18734 << 16 | (uint16_t)-22554)); /* 65536 - 46802, -22554 */
#define WIDE(p) _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(p)), zero)
  for (; i + 8 <= n; i += 8) {
    __m128i v = WIDE(y + i), u = _mm_sub_epi16(WIDE(cb + i), middle), w = _mm_sub_epi16(WIDE(cr + i), middle);
    __m128i red = _mm_add_epi16(_mm_add_epi16(v, w), scaled(w, 91881 - 65536));
    __m128i blue = _mm_add_epi16(_mm_add_epi16(v, _mm_add_epi16(u, u)), scaled(u, 116130 - 131072));
    __m128i low = _mm_add_epi32(_mm_madd_epi16(_mm_unpacklo_epi16(u, w), pair), half);
    __m128i high = _mm_add_epi32(_mm_madd_epi16(_mm_unpackhi_epi16(u, w), pair), half);
    __m128i green = _mm_packs_epi32(_mm_srai_epi32(low, 16), _mm_srai_epi32(high, 16));
    green = _mm_add_epi16(_mm_sub_epi16(v, w), green);
    _mm_storel_epi64((__m128i *)(r + i), _mm_packus_epi16(red, red));
    _mm_storel_epi64((__m128i *)(g + i), _mm_packus_epi16(green, green));
    _mm_storel_epi64((__m128i *)(b + i), _mm_packus_epi16(blue, blue));
  }
#undef WIDE
#endif
  for (; i < n; i++) {
    int v = y[i], u = cb[i] - 128, w = cr[i] - 128;
    int red = v + ((91881 * w + 32768) >> 16);
    int green = v + ((-22554 * u - 46802 * w + 32768) >> 16);
    int blue = v + ((116130 * u + 32768) >> 16);
    r[i] = (uint8_t)(red < 0 ? 0 : red > 255 ? 255 : red);
    g[i] = (uint8_t)(green < 0 ? 0 : green > 255 ? 255 : green);
    b[i] = (uint8_t)(blue < 0 ? 0 : blue > 255 ? 255 : blue);
  }
}

GT_CLONES
static void weave(uint8_t *restrict out, const uint8_t *restrict r, const uint8_t *restrict g,
                  const uint8_t *restrict b, int n) {
  for (int i = 0; i < n; i++) {
    out[3 * i] = r[i];
    out[3 * i + 1] = g[i];
    out[3 * i + 2] = b[i];
  }
}

GT_CLONES
static void mirror(uint8_t *restrict to, const uint8_t *restrict from, int n) {
  for (int i = 0; i < n; i++) to[i] = from[n - 1 - i];
}

/* Row `y` of the image in d->planes as one plane, or three, each of `width` samples from row[c] on. */
static void make_row(const gt_decoder *d, const gt_kind *k, int y, int channels, uint8_t *const row[3]) {
  const uint8_t *luma = d->planes[0].data + (size_t)y * d->planes[0].stride;
  if (channels == 1 || k->parts == 1) {
    memcpy(row[0], luma, (size_t)k->width);
    return;
  }
  uint8_t wide[2][ROW];
  const uint8_t *chroma[2];
  for (int c = 0; c < 2; c++) {
    const gt_plane *plane = &d->planes[1 + c];
    int at = y / k->v, last = (k->height + k->v - 1) / k->v - 1, n = (k->width + k->h - 1) / k->h;
    const uint8_t *near = plane->data + (size_t)at * plane->stride, *far = near;
    chroma[c] = near;
    if (k->h == 1) continue;
    if (k->v == 2 && y % 2 && at < last) far = near + plane->stride;
    if (k->v == 2 && y % 2 == 0 && at > 0) far = near - plane->stride;
    int16_t sum[ROW];
    add(sum + 1, near, far, n);
    widen(wide[c], sum + 1, n, k->v == 2 ? 4 : 2);
    chroma[c] = wide[c];
  }
  convert(row[0], row[1], row[2], luma, chroma[0], chroma[1], k->width);
}

/* The image in d->planes into `out`: reflect-padded by `pad`, from (top, left) on, perhaps flipped. */
static void place(const gt_decoder *d, const gt_kind *k, int channels, int pad, int top, int left, int flip,
                  uint8_t *out) {
  uint8_t rows[3][ROW], turned[3][ROW];
  int w = k->width, h = k->height, colours = channels == 3 && k->parts == 3 ? 3 : 1;
  uint8_t *const row[3] = {rows[0] + pad, rows[1] + pad, rows[2] + pad};
  for (int y = 0; y < h; y++) {
    int from = y + top - pad;
    make_row(d, k, from < 0 ? -from : from >= h ? 2 * (h - 1) - from : from, channels, row);
    const uint8_t *part[3];
    for (int c = 0; c < colours; c++) {
      for (int i = 1; i <= pad; i++) {
        row[c][-i] = row[c][i];
        row[c][w - 1 + i] = row[c][w - 1 - i];
      }
      part[c] = rows[c] + left;
      if (!flip) continue;
      mirror(turned[c], part[c], w);
      part[c] = turned[c];
    }
    if (colours == 1) part[1] = part[2] = part[0];
    if (channels == 1) memcpy(out + (size_t)y * w, part[0], (size_t)w);
    else weave(out + (size_t)y * w * 3, part[0], part[1], part[2], w);
  }
}

/* Header and entropy-coded data of all as one image; its length, 0 without memory for it. */
static size_t join(gt_decoder *d, const gt_kind *k, int count, const uint8_t *const *data, const size_t *lengths,
                   int rows, int blocks) {
  size_t size = k->start + 8;
  for (int i = 0; i < count; i++) size += lengths[i] - k->start;
  if (!gt_grow((void **)&d->file, &d->file_size, size)) return 0;
  uint8_t *s = d->file;
  memcpy(s, data[0], k->sos);
  s[k->sof + 5] = (uint8_t)(rows >> 8);
  s[k->sof + 6] = (uint8_t)rows;
  s += k->sos;
  const uint8_t interval[6] = {0xFF, 0xDD, 0, 4, (uint8_t)(blocks >> 8), (uint8_t)blocks};
  memcpy(s, interval, 6);
  memcpy(s + 6, data[0] + k->sos, k->start - k->sos);
  s += 6 + (k->start - k->sos);
  for (int i = 0; i < count; i++) {
    size_t n = lengths[i] - k->start - 2;
    memcpy(s, data[i] + k->start, n);
    s += n;
    *s++ = 0xFF;
    *s++ = (uint8_t)(i + 1 < count ? 0xD0 + i % 8 : 0xD9);
  }
  return (size_t)(s - d->file);
}

/* How many images of kind `k` may be decoded at once, as they are, with a reflected border of `pad`; 0: none. */
int gt_group_room(const gt_kind *k, int pad) {
  int side = 8 * k->v, high = (k->height + side - 1) / side * side;
  if (k->width < 8 || k->height < 8 || k->width > MOST_SIDE || k->height > MOST_SIDE) return 0;
  if (pad < 0 || pad > MOST_PAD || pad >= k->width || pad >= k->height) return 0;
  return MOST_ROWS / high;
}

/* Decode `count` images of kind `k` into `out` (count, height, width, channels). Not GT_OK: nothing is said of any. */
int gt_decode_group(gt_decoder *d, const gt_kind *k, int count, const uint8_t *const *data, const size_t *lengths,
                    const uint8_t *flips, const int64_t *offsets, int pad, int channels, uint8_t *out) {
  struct jpeg_decompress_struct *j = &d->c.j;
  int wide = (k->width + 8 * k->h - 1) / (8 * k->h), high = (k->height + 8 * k->v - 1) / (8 * k->v);
  if (!gt_abi.writes) return GT_UNSUPPORTED; /* raw data are read by a library that also writes them */
  d->truncated = 0;
  d->err.num_warnings = 0;
  d->message[0] = 0;
  size_t length = join(d, k, count, data, lengths, count * high * 8 * k->v, wide * high);
  if (!length) return GT_UNSUPPORTED;
  for (int c = 0; c < k->parts; c++) {
    gt_plane *plane = &d->planes[c];
    plane->stride = (size_t)wide * 8 * (c ? 1 : k->h);
    if (!gt_grow((void **)&plane->data, &plane->have, plane->stride * (size_t)(high * 8 * (c ? 1 : k->v)) + 64))
      return GT_UNSUPPORTED;
  }
  if (setjmp(d->escape)) {
    jpeg_abort_decompress(j);
    return GT_BROKEN;
  }
  jpeg_mem_src(j, d->file, (unsigned long)length);
  jpeg_read_header(j, 1);
  if ((int)j->jpeg_color_space != (k->parts == 1 ? JCS_GRAYSCALE : JCS_YCbCr)) longjmp(d->escape, 1);
  j->out_color_space = j->jpeg_color_space;
  j->raw_data_out = 1;
  jpeg_start_decompress(j);
  unsigned char *rows[3][16], **tables[3] = {rows[0], rows[1], rows[2]};
  for (int i = 0; i < count; i++) {
    for (int step = 0; step < high; step++) {
      for (int c = 0; c < k->parts; c++) {
        int n = 8 * (c ? 1 : k->v);
        for (int y = 0; y < n; y++) rows[c][y] = d->planes[c].data + (size_t)(step * n + y) * d->planes[c].stride;
      }
      if (jpeg_read_raw_data(j, tables, (unsigned)(8 * k->v)) != (unsigned)(8 * k->v)) d->err.num_warnings++;
    }
    if (d->err.num_warnings) longjmp(d->escape, 1);
    int border = offsets ? pad : 0;
    place(d, k, channels, border, offsets ? (int)offsets[2 * i] : 0, offsets ? (int)offsets[2 * i + 1] : 0,
          flips && flips[i], out + (size_t)i * (size_t)(k->width * k->height * channels));
  }
  d->groups++;
  jpeg_abort_decompress(j); /* what stands behind the last image's data is not looked at, as in a file of its own */
  return GT_OK;
}
