/* The encoder of what gt_recode makes: one scan of baseline Huffman codes, grey or 4:2:0. */
#ifndef GT_ENCODE_H
#define GT_ENCODE_H
#include "codec.h"

#include <stdlib.h>

enum { GT_CHUNK = 8192, GT_NONE = 64 }; /* bytes of bits that are gathered; the code of a value of 0 */

typedef struct { uint16_t reciprocal[8][16], half[8][16], scale[8][16]; } gt_quantizer; /* fdct.h; each row twice */

typedef struct { /* codes: their bits << 8 | how many */
  uint32_t dc[16], ac[256]; /* of symbols */
  uint32_t values[65][256]; /* of a symbol and its value, by how far it is behind the last one, and the value; or 0 */
} gt_codes;

typedef struct { /* a block's coefficients, quantized */
  int8_t values[65]; /* in the order of the file, and a 0 behind them; the first one is not here but in `dc` */
  int16_t whole[64]; /* where one is too large for that: row by row */
  uint64_t some;     /* bit k: value k is not 0; of the first one never set */
  int dc, is_large;
} gt_coded;

struct gt_encoder {
  int count, quality;      /* of parts; 0: there are no tables */
  size_t header, place;    /* bytes, and where the height stands */
  uint8_t file[2048];      /* the header, and a unit behind it */
  uint8_t order[4][4][32]; /* of 16 values in the file, from rows 0 and 1, 2 and 3, ...: where each stands; twice */
  gt_quantizer quant[2];   /* of luma and of chroma */
  gt_codes codes[2];
  uint8_t data[GT_CHUNK + 6 * 256 + 8]; /* a unit more: a block takes less than 256 bytes */
};

/* The decoder's encoder with tables for files of so many parts and such a quality; NULL: they are not for it. */
struct gt_encoder *gt_encoder_of(gt_decoder *d, int count, int quality);

/* The size of a value, in bits, and those bits as a code. */
GT_INLINE int gt_size(int v) { return 31 - __builtin_clz(2u * (unsigned)abs(v) + 1); }

GT_INLINE uint32_t gt_value(int v, int size) {
  return ((uint32_t)(v < 0 ? v - 1 : v) & ((1u << size) - 1)) << 8 | (uint32_t)size;
}
#endif
