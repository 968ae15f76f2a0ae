/* The decoder of what nearly every JPEG file is: one scan of baseline Huffman codes, grey or YCbCr. */
#ifndef GT_BASELINE_H
#define GT_BASELINE_H
#include <stdint.h>
#include <string.h>

/* Huffman codes of baseline JPEG, decoded two coefficients at a look.
 *
 * A look at the next GT_LOOK bits finds a whole coefficient in most cases (its code and its value), and often the one
 * behind it, too: one step of the decoder's longest chain (look, shift, look) in place of four. Blocks whose pixels
 * nobody wants are walked through by a second table, which counts coefficients and keeps none.
 * Bits come from a buffer in which the bytes that JPEG stuffs behind each 0xFF are left out.
 */
enum { GT_LOOK = 10, GT_MOST = 18, GT_LOOKS_OF_WORD = 3, GT_END = 128, GT_LONG = 255 };

/* What a look finds, from the lowest bit on, 8 bits each: bits taken (at most GT_MOST), advance in the block, places of
 * two values from here on, 64 less the bits of the first symbol, the second value; and 16 bits of what the first
 * symbol's bits, read as a number, are more than its value. The first value may be longer than the look, if not its
 * sign. The advance of an end of block is GT_END more than that of what is before it, and GT_LONG where not even one
 * coefficient is found: so each of them, and nothing else, lies beyond the block and tells which it was. */
typedef struct {
  uint64_t pairs[1 << GT_LOOK];
  uint16_t first[1 << GT_LOOK]; /* length of the code << 8 | symbol; 0: longer than the look */
  int32_t limit[18];        /* first 16 bits that are beyond all codes of a length */
  int32_t shift[17];        /* index of its symbol less the code, by length */
  uint8_t symbols[256];
  uint8_t raw[16 + 256]; /* as they stand in the file */
  int size, is_ac;       /* bytes of `raw`, 0: none */
  unsigned used;         /* when, for the cache */
} gt_huffman;

/* The table of a file's definition `raw` (16 counts, symbols): 0 where it is none. */
int gt_huffman_build(gt_huffman *t, const uint8_t *raw, int size, int is_ac);

typedef struct {
  uint64_t word;       /* the next bits, the first one highest; at least 56 after gt_fill */
  const uint8_t *next; /* the byte of which the first bits are not in the word */
  int have;
} gt_bits;

#if defined(__GNUC__)
#define GT_INLINE static inline __attribute__((always_inline))
#define GT_LIKELY(x) __builtin_expect(!!(x), 1)
#define GT_COLD __attribute__((noinline, cold))
#else
#define GT_INLINE static inline
#define GT_LIKELY(x) (x)
#define GT_COLD
#endif

GT_INLINE uint64_t gt_load(const uint8_t *p) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  uint64_t v;
  memcpy(&v, p, 8);
  return __builtin_bswap64(v);
#else
  uint64_t v = 0;
  for (int i = 0; i < 8; i++) v = v << 8 | p[i];
  return v;
#endif
}

/* Bits below the ones that it has may be right already: they are set to what they are. */
GT_INLINE void gt_fill(gt_bits *b) {
  b->word |= gt_load(b->next) >> b->have;
  b->next += (63 - b->have) >> 3;
  b->have |= 56;
}

GT_INLINE void gt_take(gt_bits *b, int n) {
  b->word <<= n & 63;
  b->have -= n;
}

/* The next symbol's code is taken; -1 where it is none. Needs 16 bits. */
GT_INLINE int gt_symbol(gt_bits *b, const gt_huffman *t) {
  unsigned found = t->first[b->word >> (64 - GT_LOOK)];
  if (GT_LIKELY(found)) {
    gt_take(b, (int)(found >> 8));
    return (int)(found & 255);
  }
  int32_t code = (int32_t)(b->word >> 48);
  int length = GT_LOOK + 1;
  while (length <= 16 && code >= t->limit[length]) length++;
  if (length > 16) return -1;
  gt_take(b, length);
  return t->symbols[((code >> (16 - length)) + t->shift[length]) & 255];
}

/* The value that a word starts with, as JPEG says it (a first bit 0 means below zero); `rest`: 63 less its bits. */
GT_INLINE int16_t gt_signed(uint64_t word, uint64_t rest) {
  uint64_t raw = word >> 1 >> rest, most = ~(uint64_t)0 >> 1 >> rest, above = (uint64_t)((int64_t)word >> 63);
  return (int16_t)(raw - (most & ~above));
}

enum { GT_TABLES = 16, GT_MOST_PARTS = 3 };

/* What a header says. `h`, `v`: samples of luma for one of chroma, 1 or 2. */
typedef struct {
  int width, height, parts, h, v, restart;
  const uint8_t *scan, *end; /* the entropy-coded data, and the end of the file */
  const gt_huffman *dc[GT_MOST_PARTS], *ac[GT_MOST_PARTS];
  int16_t quant[4][64];
  int quant_of[GT_MOST_PARTS];
} gt_frame;

/* The part of a frame that is decoded, in units (the standard's MCUs): a plane for each part. */
typedef struct {
  int row, rows, column, columns; /* in units */
  int parts;                      /* 1: only luma */
  int side[GT_MOST_PARTS];        /* pixels of a block's side in the result: 8, 4, 2 or 1 */
  uint8_t *plane[GT_MOST_PARTS];
  size_t stride[GT_MOST_PARTS];
} gt_region;

typedef struct { /* tables of files before, and room for a file's data without its stuffing */
  gt_huffman *tables[GT_TABLES];
  unsigned clock;
  uint8_t *data;
  size_t have;
} gt_baseline;

/* Where the coefficients of a block stand, by their order in the file; beyond a block: 64, which is none's. */
extern const uint8_t gt_places[128];

/* 1: the frame is filled. 0: it is of another kind, or broken, and libjpeg's to decode or to complain of. */
int gt_parse(gt_baseline *b, const uint8_t *data, size_t length, gt_frame *f);
/* 1: the region's planes are filled. 0: something is wrong with the data. For GT_V3 alone. */
int gt_scan(gt_baseline *b, const gt_frame *f, const gt_region *g);
void gt_forget(gt_baseline *b);
#endif
