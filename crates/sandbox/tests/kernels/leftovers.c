/* Searches for data of earlier runs: looks for a text in all writable memory of its process. The argument is the reversed text,
 * so that the arguments of this run don't match. */
#include <stdio.h>
#include <string.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

static char text[256];

int start_kernel(const struct tidemill_task *task)
{
    char line[512], rights[8];
    unsigned long from, to, found = 0;
    const char *given = task->argv[1];
    size_t length = strlen(given);
    FILE *maps = fopen("/proc/self/maps", "r");

    if (maps == NULL || length >= sizeof text)
        return 1;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || strncmp(rights, "rw", 2) != 0)
            continue;
        for (const char *at = (const char *)from; at + length <= (const char *)to; at++) {
            size_t i = 0;
            while (i < length && at[i] == given[length - 1 - i])
                i++;
            found += i == length;
        }
    }
    fclose(maps);
    snprintf(text, sizeof text, "%lu\n", found);
    task->write(task, 0, text, strlen(text));
    return 0;
}
