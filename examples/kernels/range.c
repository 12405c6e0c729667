/* fold: smallest and largest f64 value, as two raw f64. NaN values are skipped. */
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

struct range { double min, max; };
TIDEMILL_PLAIN_STATE(struct range);
static struct range all = { __builtin_inf(), -__builtin_inf() };

static int take(const double *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] < all.min) all.min = values[i];
        if (values[i] > all.max) all.max = values[i];
    }
    return 0;
}

void *tidemill_fold_init(const struct tidemill_task *task) { (void)task; return &all; }

int tidemill_fold_update(void *state, size_t input, uint64_t offset, const void *data, size_t size)
{
    (void)state, (void)input, (void)offset;
    return take(data, size / sizeof(double));
}

int tidemill_fold_merge(void *state, const void *partial, size_t size)
{
    (void)state;
    return size == sizeof all ? take(partial, 2) : 1;
}

int tidemill_fold_finish(void *state, const struct tidemill_task *task)
{
    return tidemill_write(task, 0, state, sizeof all) ? 1 : 0;
}
