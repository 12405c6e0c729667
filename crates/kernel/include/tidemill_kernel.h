/* The interface of native kernels, version 1.
 *
 * A native kernel is a shared object with the function start_kernel. It is loaded and called in a confined
 * process of its own: no network, no files but the task's own, bounded time, memory and output. It may
 * use threads and libraries of the host, and crash; that is the task's failure and nobody else's.
 *
 * Build one with:  cc -O2 -shared -fPIC -I <this folder> -o kernel.so kernel.c
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

/* An input: the whole file, mapped into memory to be read. */
struct tidemill_input {
    const char *name; /* its name in the job script */
    const void *data; /* never null; page aligned if the size is not 0 */
    uint64_t size;    /* in bytes */
};

/* An output: an empty file, open to be written. */
struct tidemill_output {
    const char *name; /* its name in the job script */
    int fd;           /* do not close */
};

struct tidemill_task {
    uint32_t abi_version; /* of the program; at least the kernel's */
    uint32_t struct_size; /* of this structure, in bytes; later versions only append to it */

    int argc;                /* arguments, the kernel's path first */
    const char *const *argv; /* argc strings, then a null pointer */

    size_t input_count;
    const struct tidemill_input *inputs;

    size_t output_count;
    const struct tidemill_output *outputs;

    /* Appends size bytes to an output. Returns 0, or an errno value. */
    int (*write)(const struct tidemill_task *task, size_t output, const void *data, size_t size);

    /* Shows a message to the user who runs the job. */
    void (*error)(const struct tidemill_task *task, const char *message);
};

#if defined(__GNUC__)
#define TIDEMILL_EXPORT __attribute__((visibility("default")))
#else
#define TIDEMILL_EXPORT
#endif

/* The entry point. All that the task points to stays valid until it returns. Returns 0 when all went well,
 * else an exit code from 1 to 255. */
TIDEMILL_EXPORT int start_kernel(const struct tidemill_task *task);

/* Put this once into the kernel's source, so that a program too old for it says so. */
#define TIDEMILL_KERNEL TIDEMILL_EXPORT extern const uint32_t tidemill_kernel_abi_version; \
    TIDEMILL_EXPORT const uint32_t tidemill_kernel_abi_version = TIDEMILL_ABI_VERSION

#ifdef __cplusplus
}
#endif

#endif
