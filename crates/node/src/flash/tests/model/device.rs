//! Simulated device that serves requests and analyses data in virtual time.
//!
//! A single controller core accepts requests one after the other and computes analysis slices; chips and channels work in parallel to the
//! core. A request that arrives while a slice is computed waits for the end of the slice, as on the single-core prototype of "Active Flash"
//! (§6.2). The core is free while chips read, program or erase.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidemill_model::time::{Span, Time};

use super::analysis::{Analysis, Mode, Pending};
use super::host::RangeError;
use super::timeline::{Timeline, time_of};
use crate::flash::ftl::{FlashCounters, Ftl};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Read of bytes from the device.
    Read,
    /// Write of bytes to the device. The write is done when the data is in flash.
    Write,
}

/// One request of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Time at which the request arrives.
    pub(crate) arrival: Time,
    /// Kind of the request.
    pub(crate) kind: Kind,
    /// Offset of the first requested byte on the device.
    pub(crate) offset: u64,
    /// Number of requested bytes.
    pub(crate) bytes: u64,
}

/// Reason for which a simulation run is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RunError {
    /// A request is not inside the device.
    #[error("request {index}: {source}")]
    Request {
        /// Index of the request, from 0.
        index: usize,
        /// Requested range and the capacity of the device.
        source: RangeError,
    },
    /// Data to analyse is not inside the device.
    #[error("data to analyse: {0}")]
    Resident(RangeError),
    /// The analysis would never end, because a setting is zero.
    #[error("analysis: {field} is 0; it must be at least 1")]
    Zero {
        /// Name of the setting that is zero.
        field: &'static str,
    },
}

/// Latencies of the requests in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    /// Number of requests that were served.
    pub(crate) requests: u64,
    /// Mean time from the arrival of a request until it is done.
    pub(crate) mean: Span,
    /// 99th percentile of the time from the arrival of a request until it is done.
    pub(crate) p99: Span,
    /// Maximum time from the arrival of a request until it is done.
    pub(crate) max: Span,
    /// Number of requests that arrived while the core computed a slice, and were the first to do so in that slice.
    pub(crate) preemptions: u64,
    /// Mean time that these requests waited for the end of the slice, to be compared with B / 2T.
    pub(crate) preemption_mean: Span,
    /// Maximum time that a request waited for the end of a slice.
    pub(crate) preemption_max: Span,
}

/// Progress of the analysis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Analysed {
    /// Bytes that were analysed.
    pub(crate) bytes: u64,
    /// Analysed bytes that were still in the controller's memory.
    pub(crate) bytes_in_memory: u64,
    /// Time at which data to analyse existed for the first time.
    pub(crate) started: Time,
    /// Time at which no data to analyse was left.
    pub(crate) finished: Time,
}

impl Analysed {
    /// Returns the rate of analysis from the first data to the end, in bytes per second; 0 if there was no data.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn bytes_per_s(&self) -> f64 {
        let seconds = self.finished.since(self.started).as_secs_f64();
        if seconds > 0.0 {
            self.bytes as f64 / seconds
        } else {
            0.0
        }
    }
}

/// Garbage collection during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Number of pages copied in idle time.
    pub(crate) background_pages: u64,
    /// Number of pages copied while a write waited.
    pub(crate) forced_pages: u64,
    /// Number of analysis slices that began while collection was wanted and was postponed.
    pub(crate) yields: u64,
    /// Number of pages copied in idle time after the analysis was done: collection that was postponed and then caught up.
    pub(crate) postponed_pages: u64,
}

/// Result of a simulation run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// Latencies of requests.
    pub(crate) latency: Latency,
    /// Progress of the analysis.
    pub(crate) analysed: Analysed,
    /// Garbage collection during the run.
    pub(crate) collected: Collected,
    /// Time at which the last work of the run was done.
    pub(crate) ended: Time,
    /// Counters of the translation layer during the run.
    pub(crate) counts: FlashCounters,
}

/// Serves `requests` (by arrival; simultaneous requests in the given order) on `ftl`, with or without an analysis at the same time. Each
/// request takes the core for `command`. `ftl` keeps its state at the end of the run, so a device can be filled or aged before, and run
/// again.
///
/// # Errors
/// [`RunError`] if a request or range is not inside the device or a setting of the analysis is zero; then no request is served.
pub(crate) fn run(
    ftl: &mut Ftl,
    requests: &[Request],
    analysis: Option<&Analysis>,
    command: Span,
) -> Result<Report, RunError> {
    check(ftl, requests, analysis)?;
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| requests[index].arrival);
    let before = ftl.counts();
    let mut run = Run::new(ftl, requests, analysis, command);
    run.go(&order);
    let after = run.ftl.counts();
    Ok(run.report(before, after))
}

fn check(ftl: &Ftl, requests: &[Request], analysis: Option<&Analysis>) -> Result<(), RunError> {
    for (index, request) in requests.iter().enumerate() {
        ftl.pages_of(request.offset, request.bytes)
            .map_err(|source| RunError::Request { index, source })?;
    }
    let Some(analysis) = analysis else {
        return Ok(());
    };
    for (field, value) in [
        ("bytes_per_s", analysis.bytes_per_s),
        ("slice_bytes", analysis.slice_bytes),
    ] {
        if value == 0 {
            return Err(RunError::Zero { field });
        }
    }
    for &(offset, bytes) in &analysis.resident {
        ftl.pages_of(offset, bytes).map_err(RunError::Resident)?;
    }
    Ok(())
}

/// End of an activity of the simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The core has accepted a request.
    Taken(usize),
    /// The core has computed an analysis slice.
    Computed { bytes: u64, in_memory: bool },
    /// A request is done.
    Served(usize),
    /// An analysis slice has been read from flash.
    Staged { bytes: u64 },
    /// A step of garbage collection is done.
    Collected,
}

/// Activity of the controller core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Core {
    Free,
    Command,
    /// Analysis slice that ends at `until`, and whether a request waits for its end already.
    Slice {
        until: Time,
        awaited: bool,
    },
}

struct Run<'a> {
    ftl: &'a mut Ftl,
    requests: &'a [Request],
    analysis: Option<&'a Analysis>,
    pending: Option<Pending>,
    command: Span,
    timeline: Timeline,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    core: Core,
    queue: VecDeque<usize>,
    /// Number of requests that have arrived and are not served yet.
    outstanding: usize,
    /// Bytes of the slice in the controller's memory, to be computed in idle time.
    staged: Option<u64>,
    /// Whether an analysis slice is being read from flash, or a step of collection is under way.
    flash_busy: bool,
    latencies: Vec<u64>,
    preempted: (u64, u64, u64),
    analysed: Analysed,
    has_started: bool,
    collected: Collected,
}

impl<'a> Run<'a> {
    fn new(
        ftl: &'a mut Ftl,
        requests: &'a [Request],
        analysis: Option<&'a Analysis>,
        command: Span,
    ) -> Self {
        let timeline = Timeline::new(ftl.geometry());
        let pending = analysis.map(Pending::new);
        Self {
            ftl,
            requests,
            analysis,
            has_started: pending.as_ref().is_some_and(Pending::has_left),
            pending,
            command,
            timeline,
            now: Time(0),
            events: BinaryHeap::new(),
            sequence: 0,
            core: Core::Free,
            queue: VecDeque::new(),
            outstanding: 0,
            staged: None,
            flash_busy: false,
            latencies: Vec::with_capacity(requests.len()),
            preempted: (0, 0, 0),
            analysed: Analysed::default(),
            collected: Collected::default(),
        }
    }

    fn go(&mut self, order: &[usize]) {
        let mut arrivals = order.iter().copied().peekable();
        loop {
            self.proceed();
            let event = self.events.peek().map(|Reverse((at, _, _))| *at);
            let arrival = arrivals.peek().map(|&index| self.requests[index].arrival);
            match (arrival, event) {
                (None, None) => return,
                (Some(at), event) if event.is_none_or(|event| at <= event) => {
                    self.now = at;
                    if let Some(index) = arrivals.next() {
                        self.on_arrival(index);
                    }
                }
                _ => {
                    if let Some(Reverse((at, _, event))) = self.events.pop() {
                        self.now = at;
                        self.on(event);
                    }
                }
            }
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn on_arrival(&mut self, index: usize) {
        self.outstanding += 1;
        self.queue.push_back(index);
        if let Core::Slice { until, awaited } = &mut self.core
            && !std::mem::replace(awaited, true)
        {
            let wait = until.since(self.now).0;
            let (count, total, max) = self.preempted;
            self.preempted = (count + 1, total + wait, max.max(wait));
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Taken(index) => {
                self.core = Core::Free;
                self.serve(index);
            }
            Event::Computed { bytes, in_memory } => {
                self.core = Core::Free;
                self.analysed.bytes += bytes;
                if in_memory {
                    self.analysed.bytes_in_memory += bytes;
                }
                self.analysed.finished = self.now;
            }
            Event::Served(index) => {
                self.outstanding -= 1;
                let latency = self.now.since(self.requests[index].arrival);
                self.latencies.push(latency.0);
            }
            Event::Staged { bytes } => {
                self.flash_busy = false;
                self.staged = Some(bytes);
            }
            Event::Collected => self.flash_busy = false,
        }
    }

    /// Gives the core, or idle flash, the next work. Requests come first, and then the analysis of data that may soon leave memory. All
    /// other work is done only when no request is outstanding.
    fn proceed(&mut self) {
        if self.core != Core::Free {
            return;
        }
        if let Some(index) = self.queue.pop_front() {
            self.core = Core::Command;
            self.at(self.now + self.command, Event::Taken(index));
            return;
        }
        if let Some(bytes) = self.pending.as_mut().and_then(Pending::take_from_memory) {
            self.compute(bytes, true);
            return;
        }
        if self.outstanding > 0 {
            return;
        }
        if let Some(bytes) = self.staged.take() {
            self.compute(bytes, false);
        } else if !self.flash_busy {
            self.use_idle_flash();
        }
    }

    fn compute(&mut self, bytes: u64, in_memory: bool) {
        if let Some(analysis) = self.analysis {
            let until = self.now + time_of(bytes, analysis.bytes_per_s);
            self.core = Core::Slice {
                until,
                awaited: false,
            };
            self.at(until, Event::Computed { bytes, in_memory });
        }
    }

    fn use_idle_flash(&mut self) {
        let has_left = self.pending.as_ref().is_some_and(Pending::has_left);
        let yields = self
            .analysis
            .is_some_and(|analysis| analysis.mode == Mode::IdleCollectionYields);
        let wanted = self.ftl.collection().wanted;
        if wanted && !(yields && has_left) && self.collect() {
            return;
        }
        if let Some(ranges) = self.pending.as_mut().and_then(Pending::take_from_flash) {
            self.collected.yields += u64::from(wanted && yields);
            self.stage(&ranges);
        }
    }

    fn collect(&mut self) -> bool {
        let (timeline, now) = (&mut self.timeline, self.now);
        let geometry = self.ftl.geometry().clone();
        let mut end = now;
        let before = self.ftl.counts();
        let worked = self
            .ftl
            .collect(geometry.spec().channels, &mut |operation| {
                end = end.max(timeline.book(operation, &geometry, now));
            });
        let pages = self.ftl.counts().flash_pages() - before.flash_pages();
        self.collected.background_pages += pages;
        if self.collected.yields > 0 && self.pending.as_ref().is_some_and(Pending::is_empty) {
            self.collected.postponed_pages += pages;
        }
        if worked {
            self.flash_busy = true;
            self.at(end, Event::Collected);
        }
        worked
    }

    fn stage(&mut self, ranges: &[(u64, u64)]) {
        let mut end = self.now;
        for &(offset, bytes) in ranges {
            end = end.max(self.read(offset, bytes));
        }
        let bytes = ranges.iter().map(|&(_, bytes)| bytes).sum();
        self.flash_busy = true;
        self.at(end, Event::Staged { bytes });
    }

    /// Schedules reads of the pages in a range and returns the end of the last read; pages without data cost nothing.
    fn read(&mut self, offset: u64, bytes: u64) -> Time {
        let mut end = self.now;
        let pages = self.ftl.pages_of(offset, bytes);
        for logical in pages.expect("ranges are checked before a run") {
            if let Some(page) = self.ftl.locate(logical) {
                let chip = self.ftl.geometry().chip_of(page);
                end = end.max(self.timeline.read(chip, self.now));
            }
        }
        end
    }

    fn serve(&mut self, index: usize) {
        let Request {
            kind,
            offset,
            bytes,
            ..
        } = self.requests[index];
        let end = match kind {
            Kind::Read => self.read(offset, bytes),
            Kind::Write => self.write(offset, bytes),
        };
        self.at(end, Event::Served(index));
    }

    fn write(&mut self, offset: u64, bytes: u64) -> Time {
        let (timeline, now) = (&mut self.timeline, self.now);
        let geometry = self.ftl.geometry().clone();
        let before = self.ftl.counts();
        let mut end = now;
        let written = self.ftl.write_observed(offset, bytes, &mut |operation| {
            end = end.max(timeline.book(operation, &geometry, now));
        });
        written.expect("ranges are checked before a run");
        let after = self.ftl.counts();
        self.collected.forced_pages +=
            (after.flash_pages() - after.host_pages) - (before.flash_pages() - before.host_pages);
        if let Some(pending) = &mut self.pending {
            if !std::mem::replace(&mut self.has_started, true) {
                self.analysed.started = now;
            }
            pending.written(offset, bytes);
        }
        end
    }

    fn report(mut self, before: FlashCounters, after: FlashCounters) -> Report {
        self.latencies.sort_unstable();
        let requests = self.latencies.len() as u64;
        let mean = |total: u64, count: u64| Span(total.checked_div(count).unwrap_or(0));
        let rank = (self.latencies.len() * 99).div_ceil(100);
        let at = |index: usize| Span(self.latencies.get(index).copied().unwrap_or(0));
        let (preemptions, waited, preemption_max) = self.preempted;
        Report {
            latency: Latency {
                requests,
                mean: mean(self.latencies.iter().sum(), requests),
                p99: at(rank.saturating_sub(1)),
                max: at(self.latencies.len().saturating_sub(1)),
                preemptions,
                preemption_mean: mean(waited, preemptions),
                preemption_max: Span(preemption_max),
            },
            analysed: self.analysed,
            collected: self.collected,
            ended: self.now,
            counts: after.since(before),
        }
    }
}
