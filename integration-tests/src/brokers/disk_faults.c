/* A disk that is slow or takes no more writes, for one process: preloaded, told what to do by a shared page.
 *
 *   COMITY_FAULT_DIR   files below it are on that disk
 *   COMITY_FAULT_PAGE  two 32-bit numbers: milliseconds that each sync takes longer; what writes fail with, e.g. EIO, or 0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const uint32_t healthy[2];
static const volatile uint32_t *page = healthy;
static const char *dir = "";

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("COMITY_FAULT_PAGE"), *below = getenv("COMITY_FAULT_DIR");
  int fd = file && below ? open(file, O_RDONLY | O_CLOEXEC) : -1;
  void *shared = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof healthy, PROT_READ, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED) {
    fprintf(stderr, "disk_faults: COMITY_FAULT_PAGE cannot be mapped\n");
    abort();
  }
  close(fd);
  page = shared;
  dir = below;
}

static int there(const char *path) { return strncmp(path, dir, strlen(dir)) == 0; }

static int on_it(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return there(path);
}

static int refused(int is_there) {
  int error = (int)page[1];
  if (!error || !is_there) return 0;
  errno = error;
  return 1;
}
#define REFUSE_FD(fd) if (page[1] && refused(on_it(fd))) return -1
#define REFUSE_PATH(path) if (page[1] && refused(there(path))) return -1
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void stall(int fd) {
  uint32_t ms = page[0];
  if (!ms || !on_it(fd)) return;
  struct timespec wait = {ms / 1000, (long)(ms % 1000) * 1000000};
  nanosleep(&wait, NULL);
}

int fdatasync(int fd) { REAL(fdatasync); stall(fd); REFUSE_FD(fd); return real(fd); }
int fsync(int fd) { REAL(fsync); stall(fd); REFUSE_FD(fd); return real(fd); }
ssize_t write(int fd, const void *data, size_t size) { REAL(write); REFUSE_FD(fd); return real(fd, data, size); }
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev); REFUSE_FD(fd); return real(fd, parts, count); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64); REFUSE_FD(fd); return real(fd, data, size, at); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); REFUSE_FD(fd); return real(fd, size); }
int rename(const char *from, const char *to) { REAL(rename); REFUSE_PATH(from); return real(from, to); }
int unlink(const char *path) { REAL(unlink); REFUSE_PATH(path); return real(path); }
int mkdir(const char *path, mode_t mode);
int mkdir(const char *path, mode_t mode) { REAL(mkdir); REFUSE_PATH(path); return real(path, mode); }

int open64(const char *path, int flags, ...) {
  REAL(open64);
  mode_t mode = 0;
  if (flags & (O_CREAT | __O_TMPFILE)) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if ((flags & O_ACCMODE) != O_RDONLY) REFUSE_PATH(path);
  return real(path, flags, mode);
}
