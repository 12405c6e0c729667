/* Shallow-water model of a small rotating sea. It writes its state into a new netCDF file every few steps.
 *
 *   model DIRECTORY SIDE FILES STEPS MILLISECONDS
 *
 * The model writes DIRECTORY/sea-0001.nc and so on, after every STEPS steps of 20 s, with SIDE x SIDE cells of 5 km. MILLISECONDS is the
 * shortest time for a file, to imitate a larger model. At the start, the water has a mound and a hollow.
 *
 * The model computes the depth and two velocities with rotation, in vector-invariant form, on a periodic C-grid, forward-backward in time:
 * first the depths, then the velocities from the new depths. All water that leaves a cell enters its neighbour, so no water is lost. The
 * files are netCDF classic (CDF-1), which this program writes byte by byte.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double GRAVITY = 9.81, ROTATION = 1e-4, CELL_M = 5000, STEP_S = 20, DEPTH_M = 500, VISCOSITY = 500;

static int side;
static double *surface, *east, *north, *vorticity, *energy;

static size_t at(int row, int column) { return (size_t)((row + side) % side) * side + (column + side) % side; }

static double depth(int row, int column) { return DEPTH_M + surface[at(row, column)]; }

/* Flows through the east and north faces of each cell. */
static double flow_east(int row, int column) { return east[at(row, column)] * (depth(row, column) + depth(row, column + 1)) / 2; }
static double flow_north(int row, int column) { return north[at(row, column)] * (depth(row, column) + depth(row + 1, column)) / 2; }

static double spread(const double *field, int row, int column) {
    return field[at(row + 1, column)] + field[at(row - 1, column)] + field[at(row, column + 1)] + field[at(row, column - 1)] - 4 * field[at(row, column)];
}

static double squares(double one, double other) { return (one * one + other * other) / 4; }

static void step(double *flows, double *new_east, double *new_north) {
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            flows[at(row, column)] = flow_east(row, column - 1) - flow_east(row, column) + flow_north(row - 1, column) - flow_north(row, column);
            /* The vorticity is that of the north-east corner. */
            vorticity[at(row, column)] = (north[at(row, column + 1)] - north[at(row, column)] - east[at(row + 1, column)] + east[at(row, column)]) / CELL_M;
        }
    for (size_t cell = 0; cell < (size_t)side * side; cell++) surface[cell] += STEP_S / CELL_M * flows[cell];
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++)
            energy[at(row, column)] = GRAVITY * surface[at(row, column)] + squares(east[at(row, column)], east[at(row, column - 1)]) +
                                      squares(north[at(row, column)], north[at(row - 1, column)]);
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            size_t here = at(row, column);
            double across = (north[here] + north[at(row, column + 1)] + north[at(row - 1, column)] + north[at(row - 1, column + 1)]) / 4;
            double along = (east[here] + east[at(row + 1, column)] + east[at(row, column - 1)] + east[at(row + 1, column - 1)]) / 4;
            double turn_east = ROTATION + (vorticity[here] + vorticity[at(row - 1, column)]) / 2;
            double turn_north = ROTATION + (vorticity[here] + vorticity[at(row, column - 1)]) / 2;
            double smooth = VISCOSITY / (CELL_M * CELL_M);
            new_east[here] = east[here] + STEP_S * (turn_east * across - (energy[at(row, column + 1)] - energy[here]) / CELL_M + smooth * spread(east, row, column));
            new_north[here] = north[here] + STEP_S * (-turn_north * along - (energy[at(row + 1, column)] - energy[here]) / CELL_M + smooth * spread(north, row, column));
        }
    memcpy(east, new_east, sizeof *east * side * side);
    memcpy(north, new_north, sizeof *north * side * side);
}

static void number(FILE *file, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) fputc(value >> shift & 255, file);
}

static void real(FILE *file, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    number(file, bits);
}

/* Names and texts are padded to four bytes. */
static void text(FILE *file, const char *value) {
    size_t length = strlen(value);
    number(file, length);
    fputs(value, file);
    for (; length % 4; length++) fputc(0, file);
}

enum { DIMENSIONS = 10, VARIABLES = 11, ATTRIBUTES = 12, CHARACTERS = 2, FLOATS = 5 };

static const char *const FIELDS[3][3] = {{"surface", "m", "height of the surface above rest"}, {"east", "m s-1", "velocity to the east"},
                                         {"north", "m s-1", "velocity to the north"}};

/* `begin`: offset of the values of the first variable. */
static void header(FILE *file, double seconds, uint32_t begin) {
    uint32_t size = 4 * side * side;
    fputs("CDF\1", file);
    number(file, 0); /* records */
    number(file, DIMENSIONS), number(file, 2);
    text(file, "y"), number(file, side);
    text(file, "x"), number(file, side);
    number(file, ATTRIBUTES), number(file, 2);
    text(file, "seconds"), number(file, FLOATS), number(file, 1), real(file, seconds);
    text(file, "source"), number(file, CHARACTERS), text(file, "examples/shallow-water");
    number(file, VARIABLES), number(file, 3);
    for (int field = 0; field < 3; field++) {
        text(file, FIELDS[field][0]);
        number(file, 2), number(file, 0), number(file, 1);
        number(file, ATTRIBUTES), number(file, 2);
        text(file, "units"), number(file, CHARACTERS), text(file, FIELDS[field][1]);
        text(file, "long_name"), number(file, CHARACTERS), text(file, FIELDS[field][2]);
        number(file, FLOATS), number(file, size), number(file, begin + field * size);
    }
}

/* Length of the header, which does not depend on its contents. */
static uint32_t header_size(void) {
    char *memory;
    size_t size;
    FILE *draft = open_memstream(&memory, &size);
    if (!draft) return 0;
    header(draft, 0, 0);
    fclose(draft);
    free(memory);
    return size;
}

static int put(const char *directory, int count, double seconds) {
    char path[4096];
    uint32_t begin = header_size();
    snprintf(path, sizeof path, "%s/sea-%04d.nc", directory, count);
    FILE *file = fopen(path, "wb");
    if (!file || !begin) return perror(path), 1;
    header(file, seconds, begin);
    const double *fields[3] = {surface, east, north};
    for (int field = 0; field < 3; field++)
        for (size_t cell = 0; cell < (size_t)side * side; cell++) real(file, fields[field][cell]);
    int bad = ferror(file);
    if (fclose(file) || bad) return perror(path), 1;
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **argument) {
    if (count != 6) return fprintf(stderr, "usage: model DIRECTORY SIDE FILES STEPS MILLISECONDS\n"), 2;
    side = atoi(argument[2]);
    int files = atoi(argument[3]), steps = atoi(argument[4]);
    double pause = atof(argument[5]) / 1000;
    double *fields = calloc(8 * (size_t)side * side, sizeof *fields);
    if (side < 4 || side > 8192 || !fields) return fprintf(stderr, "model: SIDE is from 4 to 8192\n"), 2;
    size_t cells = (size_t)side * side;
    surface = fields, east = fields + cells, north = fields + 2 * cells, vorticity = fields + 3 * cells, energy = fields + 4 * cells;
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            double mound = hypot(row - side * 0.6, column - side * 0.4) / (side / 16.), hollow = hypot(row - side * 0.35, column - side * 0.65) / (side / 12.);
            surface[at(row, column)] = 20 * exp(-mound * mound) - 10 * exp(-hollow * hollow);
        }
    for (int file = 1; file <= files; file++) {
        double begun = now();
        for (int inner = 0; inner < steps; inner++) step(fields + 5 * cells, fields + 6 * cells, fields + 7 * cells);
        if (put(argument[1], file, STEP_S * steps * file)) return 1;
        double left = begun + pause - now();
        if (left > 0) nanosleep(&(struct timespec){(time_t)left, (long)(fmod(left, 1) * 1e9)}, NULL);
    }
    free(fields);
    return 0;
}
