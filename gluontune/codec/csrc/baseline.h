/* The decoder of what nearly every JPEG file is: one scan of baseline Huffman codes, grey or YCbCr. */
#ifndef GT_BASELINE_H
#define GT_BASELINE_H
#include "huffman.h"

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
