/* Prints the task of a native kernel, and shows that the kernel is confined even while it is loaded. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

__attribute__((constructor)) static void on_load(void)
{
    if (socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EPERM)
        fputs("constructor: no network\n", stderr);
}

int start_kernel(const struct tidemill_task *task)
{
    char text[256];

    if (task->argc == 2 && strcmp(task->argv[1], "crash") == 0) {
        volatile uintptr_t nowhere = 8;
        *(volatile int *)nowhere = 1;
    }
    if (task->abi_version < TIDEMILL_ABI_VERSION || task->struct_size < sizeof *task)
        return 1;
    if (task->argc != 3 || task->argv[3] != NULL || task->write(task, 2, "", 0) != EINVAL)
        return 2;
    snprintf(text, sizeof text, "%s|%s|", task->argv[1], task->argv[2]);
    task->write(task, 0, text, strlen(text));
    for (size_t i = 0; i < task->input_count; i++) {
        if (task->inputs[i].data == NULL)
            return 3;
        snprintf(text, sizeof text, "%s=%d ", task->inputs[i].name, (int)task->inputs[i].size);
        task->write(task, 0, text, strlen(text));
        task->write(task, 1, task->inputs[i].data, task->inputs[i].size);
    }
    task->error(task, "a message");
    return 42;
}
