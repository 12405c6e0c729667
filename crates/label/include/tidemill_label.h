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

/* Registers under a name. `mount`: NULL for the only array that is mounted here. `capacity`: bytes for labels that are
 * not done; 0 for 64 MiB. */
tidemill_app *tidemill_app_register(const char *name, const char *mount, uint64_t capacity);
/* Waits until all that was published is stored: 0, or -1. */
int tidemill_app_flush(const tidemill_app *app);
/* What was published is done all the same. */
void tidemill_app_close(tidemill_app *app);

/* `after`: NULL, or a label that is to be done before, of whatever file. */
tidemill_label *tidemill_label_write(const tidemill_app *app, const char *to, uint64_t offset, const void *data,
                                     size_t size, unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_append(const tidemill_app *app, const char *to, const void *data, size_t size,
                                      unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_read(const tidemill_app *app, const char *from, uint64_t offset, uint64_t size,
                                    unsigned flags, const tidemill_label *after);
tidemill_label *tidemill_label_delete(const tidemill_app *app, const char *path, unsigned flags,
                                      const tidemill_label *after);
tidemill_label *tidemill_label_rename(const tidemill_app *app, const char *path, const char *to, unsigned flags,
                                      const tidemill_label *after);
tidemill_label *tidemill_label_fence(const tidemill_app *app);

/* Whether it is stored, has failed, or was cancelled. */
int tidemill_label_test(const tidemill_label *label);
/* Whether it was taken back: what has been begun is done. */
int tidemill_label_cancel(const tidemill_label *label);
/* Waits until it is stored, and ends it. Gives the bytes that were read, of which at most `size` are copied into
 * `buffer`, or -1. */
int64_t tidemill_label_wait(tidemill_label *label, void *buffer, size_t size);
/* Ends it without waiting. */
void tidemill_label_forget(tidemill_label *label);

/* Text of the last error of this thread, good until the next. */
const char *tidemill_label_error(void);

#ifdef __cplusplus
}
#endif
#endif
