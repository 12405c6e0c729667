/* map: converts text to capital letters. A map may change its slice in place. */
#include <ctype.h>
#include <stdlib.h>
#include <unistd.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

void tidemill_map(void *buf, size_t size, int fd)
{
    char *text = buf;
    for (size_t i = 0; i < size; i++)
        text[i] = (char)toupper((unsigned char)text[i]);
    while (size > 0) {
        ssize_t count = write(fd, text, size);
        if (count < 0)
            exit(1);
        text += count, size -= (size_t)count;
    }
}
