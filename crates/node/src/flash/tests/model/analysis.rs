//! Model of analysis on the controller of a device: its speed, the times at which it may run, and its remaining work.
//!
//! From "Active Flash" §6.2: a kernel works on B bytes at a time and looks for requests in between, so a request that finds the kernel
//! working waits B / 2T on average.

use std::collections::VecDeque;

use tidemill_model::time::Span;

use super::timeline::time_of;

/// Time at which the analysis may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Data is analysed as it is written, while it is in the controller's memory, which holds the last `dram_bytes` written. Data that has
    /// left the memory is read back from flash in idle time, after collection.
    AtWrite {
        /// Size of the data that the controller's memory holds, in bytes.
        dram_bytes: u64,
    },
    /// Data is read back from flash and analysed when no request is being served; background collection has priority.
    Idle,
    /// As [`Mode::Idle`], but background collection waits until the analysis is done. Collection without which a write can't proceed is not
    /// postponed.
    IdleCollectionYields,
}

/// Analysis of all data that is written during a run, and of data written before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Analysis {
    /// Time at which the analysis may run.
    pub(crate) mode: Mode,
    /// T: bytes per second that the kernel processes, not including reads from flash.
    pub(crate) bytes_per_s: u64,
    /// B: bytes that the kernel processes before it looks for requests. The paper's prototype has 32 KiB.
    pub(crate) slice_bytes: u64,
    /// Ranges (first byte, bytes) that are on the device before the first request and must be analysed.
    pub(crate) resident: Vec<(u64, u64)>,
}

impl Analysis {
    /// Returns the time that the kernel takes for a full slice, B / T.
    pub(crate) fn slice_time(&self) -> Span {
        time_of(self.slice_bytes, self.bytes_per_s)
    }

    /// Returns the mean wait of a request that finds the kernel working: B / 2T.
    pub(crate) fn mean_preemption_delay(&self) -> Span {
        Span(self.slice_time().0 / 2)
    }
}

/// Range of the data to analyse: `bytes` from `offset` on the device, at position `start` of the analysed stream.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    offset: u64,
    bytes: u64,
}

/// Data still to be analysed, in the order in which it was written.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    slice_bytes: u64,
    dram_bytes: u64,
    segments: Vec<Segment>,
    /// Length of the analysed stream so far, in bytes.
    total: u64,
    /// Position in the stream: all earlier data was analysed, is in `left`, or is being processed.
    next: u64,
    /// Ranges (start, end) of the stream that left memory before they were analysed.
    left: VecDeque<(u64, u64)>,
}

impl Pending {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        let dram_bytes = match analysis.mode {
            Mode::AtWrite { dram_bytes } => dram_bytes,
            Mode::Idle | Mode::IdleCollectionYields => 0,
        };
        let mut pending = Self {
            slice_bytes: analysis.slice_bytes,
            dram_bytes: 0,
            segments: Vec::new(),
            total: 0,
            next: 0,
            left: VecDeque::new(),
        };
        for &(offset, bytes) in &analysis.resident {
            pending.written(offset, bytes);
        }
        pending.dram_bytes = dram_bytes;
        pending
    }

    /// Adds written data to the end of the stream.
    pub(crate) fn written(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.segments.push(Segment {
            start: self.total,
            offset,
            bytes,
        });
        self.total += bytes;
        let edge = self.total.saturating_sub(self.dram_bytes);
        if edge > self.next {
            match self.left.back_mut() {
                Some((_, end)) if *end == self.next => *end = edge,
                _ => self.left.push_back((self.next, edge)),
            }
            self.next = edge;
        }
    }

    /// Returns whether no data is left to analyse.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.total && self.left.is_empty()
    }

    /// Returns whether data must be read back from flash for the analysis.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Takes up to a slice of the oldest data in memory and returns its size in bytes.
    pub(crate) fn take_from_memory(&mut self) -> Option<u64> {
        let bytes = self.slice_bytes.min(self.total - self.next);
        self.next += bytes;
        (bytes > 0).then_some(bytes)
    }

    /// Takes up to a slice of the data that has left memory and returns its ranges (first byte, bytes) on the device.
    pub(crate) fn take_from_flash(&mut self) -> Option<Vec<(u64, u64)>> {
        let (start, end) = self.left.front_mut()?;
        let from = *start;
        let to = (*end).min(from + self.slice_bytes);
        *start = to;
        if *start == *end {
            self.left.pop_front();
        }
        Some(self.ranges(from, to))
    }

    fn ranges(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let first = self.segments.partition_point(|s| s.start + s.bytes <= from);
        self.segments[first..]
            .iter()
            .take_while(|segment| segment.start < to)
            .map(|segment| {
                let low = from.max(segment.start);
                let high = to.min(segment.start + segment.bytes);
                (segment.offset + (low - segment.start), high - low)
            })
            .collect()
    }
}

fn analysis(mode: Mode) -> Analysis {
    Analysis {
        mode,
        bytes_per_s: 1 << 20,
        slice_bytes: 10,
        resident: vec![(1000, 15)],
    }
}

#[test]
fn pending_analysis_takes_latest_from_memory_rest_from_flash() {
    let mut pending = Pending::new(&analysis(Mode::AtWrite { dram_bytes: 20 }));
    assert_eq!(pending.take_from_memory(), None);
    pending.written(0, 12);
    assert_eq!(pending.take_from_memory(), Some(10));
    pending.written(100, 30);
    // Positions 25 to 37 of 57 left memory before they were analysed.
    assert_eq!(pending.take_from_memory(), Some(10));
    assert_eq!(pending.take_from_memory(), Some(10));
    assert_eq!(pending.take_from_memory(), None);
    assert_eq!(pending.take_from_flash(), Some(vec![(1000, 10)]));
    assert_eq!(pending.take_from_flash(), Some(vec![(1010, 5)]));
    assert_eq!(pending.take_from_flash(), Some(vec![(10, 2), (100, 8)]));
    assert!(!pending.is_empty());
    assert_eq!(pending.take_from_flash(), Some(vec![(108, 2)]));
    assert_eq!(pending.take_from_flash(), None);
    assert!(pending.is_empty());
}

#[test]
fn idle_analysis_reads_everything_back() {
    let mut pending = Pending::new(&analysis(Mode::Idle));
    pending.written(0, 5);
    assert_eq!(pending.take_from_memory(), None);
    assert_eq!(pending.take_from_flash(), Some(vec![(1000, 10)]));
    assert_eq!(pending.take_from_flash(), Some(vec![(1010, 5), (0, 5)]));
    assert!(pending.is_empty());
}

/// Table 7 of the paper gives compute times for 100 MB. Section 6.2 says that slices of 32 KB delay requests by 3 to 8 ms.
#[test]
fn kernels_of_the_paper_delay_by_3_to_8_ms() {
    let expected_us = [3_093, 3_453, 4_328, 7_750];
    for (seconds_tenths, expected) in [198u64, 221, 277, 496].into_iter().zip(expected_us) {
        let analysis = Analysis {
            mode: Mode::Idle,
            bytes_per_s: (1000 << 20) / seconds_tenths,
            slice_bytes: 32 << 10,
            resident: Vec::new(),
        };
        assert_eq!(analysis.mean_preemption_delay().0 / 1000, expected);
    }
}
