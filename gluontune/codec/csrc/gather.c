/* Many small files into framed RecordIO records, without the interpreter: open, read, look, frame, checksum. */
#include "codec.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef GT_FOLDS
#include <immintrin.h>
#include <wmmintrin.h>
#endif

enum { SMALL = 65536 }; /* bytes of a file whose size need not be asked */

int gt_header(const uint8_t *p, size_t n, int *out);
int gt_recode(gt_decoder *d, const uint8_t *data, size_t length, int side, int crop, int grey, int quality, size_t *out);

static uint32_t table[8][256];

/* Slicing by 8 (Intel, 2006); `c` is the inverted checksum so far. */
static uint32_t crc_plain(uint32_t c, const uint8_t *p, size_t n) {
  for (; n >= 8; n -= 8, p += 8) {
    uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    c = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24] ^
        table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
  }
  while (n--) c = table[0][(c ^ *p++) & 255] ^ c >> 8;
  return c;
}

#ifdef GT_FOLDS
/* Folding by carry-less multiplication (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel, 2009). */
GT_FOLDS static uint32_t crc_folded(uint32_t c, const uint8_t *p, size_t n) {
  const __m128i k12 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124), poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
#define LOAD(k) _mm_loadu_si128((const __m128i *)(p + 16 * (k)))
#define FOLD(x, k, y) \
  _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), y)
  __m128i a = _mm_xor_si128(LOAD(0), _mm_cvtsi32_si128((int)c)), b = LOAD(1), d = LOAD(2), e = LOAD(3);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = FOLD(a, k12, LOAD(0)); b = FOLD(b, k12, LOAD(1));
    d = FOLD(d, k12, LOAD(2)); e = FOLD(e, k12, LOAD(3));
  }
  a = FOLD(a, k34, b); a = FOLD(a, k34, d); a = FOLD(a, k34, e);
  for (; n >= 16; p += 16, n -= 16) a = FOLD(a, k34, LOAD(0));
  const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, k34, 0x10));
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), k5, 0x00));
  b = _mm_clmulepi64_si128(_mm_and_si128(a, low), poly, 0x10);
  a = _mm_xor_si128(a, _mm_clmulepi64_si128(_mm_and_si128(b, low), poly, 0x00));
  return crc_plain((uint32_t)_mm_extract_epi32(a, 1), p, n);
#undef FOLD
#undef LOAD
}
#endif

/* Called once, before any thread. */
void gt_prepare(void) {
  gt_look();
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
    table[0][i] = c;
  }
  for (int i = 0; i < 256; i++)
    for (int k = 1; k < 8; k++) table[k][i] = table[0][table[k - 1][i] & 255] ^ table[k - 1][i] >> 8;
}

/* CRC-32 as zlib's. */
uint32_t gt_crc32(const uint8_t *p, size_t n) {
#ifdef GT_FOLDS
  if (n >= 64 && gt_cpu.folds) return ~crc_folded(~0u, p, n);
#endif
  return ~crc_plain(~0u, p, n);
}

/* Does the format's magic number stand at a multiple of four in it? */
static int has_magic(const uint8_t *p, size_t n) {
  int found = 0;
  for (size_t i = 0; i < n / 4; i++) {
    uint32_t word;
    memcpy(&word, p + 4 * i, 4);
    found |= word == 0xCED7230Au;
  }
  return found;
}

static int open_file(const char *path) { /* a FIFO would wait for its writer */
  return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

/* Bytes of a regular file; 0: it is another one. */
static size_t size_of(int file) {
  struct stat status;
  return !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size > 0 ? (size_t)status.st_size : 0;
}

/* From `have` bytes of a file to all `size` of them, or to where it ends. Not read(): a FIFO has no places to read at. */
static size_t read_up_to(int file, uint8_t *to, size_t have, size_t size, int once) {
  while (have < size) {
    ssize_t got = pread(file, to + have, size - have, (off_t)have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return have;
    have += (size_t)got;
    if (once) break;
  }
  return have;
}

/* Read a whole file; 0: it is empty, larger than `room`, or cannot be read.
 * A small one that ends as a JPEG file does where the first read ends is whole: its size is not asked. */
static size_t read_whole(const char *path, uint8_t *to, size_t room) {
  size_t first = room < SMALL ? room : SMALL;
  int file = open_file(path);
  if (file < 0) return 0;
  size_t have = read_up_to(file, to, 0, first, 1);
  if (have == first || have < 2 || to[have - 2] != 0xFF || to[have - 1] != 0xD9) {
    size_t size = size_of(file);
    have = size > room || read_up_to(file, to, have, size, 0) < size ? 0 : size;
  }
  close(file);
  return have;
}

/* Is it a whole, upright 8-bit grey or colour JPEG file? Then `h` is what gt_header says. */
static int is_plain_jpeg(const uint8_t *p, size_t n, int h[7]) {
  return gt_header(p, n, h) == GT_OK && h[6] && h[4] == 1 && h[3] == 8 && (h[2] == 1 || h[2] == 3);
}

/* Read a file and make it smaller: into d->file. Its length, or 0 where that is the interpreter's. */
static size_t read_smaller(gt_decoder *d, const gt_recoding *r, const char *path) {
  int h[7], file = open_file(path);
  size_t made[2] = {0, 0};
  if (file < 0) return 0;
  size_t size = size_of(file);
  if (size >> 29 || !gt_grow((void **)&d->source, &d->source_size, size)) size = 0;
  if (read_up_to(file, d->source, 0, size, 0) < size) size = 0;
  close(file);
  if (!size || !is_plain_jpeg(d->source, size, h)) return 0;
  if ((h[0] < h[1] ? h[0] : h[1]) <= r->side || (h[2] == 1 && r->colour == 3)) return 0;
  int grey = h[2] == 1 || r->colour == 1;
  return gt_recode(d, d->source, size, r->side, r->crop, grey, r->quality, made) == GT_OK && !d->hurt ? made[1] : 0;
}

/* Frame files one after the other into `out`. Stops before the first that is not a plain JPEG file (any file but an empty
 * one if `exact`), cannot be read or made smaller, whose data end early, that has to be split or does not fit: that one
 * is the interpreter's.
 *
 * recoding: how files are made smaller; NULL: they are copied, and d, where it is given, looks at their data. paths:
 * ended by zeros. heads, head_sizes: what stands before each file in its record.
 * Returns how many were done; sizes: of the framed records; lengths, crcs: of the records. */
int gt_gather(const char *paths, const uint8_t *heads, const uint32_t *head_sizes, int count, int exact, gt_decoder *d,
              const gt_recoding *recoding, uint8_t *out, size_t room, uint32_t *sizes, uint32_t *lengths, uint32_t *crcs) {
  size_t at = 0;
  for (int i = 0; i < count; i++) {
    size_t head = head_sizes[i];
    if (room - at < head + 64) return i;
    uint8_t *record = out + at + 8;
    memcpy(record, heads, head);
    size_t left = room - at - head - 16, most = left < (1u << 29) - head - 4 ? left : (1u << 29) - head - 4, n;
    if (recoding) {
      n = read_smaller(d, recoding, paths);
      if (n == 0 || n > most) return i;
      memcpy(record + head, d->file, n);
    } else {
      int h[7];
      n = read_whole(paths, record + head, most);
      if (n == 0 || !(exact || (is_plain_jpeg(record + head, n, h) && (!d || gt_check(d, record + head, n) == GT_OK))))
        return i;
    }
    uint32_t length = (uint32_t)(head + n), whole = (length + 3) & ~3u;
    memset(record + length, 0, whole - length);
    if (has_magic(record, whole)) return i;
    const uint8_t front[8] = {0x0A, 0x23, 0xD7, 0xCE, length & 255, length >> 8 & 255, length >> 16 & 255, length >> 24};
    memcpy(out + at, front, 8);
    sizes[i] = 8 + whole;
    lengths[i] = length;
    crcs[i] = gt_crc32(record, length);
    at += 8 + whole;
    heads += head;
    paths += strlen(paths) + 1;
  }
  return count;
}
