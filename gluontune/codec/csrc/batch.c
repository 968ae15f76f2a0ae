/* Many JPEG images in one call without the interpreter: headers, and decoding into the places of a batch. */
#include "codec.h"

#include <string.h>

int gt_header(const uint8_t *p, size_t n, int *out);
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, int top, int left, int height, int width, int eighths,
              int out_h, int out_w, int channels, int flip, uint8_t *out);

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

/* Reflect-pad by `pad`, crop at (top, left) of the padded image, and flip. */
static void pad_crop_flip(const uint8_t *from, uint8_t *to, int height, int width, int channels, int pad, int top,
                          int left, int flip) {
  for (int y = 0; y < height; y++) {
    const uint8_t *row = from + (size_t)reflected(y + top - pad, height) * width * channels;
    uint8_t *out = to + (size_t)y * width * channels;
    for (int x = 0; x < width; x++) {
      int at = x + left - pad;
      const uint8_t *pixel = row + (size_t)(at >= 0 && at < width ? at : reflected(at, width)) * channels;
      uint8_t *place = out + (size_t)(flip ? width - 1 - x : x) * channels;
      for (int c = 0; c < channels; c++) place[c] = pixel[c];
    }
  }
}

/* Decode `count` images into `out` (count, height, width, channels).
 *
 * boxes: (count, 4), top, left, height, width; eighths: the scale of each; flips: NULL or a byte each;
 * offsets: NULL or (count, 2), top and left of a crop in the image reflect-padded by `pad`.
 * codes: in, an image whose code is not GT_OK is left out; out, what became of it. */
void gt_decode_many(gt_decoder *d, int count, const uint8_t *const *data, const size_t *lengths, const int *boxes,
                    const int *eighths, const uint8_t *flips, const int64_t *offsets, int pad, int height, int width,
                    int channels, uint8_t *out, int *codes) {
  size_t bytes = (size_t)height * width * channels;
  for (int i = 0; i < count; i++) {
    if (codes[i] != GT_OK) continue;
    const int *box = boxes + 4 * i;
    int flip = flips && flips[i];
    uint8_t *place = out + bytes * i, *to = place;
    if (offsets) {
      if (!gt_grow((void **)&d->part, &d->part_size, bytes)) { codes[i] = GT_UNSUPPORTED; continue; }
      to = d->part;
    }
    codes[i] = gt_decode(d, data[i], lengths[i], box[0], box[1], box[2], box[3], eighths[i], height, width, channels,
                         flip && !offsets, to);
    if (offsets && codes[i] == GT_OK)
      pad_crop_flip(to, place, height, width, channels, pad, (int)offsets[2 * i], (int)offsets[2 * i + 1], flip);
  }
}
