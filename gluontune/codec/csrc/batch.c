/* Headers of JPEG files, and many images in one call without the interpreter, into the places of a batch. */
#include "codec.h"

#include <string.h>

/* Headers: the same walk as jpeg_header's in header.py. */
static int orientation_of(const uint8_t *t, size_t n) {
  int big;
  if (n < 14) return 1;
  if (t[0] == 'I' && t[1] == 'I') big = 0; else if (t[0] == 'M' && t[1] == 'M') big = 1; else return 1;
#define U16(p) (big ? (p)[0] << 8 | (p)[1] : (p)[1] << 8 | (p)[0])
  size_t at = big ? (size_t)t[4] << 24 | t[5] << 16 | t[6] << 8 | t[7] : (size_t)t[7] << 24 | t[6] << 16 | t[5] << 8 | t[4];
  if (at + 2 > n) return 1;
  int count = U16(t + at);
  for (int k = 0; k < count && k < 200 && at + 2 + 12 * (size_t)(k + 1) <= n; k++) {
    const uint8_t *e = t + at + 2 + 12 * (size_t)k;
    if (U16(e) == 0x0112) { int v = U16(e + 8); return U16(e + 2) == 3 && v >= 1 && v <= 8 ? v : 1; }
  }
#undef U16
  return 1;
}

static int64_t max_pixels = 178956970;

/* The most pixels that a file may claim; see sizes.py. */
void gt_limit(int64_t pixels) { max_pixels = pixels; }

/* Does it claim too much for its length, or for the memory that it is given? sof, sos: its frame's and first scan's
 * markers. What is refused here is left to the interpreter, which says why. */
static int is_too_large(const uint8_t *p, size_t n, size_t sof, size_t sos) {
  int64_t h = p[sof + 5] << 8 | p[sof + 6], w = p[sof + 7] << 8 | p[sof + 8], pixels = h * w;
  int parts = p[sof + 9], progressive = (p[sof + 1] & 3) == 2, scans = 0;
  if (pixels > max_pixels || (pixels > 1 << 22 && (int64_t)n < pixels / 512)) return 1;
  if (!progressive && (sos + 4 >= n || p[sos + 4] >= parts)) return 0;
  int64_t area = 0, most_h = 1, most_v = 1;
  for (int k = 0; k < parts && sof + 11 + 3 * (size_t)k < n; k++) {
    int f = p[sof + 11 + 3 * k];
    area += (f >> 4) * (f & 15);
    if (f >> 4 > most_h) most_h = f >> 4;
    if ((f & 15) > most_v) most_v = f & 15;
  }
  if (pixels * area / (most_h * most_v) > max_pixels / 4 * 3) return 1;
  for (size_t k = sos; progressive && k + 1 < n; k++) scans += p[k] == 0xFF && p[k + 1] == 0xDA;
  return scans > 500;
}

typedef struct { unsigned quants, codes; } tables; /* which are defined: a bit for each */

static void add_tables(tables *have, int is_quant, const uint8_t *p, const uint8_t *end) {
  while (is_quant && p < end) {
    have->quants |= 1u << (*p & 15);
    p += *p >> 4 ? 129 : 65;
  }
  while (!is_quant && p + 17 <= end) {
    int count = 17;
    for (int k = 1; k <= 16; k++) count += p[k];
    if (*p < 32) have->codes |= 1u << *p;
    p += count;
  }
}

/* Does the first scan of a file with Huffman codes name a table that the file lacks? A decoder would take that of the
 * file before, or a standard one. */
static int lacks_tables(const uint8_t *p, size_t n, size_t sof, size_t sos, tables have) {
  size_t parts = p[sos + 4], behind = sos + 5 + 2 * parts;
  if (p[sof + 1] > 0xC2 || n < behind + 3) return 0;
  for (size_t k = sos + 5; k < behind; k += 2) {
    unsigned dc = 1u << (p[k + 1] >> 4), ac = 1u << (16 + (p[k + 1] & 15)), wanted = dc | ac, quant = 0;
    if (p[sof + 1] == 0xC2) wanted = p[behind] ? ac : p[behind + 2] >> 4 ? 0 : dc; /* progressive, and refining */
    for (size_t c = sof + 10; c + 2 < sos && c < sof + 10 + 3 * (size_t)p[sof + 9]; c += 3)
      if (p[c] == p[k]) quant = p[c + 2];
    if (quant > 15 || !(have.quants >> quant & 1) || (have.codes & wanted) != wanted) return 1;
  }
  return 0;
}

/* height, width, components, bits, orientation, byte of the first scan, whether the end is there. */
int gt_header(const uint8_t *p, size_t n, int *out) {
  size_t at = 2, sof = 0;
  tables have = {0, 0};
  out[0] = out[1] = out[2] = out[3] = 0;
  out[4] = 1;
  if (n < 4 || p[0] != 0xFF || p[1] != 0xD8) return GT_UNSUPPORTED;
  for (;;) {
    if (at + 4 > n) return GT_BROKEN;
    int m = p[at + 1];
    if (p[at] != 0xFF || m == 0) return GT_BROKEN;
    if (m == 0xFF) { at++; continue; }
    if (m == 0x01 || (m >= 0xD0 && m <= 0xD8)) { at += 2; continue; }
    if (m == 0xD9) return GT_BROKEN;
    size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
    if (length < 2) return GT_BROKEN;
    if (m == 0xDA) break;
    if (m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC && at + 10 <= n) {
      out[3] = p[at + 4];
      out[0] = p[at + 5] << 8 | p[at + 6]; out[1] = p[at + 7] << 8 | p[at + 8]; out[2] = p[at + 9];
      sof = at;
    } else if ((m == 0xC4 || m == 0xDB) && at + 2 + length <= n) {
      add_tables(&have, m == 0xDB, p + at + 4, p + at + 2 + length);
    } else if (m == 0xE1 && at + 10 <= n && !memcmp(p + at + 4, "Exif\0\0", 6)) {
      size_t end = at + 2 + length < n ? at + 2 + length : n;
      out[4] = end > at + 10 ? orientation_of(p + at + 10, end - at - 10) : 1;
    }
    at += 2 + length;
  }
  if (!sof || !out[0] || !out[1] || !out[2]) return GT_BROKEN;
  if (at + 4 < n && lacks_tables(p, n, sof, at, have)) return GT_BROKEN;
  if (is_too_large(p, n, sof, at)) return GT_UNSUPPORTED;
  out[5] = (int)at;
  out[6] = p[n - 2] == 0xFF && p[n - 1] == 0xD9;
  for (size_t k = n; !out[6] && k >= at + 2; k--) out[6] = p[k - 2] == 0xFF && p[k - 1] == 0xD9;
  return GT_OK;
}

int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, gt_box box, int eighths, int out_h, int out_w,
              int channels, int flip, uint8_t *out);
/* Where the images of records lie, in a RecordIO file that is mapped at `file`: address and length of each.
 *
 * offsets, ends: of all records in the file; places: which of them are wanted. The length is 0 where no whole image
 * record in one part lies, or one with other fields behind its image: that one is the interpreter's. */
void gt_records(int count, const uint8_t *file, size_t size, const int64_t *offsets, const int64_t *ends,
                const int64_t *places, const uint8_t **data, size_t *lengths) {
  for (int i = 0; i < count; i++) {
    int64_t at = offsets[places[i]], end = ends[places[i]];
    uint32_t word[3]; /* magic number, part flag and length, number of labels */
    data[i] = NULL;
    lengths[i] = 0;
    if (at < 0 || end > (int64_t)size || end - at < 32) continue;
    memcpy(word, file + at, sizeof word);
    if (word[0] != 0xCED7230Au || word[1] >> 29) continue;
    int64_t head = 24 + 4 * (int64_t)word[2], length = word[1];
    if (length <= head || length > end - at - 8) continue;
    if (length - head >= 8 && !memcmp(file + at + 8 + length - 8, "\x93GTFLD\r\n", 8)) continue; /* see fields.py */
    data[i] = file + at + 8 + head;
    lengths[i] = (size_t)(length - head);
  }
}

/* headers: (count, 8), gt_header's seven numbers and its code. */
void gt_headers(int count, const uint8_t *const *data, const size_t *lengths, int *headers) {
  for (int i = 0; i < count; i++) headers[8 * i + 7] = gt_header(data[i], lengths[i], headers + 8 * i);
}

/* A place outside 0 … size - 1 mirrored at the edge pixel (BORDER_REFLECT_101). */
static int reflected(int at, int size) {
  if (size == 1) return 0;
  while (at < 0 || at >= size) at = at < 0 ? -at : 2 * (size - 1) - at;
  return at;
}

/* Reflect-pad by `pad` and crop at (top, left) of the padded image. */
static void pad_and_crop(const uint8_t *from, uint8_t *to, int height, int width, int channels, int pad, int top,
                         int left) {
  int shift = left - pad, first = shift < 0 ? -shift : 0, end = shift > 0 ? width - shift : width;
  size_t pixel = (size_t)channels, line = (size_t)width * pixel;
  if (end <= first) first = end = width; /* all of it is border */
  for (int y = 0; y < height; y++, to += line) {
    const uint8_t *row = from + (size_t)reflected(y + top - pad, height) * line;
    memcpy(to + (size_t)first * pixel, row + (ptrdiff_t)(first + shift) * channels, (size_t)(end - first) * pixel);
    for (int x = first ? 0 : end; x < width; x = x + 1 == first ? end : x + 1)
      for (int c = 0; c < channels; c++) to[x * channels + c] = row[reflected(x + shift, width) * channels + c];
  }
}

/* Decode `count` images into `out` (count, height, width, channels).
 *
 * boxes, eighths: the wanted part of each, and its scale; flips: NULL or a byte each;
 * offsets: NULL or (count, 2), top and left of a crop in the image reflect-padded by `pad`.
 * codes: in, an image whose code is not GT_OK is left out; out, what became of it. */
void gt_decode_many(gt_decoder *d, int count, const uint8_t *const *data, const size_t *lengths, const gt_box *boxes,
                    const int *eighths, const uint8_t *flips, const int64_t *offsets, int pad, int height, int width,
                    int channels, uint8_t *out, int *codes) {
  size_t bytes = (size_t)height * width * channels;
  for (int i = 0; i < count; i++) {
    if (codes[i] != GT_OK) continue;
    int flip = flips && flips[i];
    uint8_t *place = out + bytes * i;
    if (offsets && !gt_grow((void **)&d->part, &d->part_size, bytes)) {
      codes[i] = GT_UNSUPPORTED;
      continue;
    }
    codes[i] = gt_decode(d, data[i], lengths[i], boxes[i], eighths[i], height, width, channels, flip,
                         offsets ? d->part : place);
    if (offsets && codes[i] == GT_OK) { /* a crop of the mirrored image, from the other side */
      int top = (int)offsets[2 * i], left = (int)offsets[2 * i + 1];
      pad_and_crop(d->part, place, height, width, channels, pad, top, flip ? 2 * pad - left : left);
    }
  }
}
