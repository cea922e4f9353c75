/* Faults beneath a process: loaded by LD_PRELOAD, told by one small file a process.
 *
 * The file is CHAOS_SHIM_DIR/<pid>, four 64-bit integers, and may appear at any time:
 *   0  errno with which fsync, fdatasync and syncfs fail (0: they do what they say)
 *   1  ms that each of them takes longer
 *   2  ns by which the wall clock is off (monotonic clocks are left alone)
 *   3  how many flushes failed or waited so far: written here, read by the test
 *
 * Theory: the file is mapped, so that asking it costs a memory read. It is looked for at
 * most every 20 ms, and again in a child after fork, because its name is the pid. A failed
 * flush does no flush: what the kernel has of the file stays dirty or not as it was.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LOOK_INTERVAL_NS 20000000LL

static volatile int64_t *control;
static pid_t control_of;
static int64_t looked_ns;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_syncfs)(int);

__attribute__((constructor)) static void find_real(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_syncfs = dlsym(RTLD_NEXT, "syncfs");
}

static volatile int64_t *get_control(void) {
    pid_t own = getpid();
    if (control && control_of == own) return control;
    struct timespec now;
    if (!real_clock_gettime) find_real();
    real_clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    if (control_of == own && now_ns - looked_ns < LOOK_INTERVAL_NS) return NULL;
    looked_ns = now_ns;
    control_of = own;
    control = NULL;
    const char *directory = getenv("CHAOS_SHIM_DIR");
    if (!directory) return NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", directory, (int)own);
    int saved = errno, fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED) control = mapped;
        close(fd);
    }
    errno = saved;
    return control;
}

static int flush(int (*real)(int), int fd) {
    volatile int64_t *told = get_control();
    if (told && (told[0] || told[1])) {
        __sync_fetch_and_add(&told[3], 1);
        if (told[1]) usleep((useconds_t)(told[1] * 1000));
        if (told[0]) {
            errno = (int)told[0];
            return -1;
        }
    }
    return real(fd);
}

int fsync(int fd) { return flush(real_fsync, fd); }
int fdatasync(int fd) { return flush(real_fdatasync, fd); }
int syncfs(int fd) { return flush(real_syncfs, fd); }

static int64_t wall_offset_ns(void) {
    volatile int64_t *told = get_control();
    return told ? told[2] : 0;
}

int clock_gettime(clockid_t which, struct timespec *into) {
    if (!real_clock_gettime) find_real();
    int result = real_clock_gettime(which, into);
    if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t offset_ns = wall_offset_ns();
        if (offset_ns) {
            int64_t ns = into->tv_sec * 1000000000LL + into->tv_nsec + offset_ns;
            into->tv_sec = ns / 1000000000LL;
            into->tv_nsec = ns % 1000000000LL;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
