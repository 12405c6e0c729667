/* getmax: largest number of the inputs, which are raw arrays of doubles. NaN values are skipped. The
 * result is one raw double, which the next kernel can read. */
#include <math.h>
#include <tidemill_kernel.h>

TIDEMILL_KERNEL;

int start_kernel(const struct tidemill_task *task)
{
    double max = -INFINITY;
    uint64_t count = 0;

    if (task->output_count != 1) {
        task->error(task, "getmax: the task must name one output");
        return 2;
    }
    for (size_t i = 0; i < task->input_count; i++) {
        const struct tidemill_input *input = &task->inputs[i];
        const double *values = input->data;
        uint64_t length = input->size / sizeof *values;

        if (input->size % sizeof *values != 0) {
            task->error(task, "getmax: an input is no whole number of doubles");
            return 2;
        }
        for (uint64_t j = 0; j < length; j++)
            if (values[j] > max)
                max = values[j];
        count += length;
    }
    if (count == 0) {
        task->error(task, "getmax: the inputs hold no numbers");
        return 1;
    }
    return task->write(task, 0, &max, sizeof max) == 0 ? 0 : 1;
}
