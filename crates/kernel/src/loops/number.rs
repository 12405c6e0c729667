//! The element types of raw arrays, and the passes over one block of them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::simd::Pass;

/// Values in a block. A block of the widest type fits the first-level cache, so that a second pass over it
/// is cheap. Blocks are counted from the begin of the whole series, so that results do not depend on how
/// it is split into files.
pub(crate) const BLOCK: usize = 4096;

/// Independent sums in one block.
const LANES: usize = 32;

/// A type of number in a raw little-endian array.
pub(crate) trait Number:
    Copy + PartialOrd + std::fmt::Debug + Default + Send + Serialize + DeserializeOwned + 'static
{
    /// Bytes of one value.
    const SIZE: usize;
    /// Whether sums are exact.
    const INTEGER: bool;
    /// Not above any number.
    const LOWEST: Self;
    /// Not below any number.
    const HIGHEST: Self;
    /// The value in the first `SIZE` bytes.
    fn read(bytes: &[u8]) -> Self;
    /// The nearest `f64`.
    #[allow(clippy::wrong_self_convention, reason = "all implementors are Copy")]
    fn to_f64(self) -> f64;
    /// `high` and `low` with `self = high * 2^32 + low`, each below 2^33 in size. Integers only.
    fn parts(self) -> (i64, i64);
    /// The larger of both; `other` if this is NaN.
    fn larger(self, other: Self) -> Self;
    /// The smaller of both; `other` if this is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Exact decimal text.
    fn text(self) -> String;
    /// Reads decimal text; `nan` too for floats.
    fn parse(text: &str) -> Option<Self>;
    /// Whether both are the same value; a NaN is the same as any other.
    fn same(self, other: Self) -> bool;
}

macro_rules! float {
    ($type:ty) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            const INTEGER: bool = false;
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                value.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_le_bytes(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn parts(self) -> (i64, i64) {
                (0, 0)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            fn text(self) -> String {
                // Adding nothing turns -0 into 0: which zero is the largest of several is no result.
                decimal(f64::from(self) + 0.0)
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            #[allow(
                clippy::float_cmp,
                reason = "a value that stands for none is met exactly"
            )]
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                (self == other) | (self.is_nan() & other.is_nan())
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $parts:expr) => {
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            const INTEGER: bool = true;
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                value.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_le_bytes(value)
            }
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                reason = "documented rounding"
            )]
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn parts(self) -> (i64, i64) {
                $parts(self)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn text(self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    };
}

float!(f64);
float!(f32);
integer!(i8, |x: i8| (0, i64::from(x)));
integer!(i16, |x: i16| (0, i64::from(x)));
integer!(i32, |x: i32| (0, i64::from(x)));
integer!(i64, |x: i64| (x >> 32, x & 0xffff_ffff));
integer!(u8, |x: u8| (0, i64::from(x)));
integer!(u16, |x: u16| (0, i64::from(x)));
integer!(u32, |x: u32| (0, i64::from(x)));
integer!(u64, |x: u64| (
    (x >> 32).cast_signed(),
    (x & 0xffff_ffff).cast_signed()
));

/// Decimal text from which the same `f64` is read back.
pub(crate) fn decimal(value: f64) -> String {
    let plain = value == 0.0 || (1e-5..1e16).contains(&value.abs());
    if plain {
        format!("{value}")
    } else {
        format!("{value:?}")
    }
}

/// Sum of a block as `f64`. Error at most 140 units of 2^-53 of the sum of magnitudes.
pub(crate) struct FloatSum<'a, T>(pub(crate) &'a [u8], pub(crate) std::marker::PhantomData<T>);

impl<T: Number> Pass for FloatSum<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [0.0; LANES];
        let mut rows = self.0.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                lanes[lane] += T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]).to_f64();
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rows.remainder().chunks_exact(T::SIZE)) {
            *lane += T::read(value).to_f64();
        }
        reduce(lanes)
    }
}

/// Exact sum of a block of integers.
pub(crate) struct IntegerSum<'a, T, const L: usize>(
    pub(crate) &'a [u8],
    pub(crate) std::marker::PhantomData<T>,
);

impl<T: Number, const L: usize> Pass for IntegerSum<'_, T, L> {
    type Output = i128;

    #[inline(always)]
    fn run(self) -> i128 {
        let (mut high, mut low) = ([0_i64; L], [0_i64; L]);
        let mut rows = self.0.chunks_exact(L * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..L {
                let parts = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]).parts();
                high[lane] += parts.0;
                low[lane] += parts.1;
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            let parts = T::read(value).parts();
            high[lane] += parts.0;
            low[lane] += parts.1;
        }
        let sum = |lanes: [i64; L]| lanes.into_iter().map(i128::from).sum::<i128>();
        (sum(high) << 32) + sum(low)
    }
}

/// Largest (or smallest) number of a block; `None` if there is none but NaN. `L` values of `T` should fill
/// four of the widest vectors.
pub(crate) struct Extreme<'a, T, const MAX: bool, const L: usize>(
    pub(crate) &'a [u8],
    pub(crate) std::marker::PhantomData<T>,
);

impl<T: Number, const MAX: bool, const L: usize> Extreme<'_, T, MAX, L> {
    /// Keeps `best` when `value` is NaN.
    #[inline(always)]
    fn better(value: T, best: T) -> T {
        if MAX {
            value.larger(best)
        } else {
            value.smaller(best)
        }
    }
}

impl<T: Number, const MAX: bool, const L: usize> Pass for Extreme<'_, T, MAX, L> {
    type Output = Option<T>;

    #[inline(always)]
    fn run(self) -> Option<T> {
        let worst = if MAX { T::LOWEST } else { T::HIGHEST };
        let mut lanes = [worst; L];
        let mut rows = self.0.chunks_exact(L * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..L {
                lanes[lane] = Self::better(
                    T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]),
                    lanes[lane],
                );
            }
        }
        let mut best = worst;
        for value in rows.remainder().chunks_exact(T::SIZE) {
            best = Self::better(T::read(value), best);
        }
        for lane in lanes {
            best = Self::better(lane, best);
        }
        // The worst value may stand for itself or for nothing.
        let found = best != worst
            || self
                .0
                .chunks_exact(T::SIZE)
                .any(|value| T::read(value) == worst);
        found.then_some(best)
    }
}

/// Squares and products of a block around its means: what variance and regression are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moments {
    /// Number of values.
    pub(crate) count: f64,
    /// Mean of the values.
    pub(crate) mean: f64,
    /// Sum of squared distances of the values from their mean.
    pub(crate) squares: f64,
    /// Sum of the products of the distances of index and value from their means.
    pub(crate) products: f64,
}

/// Moments of a block, in two passes over it. Products only where asked for.
pub(crate) struct BlockMoments<'a, T, const PRODUCTS: bool>(
    pub(crate) &'a [u8],
    pub(crate) std::marker::PhantomData<T>,
);

impl<T: Number, const PRODUCTS: bool> Pass for BlockMoments<'_, T, PRODUCTS> {
    type Output = Moments;

    #[allow(clippy::cast_precision_loss, reason = "a block has few values")]
    #[inline(always)]
    fn run(self) -> Moments {
        let length = self.0.len() / T::SIZE;
        let count = length as f64;
        let mean = FloatSum::<T>(self.0, std::marker::PhantomData).run() / count;
        let middle = (count - 1.0) / 2.0;
        let (mut squares, mut products) = ([0.0; LANES], [0.0; LANES]);
        let mut index = [0.0; LANES];
        for (lane, index) in index.iter_mut().enumerate() {
            *index = lane as f64 - middle;
        }
        let mut rows = self.0.chunks_exact(LANES * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..LANES {
                let distance = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]).to_f64() - mean;
                squares[lane] += distance * distance;
                if PRODUCTS {
                    products[lane] += index[lane] * distance;
                    index[lane] += LANES as f64;
                }
            }
        }
        for (lane, value) in rows.remainder().chunks_exact(T::SIZE).enumerate() {
            let distance = T::read(value).to_f64() - mean;
            squares[lane] += distance * distance;
            products[lane] += index[lane] * distance;
        }
        Moments {
            count,
            mean,
            squares: reduce(squares),
            products: reduce(products),
        }
    }
}

/// Adds the lanes pairwise.
#[inline(always)]
fn reduce(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
