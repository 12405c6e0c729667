/* Prints the runtime environment of a kernel: open descriptors, the environment, blocked and ignored signals. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <tidemill_kernel.h>
#include <unistd.h>

TIDEMILL_KERNEL;

int start_kernel(const struct tidemill_task *task)
{
    (void)task;
    printf("descriptors");
    for (int fd = 0; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf(" %d", fd);
    printf("\nvariables");
    for (char **variable = environ; *variable; variable++)
        printf(" %.*s", (int)strcspn(*variable, "="), *variable);
    printf("\nsignals");
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int number = 1; number < 32; number++) {
        struct sigaction action;
        if (sigismember(&blocked, number) == 1)
            printf(" blocked:%d", number);
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN && number != SIGPIPE)
            printf(" ignored:%d", number);
    }
    printf("\nids %d %d %d\n", (int)getuid(), (int)geteuid(), (int)getgid());
    printf("leader %d\n", getsid(0) == getpid() && getpgrp() == getpid());
    printf("dumpable %d\n", prctl(PR_GET_DUMPABLE));
    return 0;
}
