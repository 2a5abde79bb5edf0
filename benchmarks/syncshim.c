/* A library to preload, which makes a model of a disk out of any file system and counts what a program asks of it.
 *
 * build:  cc -O2 -shared -fPIC -o syncshim.so syncshim.c -ldl
 *
 * SYNCSHIM_US     what fsync and fdatasync cost, in microseconds, in place of a real sync; unset or below 0: a real sync
 * SYNCSHIM_COUNT  a file that all processes of a run share: four counters of 64 bits, namely syncs, writes to regular
 *                 files, bytes of these, and nanoseconds spent in syncs
 *
 * Put the files on tmpfs, so that nothing but the model decides what a sync costs. Statically linked programs escape it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNCS, WRITES, BYTES, NANOSECONDS, COUNTERS };

static _Atomic uint64_t own[COUNTERS];
static _Atomic uint64_t *counters = own;
static long sync_us = -1;

static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);

static void share_counters(const char *path) {
  int fd = open(path, O_CREAT | O_RDWR, 0600);
  if (fd < 0) return;
  if (ftruncate(fd, sizeof own) == 0) {
    void *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) counters = shared;
  }
  close(fd);
}

__attribute__((constructor)) static void start(void) {
  real_fsync = dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
  real_pwritev = dlsym(RTLD_NEXT, "pwritev64");
  const char *us = getenv("SYNCSHIM_US");
  const char *path = getenv("SYNCSHIM_COUNT");
  if (us) sync_us = atol(us);
  if (path) share_counters(path);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
}

static void sleep_until(uint64_t end_ns) {
  /* The kernel may add 50 us to a sleep unless a thread asks for less. */
  static __thread int is_exact;
  if (!is_exact) {
    prctl(PR_SET_TIMERSLACK, 1000UL);
    is_exact = 1;
  }
  struct timespec end = {end_ns / UINT64_C(1000000000), end_ns % UINT64_C(1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) {
  }
}

static int count_sync(int fd, int (*real)(int)) {
  uint64_t begun_ns = now_ns();
  int result = 0;
  if (sync_us < 0) {
    result = real(fd);
  } else if (sync_us > 0) {
    sleep_until(begun_ns + sync_us * UINT64_C(1000));
  }
  atomic_fetch_add(&counters[SYNCS], 1);
  atomic_fetch_add(&counters[NANOSECONDS], now_ns() - begun_ns);
  return result;
}

static ssize_t count_write(ssize_t written) {
  if (written > 0) {
    atomic_fetch_add(&counters[WRITES], 1);
    atomic_fetch_add(&counters[BYTES], written);
  }
  return written;
}

static int is_regular(int fd) {
  struct stat found;
  return fd > 2 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

int fsync(int fd) { return count_sync(fd, real_fsync); }
int fdatasync(int fd) { return count_sync(fd, real_fdatasync); }

/* Only files are written at an offset; plain write also serves sockets and pipes. */
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return count_write(real_pwrite(fd, b, n, at)); }
ssize_t pwrite64(int fd, const void *b, size_t n, off_t at) { return count_write(real_pwrite(fd, b, n, at)); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { return count_write(real_pwritev(fd, v, n, at)); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t at) { return count_write(real_pwritev(fd, v, n, at)); }

ssize_t write(int fd, const void *b, size_t n) {
  ssize_t written = real_write(fd, b, n);
  return is_regular(fd) ? count_write(written) : written;
}
