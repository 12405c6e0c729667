//! Smallest and largest value, and sums of values, of their squares and of their products with their index, of one block in one pass.
//! Sums of floats in [`centred`] are rounded; all others are exact.
//!
//! A value is cut into limbs, small integers times powers of two that all values of the block share, and the sums of limbs and of products
//! of limbs are integers. So no operation rounds. Limbs of floats are cut off by adding and subtracting a large power of two, which leaves
//! the integer in the low bits of the sum. Their positions (the *grid*) are guessed from the previous block. If a block does not fit, it is
//! summed again with another grid. If its magnitudes are too far apart for any grid, the caller must add its values one by one.

#![allow(
    clippy::needless_range_loop,
    reason = "lanes and limbs number several arrays at once"
)]

pub(crate) mod centred;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod integer;
mod limbs;

use centred::Centred;

use super::number::Number;
use super::simd::Level;
use crate::exact_sums::Exact;

/// Maximum number of values in a block: sums of so many products of 52 bits fit into 64 bits.
pub(crate) const BLOCK: usize = 4096;

/// Maximum number of values in a block whose products with the index are requested: the sums of sums in [`ifma`] still fit.
pub(crate) const BLOCK_OF_PRODUCTS: usize = 1024;

/// Maximum number of limbs of a value.
const LIMBS: usize = 3;

/// Sums of a block that are computed in addition to its extremes and its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SumKinds {
    /// No sum except the sum of values.
    Sum,
    /// The sum of squares.
    Squares,
    /// The sum of squares, and the sum of products with the index in the block.
    Products,
}

/// Results of a block that is not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockMoments<T> {
    /// Smallest value of the block; NaN is ignored.
    pub(crate) least: T,
    /// Largest value of the block; NaN is ignored.
    pub(crate) greatest: T,
    pub(crate) sums: LimbSums,
}

/// Sums of limbs of a block's values. A value is the sum over its limbs `k` of `limb[k] * 2^weights[k]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimbSums {
    limbs: usize,
    weights: [i32; LIMBS],
    sums: [i128; LIMBS],
    /// Sums of `limb[k] * limb[l]` over all values, for `k <= l`.
    squares: [[i128; LIMBS]; LIMBS],
    /// Sums of `limb[k] * index` over all values.
    products: [i128; LIMBS],
}

/// Number of blocks whose sums fit together: the sum of each limb is below 2^112.
const BLOCKS_TOGETHER: usize = 1024;

/// Sums of several blocks, except sums of products: adding to an exact sum takes longer than adding these.
#[derive(Debug, Default)]
pub(crate) struct BlockTotals {
    sums: LimbSums,
    blocks: usize,
}

impl BlockTotals {
    /// Adds a block's sums. Returns the previous sums, which must be processed first, if their limbs have other positions or the number of
    /// blocks is at its maximum.
    pub(crate) fn add(&mut self, block: &LimbSums) -> Option<LimbSums> {
        let fits = self.sums.limbs == block.limbs && self.sums.weights == block.weights;
        if !fits || self.blocks == BLOCKS_TOGETHER {
            let before = std::mem::replace(&mut self.sums, *block);
            self.blocks = 1;
            return Some(before);
        }
        self.blocks += 1;
        for a in 0..block.limbs {
            self.sums.sums[a] += block.sums[a];
            for b in a..block.limbs {
                self.sums.squares[a][b] += block.squares[a][b];
            }
        }
        None
    }

    /// Returns all sums that were not returned before.
    pub(crate) fn rest(self) -> LimbSums {
        self.sums
    }
}

impl LimbSums {
    /// Adds the sum of the values to an exact sum.
    pub(crate) fn sum(&self, to: &mut Exact) {
        for limb in 0..self.limbs {
            to.add(self.sums[limb], self.weights[limb]);
        }
    }

    /// Adds the sum of the squares to an exact sum.
    pub(crate) fn squares(&self, to: &mut Exact) {
        for a in 0..self.limbs {
            for b in a..self.limbs {
                let twice = i32::from(a != b);
                to.add(
                    self.squares[a][b],
                    self.weights[a] + self.weights[b] + twice,
                );
            }
        }
    }

    /// Adds the sum of products with the index to an exact sum; the index of the block's first value is `first`.
    pub(crate) fn products(&self, first: u64, to: &mut Exact) {
        for limb in 0..self.limbs {
            let products = self.products[limb] + i128::from(first) * self.sums[limb];
            to.add(products, self.weights[limb]);
        }
    }
}

/// Sums of limbs with biases that keep all of them positive.
#[derive(Clone, Copy, Debug, Default)]
struct Biased {
    /// Number of values, including padding (which is zero before the bias is added).
    count: i128,
    limbs: usize,
    weights: [i32; LIMBS],
    bias: [i128; LIMBS],
    /// Sums of limbs without the bias.
    sums: [i128; LIMBS],
    /// Sums of products of biased limbs.
    squares: [[i128; LIMBS]; LIMBS],
    /// Sums of products of limbs, without the bias, with the index.
    products: [i128; LIMBS],
}

impl Biased {
    fn unbiased(&self) -> LimbSums {
        let mut squares = [[0; LIMBS]; LIMBS];
        for a in 0..self.limbs {
            for b in a..self.limbs {
                let mixed = self.bias[a] * self.sums[b] + self.bias[b] * self.sums[a];
                let biases = self.count * self.bias[a] * self.bias[b];
                squares[a][b] = self.squares[a][b] - mixed - biases;
            }
        }
        LimbSums {
            limbs: self.limbs,
            weights: self.weights,
            sums: self.sums,
            squares,
            products: self.products,
        }
    }
}

/// Numbers whose blocks can be summed.
pub(crate) trait SummedBlocks: Number {
    /// Sums a block of whole little-endian values, at least one and at most [`BLOCK`], or [`BLOCK_OF_PRODUCTS`] if products are requested.
    /// Returns `None` if a value is not finite or magnitudes are too far apart. `grid` is passed from block to block, and is 0 at first; it
    /// affects only the speed.
    fn moments(
        level: Level,
        want: SumKinds,
        values: &[u8],
        grid: &mut i32,
    ) -> Option<BlockMoments<Self>>;

    /// Sums a block of floats around one of them, rounded; returns `None` in the cases of [`centred::centred`], and for integers.
    fn centred(_: Level, _: SumKinds, _: &[u8]) -> Option<Centred<Self>> {
        None
    }
}

macro_rules! float {
    ($($type:ty),*) => {
        $(impl SummedBlocks for $type {
            fn moments(level: Level, want: SumKinds, values: &[u8], grid: &mut i32) -> Option<BlockMoments<Self>> {
                limbs::moments(values, grid, |grid| {
                    limbs::limbs::<$type, 3>(level, want, values, grid)
                })
            }

            fn centred(level: Level, want: SumKinds, values: &[u8]) -> Option<Centred<Self>> {
                centred::centred(level, want == SumKinds::Products, values)
            }
        })*
    };
}

float!(f64, f32);

macro_rules! integer {
    ($($type:ty: $limbs:literal),*) => {
        $(impl SummedBlocks for $type {
            fn moments(level: Level, want: SumKinds, values: &[u8], _: &mut i32) -> Option<BlockMoments<Self>> {
                Some(integer::moments::<$type, $limbs>(level, want, values))
            }
        })*
    };
}

integer!(i8: 1, i16: 1, i64: 2, u8: 1, u16: 1, u64: 2);

macro_rules! integer_of_32_bits {
    ($($type:ty: $signed:literal),*) => {
        $(impl SummedBlocks for $type {
            fn moments(level: Level, want: SumKinds, values: &[u8], _: &mut i32) -> Option<BlockMoments<Self>> {
                Some(match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Ifma => ifma::moments_of_32_bits::<$type, $signed>(want, values),
                    level => integer::moments::<$type, 1>(level, want, values),
                })
            }
        })*
    };
}

integer_of_32_bits!(i32: true, u32: false);

#[cfg(test)]
mod tests;
