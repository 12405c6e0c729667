/* The interface of kernels in C and C++, version 1.
 *
 * A kernel is a shared object (.so) or a WebAssembly module (.wasm) with one of these forms. If a kernel has several
 * forms, the first of this list is used:
 *
 *   start   start_kernel                    One call with all inputs in memory (AnalyzeThis).
 *   fold    tidemill_fold_init, _update,    One call for each piece; partial states are merged. So a fold runs on
 *           _merge, _state, _finish         whole files, on stripes and on several nodes.
 *   map     tidemill_map, or func           One call for each slice, in order (Active Burst-Buffer, III-D). Only for
 *                                           shared objects.
 *
 * A kernel runs in a confined process of its own: without network, with no files except those of its task, and with
 * bounded time, memory and output. If a kernel crashes, only its task fails. A shared object may use threads and
 * libraries of the host. A module can only use the functions of this file.
 *
 *   cc -O2 -shared -fPIC -I <this directory> -o kernel.so kernel.c
 *   clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry,--export-dynamic -I <this directory> -o kernel.wasm kernel.c
 *
 * `tidemill kernel build kernel.c` does either.
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

#define TIDEMILL_ABI_VERSION 1

/* Alignment of the pieces of a fold, in bytes. Each piece begins at a multiple of this number in its
 * input. The length of a piece is a multiple, too, except for the last piece of an input. So values of 1, 2, 4, … 4096
 * bytes are never cut. */
#define TIDEMILL_PIECE_ALIGN 4096

/* Length of the slices of a map, in bytes, except for the last slice of each input. */
#define TIDEMILL_SLICE_BYTES (4 << 20)

/* Input: the whole file in memory, for reading. */
struct tidemill_input {
    const char *name; /* name in the job script */
    const void *data; /* never null; page aligned if the size is not 0 (modules: 16 bytes) */
    uint64_t size;    /* in bytes */
};

/* Output: an empty file, open for writing. */
struct tidemill_output {
    const char *name; /* name in the job script */
    int fd;           /* do not close it; modules must not use it */
};

struct tidemill_task {
    uint32_t abi_version; /* version of the program, at least the version of the kernel */
    uint32_t struct_size; /* size of this structure in bytes; later versions only append fields */

    int argc;                /* number of arguments, with the kernel's path first */
    const char *const *argv; /* argc strings, then a null pointer */

    size_t input_count; /* 0 in a fold, as a fold gets its input in pieces */
    const struct tidemill_input *inputs;

    size_t output_count;
    const struct tidemill_output *outputs;

    /* Use tidemill_write and tidemill_error below instead: these pointers are null in modules. */
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

/* Appends `size` bytes to an output. If the task has no outputs, output 0 is standard output. Returns 0, or an errno value. */
static inline int tidemill_write(const struct tidemill_task *task, size_t output, const void *data, size_t size)
{
#if defined(__wasm__)
    (void)task;
    return tidemill_import_write(output, data, size);
#else
    return task->write(task, output, data, size);
#endif
}

/* Shows a message to the user of the job. */
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

/* ---- Other bytes of the inputs, for tasks with `access = "full"`. Shared objects and programs can use this function; modules can't.
 * Define TIDEMILL_FULL_ACCESS before you include this file, as the function needs headers of the C library.
 *
 * Reads up to `size` bytes from `offset` of the whole input file, even if the kernel sees only a part as its file. The name of the input
 * is that of the job script. The bytes come from this node or, through this node, from another node. Returns the number of bytes,
 * which is smaller only at the end of the file and for sizes above TIDEMILL_READ_BYTES; or a negative errno value: -ENOSYS without
 * `access = "full"`, -ENOENT for an unknown input, -EIO for bytes that are unavailable now. Call it from one thread at a time. */
#if defined(TIDEMILL_FULL_ACCESS) && !defined(__wasm__)
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Maximum number of bytes of one read. */
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

/* ---- Start. All pointers in the task stay valid until the function returns. Returns 0 for success, else an exit code
 * from 1 to 255. */
TIDEMILL_EXPORT int start_kernel(const struct tidemill_task *task);

/* ---- Fold.
 *
 * A fold must have merge invariance: the result does not depend on the cuts of the input, on the order of the pieces, or on the
 * order of merges. `tidemill kernel test --merge-invariance` tests this.
 *
 * Memory: the state belongs to the kernel. The program keeps the pointer of init and passes it to later calls, and never
 * reads the state. A process has one state, so the state may be a static variable. Its last use is tidemill_fold_state or
 * tidemill_fold_finish. The other arguments (data, partial, task) belong to the program and are valid during the call; the
 * task of init is valid as long as the state. All functions except init return 0 for success, else an exit code from 1 to
 * 255. The program never makes two calls at the same time. */

/* Makes an empty state for the arguments of the task. If these are wrong, it calls tidemill_error and returns null. */
TIDEMILL_EXPORT void *tidemill_fold_init(const struct tidemill_task *task);

/* Adds a piece to the state. The piece begins at byte `offset` of input number `input`, counted from 0. */
TIDEMILL_EXPORT int tidemill_fold_update(void *state, size_t input, uint64_t offset, const void *data, size_t size);

/* Writes the state as bytes to output 0 by tidemill_write. The bytes must mean the same on every machine: little-endian,
 * without pointers. The program adds data that bind the bytes to this kernel and its arguments. */
TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task);

/* Merges the bytes that tidemill_fold_state wrote for other pieces, with the same arguments, perhaps on another machine. */
TIDEMILL_EXPORT int tidemill_fold_merge(void *state, const void *partial, size_t size);

/* Writes the result. */
TIDEMILL_EXPORT int tidemill_fold_finish(void *state, const struct tidemill_task *task);

/* Defines tidemill_fold_state for a state that is a structure without pointers and padding: it writes the bytes of the
 * structure. */
#define TIDEMILL_PLAIN_STATE(type) \
    TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task) \
    { \
        return tidemill_write(task, 0, state, sizeof(type)) ? 1 : 0; \
    } \
    TIDEMILL_EXPORT int tidemill_fold_state(void *state, const struct tidemill_task *task)

/* ---- Map: the form of Active Burst-Buffer (III-D), which calls it func.
 *
 * The program calls the function for each slice in order: all slices of the first input, then all slices of the next.
 * A slice has TIDEMILL_SLICE_BYTES bytes; the last slice of an input has the remaining bytes. No slice spans two inputs.
 * `buf` is page aligned, and the function may change it. `fd` is the task's output, or standard output if the task has no
 * output; a task can have one output at most. The function can only fail by exit(3). */
TIDEMILL_EXPORT void tidemill_map(void *buf, size_t size, int fd);

/* ---- Modules export their memory and this function. It returns `size` bytes, aligned to 16, which then belong to the
 * program, or null. For C, the macro below defines a function that never frees memory. */
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

/* Put this macro once into the kernel's source, so that programs that are too old for the kernel refuse it. */
#define TIDEMILL_KERNEL \
    TIDEMILL_ALLOC \
    TIDEMILL_EXPORT extern const uint32_t tidemill_kernel_abi_version; \
    const uint32_t tidemill_kernel_abi_version = TIDEMILL_ABI_VERSION

#ifdef __cplusplus
}
#endif

#endif
