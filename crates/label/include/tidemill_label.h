/* Labels: asynchronous requests of an application. docs/labels.md describes the guarantees.
 *
 * A function that publishes returns a label, or NULL with errno and tidemill_label_error(). End each label once, by
 * tidemill_label_wait(), tidemill_label_on_done() or tidemill_label_forget(); the label is carried out in any case. Paths are
 * `tidemill:/PATH` or paths below the mount. Sizes and offsets are in bytes. All functions may be called from any thread; a
 * child of fork() must register for itself.
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

/* The label is done only when it survives power loss. */
#define TIDEMILL_LABEL_DURABLE 1u
/* Truncates the file to no bytes first. */
#define TIDEMILL_LABEL_TRUNCATE 2u
/* Fails with EAGAIN instead of waiting for space. */
#define TIDEMILL_LABEL_NOWAIT 4u
/* Runs the label only if the label `after` is done, or only if that label has failed or was cancelled; otherwise cancels it. */
#define TIDEMILL_LABEL_IF_DONE 8u
#define TIDEMILL_LABEL_IF_FAILED 16u

/* Registers under a name. `mount`: NULL for the only cluster that is mounted on this host. `capacity`: bytes for unfinished
 * labels; 0 for 64 MiB. */
tidemill_app *tidemill_app_register(const char *name, const char *mount, uint64_t capacity);
/* Registers with a goal of the application. LOW_LATENCY: others see written bytes soon. BANDWIDTH: high throughput. ENERGY: few
 * wake-ups. docs/labels.md describes the effects. */
#define TIDEMILL_INTENT_NONE 0u
#define TIDEMILL_INTENT_LOW_LATENCY 1u
#define TIDEMILL_INTENT_BANDWIDTH 2u
#define TIDEMILL_INTENT_ENERGY 3u
tidemill_app *tidemill_app_register_for(const char *name, const char *mount, uint64_t capacity, unsigned intent);
/* Waits until all published labels are stored. Returns 0, or -1. */
int tidemill_app_flush(const tidemill_app *app);
/* Ends the application. Its published labels are carried out all the same. */
void tidemill_app_close(tidemill_app *app);

/* Writes bytes to a file. `after`: NULL, or a label that must be done before, regardless of the files of both labels. */
tidemill_label *tidemill_label_write(const tidemill_app *app, const char *to, uint64_t offset, const void *data,
                                     size_t size, unsigned flags, const tidemill_label *after);
/* Creates a file with these bytes, in place of an existing file. tidemill_app_get() of this user's applications on this host
 * returns the bytes as soon as this function returns; all other clients see them when the label is stored. The size is at most
 * a quarter of the application's capacity. */
tidemill_label *tidemill_label_put(const tidemill_app *app, const char *to, const void *data, size_t size, unsigned flags);
/* Reads a whole file: the bytes of a put, even if they are not stored yet, else the content of the file. Waits for the file for
 * up to `wait_ms`. Copies as much as fits into `buffer`, and returns the size of the file; or -1, with ENOENT if the file does
 * not exist after the wait. */
int64_t tidemill_app_get(const tidemill_app *app, const char *from, void *buffer, size_t size, uint64_t wait_ms);
tidemill_label *tidemill_label_append(const tidemill_app *app, const char *to, const void *data, size_t size,
                                      unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_read(const tidemill_app *app, const char *from, uint64_t offset, uint64_t size,
                                    unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_delete(const tidemill_app *app, const char *path, unsigned flags,
                                      const tidemill_label *after);
tidemill_label *tidemill_label_rename(const tidemill_app *app, const char *path, const char *to, unsigned flags,
                                      const tidemill_label *after);
/* Copies the file `path` to `to`, with its mode less the umask. */
tidemill_label *tidemill_label_copy(const tidemill_app *app, const char *path, const char *to, unsigned flags,
                                    const tidemill_label *after);

/* Kernel or pipeline of kernels ("a | b") with its files. Lists end with NULL and may be NULL, except `outputs`.
 * The kernel finds the files below the directory of its first output by their names relative to that directory, and all other files
 * by their last name; `args` use these names. */
typedef struct tidemill_analysis {
    const char *kernel;
    const char *const *args;
    const char *const *inputs;
    const char *const *outputs;
    const char *standard_input;  /* NULL, or one of `inputs` */
    const char *standard_output; /* NULL, or one of `outputs` */
    const char *policy;          /* NULL: the intent's, or the cluster's */
} tidemill_analysis;

/* Runs an analysis after the writes before it are stored. The wait returns the first `result` bytes of the first output. It
 * fails with EINVAL if the cluster refuses the analysis, and with EIO if the analysis fails. */
tidemill_label *tidemill_label_analyse(const tidemill_app *app, const tidemill_analysis *analysis, size_t result,
                                       unsigned flags, const tidemill_label *after);
/* The same with the job of a script. The wait returns the first `size` bytes of the file `result`, if that is not NULL. */
tidemill_label *tidemill_label_job(const tidemill_app *app, const char *script, const char *result, size_t size,
                                   unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_fence(const tidemill_app *app);

/* Size of the longest address with its final zero. */
#define TIDEMILL_ADDRESS_BYTES 4160

/* Waits for a file of any user whose path matches the pattern, as in "tidemill:/run/step-*": the file is closed with new content,
 * or renamed to such a path, after this call; or after a cursor, if `since` is not NULL. The wait for the label returns the
 * address of the file, without a zero. */
tidemill_label *tidemill_label_await(const tidemill_app *app, const char *pattern, const char *since, unsigned flags,
                                     const tidemill_label *after);

/* Subscription to all such files in order, from now on or, if `since` is not NULL, from a cursor on. Use it in one thread at a
 * time. */
typedef struct tidemill_subscription tidemill_subscription;
tidemill_subscription *tidemill_subscribe(const tidemill_app *app, const char *pattern, const char *since);
/* Waits for the next file: without a limit if `limit_ms` is negative, else for up to `limit_ms`, after which it returns -1 with
 * ETIMEDOUT. Writes the address of the file, with a zero, to `path`, which has at least TIDEMILL_ADDRESS_BYTES; returns its length.
 * Returns -1 with EOVERFLOW once if the cluster has dropped the oldest file events. */
int64_t tidemill_subscription_next(tidemill_subscription *subscription, char *path, size_t size, int64_t limit_ms);
/* Writes the cursor after the last returned file, with a zero. It has less than TIDEMILL_ADDRESS_BYTES bytes. Returns its length. */
int64_t tidemill_subscription_cursor(const tidemill_subscription *subscription, char *cursor, size_t size);
void tidemill_subscription_close(tidemill_subscription *subscription);

/* Returns whether the label is stored, has failed, or was cancelled. */
int tidemill_label_test(const tidemill_label *label);
/* Cancels the label. Returns whether it was cancelled. A label that has begun is finished, except that jobs and waits for files are
 * asked to stop: the wait for such a label reports whether it was cancelled (ECANCELED). */
int tidemill_label_cancel(const tidemill_label *label);
/* Waits until the label is stored, and ends it. Copies at most `size` of the bytes that were read into `buffer`, and returns their
 * number, or -1. */
int64_t tidemill_label_wait(tidemill_label *label, void *buffer, size_t size);
/* Ends the label, and calls `done` when the label is stored, has failed or was cancelled: on a thread of the application, with the
 * bytes that were read and their number, or with -1 and an errno (and tidemill_label_error()). Returns 0, or -1. */
int tidemill_label_on_done(tidemill_label *label, void (*done)(void *arg, const void *bytes, int64_t size, int error),
                           void *arg);
/* Ends the label without waiting. */
void tidemill_label_forget(tidemill_label *label);

/* Returns the text of the last error of this thread, valid until the next error. */
const char *tidemill_label_error(void);

#ifdef __cplusplus
}
#endif
#endif
