/* Many JPEG images in one call without the interpreter: headers, and decoding into the places of a batch. */
#include "codec.h"

#include <string.h>

int gt_header(const uint8_t *p, size_t n, int *out);
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, int top, int left, int height, int width, int eighths,
              int out_h, int out_w, int channels, int flip, uint8_t *out);
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
    uint8_t *place = out + bytes * i;
    if (offsets && !gt_grow((void **)&d->part, &d->part_size, bytes)) {
      codes[i] = GT_UNSUPPORTED;
      continue;
    }
    codes[i] = gt_decode(d, data[i], lengths[i], box[0], box[1], box[2], box[3], eighths[i], height, width, channels,
                         flip, offsets ? d->part : place);
    if (offsets && codes[i] == GT_OK) { /* a crop of the mirrored image, from the other side */
      int top = (int)offsets[2 * i], left = (int)offsets[2 * i + 1];
      pad_and_crop(d->part, place, height, width, channels, pad, top, flip ? 2 * pad - left : left);
    }
  }
}
