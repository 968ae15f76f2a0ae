/* Decoders that carry libjpeg-turbo's state and their own memory; and opening the library, where it is not linked. */
#define _GNU_SOURCE /* RTLD_DEEPBIND */
#include "codec.h"

#include <stdlib.h>
#include <string.h>
#ifdef GT_V3
#include <cpuid.h>
#endif

static void on_error(j_common_ptr cinfo) {
  gt_decoder *d = cinfo->client_data;
  d->err.format_message(cinfo, d->message);
  longjmp(d->escape, 1);
}

static void on_message(j_common_ptr cinfo, int level) {
  gt_decoder *d = cinfo->client_data;
  if (level >= 0) return;
  if (d->err.num_warnings++ < 16) {
    char text[208];
    d->err.format_message(cinfo, text);
    if (strstr(text, "remature end of JPEG file")) d->truncated = 1;
    if (d->hurt || !strstr(text, "Corrupt JPEG data") || strstr(text, "extraneous")) return; /* those are left over */
    d->hurt = 1;
    memcpy(d->message, text, sizeof text);
  }
}

static void prepare(gt_decoder *d) {
  d->out.j.err = d->c.j.err = jpeg_std_error(&d->err);
  d->out.j.client_data = d->c.j.client_data = d;
  d->err.error_exit = on_error;
  d->err.emit_message = on_message;
}

#ifdef GT_LINKED
struct gt_abi gt_abi = {JPEG_LIB_VERSION, 1, sizeof(struct jpeg_decompress_struct), sizeof(struct jpeg_compress_struct)};

#define TEXT(version) #version
#define EXPANDED(version) TEXT(version)

/* The libjpeg-turbo that it was compiled with; empty where gt_open finds one. */
const char *gt_linked(void) { return EXPANDED(LIBJPEG_TURBO_VERSION); }

int gt_open(const char *path) {
  (void)path;
  return GT_UNSUPPORTED;
}

#else
#include <dlfcn.h>

/* Its own functions before those of the same name elsewhere: libmxnet carries another libjpeg, and Horovod makes
 * libmxnet's names global. */
#ifndef GT_DEEPBIND /* the sanitizers' runtime refuses it: see sanitize.py */
#ifdef RTLD_DEEPBIND
#define GT_DEEPBIND RTLD_DEEPBIND
#else
#define GT_DEEPBIND 0
#endif
#endif

struct gt_library gt_lib;
struct gt_abi gt_abi;

const char *gt_linked(void) { return ""; }

#define FIND(member, name) \
  if (!(*(void **)&gt_lib.member = dlsym(handle, name))) return GT_UNSUPPORTED;

/* The version and the size of a structure that the library wants, at least `least`, are read from its complaints. */
static int learn(size_t *size, size_t least, int writes) {
  gt_decoder *const d = calloc(1, sizeof *d);
  if (!d) return GT_BROKEN;
  volatile int tries = 0;
  *size = least;
  if (setjmp(d->escape)) { /* "library is version 80" or "library thinks size is 656" */
    int told = d->err.msg_parm.i[0];
    if (told >= 62 && told < 100) gt_abi.version = told;
    else if (told > (int)least && told < 4096) *size = (size_t)told;
    else tries = 99;
  }
  if (tries++ > 3) { free(d); return GT_UNSUPPORTED; }
  prepare(d);
  if (writes) {
    jpeg_CreateCompress(&d->out.j, gt_abi.version, *size);
    jpeg_destroy_compress(&d->out.j);
  } else {
    jpeg_CreateDecompress(&d->c.j, gt_abi.version, *size);
    jpeg_destroy_decompress(&d->c.j);
  }
  free(d);
  return GT_OK;
}

/* Can it write JPEG files too? */
static int find_writing(void *handle) {
  FIND(read_raw, "jpeg_read_raw_data") FIND(out_create, "jpeg_CreateCompress") FIND(out_mem, "jpeg_mem_dest")
  FIND(out_defaults, "jpeg_set_defaults") FIND(out_quality, "jpeg_set_quality")
  FIND(out_start, "jpeg_start_compress") FIND(out_raw, "jpeg_write_raw_data")
  FIND(out_finish, "jpeg_finish_compress") FIND(out_abort, "jpeg_abort_compress")
  FIND(out_destroy, "jpeg_destroy_compress")
  return learn(&gt_abi.out_size, sizeof(struct jpeg_compress_struct), 1);
}

int gt_open(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | GT_DEEPBIND);
  if (!handle) return GT_UNSUPPORTED;
  FIND(std_error, "jpeg_std_error") FIND(create, "jpeg_CreateDecompress") FIND(mem_src, "jpeg_mem_src")
  FIND(read_header, "jpeg_read_header") FIND(start, "jpeg_start_decompress") FIND(read, "jpeg_read_scanlines")
  FIND(crop, "jpeg_crop_scanline") FIND(skip, "jpeg_skip_scanlines") FIND(abort_, "jpeg_abort_decompress")
  FIND(destroy, "jpeg_destroy_decompress")
  gt_abi.version = 62;
  int code = learn(&gt_abi.size, sizeof(struct jpeg_decompress_struct), 0);
  gt_abi.writes = code == GT_OK && gt_abi.version == 62 && find_writing(handle) == GT_OK;
  return code;
}
#undef FIND
#endif

struct gt_cpu gt_cpu;

void gt_look(void) {
#ifdef GT_V3
  unsigned a, b, c, d, state = 0, known = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return;
  gt_cpu.folds = (c & bit_PCLMUL) && (c & bit_SSE4_1);
  if (c & bit_OSXSAVE) __asm__("xgetbv" : "=a"(state), "=d"(d) : "c"(0)); /* does the system keep AVX's registers? */
  if ((state & 6) == 6 && __get_cpuid_count(7, 0, &a, &known, &c, &d))
    gt_cpu.v3 = (known & bit_AVX2) && (known & bit_BMI) && (known & bit_BMI2);
#endif
}

/* Can this processor decode and encode without libjpeg? */
int gt_can_own(void) { return gt_cpu.v3; }

/* May this decoder, where the processor can? The pixels and the files are the same. */
void gt_use(gt_decoder *d, int own) { d->own = own && gt_cpu.v3; }

void gt_begin(gt_decoder *d, const uint8_t *data, size_t length) {
  d->truncated = d->hurt = 0;
  d->err.num_warnings = 0;
  d->message[0] = 0;
  jpeg_destroy_decompress(&d->c.j);
  jpeg_CreateDecompress(&d->c.j, gt_abi.version, gt_abi.size);
  jpeg_mem_src(&d->c.j, data, (unsigned long)length);
  jpeg_read_header(&d->c.j, 1);
}

int gt_stop(gt_decoder *d, int code) {
  jpeg_abort_decompress(&d->c.j);
  return code;
}

gt_decoder *gt_new(void) {
  gt_decoder *const d = calloc(1, sizeof *d);
  if (!d) return NULL;
  prepare(d);
  gt_use(d, 1);
  if (setjmp(d->escape)) { free(d); return NULL; }
  /* jpeg_create_decompress is a macro that says these two from its own header, where there is one. */
  jpeg_CreateDecompress(&d->c.j, gt_abi.version, gt_abi.size);
  if (gt_abi.writes) {
    jpeg_CreateCompress(&d->out.j, gt_abi.version, gt_abi.out_size);
    d->can_write = 1;
  }
  return d;
}

void gt_free(gt_decoder *d) {
  if (!d) return;
  jpeg_destroy_decompress(&d->c.j);
  if (d->can_write) jpeg_destroy_compress(&d->out.j);
  for (int k = 0; k < 3; k++) { free(d->planes[k].data); free(d->resized[k].data); }
  for (int k = 0; k < 4; k++) {
    gt_filter *f = &d->filters[k / 2][k % 2];
    free(f->taps); free(f->weights); free(f->shares);
  }
  gt_forget(&d->baseline);
  free(d->encoder); free(d->file); free(d->source); free(d->part); free(d->pixels); free(d->row); free(d->xs); free(d->weights);
  free(d);
}

/* How many images were decoded without libjpeg. */
int gt_baselines(const gt_decoder *d) { return d->baselines; }

/* How many files were made without it. */
int gt_encodes(const gt_decoder *d) { return d->encodes; }

const char *gt_message(const gt_decoder *d) { return d->message; }

int gt_grow(void **p, size_t *have, size_t want) {
#ifdef GT_EXACT /* for the sanitizers: a byte beyond what was asked for is found */
  size_t spare = 0;
#else
  size_t spare = want / 4;
  if (*have >= want) return 1;
#endif
  free(*p);
  *have = want + spare;
  *p = malloc(*have);
  if (!*p) *have = 0;
  return *p != NULL;
}

int gt_write_file(gt_decoder *d, const gt_plane *planes, int count, int quality, unsigned char **file,
                  unsigned long *length) {
  struct jpeg_compress_struct *j = &d->out.j;
  jpeg_mem_dest(j, file, length);
  j->image_width = (unsigned)planes[0].width;
  j->image_height = (unsigned)planes[0].height;
  j->input_components = count;
  j->in_color_space = count == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(j);
  jpeg_set_quality(j, quality, 1);
  jpeg_component_info *luma_part = &j->comp_info[0];
  if (count == 3 && (luma_part->h_samp_factor != 2 || luma_part->v_samp_factor != 2)) return 0;
  if (count == 3 && j->comp_info[1].h_samp_factor != 1) return 0;
  if (count == 1) luma_part->h_samp_factor = luma_part->v_samp_factor = 1;
  j->raw_data_in = 1;
  jpeg_start_compress(j, 1);
  unsigned char *rows[3][16], **tables[3] = {rows[0], rows[1], rows[2]};
  int luma = count == 3 ? 16 : 8;
  for (int y = 0; y < planes[0].height; y += luma) {
    for (int k = 0; k < count; k++) {
      int n = k ? 8 : luma, top = k ? y / 2 : y;
      const gt_plane *from = &planes[k];
      for (int row = 0; row < n; row++) rows[k][row] = from->data + (size_t)(top + row) * from->stride;
    }
    jpeg_write_raw_data(j, tables, (unsigned)luma);
  }
  jpeg_finish_compress(j);
  return 1;
}
