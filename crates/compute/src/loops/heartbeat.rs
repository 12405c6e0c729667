//! R peaks in an electrocardiogram.
//!
//! The first steps are those of Pan and Tompkins ("A Real-Time QRS Detection Algorithm", 1985): the band in which QRS complexes are
//! strongest, squared and averaged over the length of one complex. Their thresholds from peak to peak fail in noise. Here the peaks are
//! candidates, and each candidate is rated against both kinds of peaks around it (N. Otsu, "A Threshold Selection Method from Gray-Level
//! Histograms", 1979). Dynamic programming then chooses the chain of candidates with the best ratings and the most even intervals (as D. P.
//! W. Ellis tracks beats of music, 2007). An uneven interval costs less than a clear peak gains, so premature beats stay.

/// The frequency band of QRS complexes, in hertz.
const BAND: (f64, f64) = (5.0, 18.0);

/// Minimum sample rate of a signal, in hertz: twice the upper end of the band and a margin.
pub(crate) const RATE_AT_LEAST: f64 = 50.0;

/// Maximum sample rate of a signal, in hertz: above that of any device, and windows still have a length in samples.
pub(crate) const RATE_AT_MOST: f64 = 1e6;

/// Length of a QRS complex, in seconds.
const COMPLEX: f64 = 0.1;

/// Minimum distance of two beats, in seconds.
const REFRACTORY: f64 = 0.24;

/// Maximum distance between candidates that are compared with each other, in seconds.
const AROUND: f64 = 8.0;

/// Minimum and maximum number of beats per second.
const BEATS: (f64, f64) = (0.5, 3.5);

/// Range of intervals between beats that determine the tempo, in seconds; the next constant is the first tempo.
const INTERVALS: (f64, f64) = (0.3, 1.8);
const INTERVAL: f64 = 0.8;

/// Amplitudes that are below the beats' amplitude by more than this number (in natural logarithms) are treated alike.
const FLOOR: f64 = -2.0;

/// Difference between the two kinds of peaks (in natural logarithms) from which ratings have their full size.
const CLEAR: f64 = 0.5;

/// Absolute value of the best and of the worst rating of a candidate.
const RATING: f64 = 1.5;

/// Cost of the square of an interval's deviation (natural logarithm of its ratio to the tempo); the next constant is the maximum cost.
const UNEVEN: f64 = 1.5;
const UNEVEN_MOST: f64 = 1.0;

/// Maximum distance from a beat to the previous one, in seconds.
const PAUSE: f64 = 4.0;

/// Peak of the signal that may be a beat.
#[derive(Clone, Copy, Debug)]
struct PeakCandidate {
    sample: usize,
    /// Time of the peak in seconds.
    time: f64,
    /// Amplitude of the peak as a natural logarithm.
    amplitude: f64,
    /// Rating of the peak; above 0 if the peak is more probably a beat.
    rating: f64,
    /// Interval between beats near the peak, in seconds.
    tempo: f64,
}

/// Returns the indices of the R peaks of `signal` in order. The sample rate `rate` is in hertz (from [`RATE_AT_LEAST`] to
/// [`RATE_AT_MOST`]). NaN samples count as the previous sample.
pub(crate) fn r_peaks(signal: &[f64], rate: f64) -> Vec<usize> {
    let band = band(signal, rate);
    let energy = mean(&band, samples(COMPLEX, rate) | 1);
    let mut candidates = candidates(&energy, rate);
    rate_all(&mut candidates);
    let mut beats: Vec<_> = candidates
        .iter()
        .filter(|beat| beat.rating > 0.3)
        .copied()
        .collect();
    let mut chosen = Vec::new();
    for _ in 0..2 {
        set_tempo(&mut candidates, &beats);
        chosen = chain(&candidates);
        beats = chosen.iter().map(|index| candidates[*index]).collect();
    }
    let near = samples(0.06, rate);
    let mut peaks: Vec<_> = chosen
        .into_iter()
        .map(|index| highest(&band, candidates[index].sample, near))
        .collect();
    peaks.dedup();
    peaks
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a short time has few samples"
)]
fn samples(seconds: f64, rate: f64) -> usize {
    (seconds * rate).round().max(1.0) as usize
}

/// Returns the sample within a distance of `near` samples at which the band is furthest from 0.
fn highest(band: &[f64], sample: usize, near: usize) -> usize {
    let range = sample.saturating_sub(near)..(sample + near + 1).min(band.len());
    let by_size = |a: &usize, b: &usize| band[*a].abs().total_cmp(&band[*b].abs());
    // If samples are equal, the first is returned.
    range.rev().max_by(by_size).unwrap_or(sample)
}

/// Filter of second order (Butterworth, by the bilinear transform), in the transposed direct form II.
#[derive(Clone, Copy, Debug)]
struct ButterworthFilter {
    b: [f64; 3],
    a: [f64; 2],
    state: [f64; 2],
}

impl ButterworthFilter {
    fn low(cut: f64, rate: f64) -> Self {
        let (cos, alpha) = Self::angle(cut, rate);
        let side = (1.0 - cos) / 2.0;
        Self::new([side, 2.0 * side, side], cos, alpha)
    }

    fn high(cut: f64, rate: f64) -> Self {
        let (cos, alpha) = Self::angle(cut, rate);
        let side = f64::midpoint(1.0, cos);
        Self::new([side, -2.0 * side, side], cos, alpha)
    }

    fn angle(cut: f64, rate: f64) -> (f64, f64) {
        let angle = std::f64::consts::TAU * cut / rate;
        (angle.cos(), angle.sin() * std::f64::consts::FRAC_1_SQRT_2)
    }

    fn new(b: [f64; 3], cos: f64, alpha: f64) -> Self {
        let scale = 1.0 + alpha;
        Self {
            b: b.map(|b| b / scale),
            a: [-2.0 * cos / scale, (1.0 - alpha) / scale],
            state: [0.0; 2],
        }
    }

    fn next(&mut self, x: f64) -> f64 {
        let y = self.b[0] * x + self.state[0];
        self.state[0] = self.b[1] * x - self.a[0] * y + self.state[1];
        self.state[1] = self.b[2] * x - self.a[1] * y;
        y
    }
}

/// Returns the signal within the frequency band, filtered forwards and backwards so that nothing is shifted.
fn band(signal: &[f64], rate: f64) -> Vec<f64> {
    let filters = (
        ButterworthFilter::high(BAND.0, rate),
        ButterworthFilter::low(BAND.1, rate),
    );
    // The filter starts from the first value, so that the start is no step.
    let first = signal
        .iter()
        .copied()
        .find(|x| x.is_finite())
        .unwrap_or(0.0);
    let mut last = first;
    let (mut high, mut low) = filters;
    let mut band: Vec<_> = signal
        .iter()
        .map(|x| {
            last = if x.is_finite() { *x } else { last };
            low.next(high.next(last - first))
        })
        .collect();
    let (mut high, mut low) = filters;
    for x in band.iter_mut().rev() {
        *x = low.next(high.next(*x));
    }
    band
}

/// Returns the mean of the squares of `width` samples around each sample; `width` is odd.
fn mean(band: &[f64], width: usize) -> Vec<f64> {
    let half = width / 2;
    let mut sum = 0.0;
    let mut ahead = band.iter();
    let mut behind = band.iter();
    for x in ahead.by_ref().take(half) {
        sum += x * x;
    }
    (0..band.len())
        .map(|sample| {
            sum += ahead.next().map_or(0.0, |x| x * x);
            if sample > half {
                sum -= behind.next().map_or(0.0, |x| x * x);
            }
            // Rounding errors of large values may make the sum negative.
            sum.max(0.0)
        })
        .collect()
}

/// Returns the samples that are higher than all samples before, and not lower than any after, within the length of a complex.
fn candidates(energy: &[f64], rate: f64) -> Vec<PeakCandidate> {
    let reach = samples(COMPLEX, rate);
    let mut candidates: Vec<PeakCandidate> = Vec::new();
    let mut sample = 0;
    while sample < energy.len() {
        // A sample on a falling slope is no peak; this excludes most samples.
        if sample > 0 && energy[sample - 1] >= energy[sample] {
            sample += 1;
            continue;
        }
        let ahead = &energy[sample + 1..(sample + 1 + reach).min(energy.len())];
        // A higher sample ahead excludes all samples before it.
        let higher = ahead.iter().position(|other| *other > energy[sample]);
        if let Some(steps) = higher {
            sample += steps + 1;
            continue;
        }
        let behind = &energy[sample.saturating_sub(reach)..sample];
        if energy[sample] > 0.0 && behind.iter().all(|other| *other < energy[sample]) {
            candidates.push(PeakCandidate {
                sample,
                #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53 samples")]
                time: sample as f64 / rate,
                amplitude: energy[sample].ln() / 2.0,
                rating: 0.0,
                tempo: INTERVAL,
            });
        }
        sample += 1;
    }
    candidates
}

/// Rates each candidate against the candidates around it.
fn rate_all(candidates: &mut [PeakCandidate]) {
    let mut amplitudes = Vec::new();
    let (mut begin, mut end) = (0, 0);
    // Neighbours have nearly the same candidates around them, so one computation for each second is enough.
    let mut next = f64::NEG_INFINITY;
    let mut kinds = (0.0, 1.0);
    for index in 0..candidates.len() {
        let time = candidates[index].time;
        if time >= next {
            next = time + 1.0;
            begin += candidates[begin..]
                .iter()
                .take_while(|other| other.time < time - AROUND)
                .count();
            end += candidates[end..]
                .iter()
                .take_while(|other| other.time < time + AROUND)
                .count();
            amplitudes.clear();
            amplitudes.extend(candidates[begin..end].iter().map(|other| other.amplitude));
            let seconds = candidates[end - 1].time - candidates[begin].time;
            kinds = two_kinds(&mut amplitudes, seconds);
        }
        let (middle, distance) = kinds;
        let clear = (distance / CLEAR).min(1.0);
        let rating = (candidates[index].amplitude - middle) / (distance / 2.0) * clear;
        candidates[index].rating = rating.clamp(-RATING, RATING);
    }
}

/// Divides amplitudes into low and high so that both groups are as far apart as possible for their sizes. Returns the middle between the
/// means of both groups, and the distance of the means, which is above 0.
fn two_kinds(amplitudes: &mut [f64], seconds: f64) -> (f64, f64) {
    amplitudes.sort_unstable_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, reason = "few peaks")]
    let number = |count: usize| count as f64;
    let length = amplitudes.len();
    let enough = |count: usize| number(count) >= 0.6 * seconds;
    let typical = (1..length).find(|count| enough(*count)).unwrap_or(length);
    let floor = amplitudes[length - typical] + FLOOR;
    let total: f64 = amplitudes
        .iter()
        .map(|amplitude| amplitude.max(floor))
        .sum();
    let mut low = 0.0;
    let mut best = (f64::NEG_INFINITY, (floor, floor));
    for (lower, amplitude) in (1..length).zip(amplitudes.iter()) {
        low += amplitude.max(floor);
        let higher = number(length - lower);
        if !(BEATS.0 * seconds..=BEATS.1 * seconds).contains(&higher) {
            continue;
        }
        let means = (low / number(lower), (total - low) / higher);
        let between = number(lower) * higher * (means.1 - means.0).powi(2);
        if between > best.0 {
            best = (between, means);
        }
    }
    let (low, high) = best.1;
    // If the amplitudes are so few and alike, all of them are beats.
    let alike = amplitudes
        .iter()
        .filter(|amplitude| **amplitude > floor)
        .count();
    if high - low < CLEAR && number(alike) <= BEATS.1 * seconds.max(1.0) {
        return (floor - FLOOR / 2.0, -FLOOR);
    }
    (f64::midpoint(low, high), (high - low).max(1e-9))
}

/// Sets the tempo at each candidate to the median of the intervals of `beats` around it.
fn set_tempo(candidates: &mut [PeakCandidate], beats: &[PeakCandidate]) {
    let (mut begin, mut end) = (0, 0);
    let mut next = f64::NEG_INFINITY;
    let mut tempo = INTERVAL;
    for candidate in candidates {
        let time = candidate.time;
        if time >= next {
            next = time + 1.0;
            begin += beats[begin..]
                .iter()
                .take_while(|beat| beat.time < time - AROUND)
                .count();
            end += beats[end..]
                .iter()
                .take_while(|beat| beat.time < time + AROUND)
                .count();
            let mut intervals: Vec<_> = beats[begin..end.max(begin)]
                .windows(2)
                .map(|pair| pair[1].time - pair[0].time)
                .filter(|interval| (INTERVALS.0..INTERVALS.1).contains(interval))
                .collect();
            intervals.sort_unstable_by(f64::total_cmp);
            tempo = intervals
                .get(intervals.len() / 2)
                .copied()
                .unwrap_or(INTERVAL);
        }
        candidate.tempo = tempo;
    }
}

/// Returns the chain of candidates with the highest sum of ratings, minus the costs of uneven intervals.
fn chain(candidates: &[PeakCandidate]) -> Vec<usize> {
    let mut sums: Vec<f64> = Vec::with_capacity(candidates.len());
    let mut before: Vec<Option<usize>> = Vec::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate() {
        let mut best = (0.0, None);
        for (other, beat) in candidates[..index].iter().enumerate().rev() {
            let interval = candidate.time - beat.time;
            if interval < REFRACTORY {
                continue;
            }
            let uneven = UNEVEN * (interval / candidate.tempo).ln().powi(2);
            let sum = sums[other] - uneven.min(UNEVEN_MOST);
            if sum > best.0 {
                best = (sum, Some(other));
            }
            if interval > PAUSE {
                break;
            }
        }
        sums.push(candidate.rating + best.0);
        before.push(best.1);
    }
    let last = (0..sums.len()).max_by(|a, b| sums[*a].total_cmp(&sums[*b]));
    let mut chosen: Vec<_> = std::iter::successors(last, |index| before[*index]).collect();
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random numbers for noise: uniform from -1 to 1, and approximately normal as a sum of twelve.
    struct NoiseRandom(u64);

    impl NoiseRandom {
        fn uniform(&mut self) -> f64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(self.0 >> 32).unwrap()) / f64::from(1_u32 << 31) - 1.0
        }

        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.uniform()).sum::<f64>() / 2.0
        }
    }

    /// Returns a signal with a QRS complex and a T wave at each beat, baseline wander and white noise; every tenth beat is early.
    fn heart(rate: f64, beats: usize, noise: f64, seed: u64) -> (Vec<f64>, Vec<usize>) {
        let mut chance = NoiseRandom(seed);
        let mut times = vec![0.6];
        for beat in 1..beats {
            let early = match beat % 10 {
                7 => 0.65,
                8 => 1.3,
                _ => 1.0,
            };
            let last = times[beat - 1];
            times.push(last + 0.75 * early * (1.0 + 0.04 * chance.normal()));
        }
        let length = samples(times[beats - 1] + 0.6, rate);
        let wave = |time: f64, width: f64| (-0.5 * (time / width).powi(2)).exp();
        let signal = (0..length)
            .map(|sample| {
                let time = f64::from(u32::try_from(sample).unwrap()) / rate;
                let near = times
                    .iter()
                    .map(|beat| time - beat)
                    .filter(|time| time.abs() < 0.6);
                let heart: f64 = near
                    .map(|time| {
                        wave(time, 0.011) - 0.25 * wave(time - 0.028, 0.011)
                            + 0.25 * wave(time - 0.25, 0.045)
                    })
                    .sum();
                heart + 0.5 * (1.5 * time).sin() + noise * chance.normal()
            })
            .collect();
        (
            signal,
            times.into_iter().map(|time| samples(time, rate)).collect(),
        )
    }

    /// Returns the number of beats that were found, and the number of found peaks that are no beats.
    fn score(found: &[usize], beats: &[usize], rate: f64) -> (usize, usize) {
        let near = samples(0.075, rate);
        let hits = beats
            .iter()
            .filter(|beat| found.iter().any(|peak| peak.abs_diff(**beat) <= near))
            .count();
        let false_ones = found
            .iter()
            .filter(|peak| beats.iter().all(|beat| peak.abs_diff(*beat) > near))
            .count();
        (hits, false_ones)
    }

    #[test]
    fn r_peaks_finds_all_beats_at_any_rate() {
        for rate in [100.0, 250.0, 360.0, 1000.0] {
            for sign in [1.0, -1.0] {
                let (mut signal, beats) = heart(rate, 100, 0.01, 3);
                signal.iter_mut().for_each(|x| *x *= sign);
                let found = r_peaks(&signal, rate);
                assert_eq!(score(&found, &beats, rate), (100, 0), "{rate} Hz, {sign}");
                let off = found
                    .iter()
                    .zip(&beats)
                    .map(|(peak, beat)| peak.abs_diff(*beat))
                    .max();
                assert!(
                    off.unwrap() <= samples(0.012, rate),
                    "{off:?} samples at {rate} Hz"
                );
            }
        }
    }

    #[test]
    fn r_peaks_tolerates_noise_of_third_of_peaks() {
        let (mut hits, mut false_ones) = (0, 0);
        for seed in 0..5 {
            let (signal, beats) = heart(360.0, 100, 0.33, seed);
            let score = score(&r_peaks(&signal, 360.0), &beats, 360.0);
            hits += score.0;
            false_ones += score.1;
        }
        assert!(
            hits >= 485 && false_ones <= 15,
            "{hits} of 500, {false_ones} false"
        );
    }

    #[test]
    fn r_peaks_handles_flat_and_interrupted_signals() {
        assert!(r_peaks(&[], 250.0).is_empty());
        assert!(r_peaks(&[1.0; 5000], 250.0).is_empty());
        assert!(r_peaks(&[f64::NAN; 100], 250.0).is_empty());
        let (mut signal, beats) = heart(250.0, 60, 0.01, 9);
        // The lead is off for six seconds.
        signal[5000..6500].fill(f64::NAN);
        let found = r_peaks(&signal, 250.0);
        let beats: Vec<_> = beats
            .into_iter()
            .filter(|beat| !(4950..6550).contains(beat))
            .collect();
        assert_eq!(score(&found, &beats, 250.0).0, beats.len());
        assert!(found.len() <= beats.len() + 2);
    }
}
