/* Prints a line for each slice of a map, with its size and its first byte, and then changes that byte. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

void tidemill_map(void *buf, size_t size, int fd)
{
    char *bytes = buf;
    dprintf(fd, "%zu %c%s\n", size, bytes[0], (uintptr_t)buf % 4096 ? " not aligned" : "");
    for (size_t i = 0; i < size; i++)
        bytes[i] = '!';
}
