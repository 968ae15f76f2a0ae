/* What the files of the compiled codec share. Plain C99 with gcc's or clang's extensions where they are there.
 * Compiled into the wheel (hatch_build.py), or on first use (native.py).
 */
#ifndef GT_CODEC_H
#define GT_CODEC_H
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "baseline.h"
#include "jpeg.h"

enum { GT_OK = 0, GT_BROKEN = 1, GT_TRUNCATED = 2, GT_UNSUPPORTED = 3 };

typedef struct { /* one plane of an image: samples (height, width), rows `stride` apart */
  uint8_t *data;
  size_t have, stride;
  int width, height;
} gt_plane;

typedef struct { int start, count; } gt_taps;

typedef struct { /* what samples along one side of a plane are made of */
  double first, step; /* see gt_resample */
  int from, n, groups; /* samples before and after; fours of taps that there may be for one; n 0: it is none */
  gt_taps *taps;
  int16_t *weights; /* by fours: of the first four taps of all samples, of the next four, ...; see resample.c */
  double *shares;
  size_t taps_size, weights_size, shares_size;
} gt_filter;

typedef struct {
  union { struct jpeg_decompress_struct j; unsigned char space[4096]; } c; /* more than any version of it takes */
  union { struct jpeg_compress_struct j; unsigned char space[4096]; } out;
  int can_write;
  struct jpeg_error_mgr err;
  jmp_buf escape;
  int truncated, hurt; /* the file ends early; its data do, or are none, and libjpeg goes on with grey */
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
  gt_filter filters[2][2]; /* of luma and of chroma, down and along */
  uint8_t *part; /* a decoded image before its crop */
  size_t part_size;
  uint8_t *source; /* a file */
  size_t source_size;
  gt_baseline baseline;
  gt_frame frame;
  struct gt_encoder *encoder; /* NULL until it is wanted */
  int baselines, encodes;     /* how many were decoded, and encoded, without libjpeg */
  int own;                    /* may that be? */
} gt_decoder;

typedef struct { int top, left, height, width; } gt_box;

/* How gt_gather makes files smaller; colour: 0 as it is, 1 grey, 3 RGB. */
typedef struct { int side, crop, colour, quality; } gt_recoding;

typedef struct { /* planes that hold a part of a baseline image, from row `top` and column `left` of it on */
  int parts, eighths;       /* eighths: of the image's size, 8, 4, 2 or 1 */
  int side[3];              /* pixels of a block's side */
  int h, v;                 /* samples of luma for one of chroma, 1 or 2 */
  gt_box size[3];           /* height and width of the whole planes */
  const uint8_t *plane[3];
  size_t stride[3];
  int top, left;            /* multiples of v and h */
  int16_t *sums;            /* room for the columns of a row and 64 more */
  uint8_t *wide[2];         /* the same */
} gt_picture;

/* What a frame becomes at so many eighths of its size; no plane is there yet. */
gt_picture gt_picture_of(const gt_frame *f, int eighths, int parts);
/* Decode what the pixels of `wanted` need into d->planes, which `p` shows then. 0: the data are broken. */
int gt_read_planes(gt_decoder *d, gt_picture *p, gt_box wanted);
/* Columns from .. from + n of row y, red, green, blue and a byte of any value for each; or luma alone (pixel 1).
 * Up to 15 pixels more are read and written. */
void gt_pixels(const gt_picture *p, int y, int from, int n, int pixel, uint8_t *out);

/* Do a file's data last for all of its blocks? Else GT_TRUNCATED, and d->message says what libjpeg complains of. */
int gt_check(gt_decoder *d, const uint8_t *data, size_t length);

/* A file's header is read by libjpeg, without what it has of the file before: it keeps tables, and takes them for a file
 * that lacks its own. */
void gt_begin(gt_decoder *d, const uint8_t *data, size_t length);
/* libjpeg leaves the file; `code` again. */
int gt_stop(gt_decoder *d, int code);

/* Rows and columns of `to` are filled from `from`: sample i has its centre at (first + i * step + step / 2). Where that
 * was so before, `filters` are kept. Up to 32 samples behind those of `from` are read, and up to 7 in each row of `to`
 * written. */
int gt_resample(gt_decoder *d, gt_filter filters[2], const gt_plane *from, gt_plane *to, const double first[2],
                const double step[2]);
int gt_grow(void **p, size_t *have, size_t want); /* at least `want` bytes; what was in them is lost */

/* The file of planes that are whole units, chroma at half the size, by libjpeg: see jpeg_mem_dest. 0: it cannot. */
int gt_write_file(gt_decoder *d, const gt_plane *planes, int count, int quality, unsigned char **file,
                  unsigned long *length);
/* The same of d->resized into d->file, without libjpeg: its length, or 0. For GT_V3 alone. */
size_t gt_encode(gt_decoder *d, int count, int quality);

/* What the processor has. It is asked itself, by gt_look: __builtin_cpu_supports wants a part of the compiler's own
 * library that not every compiler brings. */
extern struct gt_cpu { int v3, folds; } gt_cpu;
void gt_look(void);

/* Code for x86-64-v3 (AVX2, BMI2): a function GT_V3 may be called where gt_cpu.v3; GT_FOLDS, where gt_cpu.folds. */
#if defined(__x86_64__) && defined(__GNUC__)
#define GT_V3 __attribute__((target("avx2,bmi,bmi2")))
#define GT_FOLDS __attribute__((target("pclmul,sse4.1")))
#endif
#endif
