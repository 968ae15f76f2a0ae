/* Building the tables of huffman.h. */
#include "huffman.h"

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
