/* Many JPEG images in one call without the interpreter: headers, and decoding into the places of a batch. */
#include "codec.h"

#include <string.h>

int gt_header(const uint8_t *p, size_t n, int *out);
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, int top, int left, int height, int width, int eighths,
              int out_h, int out_w, int channels, int flip, uint8_t *out);
int gt_kind_of(const uint8_t *p, size_t n, gt_kind *k);
int gt_is_of_kind(const gt_kind *k, const uint8_t *first, const uint8_t *p, size_t n);
int gt_group_room(const gt_kind *k, int pad);
int gt_decode_group(gt_decoder *d, const gt_kind *k, int count, const uint8_t *const *data, const size_t *lengths,
                    const uint8_t *flips, const int64_t *offsets, int pad, int channels, uint8_t *out);

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

/* How many images from the first on are wanted whole, as they are, and of one kind; 0 where one call each serves. */
static int group_of(int count, const uint8_t *const *data, const size_t *lengths, const int *boxes, const int *eighths,
                    const int *codes, int height, int width, int pad, gt_kind *kind) {
  int n = 0, room = 0;
  for (; n < count && codes[n] == GT_OK; n++) {
    const int *box = boxes + 4 * n;
    if (eighths[n] != 8 || box[0] || box[1] || box[2] != height || box[3] != width) break;
    if (n == 0) {
      if (!gt_kind_of(data[0], lengths[0], kind) || kind->height != height || kind->width != width) return 0;
      room = gt_group_room(kind, pad);
    }
    if (n >= room || !gt_is_of_kind(kind, data[0], data[n], lengths[n])) break;
  }
  return n > 1 ? n : 0;
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
  int tried = 0; /* the images before this one were decoded as a group, or cannot be */
  for (int i = 0; i < count; i++) {
    if (codes[i] != GT_OK) continue;
    if (i >= tried) {
      gt_kind kind;
      int n = group_of(count - i, data + i, lengths + i, boxes + 4 * i, eighths + i, codes + i, height, width,
                       offsets ? pad : 0, &kind);
      tried = i + n;
      if (n && gt_decode_group(d, &kind, n, data + i, lengths + i, flips ? flips + i : NULL,
                               offsets ? offsets + 2 * i : NULL, pad, channels, out + bytes * i) == GT_OK) {
        i += n - 1;
        continue;
      }
    }
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
