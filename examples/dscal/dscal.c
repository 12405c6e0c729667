/* Multiplies all numbers of a file (doubles in the byte order of the machine) by a scalar: dscal INPUT OUTPUT SCALAR.
 * The program has no knowledge of stripes, nodes or clusters. */
#include <stdio.h>
#include <stdlib.h>

#define COUNT (128 * 1024)

static double numbers[COUNT];

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s INPUT OUTPUT SCALAR\n", argv[0]);
        return 2;
    }
    double scalar = strtod(argv[3], NULL);
    FILE *input = fopen(argv[1], "rb");
    FILE *output = fopen(argv[2], "wb");
    if (!input || !output) {
        perror(input ? argv[2] : argv[1]);
        return 1;
    }
    size_t count;
    while ((count = fread(numbers, sizeof *numbers, COUNT, input)) > 0) {
        for (size_t i = 0; i < count; i++)
            numbers[i] *= scalar;
        if (fwrite(numbers, sizeof *numbers, count, output) != count)
            break;
    }
    if (ferror(input) || ferror(output) || fclose(output) != 0) {
        perror("dscal");
        return 1;
    }
    return 0;
}
