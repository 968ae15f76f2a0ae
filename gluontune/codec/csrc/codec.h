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
};

enum { JCS_GRAYSCALE = 1, JCS_CMYK = 4, JCS_YCCK = 5, JCS_EXT_RGBX = 7 };

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
  int version;
  size_t size;
} gt_lib;

typedef struct {
  union { struct jpeg j; unsigned char space[4096]; } c;
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
} gt_decoder;


int gt_grow(void **p, size_t *have, size_t want); /* at least `want` bytes; what was in them is lost */

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(GT_PLAIN)
#define GT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GT_CLONES
#endif
#endif
