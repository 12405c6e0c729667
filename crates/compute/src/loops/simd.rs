//! Runs one body of code, compiled for the widest vectors that the processor supports.
//!
//! A [`SimdPass`] is written once, over arrays of lanes whose operations are independent, and compiled three times. The order of operations
//! is the same in all versions, so the results are the same, to the last bit.

use std::sync::LazyLock;

/// Code that profits from wide vectors. `run` must be `#[inline(always)]`, or it is compiled without the vector instructions.
pub(crate) trait SimdPass {
    type Output;
    fn run(self) -> Self::Output;
}

/// Set of vector instructions for which passes are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of 52-bit integers (Ice Lake, Zen 4 and newer).
    #[cfg(target_arch = "x86_64")]
    Ifma,
}

impl Level {
    /// Returns all levels that this processor supports, the widest last.
    pub(crate) fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "other processors have nothing to add")]
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            // Every processor with AVX2 has these instructions; loops that count lanes need them.
            let bits = is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            let fused = is_x86_feature_detected!("fma");
            if bits && fused && is_x86_feature_detected!("avx2") {
                levels.push(Self::Avx2);
            }
            let wide = bits
                && fused
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if wide {
                levels.push(Self::Avx512);
            }
            if wide && is_x86_feature_detected!("avx512ifma") {
                levels.push(Self::Ifma);
            }
        }
        levels
    }

    /// Returns the widest level that this processor supports.
    pub(crate) fn best() -> Self {
        static BEST: LazyLock<Level> = LazyLock::new(|| {
            let levels = Level::available();
            levels.last().copied().unwrap_or(Level::Portable)
        });
        *BEST
    }
}

/// Runs `pass` with the instructions of `level`, which must be one of [`Level::available`].
pub(crate) fn run<P: SimdPass>(level: Level, pass: P) -> P::Output {
    match level {
        Level::Portable => pass.run(),
        // SAFETY: a level exists only if `Level::available` found its instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2(pass) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Ifma => unsafe { avx512(pass) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<P: SimdPass>(pass: P) -> P::Output {
    pass.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<P: SimdPass>(pass: P) -> P::Output {
    pass.run()
}

#[cfg(test)]
#[path = "../../../../tests/require.rs"]
mod require;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Tests of loops cover the SIMD levels that the processor supports. This test reports the levels that no test covers.
    #[test]
    fn missing_simd_levels_are_reported() {
        let levels = Level::available();
        for (level, name) in [
            (Level::Avx2, "AVX2"),
            (Level::Avx512, "AVX-512"),
            (Level::Ifma, "AVX-512 IFMA"),
        ] {
            if !levels.contains(&level) {
                require::tell(&format!(
                    "{name} is not here, so no loop was tested with it"
                ));
            }
        }
        assert_eq!(levels.first(), Some(&Level::Portable));
        assert_eq!(levels.last(), Some(&Level::best()));
    }
}
