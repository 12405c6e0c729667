/* Program for labels.py: publishes labels and prints seconds.
 *
 *   labels MODE MOUNT COUNT SIZE FILES
 *   MODE: publish (prints the seconds to publish all labels, and until all are stored),
 *         wait, read (print the microseconds of each label, one per line),
 *         seen (prints the microseconds until each label is stored, without a wait for it; FILES is the intent),
 *         paced (publishes a label every millisecond to one file, and prints nothing; FILES is the intent),
 *         memcpy (prints the seconds to copy as many bytes within memory),
 *         syscall (does the same as publish, by open, write and close; a single file is opened once)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../crates/label/include/tidemill_label.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", what, tidemill_label_error(), strerror(errno));
    exit(1);
}

static void check(tidemill_label *label) {
    if (!label) fail("publish");
    tidemill_label_forget(label);
}

int main(int count, char **argument) {
    if (count != 6) return 2;
    const char *mode = argument[1], *mount = argument[2];
    long labels = atol(argument[3]), files = atol(argument[5]);
    size_t size = atol(argument[4]);
    char *data = malloc(size), *answer = malloc(size), path[4096];
    memset(data, 'x', size);
    memset(answer, 0, size);
    double begun = now(), published;
    if (!strcmp(mode, "memcpy")) {
        char *ring = malloc(64 << 20);
        memset(ring, 1, 64 << 20);
        begun = now();
        for (long n = 0; n < labels; n++) memcpy(ring + n * size % ((64 << 20) / size * size), data, size);
        printf("%.9f %d\n", now() - begun, ring[labels % 64]);
        return 0;
    }
    if (!strcmp(mode, "syscall")) {
        /* A single file stays open, as in usual programs. */
        int file = -1;
        for (long n = 0; n < labels; n++) {
            snprintf(path, sizeof path, "%s/%ld", mount, n % files);
            if (file < 0) file = open(path, O_WRONLY | O_CREAT, 0666);
            if (file < 0 || pwrite(file, data, size, n / files * size) != (ssize_t)size) return perror(path), 1;
            if (files > 1 || n == labels - 1) {
                if (close(file)) return perror(path), 1;
                file = -1;
            }
        }
        printf("%.9f\n", now() - begun);
        return 0;
    }
    int seen = !strcmp(mode, "seen"), paced = !strcmp(mode, "paced");
    unsigned intent = seen || paced ? (unsigned)files : TIDEMILL_INTENT_NONE;
    tidemill_app *app = tidemill_app_register_for("bench", mount, 256 << 20, intent);
    if (!app) fail("register");
    check(tidemill_label_write(app, "tidemill:/warm", 0, data, 1, 0, NULL));
    if (tidemill_app_flush(app)) fail("flush");
    begun = now();
    const struct timespec millisecond = {.tv_nsec = 1000000}, moment = {.tv_nsec = 50000};
    for (long n = 0; seen && n < labels; n++) {
        snprintf(path, sizeof path, "tidemill:/%ld", n);
        double one = now();
        tidemill_label *label = tidemill_label_write(app, path, 0, data, size, 0, NULL);
        if (!label) fail(mode);
        while (!tidemill_label_test(label)) nanosleep(&moment, NULL);
        printf("%.3f\n", (now() - one) * 1e6);
        tidemill_label_forget(label);
    }
    for (long n = 0; paced && n < labels; n++) {
        check(tidemill_label_write(app, "tidemill:/paced", n * size, data, size, 0, NULL));
        nanosleep(&millisecond, NULL);
    }
    if (paced && tidemill_app_flush(app)) fail("flush");
    for (long n = 0; !seen && !paced && n < labels; n++) {
        snprintf(path, sizeof path, "tidemill:/%ld", n % files);
        if (!strcmp(mode, "publish")) {
            unsigned durable = size >= 1 << 20 ? TIDEMILL_LABEL_DURABLE : 0;
            check(tidemill_label_write(app, path, n / files * size, data, size, durable, NULL));
            continue;
        }
        double one = now();
        tidemill_label *label = strcmp(mode, "read") ? tidemill_label_write(app, path, n / files * size, data, size, 0, NULL)
                                                     : tidemill_label_read(app, path, n / files * size, size, 0, NULL);
        if (!label || tidemill_label_wait(label, answer, size) < 0) fail(mode);
        printf("%.3f\n", (now() - one) * 1e6);
    }
    if (strcmp(mode, "publish")) return 0;
    published = now() - begun;
    if (tidemill_app_flush(app)) fail("flush");
    printf("%.9f %.9f\n", published, now() - begun);
    return 0;
}
