/* The encoder's header, quantizers and Huffman codes: libjpeg's, of a file of one unit that it is asked for. */
#include "codec.h"

#include <string.h>

#ifdef GT_V3
#include "encode.h"

/* The code of a symbol; 0: it has none. */
static uint32_t code_of(const gt_huffman *t, int symbol) {
  uint32_t code = 0;
  int at = 16;
  for (int length = 1; length <= 16; length++, code <<= 1)
    for (int k = 0; k < t->raw[length - 1]; k++, at++, code++)
      if (t->raw[at] == symbol) return code << 8 | (uint32_t)length;
  return 0;
}

/* 0: one is missing. */
static int set_codes(gt_codes *c, const gt_huffman *dc, const gt_huffman *ac) {
  memset(c, 0, sizeof *c);
  for (int size = 0; size < 12; size++)
    if (!(c->dc[size] = code_of(dc, size))) return 0;
  for (int symbol = 0; symbol < 256; symbol++) {
    int size = symbol & 15, run = symbol >> 4;
    if (size > 10 || (!size && run % 15)) continue;
    if (!(c->ac[symbol] = code_of(ac, symbol))) return 0;
  }
  for (int v = -127; v < 127; v++) /* a byte of -128 or 127 may stand for a larger one */
    for (int run = 0; run < 16 && v; run++) {
      int size = gt_size(v);
      uint32_t code = c->ac[run << 4 | size];
      c->values[run + 1][v & 255] = (code >> 8 << (8 + size)) + (code & 63) + gt_value(v, size);
    }
  for (int k = 1; k <= 64; k++) c->values[k][0] = GT_NONE;
  return 1;
}

/* `steps`: row by row. 0: they are not those of a baseline file. */
static int set_quantizer(gt_quantizer *q, const int16_t *steps) {
  for (int k = 0; k < 128; k++) {
    int y = k / 16, x = k % 16, step = steps[8 * y + x % 8];
    if (step < 1 || step > 255) return 0;
    unsigned divisor = 8u * (unsigned)step;
    int s = 31 - __builtin_clz(divisor - 1);
    q->reciprocal[y][x] = (uint16_t)(((1u << (16 + s)) + divisor - 1) / divisor);
    q->half[y][x] = (uint16_t)(divisor / 2);
    q->scale[y][x] = (uint16_t)(1u << (16 - s));
  }
  return 1;
}

/* `length` bytes of e->file are a file. */
static int set_tables(gt_decoder *d, struct gt_encoder *e, int count, size_t length) {
  gt_frame f;
  if (!gt_parse(&d->baseline, e->file, length, &f) || f.parts != count || f.h != (count == 3 ? 2 : 1) || f.v != f.h)
    return 0;
  if (count == 3 && (f.dc[2] != f.dc[1] || f.ac[2] != f.ac[1] || f.quant_of[2] != f.quant_of[1])) return 0;
  for (int k = 0; k < 2 && k < count; k++)
    if (!set_quantizer(&e->quant[k], f.quant[f.quant_of[k]]) || !set_codes(&e->codes[k], f.dc[k], f.ac[k])) return 0;
  for (int k = 0; k < 64; k++)
    for (int from = 0; from < 4; from++)
      for (int half = 0; half < 32; half += 16)
        e->order[k / 16][from][k % 16 + half] = gt_places[k] / 16 == from ? gt_places[k] % 16 : 255;
  e->header = (size_t)(f.scan - e->file);
  for (size_t at = 2; at + 9 < e->header; at += 2 + (size_t)(e->file[at + 2] << 8 | e->file[at + 3])) {
    e->place = at + 5;
    if (e->file[at + 1] == 0xC0) return 1;
  }
  return 0;
}

struct gt_encoder *gt_encoder_of(gt_decoder *d, int count, int quality) {
  if (!d->encoder && !(d->encoder = calloc(1, sizeof *d->encoder))) return NULL;
  struct gt_encoder *e = d->encoder;
  if (e->count == count && e->quality == quality) return e;
  uint8_t unit[16 * 16] = {0};
  gt_plane planes[3];
  unsigned char *file = e->file;
  unsigned long length = sizeof e->file;
  for (int k = 0; k < count; k++) planes[k] = (gt_plane){unit, 0, 16, k ? 8 : 16, k ? 8 : 16};
  e->count = 0;
  int done = gt_write_file(d, planes, count, quality, &file, &length);
  if (file != e->file) free(file); /* larger than any should be */
  else if (done && set_tables(d, e, count, length)) {
    e->count = count;
    e->quality = quality;
  }
  return e->count ? e : NULL;
}
#endif
