/* What the files of the compiled codec share. Plain C99 with gcc's or clang's extensions where they are there.
 * Compiled into the wheel (hatch_build.py), or on first use (native.py).
 */
#ifndef GT_CODEC_H
#define GT_CODEC_H
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "jpeg.h"

enum { GT_OK = 0, GT_BROKEN = 1, GT_TRUNCATED = 2, GT_UNSUPPORTED = 3 };

typedef struct { /* one plane of an image: samples (height, width), rows `stride` apart */
  uint8_t *data;
  size_t have, stride;
  int width, height;
} gt_plane;

typedef struct {
  union { struct jpeg_decompress_struct j; unsigned char space[4096]; } c; /* more than any version of it takes */
  union { struct jpeg_compress_struct j; unsigned char space[4096]; } out;
  int can_write;
  struct jpeg_error_mgr err;
  jmp_buf escape;
  int truncated;
  int groups; /* how many were decoded as one image: see group.c */
  char message[208];
  unsigned char *pixels;
  size_t pixels_size;
  int16_t *row;
  size_t row_size;
  int *xs;
  int32_t *weights;
  size_t xs_size, weights_size;
  gt_plane planes[3], resized[3];
  uint8_t *file; /* an encoded image */
  size_t file_size;
  int16_t *taps;
  size_t taps_size;
  uint8_t *part; /* a decoded image before its crop */
  size_t part_size;
} gt_decoder;

typedef struct { /* see group.c */
  int width, height, parts, h, v; /* h, v: samples of luma for one of chroma */
  size_t sof, sos, start;
} gt_kind;

/* Rows and columns of `to` are filled from `from`: sample i has its centre at (first + i * step + step / 2). */
int gt_resample(gt_decoder *d, const gt_plane *from, gt_plane *to, const double first[2], const double step[2]);
int gt_grow(void **p, size_t *have, size_t want); /* at least `want` bytes; what was in them is lost */

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(GT_PLAIN)
#define GT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GT_CLONES
#endif
#endif
