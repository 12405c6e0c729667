//! Canny's edges (J. Canny, "A Computational Approach to Edge Detection", 1986): pixels whose gradient is the longest across the edge, and
//! which have a long gradient themselves or are connected to such a pixel.
//!
//! Directions of edges are those of a pixel's eight neighbours. Tangents are integers, so all SIMD levels give the same results.

use super::sobel::Rows;
use super::{Border, GreyImage};
use crate::loops::simd::Level;

/// Number of bits after the binary point of a tangent.
const POINT: u32 = 15;

/// The tangent of 22.5°, as an integer with [`POINT`] bits after the binary point.
const TANGENT: i32 = 13_573;

/// Marks of a pixel: no edge, candidate or edge.
const NONE: u8 = 0;
const PERHAPS: u8 = 1;
const EDGE: u8 = 255;

/// Both derivatives of a row of pixels, and their lengths `|∂x| + |∂y|` with a 0 at each end.
#[derive(Clone, Debug)]
struct GradientRow {
    across: Vec<i16>,
    down: Vec<i16>,
    lengths: Vec<i16>,
}

impl GradientRow {
    fn new(width: usize) -> Self {
        Self {
            across: vec![0; width],
            down: vec![0; width],
            lengths: vec![0; width + 2],
        }
    }

    fn fill(&mut self, rows: &mut Rows, image: GreyImage<'_>, row: usize, level: Level) {
        let Self {
            across,
            down,
            lengths,
        } = self;
        rows.gradient(image, row, Border::Same, level, (across, down));
        for (length, (across, down)) in lengths[1..].iter_mut().zip(across.iter().zip(down)) {
            *length = across.abs() + down.abs();
        }
    }
}

/// Writes to `to` 255 for each pixel on an edge and 0 for other pixels. An edge has a gradient longer than `high` at some pixel, and longer
/// than `low` at every pixel. Beyond the border, the outermost pixels are repeated.
pub(crate) fn canny(image: GreyImage<'_>, low: i16, high: i16, to: &mut [u8], level: Level) {
    let (width, height) = (image.width, image.height());
    let mut rows = Rows::default();
    let mut lines = [
        GradientRow::new(width),
        GradientRow::new(width),
        GradientRow::new(width),
    ];
    if height > 0 {
        lines[1].fill(&mut rows, image, 0, level);
    }
    let mut found = Vec::new();
    for row in 0..height {
        let [above, here, below] = &mut lines;
        if row + 1 < height {
            below.fill(&mut rows, image, row + 1, level);
        } else {
            below.lengths.fill(0);
        }
        let marks = &mut to[row * width..][..width];
        for (pixel, mark) in marks.iter_mut().enumerate() {
            let length = here.lengths[pixel + 1];
            *mark = NONE;
            if length > low && longest(above, here, below, pixel) {
                *mark = PERHAPS;
                if length > high {
                    *mark = EDGE;
                    found.push(row * width + pixel);
                }
            }
        }
        lines.rotate_left(1);
    }
    connect(found, width, to);
}

/// Returns whether the gradient of a pixel is the longest across its edge.
fn longest(above: &GradientRow, here: &GradientRow, below: &GradientRow, pixel: usize) -> bool {
    let (across, down) = (i32::from(here.across[pixel]), i32::from(here.down[pixel]));
    let length = here.lengths[pixel + 1];
    let flat = across.abs() * TANGENT;
    let steep = flat + (across.abs() << (POINT + 1));
    let height = down.abs() << POINT;
    if height < flat {
        length > here.lengths[pixel] && length >= here.lengths[pixel + 2]
    } else if height > steep {
        length > above.lengths[pixel + 1] && length >= below.lengths[pixel + 1]
    } else if (across ^ down) < 0 {
        length > above.lengths[pixel + 2] && length > below.lengths[pixel]
    } else {
        length > above.lengths[pixel] && length > below.lengths[pixel + 2]
    }
}

/// Marks all candidate pixels that are connected to an edge as edges.
fn connect(mut found: Vec<usize>, width: usize, marks: &mut [u8]) {
    while let Some(at) = found.pop() {
        let column = at % width;
        let first = at - usize::from(column > 0);
        let last = at + usize::from(column + 1 < width);
        for row in [
            first.checked_sub(width),
            Some(first),
            first.checked_add(width),
        ] {
            let Some(begin) = row.filter(|begin| *begin < marks.len()) else {
                continue;
            };
            for (place, mark) in (begin..).zip(&mut marks[begin..=begin + last - first]) {
                if *mark == PERHAPS {
                    *mark = EDGE;
                    found.push(place);
                }
            }
        }
    }
    for mark in marks {
        *mark = if *mark == EDGE { EDGE } else { NONE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canny_finds_border_of_square() {
        let width = 40;
        let inside =
            |at: usize| (10..30).contains(&(at % width)) && (10..30).contains(&(at / width));
        let pixels: Vec<u8> = (0..width * width)
            .map(|at| if inside(at) { 200 } else { 20 })
            .collect();
        let mut to = vec![7; pixels.len()];
        canny(
            GreyImage {
                pixels: &pixels,
                width,
            },
            50,
            100,
            &mut to,
            Level::best(),
        );
        for (at, mark) in to.iter().enumerate() {
            let (x, y) = (at % width, at / width);
            let near = |v: usize| v.abs_diff(10) <= 1 || v.abs_diff(29) <= 1;
            let along = |v: usize| (8..32).contains(&v);
            if *mark == EDGE {
                assert!(near(x) && along(y) || near(y) && along(x), "{x} {y}");
            }
        }
        let marked = |range: std::ops::Range<usize>| to[range].contains(&EDGE);
        assert!((12..28).all(|y| marked(y * width + 8..y * width + 12)));
        assert!((12..28).all(|y| marked(y * width + 28..y * width + 32)));
        assert!(!marked(20 * width + 15..20 * width + 25));
    }

    #[test]
    fn canny_keeps_faint_edges_connected_to_strong_edges() {
        // A step that fades from left to right.
        let (width, height) = (64, 16);
        let pixel = |at: usize| {
            if at / width < 8 {
                0
            } else {
                255 - 4 * (at % width)
            }
        };
        let pixels: Vec<u8> = (0..width * height)
            .map(|at| pixel(at).try_into().unwrap())
            .collect();
        let count = |low, high| {
            let mut to = vec![0; pixels.len()];
            canny(
                GreyImage {
                    pixels: &pixels,
                    width,
                },
                low,
                high,
                &mut to,
                Level::best(),
            );
            to.iter().filter(|mark| **mark == EDGE).count()
        };
        assert!(count(100, 800) > count(800, 801));
        assert_eq!(count(1100, 1100), 0);
    }

    proptest! {
        #[test]
        fn canny_gives_equal_results_on_all_simd_levels(pixels in prop::collection::vec(any::<u8>(), 1..2000), width in 1_usize..90, low in 0_i16..500) {
            let width = width.min(pixels.len());
            let image = GreyImage { pixels: &pixels[..pixels.len() / width * width], width };
            let mut wanted = vec![0; image.pixels.len()];
            canny(image, low, 2 * low, &mut wanted, Level::Portable);
            for level in Level::available() {
                let mut to = vec![9; wanted.len()];
                canny(image, low, 2 * low, &mut to, level);
                prop_assert_eq!(&to, &wanted);
            }
        }
    }
}
