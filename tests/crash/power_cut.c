/* Records every change to data directories, in order, so that a test can undo what was never synced.

   LD_PRELOADed into the roles by tests/crash/power_cut.py. Each call goes through to the real
   file system at once; what it changed is appended to a journal of this process, under the same
   lock, before the caller goes on. A sync is recorded after it returned, with the time at which it
   began: it covers what was recorded before that time. After SIGKILL the page cache still holds
   journal and files, and the test makes of them what a disk without power would have kept.

   Watched: paths under $POWER_CUT_ROOT/<member>/data. What this file overlooks (a call that it does
   not know) counts as never written, so a gap here shows as a loss and never hides one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS_MAX (1 << 20)
#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

enum { OP_OPEN = 1, OP_CLOSE, OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_SYNC_ALL, OP_RENAME, OP_UNLINK, OP_MKDIR, OP_RMDIR };

struct __attribute__((packed)) record {
    uint32_t magic;
    uint32_t op;
    uint64_t time_ns;
    int64_t number; /* offset, size, flags, or the time at which a sync began */
    int32_t fd;
    uint32_t first_bytes;
    uint32_t second_bytes;
};

static char root[PATH_MAX], journal_directory[PATH_MAX];
static size_t root_bytes;
static int journal = -1;
static unsigned char watched[FDS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    if (journal >= 0) syscall(SYS_close, journal);
    journal = -1;
    owner = getpid();
}

static void start(void) __attribute__((constructor));
static void start(void) {
    const char *under = getenv("POWER_CUT_ROOT"), *to = getenv("POWER_CUT_JOURNAL");
    if (!under || !to) return;
    snprintf(root, sizeof root, "%s/", under);
    snprintf(journal_directory, sizeof journal_directory, "%s", to);
    root_bytes = strlen(root);
    owner = getpid();
    pthread_atfork(NULL, NULL, in_child);
}

/* A child between vfork and exec shares our memory: it must change nothing. */
static int is_on(void) { return root_bytes && getpid() == owner; }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "power_cut.c: %s: %s\n", what, strerror(errno));
    abort();
}

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t n = syscall(SYS_write, journal, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("journal");
        at += n;
        size -= (size_t)n;
    }
}

/* Append one record. The lock is held. */
static void note(int op, int fd, int64_t number, const void *first, size_t first_bytes, const void *second,
                 size_t second_bytes) {
    int saved = errno;
    if (journal < 0) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%d-%llu.ops", journal_directory, (int)owner, (unsigned long long)now_ns());
        journal = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (journal < 0) fail(path);
    }
    struct record head = {0x0FF0C0DE, (uint32_t)op, now_ns(), number, fd, (uint32_t)first_bytes, (uint32_t)second_bytes};
    size_t size = sizeof head + first_bytes + second_bytes;
    char small[4096], *buffer = size <= sizeof small ? small : malloc(size);
    if (!buffer) fail("memory");
    memcpy(buffer, &head, sizeof head);
    if (first_bytes) memcpy(buffer + sizeof head, first, first_bytes);
    if (second_bytes) memcpy(buffer + sizeof head + first_bytes, second, second_bytes);
    put(buffer, size);
    if (buffer != small) free(buffer);
    errno = saved;
}

/* The absolute path in `out` when it is one that we watch. */
static int is_watched_path(int directory, const char *path, char *out) {
    if (!path || !is_on()) return 0;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX], link[64];
        ssize_t n;
        if (directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
        if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    }
    if (strncmp(out, root, root_bytes)) return 0;
    const char *slash = strchr(out + root_bytes, '/');
    return slash && !strncmp(slash, "/data", 5) && (slash[5] == '/' || slash[5] == 0);
}

static int is_watched(int fd) { return fd >= 0 && fd < FDS_MAX && watched[fd] && is_on(); }

/* ---- opening and closing */

static int opened(int fd, int directory, const char *path, int flags) {
    char full[PATH_MAX];
    if (fd < 0 || fd >= FDS_MAX || !is_watched_path(directory, path, full)) return fd;
    watched[fd] = 1;
    note(OP_OPEN, fd, flags, full, strlen(full), NULL, 0);
    return fd;
}

#define OPEN_BODY(call) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
    if (!is_on()) return call; \
    pthread_mutex_lock(&lock); \
    int fd = opened(call, directory, path, flags), saved = errno; \
    pthread_mutex_unlock(&lock); \
    errno = saved; \
    return fd

int open(const char *path, int flags, ...) { REAL(open); int directory = AT_FDCWD; OPEN_BODY(real(path, flags, mode)); }
int open64(const char *path, int flags, ...) { REAL(open64); int directory = AT_FDCWD; OPEN_BODY(real(path, flags, mode)); }
int openat(int directory, const char *path, int flags, ...) { REAL(openat); OPEN_BODY(real(directory, path, flags, mode)); }
int openat64(int directory, const char *path, int flags, ...) { REAL(openat64); OPEN_BODY(real(directory, path, flags, mode)); }

int close(int fd) {
    REAL(close);
    if (!is_watched(fd)) return real(fd);
    pthread_mutex_lock(&lock);
    watched[fd] = 0;
    note(OP_CLOSE, fd, 0, NULL, 0, NULL, 0);
    int result = real(fd), saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}

/* ---- changing content */

static ssize_t wrote(int fd, ssize_t n, int64_t offset, const struct iovec *parts, int count) {
    if (n <= 0) return n;
    char *all = malloc((size_t)n);
    if (!all) fail("memory");
    size_t at = 0;
    for (int i = 0; i < count && at < (size_t)n; i++) {
        size_t take = parts[i].iov_len < (size_t)n - at ? parts[i].iov_len : (size_t)n - at;
        memcpy(all + at, parts[i].iov_base, take);
        at += take;
    }
    if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - n;
    note(OP_WRITE, fd, offset, all, (size_t)n, NULL, 0);
    free(all);
    return n;
}

#define WRITE_BODY(call, offset, parts, count) \
    if (!is_watched(fd)) return call; \
    pthread_mutex_lock(&lock); \
    ssize_t n = wrote(fd, call, offset, parts, count); \
    int saved = errno; \
    pthread_mutex_unlock(&lock); \
    errno = saved; \
    return n

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    struct iovec one = {(void *)data, size};
    WRITE_BODY(real(fd, data, size), -1, &one, 1);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev); WRITE_BODY(real(fd, parts, count), -1, parts, count); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    struct iovec one = {(void *)data, size};
    WRITE_BODY(real(fd, data, size, offset), offset, &one, 1);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    struct iovec one = {(void *)data, size};
    WRITE_BODY(real(fd, data, size, offset), offset, &one, 1);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { REAL(pwritev); WRITE_BODY(real(fd, parts, count, offset), offset, parts, count); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { REAL(pwritev64); WRITE_BODY(real(fd, parts, count, offset), offset, parts, count); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) { REAL(pwritev2); WRITE_BODY(real(fd, parts, count, offset, flags), offset, parts, count); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) { REAL(pwritev64v2); WRITE_BODY(real(fd, parts, count, offset, flags), offset, parts, count); }

#define LOCKED(call, record) \
    pthread_mutex_lock(&lock); \
    int result = call; \
    if (result == 0) record; \
    int saved = errno; \
    pthread_mutex_unlock(&lock); \
    errno = saved; \
    return result

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    if (!is_watched(fd)) return real(fd, size);
    LOCKED(real(fd, size), note(OP_TRUNCATE, fd, size, NULL, 0, NULL, 0));
}
int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    if (!is_watched(fd)) return real(fd, size);
    LOCKED(real(fd, size), note(OP_TRUNCATE, fd, size, NULL, 0, NULL, 0));
}

/* ---- making durable. sync_file_range is let through and counts for nothing: it flushes neither
   the size of the file nor the disk's own cache. */

static int sync_through(int fd, int op, int (*call)(int)) {
    if (!is_watched(fd)) return call(fd);
    pthread_mutex_lock(&lock);
    int64_t began = (int64_t)now_ns();
    pthread_mutex_unlock(&lock);
    int result = call(fd), saved = errno;
    if (result == 0) {
        pthread_mutex_lock(&lock);
        note(op, fd, began, NULL, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return result;
}
int fsync(int fd) { REAL(fsync); return sync_through(fd, OP_SYNC, real); }
int fdatasync(int fd) { REAL(fdatasync); return sync_through(fd, OP_SYNC, real); }
int syncfs(int fd) { REAL(syncfs); return sync_through(fd, OP_SYNC_ALL, real); }

/* ---- names */

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    REAL(renameat);
    char a[PATH_MAX], b[PATH_MAX];
    if (!is_watched_path(from_directory, from, a) || !is_watched_path(to_directory, to, b)) return real(from_directory, from, to_directory, to);
    LOCKED(real(from_directory, from, to_directory, to), note(OP_RENAME, -1, 0, a, strlen(a), b, strlen(b)));
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    char full[PATH_MAX];
    if (!is_watched_path(directory, path, full)) return real(directory, path, flags);
    LOCKED(real(directory, path, flags), note(flags & AT_REMOVEDIR ? OP_RMDIR : OP_UNLINK, -1, 0, full, strlen(full), NULL, 0));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    char full[PATH_MAX];
    if (!is_watched_path(directory, path, full)) return real(directory, path, mode);
    LOCKED(real(directory, path, mode), note(OP_MKDIR, -1, 0, full, strlen(full), NULL, 0));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
