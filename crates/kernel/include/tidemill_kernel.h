/* The interface of kernels in C and C++, version 2.
 *
 * A kernel is a shared object (.so) or a WebAssembly module (.wasm) with one of these forms; if it has more, the
 * first of them is used:
 *
 *   start   start_kernel                    is called once with all inputs in memory (AnalyzeThis)
 *   fold    tidemill_fold_init, _update,    is fed pieces and puts partial states together, so that it runs on
 *           _merge, _state, _finish         whole files, on stripes and on several elements alike
 *   map     tidemill_map, or func           is called for one slice after the other (Active Burst-Buffer, III-D);
 *                                           shared objects only
 *
 * It runs in a confined process of its own: no network, no files but the task's own, bounded time, memory and
 * output. It may crash; that is the task's failure and nobody else's. A shared object may use threads and
 * libraries of the host. A module reaches nothing but what this file names.
 *
 *   cc -O2 -shared -fPIC -I <this folder> -o kernel.so kernel.c
 *   clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry,--export-dynamic -I <this folder> -o kernel.wasm kernel.c
 *
 * or, for either, `tidemill kernel build kernel.c`.
 *
 * Licence: Apache-2.0 OR MIT.
 */
#ifndef TIDEMILL_KERNEL_H
#define TIDEMILL_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIDEMILL_ABI_VERSION 2

/* Since version 2: pieces of a fold begin at multiples of this, in bytes, of their input, and all but the last of
 * an input are multiples of this long. So values of 1, 2, 4, … 4096 bytes are never cut. */
#define TIDEMILL_PIECE_ALIGN 4096

/* Since version 2: the length, in bytes, of all slices of a map but the last of each input. */
#define TIDEMILL_SLICE_BYTES (4 << 20)

/* An input: the whole file in memory, to be read. */
struct tidemill_input {
    const char *name; /* its name in the job script */
    const void *data; /* never null; page aligned if the size is not 0 (modules: 16 bytes) */
    uint64_t size;    /* in bytes */
};

/* An output: an empty file, open to be written. */
struct tidemill_output {
    const char *name; /* its name in the job script */
    int fd;           /* do not close (modules: not to be used) */
};

struct tidemill_task {
    uint32_t abi_version; /* of the program; at least the kernel's */
    uint32_t struct_size; /* of this structure, in bytes; later versions only append to it */

    int argc;                /* arguments, the kernel's path first */
    const char *const *argv; /* argc strings, then a null pointer */

    size_t input_count; /* 0 in a fold, which gets its input in pieces */
    const struct tidemill_input *inputs;

    size_t output_count;
    const struct tidemill_output *outputs;

    /* Use tidemill_write and tidemill_error below instead: they work in modules too, where these are null. */
    int (*write)(const struct tidemill_task *task, size_t output, const void *data, size_t size);
    void (*error)(const struct tidemill_task *task, const char *message);
};

#if defined(__GNUC__)
#define TIDEMILL_EXPORT __attribute__((visibility("default")))
#else
#define TIDEMILL_EXPORT
#endif

#if defined(__wasm__)
#define TIDEMILL_IMPORT(name) __attribute__((import_module("tidemill"), import_name(name)))
TIDEMILL_IMPORT("write") int tidemill_import_write(size_t output, const void *data, size_t size);
TIDEMILL_IMPORT("error") void tidemill_import_error(const char *message, size_t size);
#endif

/* Appends size bytes to an output; without any, output 0 is standard output. Returns 0, or an errno value. */
static inline int tidemill_write(const struct tidemill_task *task, size_t output, const void *data, size_t size)
{
#if defined(__wasm__)
    (void)task;
    return tidemill_import_write(output, data, size);
#else
    return task->write(task, output, data, size);
#endif
}

/* Shows a message to the user who runs the job. */
static inline void tidemill_error(const struct tidemill_task *task, const char *message)
{
#if defined(__wasm__)
    size_t size = 0;
    (void)task;
    while (message[size])
        size++;
    tidemill_import_error(message, size);
#else
    task->error(task, message);
#endif
}

/* ---- Other bytes of the inputs, for a task that says `whole = true`; not in modules. Programs may use it, too. It needs files of the
 * C library, so define TIDEMILL_WHOLE before this file is included.
 *
 * Reads up to size bytes of an input, by its name in the job script, from offset of the whole file on, whatever of it the kernel finds as
 * a file: from this element or, through it, from another one. Returns how many were read, fewer only at the end of the file and beyond
 * TIDEMILL_READ_BYTES, or an errno value, negative: -ENOSYS if the task does not say so, -ENOENT for what is no input, -EIO for bytes that
 * can't be had now. By one thread at a time. */
#if defined(TIDEMILL_WHOLE) && !defined(__wasm__)
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Most bytes that are read at once. */
#define TIDEMILL_READ_BYTES (4 << 20)

static inline int64_t tidemill_read(const char *input, uint64_t offset, void *data, size_t size)
{
    const char *pipes = getenv("TIDEMILL_READ");
    char text[4200];
    int64_t count = 0, have = 0;
    int length, ask = -1, answer = -1;
    if (!pipes)
        return -ENOSYS;
    if (snprintf(text, sizeof text, "%s.answer", pipes) < (int)sizeof text)
        answer = open(text, O_RDONLY | O_CLOEXEC);
    if (snprintf(text, sizeof text, "%s.ask", pipes) < (int)sizeof text)
        ask = open(text, O_WRONLY | O_CLOEXEC);
    length = snprintf(text, sizeof text, "%" PRIu64 " %zu %s\n", offset, size, input);
    if (ask < 0 || answer < 0)
        count = -EIO;
    else if (length < 0 || length > 4096)
        count = -EINVAL;
    else if (write(ask, text, (size_t)length) != length)
        count = -EIO;
    if (ask >= 0)
        close(ask);
    for (length = 0; count == 0 && length < (int)sizeof text - 1; length++)
        if (read(answer, text + length, 1) != 1)
            count = -EIO;
        else if (text[length] == '\n')
            break;
    if (count == 0) {
        text[length] = 0;
        count = strtoll(text, NULL, 10);
    }
    while (have < count) {
        ssize_t got = read(answer, (char *)data + have, (size_t)(count - have));
        if (got <= 0) {
            count = -EIO;
            break;
        }
        have += got;
    }
    if (answer >= 0)
        close(answer);
    return count;
}
#endif

/* ---- Start. All that the task points to stays valid until it returns. Returns 0 when all went well, else an exit
 * code from 1 to 255. */
TIDEMILL_EXPORT int start_kernel(const struct tidemill_task *task);

/* ---- Fold, since version 2.
 *
 * A fold must keep this law: the result does not depend on how the input was cut, in which order the pieces came,
 * nor on what was merged with what. `tidemill kernel test --law` tries it.
 *
 * Memory: the state belongs to the kernel. The program keeps the pointer that init returned, hands it back, and
 * looks no further. It makes one state in a process, so that may be a static variable; tidemill_fold_state or
 * tidemill_fold_finish is its last use. What else the program hands over (data, partial, task)
 * is the program's and valid during the call; the task of init stays valid as long as the state. All but init
 * return 0 when all went well, else an exit code from 1 to 255. Calls come one after the other. */

/* Makes an empty state for these arguments. Returns null if they are wrong, after tidemill_error. */
TIDEMILL_EXPORT void *tidemill_fold_init(const struct tidemill_task *task);

/* Takes in a piece, which begins at offset bytes of input number `input`, counted from 0. */
TIDEMILL_EXPORT int tidemill_fold_update(void *state, size_t input, uint64_t offset, const void *data, size_t size);

/* Writes the state as bytes to output 0 by tidemill_write. They must mean the same on every machine: little-endian,
 * no pointers. The program adds what ties them to this kernel and its arguments. */
TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task);

/* Takes in what tidemill_fold_state wrote for other pieces, for the same arguments, perhaps on another machine. */
TIDEMILL_EXPORT int tidemill_fold_merge(void *state, const void *partial, size_t size);

/* Writes the result. */
TIDEMILL_EXPORT int tidemill_fold_finish(void *state, const struct tidemill_task *task);

/* Writes tidemill_fold_state for a state that is a structure without pointers and padding: its own bytes. */
#define TIDEMILL_PLAIN_STATE(type) \
    TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task) \
    { \
        return tidemill_write(task, 0, state, sizeof(type)) ? 1 : 0; \
    } \
    TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task)

/* ---- Map, since version 2: the form of Active Burst-Buffer (III-D), there called func.
 *
 * Called for each slice in order: all of the first input, then all of the next. A slice is TIDEMILL_SLICE_BYTES
 * long, the last of an input what is left; none spans two inputs. buf is page aligned and may be changed. What is
 * written to fd goes to the task's output, which can be one at most; without it fd is standard output. It cannot
 * fail other than by exit(3). */
TIDEMILL_EXPORT void tidemill_map(void *buf, size_t size, int fd);

/* ---- Modules export their memory, and this, which returns size bytes aligned to 16 that stay the program's, or
 * null. In C the macro below makes one that never gives memory back. */
#if defined(__wasm__)
TIDEMILL_EXPORT void *tidemill_alloc(size_t size);
extern unsigned char __heap_base;
#define TIDEMILL_ALLOC \
    TIDEMILL_EXPORT void *tidemill_alloc(size_t size) \
    { \
        static uintptr_t next; \
        uintptr_t begin = ((next ? next : (uintptr_t)&__heap_base) + 15) & ~(uintptr_t)15; \
        uintptr_t have = __builtin_wasm_memory_size(0) << 16; \
        if (begin + size < begin) \
            return NULL; \
        if (begin + size > have && __builtin_wasm_memory_grow(0, (begin + size - have + 65535) >> 16) == (size_t)-1) \
            return NULL; \
        next = begin + size; \
        return (void *)begin; \
    }
#else
#define TIDEMILL_ALLOC
#endif

/* Put this once into the kernel's source, so that a program too old for it says so. */
#define TIDEMILL_KERNEL \
    TIDEMILL_ALLOC \
    TIDEMILL_EXPORT extern const uint32_t tidemill_kernel_abi_version; \
    const uint32_t tidemill_kernel_abi_version = TIDEMILL_ABI_VERSION

#ifdef __cplusplus
}
#endif

#endif
