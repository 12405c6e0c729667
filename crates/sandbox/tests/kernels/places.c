/* Fold whose result depends on the place of each byte: the sum of byte * (place + 1) * (input + 1) * the argument, modulo
 * 2^64. A piece that is not aligned is an error. */
#include <stdlib.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

struct sum { uint64_t sum, factor; };
static struct sum all;

void *tidemill_fold_init(const struct tidemill_task *task)
{
    if (task->argc != 2 || task->input_count != 0) {
        tidemill_error(task, "places: one argument, a factor");
        return NULL;
    }
    all.factor = strtoull(task->argv[1], NULL, 10);
    return &all;
}

int tidemill_fold_update(void *state, size_t input, uint64_t offset, const void *data, size_t size)
{
    struct sum *sum = state;
    const unsigned char *bytes = data;
    if (offset % TIDEMILL_PIECE_ALIGN)
        return 3;
    for (size_t i = 0; i < size; i++)
        sum->sum += bytes[i] * (offset + i + 1) * (input + 1) * sum->factor;
    return 0;
}

int tidemill_fold_merge(void *state, const void *partial, size_t size)
{
    if (size != sizeof(uint64_t))
        return 4;
    ((struct sum *)state)->sum += *(const uint64_t *)__builtin_memcpy(&(uint64_t){ 0 }, partial, size);
    return 0;
}

int tidemill_fold_state(void *state, const struct tidemill_task *task)
{
    return tidemill_write(task, 0, &((struct sum *)state)->sum, sizeof(uint64_t)) ? 5 : 0;
}

int tidemill_fold_finish(void *state, const struct tidemill_task *task)
{
    return tidemill_fold_state(state, task);
}
