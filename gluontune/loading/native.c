/* Decodes the wanted part of a JPEG image, at the wanted scale, and resizes it into a batch.
 *
 * libjpeg-turbo is opened at run time (the one that Pillow's wheel carries, or the system's), so nothing is
 * linked and no header is needed: the public part of its structures, the same since 1998, is declared here,
 * and the library itself tells the size of the rest. Compiled on first use by native.py; plain C99.
 */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

static struct {
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
} lib;

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

static void on_error(void *cinfo) {
  gt_decoder *d = (gt_decoder *)cinfo; /* cinfo is the first member */
  d->err.format_message(cinfo, d->message);
  longjmp(d->escape, 1);
}

static void on_message(void *cinfo, int level) {
  gt_decoder *d = (gt_decoder *)cinfo;
  if (level >= 0) return;
  if (d->err.num_warnings++ < 16) {
    char text[208];
    d->err.format_message(cinfo, text);
    if (strstr(text, "remature end of JPEG file")) d->truncated = 1;
  }
}

static void prepare(gt_decoder *d) {
  d->c.j.err = lib.std_error(&d->err);
  d->err.error_exit = on_error;
  d->err.emit_message = on_message;
}

/* Open the library. The version and size that it wants are read from its own complaints. */
int gt_open(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return GT_UNSUPPORTED;
#define FIND(member, name) \
  if (!(*(void **)&lib.member = dlsym(handle, name))) return GT_UNSUPPORTED;
  FIND(std_error, "jpeg_std_error") FIND(create, "jpeg_CreateDecompress") FIND(mem_src, "jpeg_mem_src")
  FIND(read_header, "jpeg_read_header") FIND(start, "jpeg_start_decompress") FIND(read, "jpeg_read_scanlines")
  FIND(crop, "jpeg_crop_scanline") FIND(skip, "jpeg_skip_scanlines") FIND(abort_, "jpeg_abort_decompress")
  FIND(destroy, "jpeg_destroy_decompress")
#undef FIND
  gt_decoder *d = calloc(1, sizeof *d);
  if (!d) return GT_BROKEN;
  volatile int tries = 0;
  lib.version = 62;
  lib.size = sizeof(struct jpeg);
  if (setjmp(d->escape)) { /* "library is version 80" or "library thinks size is 656" */
    int told = d->err.msg_parm.i[0];
    if (told >= 62 && told < 100) lib.version = told;
    else if (told > (int)sizeof(struct jpeg) && told < 4096) lib.size = (size_t)told;
    else tries = 99;
  }
  if (tries++ > 3) { free(d); return GT_UNSUPPORTED; }
  prepare(d);
  lib.create(&d->c.j, lib.version, lib.size);
  lib.destroy(&d->c.j);
  free(d);
  return GT_OK;
}

gt_decoder *gt_new(void) {
  gt_decoder *const d = calloc(1, sizeof *d);
  if (!d) return NULL;
  prepare(d);
  if (setjmp(d->escape)) { free(d); return NULL; }
  lib.create(&d->c.j, lib.version, lib.size);
  return d;
}

void gt_free(gt_decoder *d) {
  if (!d) return;
  lib.destroy(&d->c.j);
  free(d->pixels); free(d->row); free(d->xs); free(d->weights);
  free(d);
}

const char *gt_message(const gt_decoder *d) { return d->message; }

static int orientation_of(const uint8_t *t, size_t n) {
  int big;
  if (n < 14) return 1;
  if (t[0] == 'I' && t[1] == 'I') big = 0; else if (t[0] == 'M' && t[1] == 'M') big = 1; else return 1;
#define U16(p) (big ? (p)[0] << 8 | (p)[1] : (p)[1] << 8 | (p)[0])
  size_t at = big ? (size_t)t[4] << 24 | t[5] << 16 | t[6] << 8 | t[7] : (size_t)t[7] << 24 | t[6] << 16 | t[5] << 8 | t[4];
  if (at + 2 > n) return 1;
  int count = U16(t + at);
  for (int k = 0; k < count && k < 200 && at + 2 + 12 * (size_t)(k + 1) <= n; k++) {
    const uint8_t *e = t + at + 2 + 12 * (size_t)k;
    if (U16(e) == 0x0112) { int v = U16(e + 8); return v >= 1 && v <= 8 ? v : 1; }
  }
#undef U16
  return 1;
}

/* height, width, components, orientation, whole; the same walk as header.py's. */
int gt_header(const uint8_t *p, size_t n, int *out) {
  size_t at = 2;
  int found = 0;
  out[3] = 1;
  if (n < 4 || p[0] != 0xFF || p[1] != 0xD8) return GT_UNSUPPORTED;
  while (at + 4 <= n) {
    if (p[at] != 0xFF) return GT_BROKEN;
    int m = p[at + 1];
    if (m == 0xFF) { at++; continue; }
    size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
    if (length < 2) return GT_BROKEN;
    if (m == 0xDA) break;
    if (m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC && at + 10 <= n) {
      out[0] = p[at + 5] << 8 | p[at + 6]; out[1] = p[at + 7] << 8 | p[at + 8]; out[2] = p[at + 9];
      found = 1;
    } else if (m == 0xE1 && at + 10 <= n && !memcmp(p + at + 4, "Exif\0\0", 6)) {
      size_t end = at + 2 + length < n ? at + 2 + length : n;
      out[3] = end > at + 10 ? orientation_of(p + at + 10, end - at - 10) : 1;
    }
    at += 2 + length;
  }
  if (!found || !out[0] || !out[1]) return GT_BROKEN;
  out[4] = p[n - 2] == 0xFF && p[n - 1] == 0xD9;
  for (size_t k = n; !out[4] && k >= at + 2; k--) out[4] = p[k - 2] == 0xFF && p[k - 1] == 0xD9;
  return GT_OK;
}

static int grow(void **p, size_t *have, size_t want) {
  if (*have >= want) return 1;
  free(*p);
  *have = want + want / 4;
  *p = malloc(*have);
  if (!*p) *have = 0;
  return *p != NULL;
}

static void clip(int *first, int *count, int size) {
  if (*count > size) *count = size;
  if (*first > size - *count) *first = size - *count;
  if (*first < 0) *first = 0;
}

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(GT_PLAIN)
__attribute__((target_clones("avx2", "default")))
#endif
static void blend_rows(int16_t *restrict to, const uint8_t *restrict a, const uint8_t *restrict b, int w, int n) {
  int v = 128 - w;
  for (int i = 0; i < n; i++) to[i] = (int16_t)(a[i] * v + b[i] * w);
}

/* One row of the result from a blended row (7 fractional bits), by columns and pairs of weights (14 bits each:
 * the left pixel's in the low half, the right one's in the high half, as _mm_madd_epi16 takes them). */
static void blend_columns(uint8_t *to, const int16_t *row, const int *xs, const int32_t *w, int n, int pixel) {
  int x = 0;
  if (pixel == 4) {
#ifdef __SSE2__
    const __m128i half = _mm_set1_epi32(1 << 20);
    for (; x + 2 < n; x += 2) { /* writes 4 bytes a pixel, so the last one is left to the plain loop */
      __m128i a = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x]));
      __m128i b = _mm_loadu_si128((const __m128i *)(row + 4 * xs[x + 1]));
      a = _mm_madd_epi16(_mm_unpacklo_epi16(a, _mm_srli_si128(a, 8)), _mm_set1_epi32(w[x]));
      b = _mm_madd_epi16(_mm_unpacklo_epi16(b, _mm_srli_si128(b, 8)), _mm_set1_epi32(w[x + 1]));
      a = _mm_srai_epi32(_mm_add_epi32(a, half), 21);
      b = _mm_srai_epi32(_mm_add_epi32(b, half), 21);
      a = _mm_packs_epi32(a, b);
      a = _mm_packus_epi16(a, a);
      int first = _mm_cvtsi128_si32(a), second = _mm_cvtsi128_si32(_mm_srli_si128(a, 4));
      memcpy(to + 3 * x, &first, 4);
      memcpy(to + 3 * x + 3, &second, 4);
    }
#endif
    for (; x < n; x++) {
      const int16_t *p = row + 4 * xs[x];
      int right = w[x] >> 16, left = w[x] & 0xFFFF;
      for (int k = 0; k < 3; k++) to[3 * x + k] = (uint8_t)((p[k] * left + p[k + 4] * right + (1 << 20)) >> 21);
    }
  } else {
    for (; x < n; x++) {
      const int16_t *p = row + xs[x];
      to[x] = (uint8_t)((p[0] * (w[x] & 0xFFFF) + p[1] * (w[x] >> 16) + (1 << 20)) >> 21);
    }
  }
}

/* Half-pixel centres, edges replicated, as cv2.INTER_LINEAR; a mirrored result by mirrored columns. */
static int resize(gt_decoder *d, const uint8_t *from, size_t stride, int h, int w, uint8_t *to, int out_h, int out_w,
                  int pixel, int flip) {
  if (!grow((void **)&d->xs, &d->xs_size, (size_t)out_w * sizeof(int)) ||
      !grow((void **)&d->weights, &d->weights_size, (size_t)out_w * sizeof(int32_t)) ||
      !grow((void **)&d->row, &d->row_size, ((size_t)w + 4) * pixel * 2 + 32))
    return 0;
  for (int x = 0; x < out_w; x++) {
    double at = (x + 0.5) * w / out_w - 0.5;
    if (at < 0) at = 0;
    int first = (int)at;
    if (first > w - 1) first = w - 1;
    int place = flip ? out_w - 1 - x : x;
    d->xs[place] = first;
    int right = first >= w - 1 ? 0 : (int)((at - first) * 16384 + 0.5);
    d->weights[place] = (16384 - right) | right << 16;
  }
  memset(d->row + (size_t)w * pixel, 0, 4 * pixel * 2);
  for (int y = 0; y < out_h; y++) {
    double at = (y + 0.5) * h / out_h - 0.5;
    if (at < 0) at = 0;
    int first = (int)at;
    if (first > h - 1) first = h - 1;
    int next = first < h - 1 ? first + 1 : first;
    blend_rows(d->row, from + first * stride, from + next * stride, (int)((at - first) * 128 + 0.5), w * pixel);
    blend_columns(to + (size_t)y * out_w * (pixel == 4 ? 3 : 1), d->row, d->xs, d->weights, out_w, pixel);
  }
  return 1;
}

/* Decode the box (in pixels of the full image) at eighths/8 of the size into out (out_h, out_w, channels). */
int gt_decode(gt_decoder *d, const uint8_t *data, size_t length, int top, int left, int height, int width,
              int eighths, int out_h, int out_w, int channels, int flip, uint8_t *out) {
  struct jpeg *j = &d->c.j;
  d->truncated = 0;
  d->err.num_warnings = 0;
  d->message[0] = 0;
  if (setjmp(d->escape)) {
    lib.abort_(j);
    return GT_BROKEN;
  }
  lib.mem_src(j, data, (unsigned long)length);
  lib.read_header(j, 1);
  int full_h = (int)j->image_height, full_w = (int)j->image_width;
  if (j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK || top < 0 || left < 0 || height < 1 ||
      width < 1 || top + height > full_h || left + width > full_w) {
    lib.abort_(j);
    return GT_UNSUPPORTED;
  }
  j->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  j->scale_num = (unsigned)eighths;
  j->scale_denom = 8;
  lib.start(j);
  int all_h = (int)j->output_height, all_w = (int)j->output_width;
  double by_h = (double)all_h / full_h, by_w = (double)all_w / full_w;
  int h = (int)nearbyint(height * by_h), w = (int)nearbyint(width * by_w);
  int y = (int)nearbyint(top * by_h), x = (int)nearbyint(left * by_w);
  if (h < 1) h = 1;
  if (w < 1) w = 1;
  clip(&y, &h, all_h);
  clip(&x, &w, all_w);
  /* Two columns of margin, so that smooth upsampling of the chroma sees its neighbours. */
  unsigned from = (unsigned)(x > 2 ? x - 2 : 0), columns = (unsigned)(x + w + 2 < all_w ? x + w + 2 : all_w) - from;
  if ((int)columns < all_w) lib.crop(j, &from, &columns);
  int pixel = channels == 1 ? 1 : 4;
  size_t stride = (size_t)j->output_width * pixel;
  if (!grow((void **)&d->pixels, &d->pixels_size, stride * h + 64)) {
    lib.abort_(j);
    snprintf(d->message, sizeof d->message, "no memory for %d x %d pixels", w, h);
    return GT_BROKEN;
  }
  if (y) lib.skip(j, (unsigned)y);
  unsigned char *rows[16];
  for (int done = 0; done < h;) {
    int n = h - done < 16 ? h - done : 16;
    for (int k = 0; k < n; k++) rows[k] = d->pixels + (size_t)(done + k) * stride;
    int got = (int)lib.read(j, rows, (unsigned)n);
    if (got < 1) break;
    done += got;
  }
  lib.abort_(j);
  if (d->truncated) return GT_TRUNCATED;
  if (!resize(d, d->pixels + (size_t)(x - (int)from) * pixel, stride, h, w, out, out_h, out_w, pixel, flip)) {
    snprintf(d->message, sizeof d->message, "no memory to resize to %d x %d", out_h, out_w);
    return GT_BROKEN;
  }
  return GT_OK;
}
