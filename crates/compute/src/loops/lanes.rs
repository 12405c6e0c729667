//! Vectors of floating-point numbers for loops that keep many vectors in registers, which compilers do not do by themselves. All vector
//! types add products fused, with one rounding, so all give the same bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m256d, __m512, __m512d, _CMP_GT_OQ, _mm256_blendv_pd, _mm256_blendv_ps,
    _mm256_cmp_pd, _mm256_cmp_ps, _mm256_fmadd_pd, _mm256_fmadd_ps, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_set1_pd, _mm256_set1_ps, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm512_cmp_pd_mask, _mm512_cmp_ps_mask, _mm512_fmadd_pd, _mm512_fmadd_ps, _mm512_loadu_pd,
    _mm512_loadu_ps, _mm512_mask_mov_pd, _mm512_mask_mov_ps, _mm512_set1_pd, _mm512_set1_ps,
    _mm512_storeu_pd, _mm512_storeu_ps,
};

use super::product::RealNumber;

/// Vector of numbers. Code that uses a vector type must be compiled with its instructions; [`super::simd::run`] ensures this.
pub(crate) trait Lanes: Copy {
    type Number: RealNumber;
    /// Number of lanes of the vector.
    const COUNT: usize;

    /// # Safety
    /// The processor must have the instructions of the vector type, and `from` must be valid for `COUNT` numbers.
    unsafe fn load(from: *const Self::Number) -> Self;

    /// # Safety
    /// The processor must have the instructions of the vector type, and `to` must have space for `COUNT` numbers.
    unsafe fn store(self, to: *mut Self::Number);

    /// # Safety
    /// The processor must have the instructions of the vector type.
    unsafe fn all(value: Self::Number) -> Self;

    /// Returns `self + a * b`, rounded once.
    ///
    /// # Safety
    /// The processor must have the instructions of the vector type.
    unsafe fn fused(self, a: Self, b: Self) -> Self;

    /// Replaces each number that is less than the number in `value` by that number, and its place in `known` by `place`.
    ///
    /// # Safety
    /// The processor must have the instructions of the vector type.
    unsafe fn greater(&mut self, known: &mut Self, value: Self, place: Self);
}

/// Vector of separate numbers; on processors with vectors of half its size (NEON), compilers use vectors of that size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarLanes<T, const N: usize>([T; N]);

impl<T: RealNumber, const N: usize> Lanes for ScalarLanes<T, N> {
    type Number = T;
    const COUNT: usize = N;

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: as the caller's.
        Self(unsafe { from.cast::<[T; N]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: as the caller's.
        unsafe { to.cast::<[T; N]>().write(self.0) };
    }

    #[inline(always)]
    unsafe fn all(value: T) -> Self {
        Self([value; N])
    }

    #[inline(always)]
    unsafe fn fused(mut self, a: Self, b: Self) -> Self {
        for lane in 0..N {
            self.0[lane] = self.0[lane].fused(a.0[lane], b.0[lane]);
        }
        self
    }

    #[inline(always)]
    unsafe fn greater(&mut self, known: &mut Self, value: Self, place: Self) {
        for lane in 0..N {
            let greater = value.0[lane] > self.0[lane];
            self.0[lane] = if greater { value.0[lane] } else { self.0[lane] };
            known.0[lane] = if greater {
                place.0[lane]
            } else {
                known.0[lane]
            };
        }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ty, $number:ty, $load:ident, $store:ident, $all:ident, $fused:ident, |$self:ident, $value:ident| $mask:expr,
        |$old:ident, $new:ident, $by:ident| $choose:expr) => {
        // SAFETY: of all blocks: as the caller's.
        impl Lanes for $vector {
            type Number = $number;
            const COUNT: usize = size_of::<$vector>() / size_of::<$number>();

            #[inline(always)]
            unsafe fn load(from: *const $number) -> Self {
                // SAFETY: as the caller's.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $number) {
                // SAFETY: as the caller's.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn all(value: $number) -> Self {
                // SAFETY: as the caller's.
                unsafe { $all(value) }
            }

            #[inline(always)]
            unsafe fn fused(self, a: Self, b: Self) -> Self {
                // SAFETY: as the caller's.
                unsafe { $fused(a, b, self) }
            }

            #[inline(always)]
            unsafe fn greater(&mut self, known: &mut Self, value: Self, place: Self) {
                // SAFETY: as the caller's.
                unsafe {
                    let ($self, $value) = (*self, value);
                    let $by = $mask;
                    let ($old, $new) = (*self, value);
                    *self = $choose;
                    let ($old, $new) = (*known, place);
                    *known = $choose;
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(
    __m512d,
    f64,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_set1_pd,
    _mm512_fmadd_pd,
    |known, value| _mm512_cmp_pd_mask::<_CMP_GT_OQ>(value, known),
    |old, new, by| _mm512_mask_mov_pd(old, by, new)
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m512,
    f32,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    |known, value| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(value, known),
    |old, new, by| _mm512_mask_mov_ps(old, by, new)
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m256d,
    f64,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd,
    |known, value| _mm256_cmp_pd::<_CMP_GT_OQ>(value, known),
    |old, new, by| _mm256_blendv_pd(old, new, by)
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m256,
    f32,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    |known, value| _mm256_cmp_ps::<_CMP_GT_OQ>(value, known),
    |old, new, by| _mm256_blendv_ps(old, new, by)
);

/// Adds to `sums` the products of `M` numbers, from `a` on, with the numbers of `C` vectors, from `b` on, over `steps` steps. `step` is the
/// distance of each step from the previous step. Products are added in order.
///
/// # Safety
/// The processor must have the instructions of `V`, and all numbers of all steps must be valid for reads.
#[inline(always)]
pub(crate) unsafe fn tile<V: Lanes, const M: usize, const C: usize>(
    sums: &mut [[V; C]; M],
    (mut a, mut b): (*const V::Number, [*const V::Number; C]),
    step: (usize, usize),
    steps: usize,
) {
    let mut held = *sums;
    for _ in 0..steps {
        // SAFETY: as the caller's.
        unsafe {
            let others = b.map(|b| V::load(b));
            for (row, sums) in held.iter_mut().enumerate() {
                let factor = V::all(*a.add(row));
                for (sum, other) in sums.iter_mut().zip(others) {
                    *sum = sum.fused(factor, other);
                }
            }
        }
        a = a.wrapping_add(step.0);
        b = b.map(|b| b.wrapping_add(step.1));
    }
    *sums = held;
}

/// Size of a cache line, in bytes.
const LINE_BYTES: usize = 64;

/// Numbers whose first number is at the start of a cache line.
#[derive(Debug, Default)]
pub(crate) struct CacheAligned<T> {
    memory: Vec<T>,
    start: usize,
    count: usize,
}

impl<T: RealNumber> CacheAligned<T> {
    /// Sets the number of numbers. The values of the numbers are unspecified.
    pub(crate) fn resize(&mut self, count: usize) {
        if count == self.count {
            return;
        }
        self.memory.clear();
        self.memory
            .resize(count + LINE_BYTES / size_of::<T>(), T::default());
        let start = self.memory.as_ptr().align_offset(LINE_BYTES);
        // An unknown offset only makes the loops slower.
        self.start = start.min(LINE_BYTES / size_of::<T>());
        self.count = count;
    }

    pub(crate) fn values(&self) -> &[T] {
        &self.memory[self.start..][..self.count]
    }

    pub(crate) fn values_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.count]
    }
}

/// Evaluates `$body` with `$V` as the vectors of `$level` for numbers of type `$T`.
macro_rules! with_lanes {
    ($level:expr, $T:ty, |$V:ident| $body:expr) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::loops::simd::Level::Avx512 | $crate::loops::simd::Level::Ifma => {
                type $V<T> = <T as $crate::loops::product::RealNumber>::Wide;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::loops::simd::Level::Avx2 => {
                type $V<T> = <T as $crate::loops::product::RealNumber>::Half;
                $body
            }
            $crate::loops::simd::Level::Portable => {
                type $V<T> = <T as $crate::loops::product::RealNumber>::Plain;
                $body
            }
        }
    };
}
pub(crate) use with_lanes;
