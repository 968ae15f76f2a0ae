/* The entropy-coded data of a baseline file to planes of samples. */
#include "idct.h"

#ifdef GT_V3
enum { BROKEN = -1, SPARE = 512 }; /* SPARE: bytes behind the data; a block may take 64 times 31 bits */

/* One coefficient, or what is none, with all care: where the next one is, 64 at the block's end. */
static GT_COLD int careful(gt_bits *b, const gt_huffman *ac, int k, int16_t *block) {
  gt_fill(b);
  int symbol = gt_symbol(b, ac);
  if (symbol < 0) return BROKEN;
  int size = symbol & 15, run = symbol >> 4;
  if (!size && run != 15) return 64; /* an end of block; those of many blocks mean the same to libjpeg */
  k += run;
  int value = gt_signed(b->word, 63 - size);
  gt_take(b, size);
  if (k > 63) return BROKEN;
  if (block) block[gt_places[k]] = (int16_t)value;
  return k + 1;
}

/* The coefficients behind the first, into `block` or, where it is NULL, nowhere.
 * 0: broken; 1: there are none; 2: there are some. */
GT_INLINE int read_rest(gt_bits *b, const gt_huffman *ac, int16_t *block) {
  size_t k = 1;
  for (;;) {
    gt_fill(b);
    uint64_t word = b->word, taken = 0;
    int looks = 0;
    for (; looks < GT_LOOKS_OF_WORD; looks++) {
      uint64_t found = ac->pairs[word >> (64 - GT_LOOK)], after = word << (found & 63);
      if (block) {
        block[gt_places[k + (found >> 16 & 255)]] = (int16_t)((word >> (found >> 32 & 63)) - (found >> 48));
        block[gt_places[k + (found >> 24 & 255)]] = (int8_t)(found >> 40);
      }
      size_t next = k + (found >> 8 & 255);
      if (GT_LIKELY(next < 64)) {
        taken += found; /* in its low 6 bits: they do not flow over */
        word = after;
        k = next;
        continue;
      }
      if (next == 64 || (next > GT_END && next < GT_END + 64)) {
        b->word = after;
        b->have -= (int)((taken + found) & 63);
        return next == GT_END + 1 ? 1 : 2;
      }
      gt_bits exact = {word, b->next, b->have - (int)(taken & 63)};
      int place = careful(&exact, ac, (int)k, block);
      *b = exact;
      if (place == BROKEN) return 0;
      if (place == 64) return 2;
      k = (size_t)place;
      break;
    }
    if (looks < GT_LOOKS_OF_WORD) continue;
    b->word = word;
    b->have -= (int)(taken & 63);
  }
}

/* Data up to the next marker, without stuffing, into b->data; the marker is *from afterwards. Its length. */
static size_t unstuff(uint8_t *to, const uint8_t **from, const uint8_t *end) {
  const uint8_t *p = *from;
  uint8_t *start = to;
  for (;;) {
    const uint8_t *found = memchr(p, 0xFF, (size_t)(end - p));
    if (!found || found + 1 >= end) { /* no marker ends it: cut off */
      found = end;
    } else if (found[1] == 0) {
      memcpy(to, p, (size_t)(found + 1 - p));
      to += found + 1 - p;
      p = found + 2;
      continue;
    }
    memcpy(to, p, (size_t)(found - p));
    to += found - p;
    *from = found;
    break;
  }
  memset(to, 0, SPARE);
  return (size_t)(to - start);
}

typedef struct {
  gt_bits bits;
  const uint8_t *limit; /* the end of the data in `bits` */
  const uint8_t *left;  /* the file behind them */
  int dc[GT_MOST_PARTS];
} reading;

static int begin(gt_baseline *b, const gt_frame *f, reading *r) {
  size_t size = unstuff(b->data, &r->left, f->end);
  r->limit = b->data + size;
  memset(r->dc, 0, sizeof r->dc);
  r->bits = (gt_bits){0, b->data, 0};
  return size > 0;
}

/* Bits that are there and not taken yet; below 0 where more have been taken. */
static ptrdiff_t bits_left(const reading *r) { return (r->limit - r->bits.next) * 8 + r->bits.have; }

/* At a restart marker: the data before it are used up, and it is the one that is due. */
static GT_COLD int restart(gt_baseline *b, const gt_frame *f, reading *r, int number) {
  ptrdiff_t over = bits_left(r);
  if (over < 0 || over > 7 || f->end - r->left < 2 || r->left[1] != 0xD0 + number % 8) return 0;
  r->left += 2;
  return begin(b, f, r);
}

typedef struct { /* one of a unit's blocks */
  const gt_huffman *dc_codes, *ac_codes;
  const int16_t *quant;
  int part, side;
  size_t stride, step; /* between the rows of pixels, and between this block of one unit and of the next */
  uint8_t *to;         /* its place in the first wanted unit of a row; NULL: not wanted */
  size_t down;         /* from there to the same in the row below */
} unit_block;

static int plan(const gt_frame *f, const gt_region *g, unit_block *blocks) {
  int count = 0;
  for (int c = 0; c < f->parts; c++) {
    int h = c ? 1 : f->h, v = c ? 1 : f->v;
    size_t side = (size_t)g->side[c];
    for (int part = 0; part < h * v; part++) {
      unit_block *u = &blocks[count++];
      *u = (unit_block){f->dc[c], f->ac[c], f->quant[f->quant_of[c]], c, g->side[c], g->stride[c], side * (size_t)h,
                        NULL, side * (size_t)v * g->stride[c]};
      if (c < g->parts) u->to = g->plane[c] + (size_t)(part / h) * side * g->stride[c] + (size_t)(part % h) * side;
    }
  }
  return count;
}

typedef struct { /* blocks that wait for another one of their kind, of which the pixels are 8, 4 or 2 at a side */
  int16_t room[4][80] __attribute__((aligned(32))), *rooms[3];
  gt_waiting waiting[3][2];
  int waits[3], free;
} queue;

/* One more; where the next block may be read to, all 0. */
GT_V3 GT_INLINE int16_t *join(queue *q, gt_waiting block, int side) {
  int kind = side == 8 ? 0 : side == 4 ? 1 : 2;
  gt_waiting *two = q->waiting[kind];
  two[q->waits[kind]] = block;
  q->waits[kind] = !q->waits[kind];
  if (q->waits[kind]) return q->rooms[--q->free];
  if (side == 8) gt_idct_two(two);
  else if (side == 4) gt_idct_two4(two);
  else gt_idct_two2(two);
  q->rooms[q->free++] = two[0].block;
  return two[1].block;
}

GT_V3 int gt_scan(gt_baseline *b, const gt_frame *f, const gt_region *g) {
  queue q = {.free = 3};
  int16_t *block = q.room[3];
  unit_block blocks[6];
  reading r = {.left = f->scan};
  if (!gt_grow((void **)&b->data, &b->have, (size_t)(f->end - f->scan) + SPARE) || !begin(b, f, &r)) return 0;
  int wide = (f->width + 8 * f->h - 1) / (8 * f->h), until_restart = f->restart, restarts = 0;
  int count = plan(f, g, blocks);
  for (int k = 0; k < 3; k++) q.rooms[k] = q.room[k];
  for (int y = 0; y < g->row + g->rows; y++) {
    for (int x = 0; x < wide; x++) {
      if (f->restart && until_restart-- == 0) {
        if (!restart(b, f, &r, restarts++)) return 0;
        until_restart = f->restart - 1;
      }
      int wanted = y >= g->row && x >= g->column && x < g->column + g->columns;
      gt_bits bits = r.bits;
      for (int k = 0; k < count; k++) {
        const unit_block *u = &blocks[k];
        gt_fill(&bits);
        int size = gt_symbol(&bits, u->dc_codes);
        if (size < 0 || bits.next > r.limit + 16) return 0;
        int dc = r.dc[u->part] + gt_signed(bits.word, (uint64_t)(63 - size));
        gt_take(&bits, size);
        if (dc != (int16_t)dc) return 0;
        r.dc[u->part] = dc;
        if (!wanted || !u->to) {
          if (!read_rest(&bits, u->ac_codes, NULL)) return 0;
          continue;
        }
        uint8_t *to = u->to + (size_t)(x - g->column) * u->step;
        block[0] = (int16_t)dc;
        int rest = u->side == 1 ? read_rest(&bits, u->ac_codes, NULL) : read_rest(&bits, u->ac_codes, block);
        if (!rest) return 0;
        if (rest == 1 || u->side == 1) gt_idct_flat(block, u->quant, u->side, to, u->stride);
        else block = join(&q, (gt_waiting){block, u->quant, to, u->stride}, u->side);
      }
      r.bits = bits;
    }
    for (int k = 0; k < count && y >= g->row; k++)
      if (blocks[k].to) blocks[k].to += blocks[k].down;
  }
  uint8_t nowhere[64];
  for (int kind = 0; kind < 3; kind++) /* the last one of its kind, with nothing beside it */
    if (q.waits[kind]) join(&q, (gt_waiting){block, q.waiting[kind][0].quant, nowhere, 8}, 8 >> kind);
  return bits_left(&r) >= (r.left == f->end ? 128 : 0); /* without a marker libjpeg looks further ahead, and complains */
}
#endif
