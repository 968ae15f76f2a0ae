/* libjpeg-turbo under its own names, in one of two ways.
 *
 * GT_LINKED: by its headers and the linker. So are wheels built, and whatever finds jpeglib.h at installation.
 * Else: opened at run time (the one that Pillow's wheel carries, or the system's), so that nothing is linked and no
 * header is needed. The public part of its structures, the same since 1998, is then declared here, and the library
 * itself tells the size of the rest: see library.c.
 */
#ifndef GT_JPEG_H
#define GT_JPEG_H
#include <stddef.h>
#include <stdio.h>

#ifdef GT_LINKED
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION
#error "this is another libjpeg than libjpeg-turbo, which alone decodes by regions"
#endif
#if JPEG_LIB_VERSION >= 70
#define DCT_scaled_size DCT_h_scaled_size /* decoding scales both ways alike */
#endif

#else
struct jpeg_common_struct;
typedef struct jpeg_common_struct *j_common_ptr;
typedef struct jpeg_decompress_struct *j_decompress_ptr;
typedef struct jpeg_compress_struct *j_compress_ptr;
typedef unsigned char JSAMPLE, *JSAMPROW, **JSAMPARRAY, ***JSAMPIMAGE;
typedef unsigned JDIMENSION;

struct jpeg_error_mgr {
  void (*error_exit)(j_common_ptr);
  void (*emit_message)(j_common_ptr, int);
  void (*output_message)(j_common_ptr);
  void (*format_message)(j_common_ptr, char *);
  void (*reset_error_mgr)(j_common_ptr);
  int msg_code;
  union { int i[8]; char s[80]; } msg_parm;
  int trace_level;
  long num_warnings;
  const char *const *jpeg_message_table;
  int last_jpeg_message;
  const char *const *addon_message_table;
  int first_addon_message, last_addon_message;
};

struct jpeg_common_struct {
  struct jpeg_error_mgr *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
};

typedef struct { /* of version 62, its public part */
  int component_id, component_index, h_samp_factor, v_samp_factor, quant_tbl_no, dc_tbl_no, ac_tbl_no;
  JDIMENSION width_in_blocks, height_in_blocks;
  int DCT_scaled_size; /* pixels of a block's side after the inverse DCT: 8 unscaled */
  JDIMENSION downsampled_width, downsampled_height;
  int component_needed;
  int MCU_width, MCU_height, MCU_blocks, MCU_sample_width, last_col_width, last_row_height;
  void *quant_table, *dct_table;
} jpeg_component_info;

struct jpeg_decompress_struct { /* its public part */
  struct jpeg_error_mgr *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
  void *src;
  JDIMENSION image_width, image_height;
  int num_components, jpeg_color_space, out_color_space;
  unsigned scale_num, scale_denom;
  double output_gamma;
  int buffered_image, raw_data_out, dct_method, do_fancy_upsampling, do_block_smoothing;
  int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
  int enable_1pass_quant, enable_external_quant, enable_2pass_quant;
  JDIMENSION output_width, output_height;
  int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
  void *colormap;
  JDIMENSION output_scanline;
  int input_scan_number;
  JDIMENSION input_iMCU_row;
  int output_scan_number;
  JDIMENSION output_iMCU_row;
  void *coef_bits, *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
  int data_precision;
  jpeg_component_info *comp_info;
};

struct jpeg_compress_struct { /* of version 62, its public part */
  struct jpeg_error_mgr *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
  void *dest;
  JDIMENSION image_width, image_height;
  int input_components, in_color_space;
  double input_gamma;
  int data_precision, num_components, jpeg_color_space;
  jpeg_component_info *comp_info;
  void *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
  unsigned char arith_dc_L[16], arith_dc_U[16], arith_ac_K[16];
  int num_scans;
  const void *scan_info;
  int raw_data_in, arith_code, optimize_coding;
};

enum { JCS_GRAYSCALE = 1, JCS_YCbCr = 3, JCS_CMYK = 4, JCS_YCCK = 5, JCS_EXT_RGBX = 7 };

extern struct gt_library {
  struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
  void (*create)(j_decompress_ptr, int, size_t);
  void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
  int (*read_header)(j_decompress_ptr, int);
  int (*start)(j_decompress_ptr);
  JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
  void (*crop)(j_decompress_ptr, JDIMENSION *, JDIMENSION *);
  JDIMENSION (*skip)(j_decompress_ptr, JDIMENSION);
  void (*abort_)(j_decompress_ptr);
  void (*destroy)(j_decompress_ptr);
  JDIMENSION (*read_raw)(j_decompress_ptr, JSAMPIMAGE, JDIMENSION);
  /* Writing, which an old library may lack. */
  void (*out_create)(j_compress_ptr, int, size_t);
  void (*out_mem)(j_compress_ptr, unsigned char **, unsigned long *);
  void (*out_defaults)(j_compress_ptr);
  void (*out_quality)(j_compress_ptr, int, int);
  void (*out_start)(j_compress_ptr, int);
  JDIMENSION (*out_raw)(j_compress_ptr, JSAMPIMAGE, JDIMENSION);
  void (*out_finish)(j_compress_ptr);
  void (*out_abort)(j_compress_ptr);
  void (*out_destroy)(j_compress_ptr);
} gt_lib;
#define jpeg_std_error gt_lib.std_error
#define jpeg_CreateDecompress gt_lib.create
#define jpeg_mem_src gt_lib.mem_src
#define jpeg_read_header gt_lib.read_header
#define jpeg_start_decompress gt_lib.start
#define jpeg_read_scanlines gt_lib.read
#define jpeg_crop_scanline gt_lib.crop
#define jpeg_skip_scanlines gt_lib.skip
#define jpeg_abort_decompress gt_lib.abort_
#define jpeg_destroy_decompress gt_lib.destroy
#define jpeg_read_raw_data gt_lib.read_raw
#define jpeg_CreateCompress gt_lib.out_create
#define jpeg_mem_dest gt_lib.out_mem
#define jpeg_set_defaults gt_lib.out_defaults
#define jpeg_set_quality gt_lib.out_quality
#define jpeg_start_compress gt_lib.out_start
#define jpeg_write_raw_data gt_lib.out_raw
#define jpeg_finish_compress gt_lib.out_finish
#define jpeg_abort_compress gt_lib.out_abort
#define jpeg_destroy_compress gt_lib.out_destroy
#endif

/* What the library wants to be told of the structures, and whether it writes files: known, or found by gt_open. */
extern struct gt_abi { int version, writes; size_t size, out_size; } gt_abi;
#endif
