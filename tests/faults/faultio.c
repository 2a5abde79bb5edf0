/* Kills the process at the n-th file call that concerns one database: written, cut, synced or unlinked.
 *
 *     cc -shared -fPIC -O2 -o faultio.so faultio.c -ldl
 *     LD_PRELOAD=faultio.so python ...      then, in the process: faultio_arm("agents.db", 17)
 *
 * It counts from the moment it is armed, and only files whose path holds the text. Arm it with 0 to count alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char watched[256];
static long fatal, seen;

void faultio_arm(const char *path, long nth) {
    snprintf(watched, sizeof watched, "%s", path);
    fatal = nth;
    seen = 0;
}

long faultio_seen(void) { return seen; }

static void strike(const char *path) {
    if (!watched[0] || !strstr(path, watched)) return;
    if (__sync_add_and_fetch(&seen, 1) == fatal) kill(getpid(), SIGKILL);
}

static void strike_at(int fd) {
    char link[64], path[4096];
    ssize_t length;
    if (!watched[0]) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    strike(path);
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = next("write");
    strike_at(fd);
    return real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    ssize_t (*real)(int, const void *, size_t, off_t) = next("pwrite");
    strike_at(fd);
    return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = next("pwrite64");
    strike_at(fd);
    return real(fd, data, size, offset);
}

int fsync(int fd) {
    int (*real)(int) = next("fsync");
    strike_at(fd);
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = next("fdatasync");
    strike_at(fd);
    return real(fd);
}

int ftruncate(int fd, off_t size) {
    int (*real)(int, off_t) = next("ftruncate");
    strike_at(fd);
    return real(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    int (*real)(int, off64_t) = next("ftruncate64");
    strike_at(fd);
    return real(fd, size);
}

int unlink(const char *path) {
    int (*real)(const char *) = next("unlink");
    strike(path);
    return real(path);
}
