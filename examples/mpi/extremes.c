/* Hook with MPI that finds the smallest double of a file, the largest and the mean. Each rank reads its share of the file, and rank 0
 * writes the common result.
 *
 *   mpicc -shared -fPIC -o extremes.so extremes.c
 *   cp extremes.so ~/cluster/lib/
 *   tidemill rule create '/run/*.f64' --mpi --map /lib/extremes.so --result 'extremes/{stem}.txt'
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT = 65536 };

void func(int in_fd, int out_fd, MPI_Comm comm)
{
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);

    struct stat file;
    if (fstat(in_fd, &file) != 0)
        MPI_Abort(comm, 1);
    long values = file.st_size / (long)sizeof(double);
    long at = values * rank / ranks, end = values * (rank + 1) / ranks;

    static double read_values[COUNT];
    double low = 1e300, high = -1e300, sum = 0;
    while (at < end) {
        long count = end - at < COUNT ? end - at : COUNT;
        ssize_t got = pread(in_fd, read_values, count * sizeof(double), at * sizeof(double));
        if (got <= 0) {
            fprintf(stderr, "rank %d can't read on at value %ld\n", rank, at);
            MPI_Abort(comm, 1);
        }
        long found = got / (long)sizeof(double);
        for (long i = 0; i < found; i++) {
            low = read_values[i] < low ? read_values[i] : low;
            high = read_values[i] > high ? read_values[i] : high;
            sum += read_values[i];
        }
        at += found;
    }

    double all_low, all_high, all_sum;
    MPI_Reduce(&low, &all_low, 1, MPI_DOUBLE, MPI_MIN, 0, comm);
    MPI_Reduce(&high, &all_high, 1, MPI_DOUBLE, MPI_MAX, 0, comm);
    MPI_Reduce(&sum, &all_sum, 1, MPI_DOUBLE, MPI_SUM, 0, comm);
    if (rank == 0)
        dprintf(out_fd, "%g %g %g\n", all_low, all_high, values ? all_sum / values : 0);
}
