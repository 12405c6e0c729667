/* Program for workspace.py: one process puts, and another gets after a message by a pipe. Prints the microseconds of each turn, one per line,
 * from before the put until the answer of the getter.
 *
 *   workspace labels MOUNT SIZE TURNS     the label library
 *   workspace redis SOCKET SIZE TURNS     SET and GET, without a client library
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../crates/label/include/tidemill_label.h"

static const char *place;
static int redis, server;
static tidemill_app *app;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", what, tidemill_label_error(), strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void begin(void) {
    if (!redis) {
        app = tidemill_app_register("workspace", place, 64 << 20);
        if (!app) fail("register");
        return;
    }
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, place, sizeof to.sun_path - 1);
    server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(server, (struct sockaddr *)&to, sizeof to)) fail("connect");
}

static void whole(int writes, char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t more = writes ? send(server, data + done, size - done, 0) : recv(server, data + done, size - done, 0);
        if (more <= 0) fail("peer");
        done += more;
    }
}

static void put(long key, char *data, size_t size) {
    char text[128];
    if (!redis) {
        snprintf(text, sizeof text, "tidemill:/%ld", key);
        tidemill_label *label = tidemill_label_put(app, text, data, size, 0);
        if (!label) fail("put");
        tidemill_label_forget(label);
        return;
    }
    char name[32];
    int length = snprintf(name, sizeof name, "%ld", key);
    int head = snprintf(text, sizeof text, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", length, name, size);
    whole(1, text, head);
    whole(1, data, size);
    whole(1, "\r\n", 2);
    whole(0, text, 5);
    if (memcmp(text, "+OK\r\n", 5)) fail("SET");
}

static void get(long key, char *data, size_t size) {
    char text[128];
    if (!redis) {
        snprintf(text, sizeof text, "tidemill:/%ld", key);
        if (tidemill_app_get(app, text, data, size, 0) != (int64_t)size) fail("get");
        return;
    }
    char name[32];
    int length = snprintf(name, sizeof name, "%ld", key);
    int head = snprintf(text, sizeof text, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", length, name);
    whole(1, text, head);
    whole(0, text, snprintf(name, sizeof name, "$%zu\r\n", size));
    whole(0, data, size);
    whole(0, text, 2);
}

int main(int count, char **argument) {
    if (count != 5) return 2;
    redis = !strcmp(argument[1], "redis");
    place = argument[2];
    size_t size = atol(argument[3]);
    long turns = atol(argument[4]), base = (long)getpid() * 100000;
    char *data = malloc(size);
    int keys[2], answers[2];
    if (!data || pipe(keys) || pipe(answers)) fail("begin");
    memset(data, 0, size);
    pid_t child = fork();
    long key;
    if (!child) {
        begin();
        if (write(answers[1], "!", 1) != 1) fail("answer");
        for (long n = 0; n < turns; n++) {
            if (read(keys[0], &key, sizeof key) != sizeof key) return 1;
            get(key, data, size);
            if (memcmp(data, &key, sizeof key) || data[size - 1] != (char)key) fail("bytes");
            if (write(answers[1], "!", 1) != 1) fail("answer");
        }
        return 0;
    }
    char answer;
    begin();
    if (read(answers[0], &answer, 1) != 1) fail("getter");
    for (long n = 0; n < turns; n++) {
        key = base + n;
        memcpy(data, &key, sizeof key);
        data[size - 1] = (char)key;
        double begun = now();
        put(key, data, size);
        if (write(keys[1], &key, sizeof key) != sizeof key || read(answers[0], &answer, 1) != 1) fail("getter");
        printf("%.3f\n", now() - begun);
    }
    int status;
    waitpid(child, &status, 0);
    if (app && tidemill_app_flush(app)) fail("flush");
    return status != 0;
}
