/* Opening libjpeg-turbo, and decoders that carry its state and their own memory. */
#include "codec.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct gt_library gt_lib;

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
  d->c.j.err = gt_lib.std_error(&d->err);
  d->err.error_exit = on_error;
  d->err.emit_message = on_message;
}

/* Open the library. The version and size that it wants are read from its own complaints. */
int gt_open(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return GT_UNSUPPORTED;
#define FIND(member, name) \
  if (!(*(void **)&gt_lib.member = dlsym(handle, name))) return GT_UNSUPPORTED;
  FIND(std_error, "jpeg_std_error") FIND(create, "jpeg_CreateDecompress") FIND(mem_src, "jpeg_mem_src")
  FIND(read_header, "jpeg_read_header") FIND(start, "jpeg_start_decompress") FIND(read, "jpeg_read_scanlines")
  FIND(crop, "jpeg_crop_scanline") FIND(skip, "jpeg_skip_scanlines") FIND(abort_, "jpeg_abort_decompress")
  FIND(destroy, "jpeg_destroy_decompress")
#undef FIND
  gt_decoder *d = calloc(1, sizeof *d);
  if (!d) return GT_BROKEN;
  volatile int tries = 0;
  gt_lib.version = 62;
  gt_lib.size = sizeof(struct jpeg);
  if (setjmp(d->escape)) { /* "library is version 80" or "library thinks size is 656" */
    int told = d->err.msg_parm.i[0];
    if (told >= 62 && told < 100) gt_lib.version = told;
    else if (told > (int)sizeof(struct jpeg) && told < 4096) gt_lib.size = (size_t)told;
    else tries = 99;
  }
  if (tries++ > 3) { free(d); return GT_UNSUPPORTED; }
  prepare(d);
  gt_lib.create(&d->c.j, gt_lib.version, gt_lib.size);
  gt_lib.destroy(&d->c.j);
  free(d);
  return GT_OK;
}

gt_decoder *gt_new(void) {
  gt_decoder *const d = calloc(1, sizeof *d);
  if (!d) return NULL;
  prepare(d);
  if (setjmp(d->escape)) { free(d); return NULL; }
  gt_lib.create(&d->c.j, gt_lib.version, gt_lib.size);
  return d;
}

void gt_free(gt_decoder *d) {
  if (!d) return;
  gt_lib.destroy(&d->c.j);
  free(d->pixels); free(d->row); free(d->xs); free(d->weights);
  free(d);
}

const char *gt_message(const gt_decoder *d) { return d->message; }

int gt_grow(void **p, size_t *have, size_t want) {
  if (*have >= want) return 1;
  free(*p);
  *have = want + want / 4;
  *p = malloc(*have);
  if (!*p) *have = 0;
  return *p != NULL;
}

