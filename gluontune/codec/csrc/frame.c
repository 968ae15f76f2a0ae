/* The header of a baseline file, and the tables that it defines. What is not as it should be is nobody's error here:
 * libjpeg-turbo gets the file, and its say. */
#include "baseline.h"

#include <stdlib.h>

typedef struct { int length, size, run, end; } symbol;

/* The symbol that the `bits` bits of `at` start with; 0 where it is none that a look can take. */
static int find(const gt_huffman *t, unsigned at, int bits, symbol *s) {
  unsigned found = bits < GT_LOOK ? t->first[at << (GT_LOOK - bits)] : t->first[at >> (bits - GT_LOOK)];
  s->length = (int)(found >> 8);
  s->size = (int)(found & 15);
  s->run = (int)(found >> 4 & 15);
  s->end = (found & 255) == 0;
  if (!found || s->length > bits || s->length + s->size > GT_MOST) return 0;
  return s->size || s->end || s->run == 15; /* other symbols without a value are left to the careful way */
}

static uint64_t entry(int taken, int advance, int place, int place2, int first, int more, int value2) {
  return (uint64_t)taken | (uint64_t)advance << 8 | (uint64_t)place << 16 | (uint64_t)place2 << 24 |
         (uint64_t)(64 - first) << 32 | (uint64_t)(uint8_t)value2 << 40 | (uint64_t)(uint16_t)more << 48;
}

static uint64_t pair(const gt_huffman *t, unsigned at) {
  symbol one, two;
  if (!find(t, at, GT_LOOK, &one) || (one.size && one.length >= GT_LOOK))
    return entry(0, GT_LONG, 0, 0, GT_LOOK, (int)at, 0); /* a value of 0 */
  int first = one.length + one.size, left = GT_LOOK - first, place = one.run + 1, value = 0;
  int more = (int)(at >> (GT_LOOK - one.length)) << one.size;
  if (one.size && !(at >> (GT_LOOK - one.length - 1) & 1)) more += (1 << one.size) - 1; /* it is below zero */
  if (one.end) return entry(first, GT_END, 0, 0, first, more, 0);
  unsigned rest = left > 0 ? at & ((1u << left) - 1) : 0;
  if (left <= 0 || !find(t, rest, left, &two) || two.length + two.size > left)
    return entry(first, place, one.run, place, first, more, 0);
  left -= two.length + two.size;
  value = (int)(rest >> left) & ((1 << two.size) - 1);
  if (two.size && !(value >> (two.size - 1))) value -= (1 << two.size) - 1;
  int taken = first + two.length + two.size;
  if (two.end) return entry(taken, place + GT_END, one.run, place, first, more, 0);
  return entry(taken, place + two.run + 1, one.run, place + two.run, first, more, value);
}

int gt_huffman_build(gt_huffman *t, const uint8_t *raw, int size, int is_ac) {
  int32_t code = 0;
  int count = 0;
  t->size = 0;
  memset(t->first, 0, sizeof t->first);
  for (int length = 1; length <= 16; length++) {
    int here = raw[length - 1];
    t->shift[length] = count - code;
    if (count + here > 256 || count + here > size - 16) return 0;
    for (int k = 0; k < here; k++, count++, code++) {
      uint8_t symbol = raw[16 + count];
      if (!is_ac && symbol > 15) return 0;
      t->symbols[count] = symbol;
      if (length > GT_LOOK) continue;
      int free_bits = GT_LOOK - length;
      if (code >= 1 << length) return 0;
      for (int fill = 0; fill < 1 << free_bits; fill++)
        t->first[(code << free_bits) + fill] = (uint16_t)(length << 8 | symbol);
    }
    if (code > 1 << length || (here && code == 1 << length)) return 0; /* all ones is no code */
    t->limit[length] = code << (16 - length);
    code <<= 1;
  }
  memset(t->symbols + count, 0, (size_t)(256 - count));
  memcpy(t->raw, raw, (size_t)(16 + count));
  t->is_ac = is_ac;
  for (unsigned at = 0; is_ac && at < 1 << GT_LOOK; at++) t->pairs[at] = pair(t, at);
  t->size = 16 + count;
  return 1;
}

const uint8_t gt_places[128] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,
    7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46,
    53, 60, 61, 54, 47, 55, 62, 63, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64};

void gt_forget(gt_baseline *b) {
  for (int k = 0; k < GT_TABLES; k++) free(b->tables[k]);
  free(b->data);
}

/* The table of this definition: one that a file before had, or a new one. NULL: it is none, or there is no memory. */
static const gt_huffman *table(gt_baseline *b, const uint8_t *raw, int size, int is_ac) {
  int oldest = 0;
  b->clock++;
  for (int k = 0; k < GT_TABLES; k++) {
    gt_huffman *t = b->tables[k];
    if (t && t->size == size && t->is_ac == is_ac && !memcmp(t->raw, raw, (size_t)size)) {
      t->used = b->clock;
      return t;
    }
    if (b->tables[oldest] && (!t || b->clock - t->used > b->clock - b->tables[oldest]->used)) oldest = k;
  }
  gt_huffman *t = b->tables[oldest];
  if (!t) t = b->tables[oldest] = malloc(sizeof *t);
  if (!t || !gt_huffman_build(t, raw, size, is_ac)) return NULL;
  t->used = b->clock;
  return t;
}

static int parse_quants(const uint8_t *p, const uint8_t *end, gt_frame *f, int *have) {
  while (p < end) {
    int wide = *p >> 4, id = *p & 15, bytes = 64 * (wide + 1);
    p++;
    if (wide > 1 || id > 3 || end - p < bytes) return 0;
    for (int k = 0; k < 64; k++, p += wide + 1) {
      int v = wide ? p[0] << 8 | p[1] : p[0];
      if (v > 32767) return 0;
      f->quant[id][gt_places[k]] = (int16_t)v;
    }
    *have |= 1 << id;
  }
  return 1;
}

static int parse_codes(gt_baseline *b, const uint8_t *p, const uint8_t *end, unsigned since,
                       const gt_huffman *tables[2][4]) {
  while (p < end) {
    int is_ac = *p >> 4, id = *p & 15, count = 0;
    p++;
    if (is_ac > 1 || id > 3 || end - p < 16) return 0;
    for (int k = 0; k < 16; k++) count += p[k];
    if (count > 256 || end - p < 16 + count || b->clock - since >= GT_TABLES) return 0; /* none of its own gives way */
    tables[is_ac][id] = table(b, p, 16 + count, is_ac);
    if (!tables[is_ac][id]) return 0;
    p += 16 + count;
  }
  return 1;
}

/* `p`: a frame's segment behind its length. */
static int parse_frame(const uint8_t *p, size_t n, gt_frame *f, uint8_t ids[4]) {
  if (f->parts || n < 6 || p[0] != 8 || (p[5] != 1 && p[5] != 3) || n != 6 + 3 * (size_t)p[5]) return 0;
  f->height = p[1] << 8 | p[2];
  f->width = p[3] << 8 | p[4];
  f->parts = p[5];
  f->h = p[7] >> 4;
  f->v = p[7] & 15;
  if (f->parts == 1 && f->h >= 1 && f->h <= 4 && f->v >= 1 && f->v <= 4) f->h = f->v = 1; /* they say nothing */
  if (f->height < 16 || f->width < 16 || f->h < 1 || f->h > 2 || f->v < 1 || f->v > f->h) return 0;
  for (int c = 0; c < f->parts && c < GT_MOST_PARTS; c++) {
    ids[c] = p[6 + 3 * c];
    f->quant_of[c] = p[8 + 3 * c];
    if (f->quant_of[c] > 3 || (c && p[7 + 3 * c] != 0x11)) return 0;
  }
  return f->parts == 1 || (ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}

int gt_parse(gt_baseline *b, const uint8_t *data, size_t length, gt_frame *f) {
  const gt_huffman *tables[2][4] = {{NULL}};
  const uint8_t *p = data, *end = data + length;
  uint8_t ids[4] = {0};
  unsigned since = b->clock;
  int quants = 0, jfif = 0, adobe = -1;
  f->parts = f->restart = 0;
  f->end = end;
  if (length < 4 || p[0] != 0xFF || p[1] != 0xD8) return 0;
  for (p += 2;;) {
    if (end - p < 4 || p[0] != 0xFF) return 0;
    int marker = p[1];
    size_t n = (size_t)p[2] << 8 | p[3];
    if (n < 2 || (size_t)(end - p) < 2 + n) return 0;
    const uint8_t *body = p + 4, *next = p + 2 + n;
    n -= 2;
    if (marker == 0xDA) {
      if (!f->parts || n != 4 + 2 * (size_t)f->parts || body[0] != f->parts) return 0;
      for (int c = 0; c < f->parts; c++) {
        int use = body[2 + 2 * c];
        if (body[1 + 2 * c] != ids[c] || use >> 4 > 3 || (use & 15) > 3 || !(quants >> f->quant_of[c] & 1)) return 0;
        f->dc[c] = tables[0][use >> 4];
        f->ac[c] = tables[1][use & 15];
        if (!f->dc[c] || !f->ac[c]) return 0;
      }
      body += 1 + 2 * f->parts;
      f->scan = next;
      if (body[0] != 0 || body[1] != 63 || body[2] != 0) return 0;
      return f->parts == 1 || jfif || adobe == 1 || (adobe < 0 && memcmp(ids, "RGB", 3) != 0);
    }
    if (marker == 0xC0 || marker == 0xC1) {
      if (!parse_frame(body, n, f, ids)) return 0;
    } else if (marker == 0xC4) {
      if (!parse_codes(b, body, next, since, tables)) return 0;
    } else if (marker == 0xDB) {
      if (!parse_quants(body, next, f, &quants)) return 0;
    } else if (marker == 0xDD) {
      if (n != 2) return 0;
      f->restart = body[0] << 8 | body[1];
    } else if (marker == 0xE0) {
      jfif |= n >= 12 && !memcmp(body, "JFIF", 5);
    } else if (marker == 0xEE) {
      if (n >= 12 && !memcmp(body, "Adobe", 5)) adobe = body[11];
    } else if ((marker < 0xE0 || marker > 0xEF) && marker != 0xFE) {
      return 0; /* another kind of coding, or a marker that stands alone */
    }
    p = next;
  }
}
