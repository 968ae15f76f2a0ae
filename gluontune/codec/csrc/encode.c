/* Planes of samples to a baseline file: byte for byte what libjpeg-turbo writes.
 *
 * Bits are gathered without the bytes that JPEG stuffs behind each 0xFF, of a few units at a time; those are put in
 * where they are copied to the file.
 */
#include "codec.h"

#include <string.h>

#ifdef GT_V3
#include "encode.h"

/* The encoder's header, quantizers and Huffman codes: libjpeg's, of a file of one unit that it is asked for. */
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

typedef struct { /* bits on their way, the last ones of the word: as many as the low six bits of `have` say */
  uint64_t word;
  unsigned have;
  uint8_t *next;
} writing;

/* At most 63 bits may be there. */
GT_INLINE void put(writing *w, uint32_t code) {
  w->word = w->word << (code & 63) | code >> 8;
  w->have += code;
}

/* Less than 8 are left. */
GT_INLINE void flush(writing *w) {
  unsigned have = w->have & 63;
  uint64_t first = __builtin_bswap64(w->word << (-have & 63));
  memcpy(w->next, &first, 8);
  w->next += have >> 3;
  w->have = have & 7;
}

/* A value behind a long run of zeros, or a large one. */
static GT_COLD writing put_careful(writing w, const gt_codes *c, const gt_coded *block, size_t k, size_t run) {
  int v = block->is_large ? block->whole[gt_places[k]] : block->values[k], size = gt_size(v);
  flush(&w);
  for (; run > 15; run -= 16) {
    put(&w, c->ac[0xF0]);
    flush(&w);
  }
  put(&w, c->ac[(run << 4 | (unsigned)size) & 255]);
  flush(&w);
  put(&w, gt_value(v, size));
  return w;
}

/* Value k, where `last` is that before it. */
GT_INLINE void put_value(writing *w, const gt_codes *c, const gt_coded *block, size_t k, size_t last) {
  uint32_t code = c->values[k - last][(uint8_t)block->values[k]];
  if (GT_LIKELY(code)) {
    put(w, code);
    return;
  }
  writing exact = put_careful((writing){w->word, w->have, w->next}, c, block, k, k - last - 1);
  w->word = exact.word;
  w->have = exact.have;
  w->next = exact.next;
}

GT_V3 GT_INLINE void put_block(writing *to, const gt_codes *c, const gt_coded *block, int *before) {
  writing w;
  w.word = to->word;
  w.have = to->have;
  w.next = to->next;
  int diff = block->dc - *before, size = gt_size(diff);
  *before = block->dc;
  put(&w, c->dc[size & 15]);
  put(&w, gt_value(diff, size));
  flush(&w);
  uint64_t some = block->some, rest = some & (some - 1);
  size_t last = 0;
  /* Two at a time, so that the processor guesses less often; then one that may be none. */
  for (; rest; some = rest & (rest - 1), rest = some & (some - 1)) {
    size_t k = _tzcnt_u64(some), next = _tzcnt_u64(rest);
    put_value(&w, c, block, k, last);
    put_value(&w, c, block, next, k);
    flush(&w);
    last = next;
  }
  put_value(&w, c, block, _tzcnt_u64(some), last); /* value 64, which is 0, where none is left */
  if (GT_LIKELY(!(block->some >> 63))) put(&w, c->ac[0]);
  to->word = w.word;
  to->have = w.have;
  to->next = w.next;
}

/* Bytes with what is stuffed behind each 0xFF, into the file, which has room for twice as many and 32 more. */
GT_V3 static uint8_t *stuff(uint8_t *to, const uint8_t *from, const uint8_t *end) {
  const __m256i ones = _mm256_set1_epi8(-1);
  while (end - from >= 32) {
    __m256i v = _mm256_loadu_si256((const __m256i *)from);
    unsigned found = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, ones));
    int n = found ? __builtin_ctz(found) + 1 : 32;
    _mm256_storeu_si256((__m256i *)to, v);
    from += n;
    to += n;
    if (found) *to++ = 0;
  }
  for (; from < end; from++) {
    *to++ = *from;
    if (*from == 0xFF) *to++ = 0;
  }
  return to;
}

/* What is whole of the bits goes to d->file, `length` bytes behind its start. 0: no memory. */
GT_V3 static int drain(gt_decoder *d, writing *w, size_t *length) {
  uint8_t *data = d->encoder->data;
  size_t want = *length + 2 * (size_t)(w->next - data) + 64;
  if (want > d->file_size) {
#ifndef GT_EXACT
    want *= 2;
#endif
    uint8_t *file = realloc(d->file, want);
    if (!file) return 0;
    d->file = file;
    d->file_size = want;
  }
  *length = (size_t)(stuff(d->file + *length, data, w->next) - d->file);
  w->next = data;
  return 1;
}

GT_V3 static int scan(gt_decoder *d, int count, size_t *length) {
  struct gt_encoder *e = d->encoder;
  const gt_plane *luma = d->resized, *chroma = d->resized + 1;
  const int wide = (luma->width + 7) / 8, high = (luma->height + 7) / 8, step = count == 3 ? 2 : 1;
  writing w = {0, 0, e->data};
  gt_coded blocks[6];
  int before[3] = {0, 0, 0};
  for (int y = 0; y < high; y += step)
    for (int x = 0; x < wide; x += 2) {
      for (int k = 0; k < step; k++) {
        const uint8_t *at = luma->data + (size_t)(8 * (y + k)) * luma->stride + (size_t)(8 * x);
        gt_fdct_two(at, at + 8, luma->stride, &e->quant[0], e->order, blocks + 2 * k);
      }
      for (int k = 0; k < 2 * step; k++) {
        int is_missing = x + k % 2 >= wide || y + k / 2 >= high;
        if (is_missing && count == 1) continue;
        if (is_missing) { /* nobody sees it: the shortest block */
          blocks[k].dc = before[0];
          blocks[k].some = 0;
        }
        put_block(&w, &e->codes[0], &blocks[k], &before[0]);
      }
      if (count == 3) {
        size_t at = (size_t)(4 * y) * chroma->stride + (size_t)(4 * x);
        gt_fdct_two(chroma[0].data + at, chroma[1].data + at, chroma->stride, &e->quant[1], e->order, blocks + 4);
        put_block(&w, &e->codes[1], &blocks[4], &before[1]);
        put_block(&w, &e->codes[1], &blocks[5], &before[2]);
      }
      if (w.next - e->data > GT_CHUNK && !drain(d, &w, length)) return 0;
    }
  flush(&w);
  put(&w, 127 << 8 | 7);
  flush(&w);
  return drain(d, &w, length);
}

size_t gt_encode(gt_decoder *d, int count, int quality) {
  struct gt_encoder *e = gt_encoder_of(d, count, quality);
  if (!e) return 0;
  size_t length = e->header;
  int height = d->resized[0].height, width = d->resized[0].width;
  if (!gt_grow((void **)&d->file, &d->file_size, length)) return 0;
  memcpy(d->file, e->file, length);
  uint8_t sizes[4] = {(uint8_t)(height >> 8), (uint8_t)height, (uint8_t)(width >> 8), (uint8_t)width};
  memcpy(d->file + e->place, sizes, 4);
  if (!scan(d, count, &length)) return 0;
  d->file[length++] = 0xFF; /* there is room: see drain */
  d->file[length++] = 0xD9;
  d->encodes++;
  return length;
}
#endif
