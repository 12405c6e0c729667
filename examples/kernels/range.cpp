// fold: smallest and largest f64 value, as two raw f64. NaN values are skipped.
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

struct range { double min, max; };
TIDEMILL_PLAIN_STATE(struct range);
static range all = { __builtin_inf(), -__builtin_inf() };

static int take(const double *values, size_t count)
{
    for (const double *value = values; value < values + count; value++) {
        if (*value < all.min) all.min = *value;
        if (*value > all.max) all.max = *value;
    }
    return 0;
}

void *tidemill_fold_init(const tidemill_task *) { return &all; }

int tidemill_fold_update(void *, size_t, uint64_t, const void *data, size_t size)
{
    return take(static_cast<const double *>(data), size / sizeof(double));
}

int tidemill_fold_merge(void *, const void *partial, size_t size)
{
    return size == sizeof all ? take(static_cast<const double *>(partial), 2) : 1;
}

int tidemill_fold_finish(void *state, const tidemill_task *task)
{
    return tidemill_write(task, 0, state, sizeof all) ? 1 : 0;
}
