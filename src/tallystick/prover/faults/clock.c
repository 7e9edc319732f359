/* A wall clock that is wrong by TALLYSTICK_CLOCK_S seconds, for the process that preloads this library.
 *
 * The monotonic clock, durations and the times of files stay right, as on a machine whose clock was set wrong. Waits
 * until a moment of the wall clock are told in wrong time by the process and in right time to the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Moments of the wall clock are far above it, those of the monotonic clock (time since the machine started) below. */
#define WALL_S 1000000000L

static long offset_s(void) {
    static long known = 0;
    static int asked = 0;
    if (!asked) {
        const char *text = getenv("TALLYSTICK_CLOCK_S");
        known = text ? atol(text) : 0;
        asked = 1;
    }
    return known;
}

static struct timespec in_right_time(const struct timespec *at) {
    struct timespec right = *at;
    if (right.tv_sec > WALL_S)
        right.tv_sec -= offset_s();
    return right;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int status = (int)syscall(SYS_clock_gettime, which, at);
    if (status == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        at->tv_sec += offset_s();
    return status;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    if (status == 0 && at) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return status;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* The C library has an old and a new condition variable under one name; plain dlsym may find the old one. */
static void *next(const char *name) {
    static const char *versions[] = {"GLIBC_2.3.2", "GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.28", "GLIBC_2.34"};
    for (unsigned number = 0; number < sizeof versions / sizeof *versions; number++) {
        void *found = dlvsym(RTLD_NEXT, name, versions[number]);
        if (found)
            return found;
    }
    return dlsym(RTLD_NEXT, name);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = NULL;
    struct timespec right = in_right_time(until);
    if (!wait)
        wait = next("pthread_cond_timedwait");
    return wait(condition, mutex, &right);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*wait)(cnd_t *, mtx_t *, const struct timespec *) = NULL;
    struct timespec right = in_right_time(until);
    if (!wait)
        wait = next("cnd_timedwait");
    return wait(condition, mutex, &right);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*wait)(sem_t *, const struct timespec *) = NULL;
    struct timespec right = in_right_time(until);
    if (!wait)
        wait = next("sem_timedwait");
    return wait(semaphore, &right);
}
