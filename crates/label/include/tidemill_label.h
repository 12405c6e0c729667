/* Labels: requests that an application gives away. docs/labels.md says what holds when.
 *
 * What publishes gives a label, or NULL with errno and tidemill_label_error(). A label is ended once, by
 * tidemill_label_wait() or tidemill_label_forget(); it is carried out in any case. Paths are `tidemill:/PATH` or paths
 * below the mount. Sizes and offsets are in bytes. All functions may be called from any thread; a child of fork() must
 * register for itself.
 *
 *   cc example.c $(pkg-config --cflags --libs tidemill-label)
 */
#ifndef TIDEMILL_LABEL_H
#define TIDEMILL_LABEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tidemill_app tidemill_app;
typedef struct tidemill_label tidemill_label;

/* Done only when it survives power loss. */
#define TIDEMILL_LABEL_DURABLE 1u
/* The file is cut to no bytes first. */
#define TIDEMILL_LABEL_TRUNCATE 2u
/* Fails with EAGAIN where publishing would wait for room. */
#define TIDEMILL_LABEL_NOWAIT 4u
/* Only if the label that it is `after` is done, or if that has failed or was cancelled; else it is cancelled. */
#define TIDEMILL_LABEL_IF_DONE 8u
#define TIDEMILL_LABEL_IF_FAILED 16u

/* Registers under a name. `mount`: NULL for the only array that is mounted here. `capacity`: bytes for labels that are
 * not done; 0 for 64 MiB. */
tidemill_app *tidemill_app_register(const char *name, const char *mount, uint64_t capacity);
/* The same, with what the application wants most: that others see soon what was written; that much is written; that little
 * is woken. docs/labels.md says what each does. */
#define TIDEMILL_INTENT_NONE 0u
#define TIDEMILL_INTENT_LOW_LATENCY 1u
#define TIDEMILL_INTENT_BANDWIDTH 2u
#define TIDEMILL_INTENT_ENERGY 3u
tidemill_app *tidemill_app_register_for(const char *name, const char *mount, uint64_t capacity, unsigned intent);
/* Waits until all that was published is stored: 0, or -1. */
int tidemill_app_flush(const tidemill_app *app);
/* What was published is done all the same. */
void tidemill_app_close(tidemill_app *app);

/* `after`: NULL, or a label that is to be done before, of whatever file. */
tidemill_label *tidemill_label_write(const tidemill_app *app, const char *to, uint64_t offset, const void *data,
                                     size_t size, unsigned flags, const tidemill_label *after);
/* Makes a file of these bytes, in place of what has that name. tidemill_app_get of this user's applications on this host gives them as
 * soon as this returns, all others see them when it is stored. At most a quarter of the application's room. */
tidemill_label *tidemill_label_put(const tidemill_app *app, const char *to, const void *data, size_t size, unsigned flags);
/* A file as a whole: what was put, stored or not, else what is in the file. Waits for it, `wait_ms` at most. Gives its size, of which as
 * much as fits was put into `buffer`; or -1, with ENOENT if it has not come. */
int64_t tidemill_app_get(const tidemill_app *app, const char *from, void *buffer, size_t size, uint64_t wait_ms);
tidemill_label *tidemill_label_append(const tidemill_app *app, const char *to, const void *data, size_t size,
                                      unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_read(const tidemill_app *app, const char *from, uint64_t offset, uint64_t size,
                                    unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_delete(const tidemill_app *app, const char *path, unsigned flags,
                                      const tidemill_label *after);
tidemill_label *tidemill_label_rename(const tidemill_app *app, const char *path, const char *to, unsigned flags,
                                      const tidemill_label *after);
/* Makes `to` what `path` is, with its mode less the umask. */
tidemill_label *tidemill_label_copy(const tidemill_app *app, const char *path, const char *to, unsigned flags,
                                    const tidemill_label *after);

/* A kernel, or a stack of kernels ("a | b"), that is to run on files. Lists end with NULL and may be NULL, but for
 * `outputs`. The kernel finds the files below the folder of its first output by their names from there, all others by their
 * last name; `args` call them so. */
typedef struct tidemill_analysis {
    const char *kernel;
    const char *const *args;
    const char *const *inputs;
    const char *const *outputs;
    const char *standard_input;  /* NULL, or one of `inputs` */
    const char *standard_output; /* NULL, or one of `outputs` */
    const char *policy;          /* NULL: the intent's, or the array's */
} tidemill_analysis;

/* Runs it, when the writes before it are stored. Waiting gives the first `result` bytes of its first output. It fails with
 * EINVAL if the array refuses it, and with EIO if it fails. */
tidemill_label *tidemill_label_analyse(const tidemill_app *app, const tidemill_analysis *analysis, size_t result,
                                       unsigned flags, const tidemill_label *after);
/* The same with the job of a script. Waiting gives the first `size` bytes of the file `result`, if that is not NULL. */
tidemill_label *tidemill_label_job(const tidemill_app *app, const char *script, const char *result, size_t size,
                                   unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_fence(const tidemill_app *app);

/* Bytes of the longest address, with its zero. */
#define TIDEMILL_ADDRESS_BYTES 4160

/* Waits for a file, of anybody, whose path matches, as in "tidemill:/run/step-*": closed with something new, or given such a name,
 * after this is called; or after a cursor, if `since` is not NULL. Waiting for the label gives its address, without a zero. */
tidemill_label *tidemill_label_await(const tidemill_app *app, const char *pattern, const char *since, unsigned flags,
                                     const tidemill_label *after);

/* All of them in order, from now on or, if `since` is not NULL, from a cursor on. By one thread at a time. */
typedef struct tidemill_subscription tidemill_subscription;
tidemill_subscription *tidemill_subscribe(const tidemill_app *app, const char *pattern, const char *since);
/* The next: its address, with a zero, into `path`, which has at least TIDEMILL_ADDRESS_BYTES; gives the length. Waits for it; for at most
 * `limit_ms` if that is not negative, then -1 with ETIMEDOUT. -1 with EOVERFLOW once if some of what came is not known any more. */
int64_t tidemill_subscription_next(tidemill_subscription *subscription, char *path, size_t size, int64_t limit_ms);
/* A cursor, with a zero: what comes after the last that was given. It has less than TIDEMILL_ADDRESS_BYTES bytes. */
int64_t tidemill_subscription_cursor(const tidemill_subscription *subscription, char *cursor, size_t size);
void tidemill_subscription_close(tidemill_subscription *subscription);

/* Whether it is stored, has failed, or was cancelled. */
int tidemill_label_test(const tidemill_label *label);
/* Whether it was taken back: what has been begun is done, but for a job and what waits for a file, which are told to stop; waiting
 * says whether it was (ECANCELED). */
int tidemill_label_cancel(const tidemill_label *label);
/* Waits until it is stored, and ends it. Gives the bytes that were read, of which at most `size` are copied into
 * `buffer`, or -1. */
int64_t tidemill_label_wait(tidemill_label *label, void *buffer, size_t size);
/* Ends it, and has `done` called when it is stored, has failed or was cancelled: on a thread of the application's own, with
 * the bytes that were read and how many, or -1 and an errno (and tidemill_label_error()). 0, or -1. */
int tidemill_label_on_done(tidemill_label *label, void (*done)(void *arg, const void *bytes, int64_t size, int error),
                           void *arg);
/* Ends it without waiting. */
void tidemill_label_forget(tidemill_label *label);

/* Text of the last error of this thread, good until the next. */
const char *tidemill_label_error(void);

#ifdef __cplusplus
}
#endif
#endif
