//! Timeline of each chip and channel. Operations are scheduled in the order of the calls; each operation starts when its chip and channel
//! are free.

use tidemill_model::time::{Span, Time};

use crate::flash::ftl::FlashOperation;
use crate::flash::geometry::{DeviceSpec, Geometry};

/// Scheduled times of a device's chips and channels.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    chips: Vec<Time>,
    channels: Vec<Time>,
    transfer: Span,
    read: Span,
    program: Span,
    erase: Span,
    /// Time at which the page that was last read in part is in the controller: the programming of the page waits until then.
    part: Time,
    /// Time at which the last copied page is programmed: an erase waits until then.
    copied: Time,
}

impl Timeline {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let spec = geometry.spec();
        Self {
            chips: vec![Time(0); geometry.chips() as usize],
            channels: vec![Time(0); spec.channels as usize],
            transfer: time_of(u64::from(spec.page_bytes), spec.channel_bytes_per_s),
            read: spec.read,
            program: spec.program,
            erase: spec.erase,
            part: Time(0),
            copied: Time(0),
        }
    }

    /// Schedules a page read. Returns the time at which the page is in the controller's memory.
    pub(crate) fn read(&mut self, chip: u32, now: Time) -> Time {
        let sensed = now.max(self.chips[chip as usize]) + self.read;
        let channel = chip as usize % self.channels.len();
        let done = sensed.max(self.channels[channel]) + self.transfer;
        self.channels[channel] = done;
        self.chips[chip as usize] = done;
        done
    }

    fn program(&mut self, chip: u32, from: Time) -> Time {
        let channel = chip as usize % self.channels.len();
        let free = self.channels[channel].max(self.chips[chip as usize]);
        let moved = from.max(free) + self.transfer;
        self.channels[channel] = moved;
        self.chips[chip as usize] = moved + self.program;
        self.chips[chip as usize]
    }

    /// Schedules an operation of the translation layer that begins at `now` or later. Returns the time at which the operation is done.
    pub(crate) fn book(
        &mut self,
        operation: FlashOperation,
        geometry: &Geometry,
        now: Time,
    ) -> Time {
        match operation {
            FlashOperation::Read { page } => {
                self.part = self.read(geometry.chip_of(page), now);
                self.part
            }
            FlashOperation::Program { page, .. } => {
                let from = now.max(std::mem::take(&mut self.part));
                self.program(geometry.chip_of(page), from)
            }
            FlashOperation::Copy { from, to } => {
                let read = self.read(geometry.chip_of(from), now);
                let done = self.program(geometry.chip_of(to), read);
                self.copied = self.copied.max(done);
                done
            }
            FlashOperation::Erase { block } => {
                let chip = (block % geometry.chips()) as usize;
                let start = now.max(self.chips[chip]).max(self.copied);
                self.chips[chip] = start + self.erase;
                self.chips[chip]
            }
        }
    }
}

/// Returns the time that transferring `bytes` takes at `rate` bytes per second, rounded up to the nanosecond. `rate` must not be 0.
pub(crate) fn time_of(bytes: u64, rate: u64) -> Span {
    let nanoseconds = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate));
    Span(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[test]
fn flash_operations_wait_for_their_chip_and_channel() {
    let geometry = Geometry::new(DeviceSpec {
        channels: 1,
        chips_per_channel: 2,
        channel_bytes_per_s: 8192 * 10_000,
        ..DeviceSpec::default()
    })
    .unwrap();
    let mut line = Timeline::new(&geometry);
    // 75 µs to sense, 100 µs to move; the other chip senses at the same time but waits for the channel.
    assert_eq!(line.read(0, Time(0)), Time(175_000));
    assert_eq!(line.read(1, Time(0)), Time(275_000));
    // The first chip is free at 175, the channel at 275; then move and program.
    let page = 0;
    let done = line.book(
        FlashOperation::Program { page, logical: 0 },
        &geometry,
        Time(0),
    );
    assert_eq!(done, Time(1_125_000));
    // An erase waits for the copies out of its block to be safe on the other chip.
    let to = geometry.spec().pages_per_block;
    let copied = line.book(FlashOperation::Copy { from: 1, to }, &geometry, Time(0));
    assert_eq!(copied, Time(1_125_000 + 175_000 + 100_000 + 750_000));
    let erased = line.book(FlashOperation::Erase { block: 0 }, &geometry, Time(0));
    assert_eq!(erased, copied + Span(3_800_000));
}

#[test]
fn time_of_rounds_up() {
    assert_eq!(time_of(1, 3), Span(333_333_334));
    assert_eq!(time_of(0, 3), Span(0));
    assert_eq!(time_of(u64::MAX, 1), Span(u64::MAX));
}
