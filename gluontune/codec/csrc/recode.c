/* From a JPEG file to a smaller one without leaving its colour space: the planes are decoded (at half, quarter or
 * eighth of the size where that is enough), resized one by one, and encoded with chroma of half the size. Nothing is
 * upsampled, converted to RGB and back, or downsampled again, which costs both time and quality. */
#include "codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_plane(gt_plane *plane, int width, int height, int stride) {
  plane->width = width;
  plane->height = height;
  plane->stride = (size_t)stride;
}

typedef struct { double y, x; } density; /* samples for one pixel of the file */

#ifdef GT_V3
/* Decode into d->planes without libjpeg; the number of parts, or 0 where the file is not for that. */
static int read_baseline(gt_decoder *d, const uint8_t *data, size_t length, int eighths, int grey, density *per) {
  if (!d->own || !gt_parse(&d->baseline, data, length, &d->frame)) return 0;
  gt_picture p = gt_picture_of(&d->frame, eighths, grey ? 1 : d->frame.parts);
  if (!gt_read_planes(d, &p, (gt_box){0, 0, p.size[0].height, p.size[0].width})) return 0;
  for (int c = 0; c < p.parts; c++) {
    per[c].y = p.side[c] / 8.0 / (c ? d->frame.v : 1);
    per[c].x = p.side[c] / 8.0 / (c ? d->frame.h : 1);
  }
  d->baselines++;
  return p.parts;
}
#endif

/* The same with libjpeg, which has read the header. */
static int read_planes(gt_decoder *d, int eighths, int grey, density *per) {
  struct jpeg_decompress_struct *j = &d->c.j;
  int count = j->num_components, h_max = 1, v_max = 1;
  jpeg_component_info *parts = j->comp_info;
  for (int k = 0; k < count; k++) {
    if (parts[k].h_samp_factor > h_max) h_max = parts[k].h_samp_factor;
    if (parts[k].v_samp_factor > v_max) v_max = parts[k].v_samp_factor;
  }
  for (int k = 0; k < count; k++) {
    int h = parts[k].h_samp_factor, v = parts[k].v_samp_factor;
    if (h < 1 || v < 1 || h_max % h || v_max % v) return 0;
  }
  if (parts[0].h_samp_factor != h_max || parts[0].v_samp_factor != v_max) return 0;
  j->out_color_space = j->jpeg_color_space;
  j->scale_num = (unsigned)eighths;
  j->scale_denom = 8;
  j->raw_data_out = 1;
  if (grey)
    for (int k = 1; k < count; k++) parts[k].component_needed = 0;
  jpeg_start_decompress(j);
  int rows_at_once = v_max * eighths, steps = ((int)j->output_height + rows_at_once - 1) / rows_at_once;
  unsigned char *rows[3][64], **tables[3] = {rows[0], rows[1], rows[2]};
  for (int k = 0; k < count; k++) {
    jpeg_component_info *p = &parts[k];
    int side = p->DCT_scaled_size, rows_of_step = p->v_samp_factor * side;
    unsigned part = (unsigned)(p->h_samp_factor * side), whole = (unsigned)(h_max * 8);
    unsigned width = (j->image_width * part + whole - 1) / whole;
    if (side < 1 || side > 8 || p->downsampled_width != width || rows_of_step > 64) return 0;
    per[k] = (density){(double)rows_of_step / (v_max * 8), (double)(p->h_samp_factor * side) / (h_max * 8)};
    int stride = (int)(p->width_in_blocks * (unsigned)side + 63) & ~31;
    size_t bytes = (size_t)stride * (size_t)(steps * rows_of_step) + 64;
    set_plane(&d->planes[k], (int)p->downsampled_width, (int)p->downsampled_height, stride);
    if (!gt_grow((void **)&d->planes[k].data, &d->planes[k].have, bytes)) {
      snprintf(d->message, sizeof d->message, "no memory for its pixels");
      longjmp(d->escape, 1);
    }
  }
  for (int step = 0; step < steps; step++) {
    for (int k = 0; k < count; k++) {
      int n = parts[k].v_samp_factor * parts[k].DCT_scaled_size;
      for (int y = 0; y < n; y++) rows[k][y] = d->planes[k].data + (size_t)(step * n + y) * d->planes[k].stride;
    }
    if (!jpeg_read_raw_data(j, tables, (unsigned)rows_at_once)) {
      d->truncated = 1;
      break;
    }
  }
  return grey ? 1 : count;
}

/* Samples right of and below the image, up to whole blocks: the last ones repeated. */
static void pad_plane(gt_plane *plane, int rows) {
  for (int y = 0; y < plane->height; y++) {
    uint8_t *row = plane->data + (size_t)y * plane->stride;
    memset(row + plane->width, row[plane->width - 1], plane->stride - (size_t)plane->width);
  }
  const uint8_t *last = plane->data + (size_t)(plane->height - 1) * plane->stride;
  for (int y = plane->height; y < rows; y++) memcpy(plane->data + (size_t)y * plane->stride, last, plane->stride);
}

/* The shorter side becomes `side` pixels (0: as it is), `crop` keeps the middle square, `grey` only the luma.
 * `out` gets the address and length of the file, which belongs to the decoder until its next call. */
int gt_recode(gt_decoder *d, const uint8_t *data, size_t length, int side, int crop, int grey, int quality,
              size_t *out) {
  struct jpeg_decompress_struct *j = &d->c.j;
  unsigned char *volatile file = NULL;
  unsigned char *written;
  unsigned long size;
  if (!d->can_write) return GT_UNSUPPORTED;
  if (setjmp(d->escape)) {
    jpeg_abort_decompress(j);
    jpeg_abort_compress(&d->out.j);
    if (file != NULL && file != d->file) free(file);
    return GT_BROKEN;
  }
  gt_begin(d, data, length);
  int w = (int)j->image_width, h = (int)j->image_height, shorter = w < h ? w : h;
  int kind = j->num_components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  if ((int)j->jpeg_color_space != kind || (j->num_components != 1 && j->num_components != 3) || side > shorter)
    return gt_stop(d, GT_UNSUPPORTED);
  double scale = side ? (double)side / shorter : 1;
  int out_w = (int)nearbyint(w * scale), out_h = (int)nearbyint(h * scale);
  if (out_w < side) out_w = side;
  if (out_h < side) out_h = side;
  int eighths = 8;
  while (side && eighths > 1 && shorter >= side * (16 / eighths)) eighths /= 2;
  if (out_w > 65500 || out_h > 65500) return gt_stop(d, GT_UNSUPPORTED);
  density per[3];
  int count = 0;
#ifdef GT_V3
  count = read_baseline(d, data, length, eighths, grey, per);
#endif
  if (!count) count = read_planes(d, eighths, grey, per);
  double by_y = (double)h / out_h, by_x = (double)w / out_w; /* pixels of the file for one of the result */
  int top = 0, left = 0;
  if (crop) {
    int square = out_w < out_h ? out_w : out_h;
    top = (out_h - square) / 2;
    left = (out_w - square) / 2;
    out_w = out_h = square;
  }
  for (int k = 0; k < count; k++) {
    gt_plane *to = &d->resized[k];
    int part = k ? 2 : 1, rows = k ? (out_h + 15) / 16 * 8 : (out_h + 15) / 16 * 16;
    int stride = k ? (out_w + 15) / 16 * 8 : (out_w + 15) / 16 * 16;
    set_plane(to, (out_w + part - 1) / part, (out_h + part - 1) / part, stride);
    if (!gt_grow((void **)&to->data, &to->have, (size_t)stride * (size_t)rows + 64)) longjmp(d->escape, 1);
    double first[2] = {top * by_y * per[k].y, left * by_x * per[k].x}, step[2] = {part * by_y * per[k].y, part * by_x * per[k].x};
    if (!gt_resample(d, d->filters[k > 0], &d->planes[k], to, first, step)) longjmp(d->escape, 1);
    pad_plane(to, rows);
  }
  jpeg_abort_decompress(j);
  if (count == 0) return GT_UNSUPPORTED;
  if (d->truncated) return GT_TRUNCATED;
#ifdef GT_V3
  if (d->own && (size = gt_encode(d, count, quality)) != 0) {
    out[0] = (size_t)d->file;
    out[1] = (size_t)size;
    return GT_OK;
  }
#endif
  if (!gt_grow((void **)&d->file, &d->file_size, (size_t)out_w * (size_t)out_h * 3 + 65536)) longjmp(d->escape, 1);
  written = file = d->file;
  size = d->file_size;
  int done = gt_write_file(d, d->resized, count, quality, &written, &size);
  file = written;
  if (!done) {
    jpeg_abort_compress(&d->out.j);
    return GT_UNSUPPORTED;
  }
  if (written != d->file) { /* it did not fit, and the library has taken more memory */
    free(d->file);
    d->file = written;
    d->file_size = size;
  }
  out[0] = (size_t)d->file;
  out[1] = (size_t)size;
  return GT_OK;
}
