/* What the files of the compiled codec share. Plain C99 with gcc's or clang's extensions where they are there.
 *
 * libjpeg-turbo is opened at run time (the one that Pillow's wheel carries, or the system's), so nothing is
 * linked and no header is needed: the public part of its structures, the same since 1998, is declared here,
 * and the library itself tells the size of the rest. Compiled on first use by native.py.
 */
#ifndef GT_CODEC_H
#define GT_CODEC_H
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

enum { GT_OK = 0, GT_BROKEN = 1, GT_TRUNCATED = 2, GT_UNSUPPORTED = 3 };

struct error_mgr { /* jpeg_error_mgr */
  void (*error_exit)(void *);
  void (*emit_message)(void *, int);
  void (*output_message)(void *);
  void (*format_message)(void *, char *);
  void (*reset_error_mgr)(void *);
  int msg_code;
  union { int i[8]; char s[80]; } msg_parm;
  int trace_level;
  long num_warnings;
  const char *const *message_table;
  int last_message;
  const char *const *addon_table;
  int first_addon, last_addon;
};

struct jpeg { /* the public part of jpeg_decompress_struct */
  struct error_mgr *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
  void *src;
  unsigned image_width, image_height;
  int num_components, jpeg_color_space, out_color_space;
  unsigned scale_num, scale_denom;
  double output_gamma;
  int buffered_image, raw_data_out, dct_method, do_fancy_upsampling, do_block_smoothing;
  int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
  int enable_1pass, enable_external, enable_2pass;
  unsigned output_width, output_height;
  int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
  void *colormap;
  unsigned output_scanline;
  int input_scan_number;
  unsigned input_row;
  int output_scan_number;
  unsigned output_row;
  void *coef_bits, *quant_tables[4], *dc_tables[4], *ac_tables[4];
  int data_precision;
  struct component *comp_info;
};

struct component { /* jpeg_component_info of version 62, its public part */
  int id, index, h, v, quant_table, dc_table, ac_table;
  unsigned blocks_w, blocks_h;
  int scaled; /* pixels of a block's side after the inverse DCT: 8 unscaled */
  unsigned width, height;
  int needed;
  int mcu_width, mcu_height, mcu_blocks, mcu_sample_width, last_col_width, last_row_height;
  void *quant, *dct;
};

struct jpeg_out { /* the public part of jpeg_compress_struct of version 62 */
  struct error_mgr *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
  void *dest;
  unsigned image_width, image_height;
  int input_components, in_color_space;
  double input_gamma;
  int data_precision, num_components, jpeg_color_space;
  struct component *comp_info;
  void *quant_tables[4], *dc_tables[4], *ac_tables[4];
  unsigned char arith_dc_l[16], arith_dc_u[16], arith_ac_k[16];
  int num_scans;
  const void *scan_info;
  int raw_data_in, arith_code, optimize_coding;
};

enum { JCS_GRAYSCALE = 1, JCS_YCBCR = 3, JCS_CMYK = 4, JCS_YCCK = 5, JCS_EXT_RGBX = 7 };

extern struct gt_library {
  struct error_mgr *(*std_error)(struct error_mgr *);
  void (*create)(struct jpeg *, int, size_t);
  void (*mem_src)(struct jpeg *, const unsigned char *, unsigned long);
  int (*read_header)(struct jpeg *, int);
  int (*start)(struct jpeg *);
  unsigned (*read)(struct jpeg *, unsigned char **, unsigned);
  void (*crop)(struct jpeg *, unsigned *, unsigned *);
  unsigned (*skip)(struct jpeg *, unsigned);
  void (*abort_)(struct jpeg *);
  void (*destroy)(struct jpeg *);
  unsigned (*read_raw)(struct jpeg *, unsigned char ***, unsigned);
  /* Writing; `writes` is 0 where the library lacks it or is of another version than 62. */
  void (*out_create)(struct jpeg_out *, int, size_t);
  void (*out_mem)(struct jpeg_out *, unsigned char **, unsigned long *);
  void (*out_defaults)(struct jpeg_out *);
  void (*out_quality)(struct jpeg_out *, int, int);
  void (*out_start)(struct jpeg_out *, int);
  unsigned (*out_raw)(struct jpeg_out *, unsigned char ***, unsigned);
  void (*out_finish)(struct jpeg_out *);
  void (*out_abort)(struct jpeg_out *);
  void (*out_destroy)(struct jpeg_out *);
  int version, writes;
  size_t size, out_size;
} gt_lib;

typedef struct { /* one plane of an image: samples (height, width), rows `stride` apart */
  uint8_t *data;
  size_t have, stride;
  int width, height;
} gt_plane;

typedef struct {
  union { struct jpeg j; unsigned char space[4096]; } c;
  union { struct jpeg_out j; unsigned char space[4096]; } out;
  int can_write;
  struct error_mgr err;
  jmp_buf escape;
  int truncated;
  char message[208];
  unsigned char *pixels;
  size_t pixels_size;
  int16_t *row;
  size_t row_size;
  int *xs;
  int32_t *weights;
  size_t xs_size, weights_size;
  gt_plane planes[3], resized[3];
  uint8_t *file; /* the encoded result */
  size_t file_size;
  int16_t *taps;
  size_t taps_size;
  uint8_t *part; /* a decoded image before its crop */
  size_t part_size;
} gt_decoder;


/* Rows and columns of `to` are filled from `from`: sample i has its centre at (first + i * step + step / 2). */
int gt_resample(gt_decoder *d, const gt_plane *from, gt_plane *to, const double first[2], const double step[2]);
int gt_grow(void **p, size_t *have, size_t want); /* at least `want` bytes; what was in them is lost */

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(GT_PLAIN)
#define GT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GT_CLONES
#endif
#endif
