/* Shallow-water model that appends its surface to a file after every ten steps, in records of SIDE x SIDE floats.
 *
 *   model FILE SIDE RECORDS MILLISECONDS      MILLISECONDS: shortest time for a record, to imitate a larger model
 *
 * Linearised equations on a periodic C-grid (forward-backward in time). At the start there is a drop in the middle.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define AT(field, row, column) field[((row + side) % side) * (size_t)side + (column + side) % side]

static void step(float *height, float *east, float *north, int side) {
    const float speed = 0.3f;
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            AT(east, row, column) -= speed * (AT(height, row, column + 1) - AT(height, row, column));
            AT(north, row, column) -= speed * (AT(height, row + 1, column) - AT(height, row, column));
        }
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++)
            AT(height, row, column) -= speed * (AT(east, row, column) - AT(east, row, column - 1) + AT(north, row, column) -
                                                AT(north, row - 1, column));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **argument) {
    if (count != 5) return fprintf(stderr, "usage: model FILE SIDE RECORDS MILLISECONDS\n"), 2;
    int side = atoi(argument[2]), records = atoi(argument[3]);
    double pause = atof(argument[4]) / 1000;
    size_t cells = (size_t)side * side;
    float *height = calloc(cells, sizeof *height), *east = calloc(cells, sizeof *east), *north = calloc(cells, sizeof *north);
    FILE *file = fopen(argument[1], "wb");
    if (!height || !east || !north || !file) return perror(argument[1]), 1;
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            float away = hypotf(row - side / 2.f, column - side / 2.f) / (side / 20.f);
            height[row * (size_t)side + column] = expf(-away * away);
        }
    for (int record = 0; record < records; record++) {
        double begun = now();
        for (int inner = 0; inner < 10; inner++) step(height, east, north, side);
        if (fwrite(height, sizeof *height, cells, file) != cells || fflush(file)) return perror(argument[1]), 1;
        double left = begun + pause - now();
        if (left > 0) nanosleep(&(struct timespec){(time_t)left, (long)(fmod(left, 1) * 1e9)}, NULL);
    }
    if (fclose(file)) return perror(argument[1]), 1;
    return 0;
}
