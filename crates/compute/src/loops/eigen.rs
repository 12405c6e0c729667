//! Eigenvalues and eigenvectors of a symmetric matrix without negative eigenvalues, by one-sided Jacobi rotations (Hestenes, "Inversion of
//! Matrices by Biorthogonalization and Related Results", 1958). Rows of the matrix are rotated in pairs until any two rows are orthogonal.
//! Then the lengths of the rows are the eigenvalues, and their directions the eigenvectors. The order of all operations is fixed, so
//! results do not depend on the processor.

use super::simd::{Level, SimdPass, run};

/// Maximum number of sweeps over all pairs of rows; about ten sweeps are needed.
const SWEEPS_MAX: usize = 60;

/// Number of independent partial sums in a product of two rows.
const LANES: usize = 8;

/// Returns the eigenvalues, the largest first, and their eigenvectors of length 1, one after the other. In each eigenvector, the number
/// that is farthest from 0 (of equally far numbers the first) is positive. `matrix` is row-major and contains both its halves.
pub(crate) fn eigen(level: Level, matrix: &[f64], size: usize) -> (Vec<f64>, Vec<f64>) {
    let largest = matrix
        .iter()
        .fold(0.0, |most: f64, value| most.max(value.abs()));
    if largest == 0.0 {
        return (vec![0.0; size], complete(Vec::new(), size));
    }
    // The scale keeps squares from underflow and overflow.
    let mut rows: Vec<f64> = matrix.iter().map(|value| value / largest).collect();
    for _ in 0..SWEEPS_MAX {
        if run(
            level,
            Sweep {
                rows: &mut rows,
                size,
            },
        ) {
            break;
        }
    }
    let length = |row: &[f64]| dot(row, row).sqrt();
    let mut order: Vec<_> = rows
        .chunks_exact(size)
        .map(|row| (length(row), row))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let values = order.iter().map(|(length, _)| length * largest).collect();
    // Rows that are shorter consist of rounding errors; their eigenvalue is 0.
    let least = order
        .first()
        .map_or(0.0, |(length, _)| length * f64::EPSILON * 1e-3);
    let long = order.iter().take_while(|(length, _)| *length > least);
    let vectors = long.flat_map(|(length, row)| row.iter().map(move |value| value / length));
    (values, complete(vectors.collect(), size))
}

/// Adds vectors that are orthogonal to all other vectors until there are `size` vectors, and sets the sign of each vector.
fn complete(mut vectors: Vec<f64>, size: usize) -> Vec<f64> {
    for axis in 0..size {
        if vectors.len() == size * size {
            break;
        }
        let mut vector = vec![0.0; size];
        vector[axis] = 1.0;
        // The step runs twice, because the first time leaves rounding errors of the subtracted parts.
        for _ in 0..2 {
            for known in vectors.chunks_exact(size) {
                let along = dot(known, &vector);
                vector
                    .iter_mut()
                    .zip(known)
                    .for_each(|(value, known)| *value -= along * known);
            }
        }
        let length = dot(&vector, &vector).sqrt();
        // At least one axis is as far from the known vectors as this; a nearer axis gives no good direction.
        #[allow(clippy::cast_precision_loss, reason = "sizes are small")]
        if length * length * 2.0 * size as f64 >= 1.0 {
            vectors.extend(vector.iter().map(|value| value / length));
        }
    }
    for vector in vectors.chunks_exact_mut(size) {
        let far = vector.iter().fold(
            0.0,
            |far: f64, value| if value.abs() > far.abs() { *value } else { far },
        );
        if far < 0.0 {
            vector.iter_mut().for_each(|value| *value = -*value);
        }
    }
    vectors
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (wholes, others) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in wholes.0.iter().zip(others.0) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest = wholes
        .1
        .iter()
        .zip(others.1)
        .fold(0.0, |sum, (a, b)| sum + a * b);
    sums.iter().fold(rest, |sum, lane| sum + lane)
}

/// Pass that rotates all pairs of rows once. Its result is whether all rows were orthogonal.
struct Sweep<'a> {
    rows: &'a mut [f64],
    size: usize,
}

impl SimdPass for Sweep<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let size = self.size;
        // Cosine of an angle that counts as a right angle: rounding errors of sums can reach it.
        #[allow(clippy::cast_precision_loss, reason = "sizes are small")]
        let right = f64::EPSILON * (size as f64 + 4.0);
        let mut done = true;
        for first in 0..size {
            let (before, behind) = self.rows.split_at_mut((first + 1) * size);
            let a = &mut before[first * size..];
            for b in behind.chunks_exact_mut(size) {
                let (aa, bb, ab) = (dot(a, a), dot(b, b), dot(a, b));
                // Longer rows are moved to the front, which reduces the number of sweeps.
                if ab.abs() <= right * aa.sqrt() * bb.sqrt() {
                    if aa < bb {
                        a.swap_with_slice(b);
                    }
                    continue;
                }
                done = false;
                let slope = (bb - aa) / (2.0 * ab);
                let tangent = slope.signum() / (slope.abs() + (1.0 + slope * slope).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                let sine = cosine * tangent;
                for (a, b) in a.iter_mut().zip(b.iter_mut()) {
                    (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
                }
                if aa - tangent * ab < bb + tangent * ab {
                    a.swap_with_slice(b);
                }
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a matrix without negative eigenvalues: a sum of products of vectors with themselves, with so few vectors that some
    /// eigenvalues may be 0.
    fn matrix(vectors: &[f64], size: usize) -> Vec<f64> {
        let mut matrix = vec![0.0; size * size];
        for vector in vectors.chunks_exact(size) {
            for row in 0..size {
                for column in 0..size {
                    matrix[row * size + column] += vector[row] * vector[column];
                }
            }
        }
        matrix
    }

    fn check(matrix: &[f64], size: usize) {
        let (values, vectors) = eigen(Level::best(), matrix, size);
        assert!(values.is_sorted_by(|a, b| a >= b));
        let scale = values[0].max(f64::MIN_POSITIVE);
        for (value, vector) in values.iter().zip(vectors.chunks(size)) {
            for row in 0..size {
                let image = dot(&matrix[row * size..][..size], vector);
                assert!(
                    (image - value * vector[row]).abs() <= 1e-13 * size as f64 * scale,
                    "{values:?}"
                );
            }
            let far = vector.iter().fold(
                0.0,
                |far: f64, x| if x.abs() > far.abs() { *x } else { far },
            );
            assert!(far > 0.0);
        }
        for (first, a) in vectors.chunks(size).enumerate() {
            for (second, b) in vectors.chunks(size).enumerate() {
                let wanted = f64::from(u8::from(first == second));
                assert!(
                    (dot(a, b) - wanted).abs() < 1e-12,
                    "{first} {second}: {}",
                    dot(a, b)
                );
            }
        }
        for level in Level::available() {
            assert!(eigen(level, matrix, size) == (values.clone(), vectors.clone()));
        }
    }

    #[test]
    fn eigen_handles_singular_matrices() {
        check(&[0.0; 9], 3);
        check(&[5.0], 1);
        check(&matrix(&[1.0; 20], 20), 20);
        check(&matrix(&[1e100, 2e50, 0.0, 0.0], 2), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn eigenvectors_satisfy_their_definition(
            vectors in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(0.0), Just(1e-7)], 30..900),
            size in 1..30_usize,
        ) {
            check(&matrix(&vectors, size), size);
        }
    }
}
