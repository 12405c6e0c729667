//! Measures kernels on memory for `bench/kernels/memory.py`, which sends the runs, one on each line: `WHAT FILE [NUMBER]`, separated by
//! tabs. The answer contains the elapsed seconds, the processor seconds of this process, and the result, separated by tabs. Files are
//! read in advance, and results are written to memory that was used before, so only the loop is measured.
//!
//! `copy` (memory to memory) is a run to compare the kernels with.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};
use tidemill_compute::memory;

/// Start of a measurement: the wall-clock time, and the processor time that this process has used so far.
struct Start(Instant, Duration);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), used())
    }

    /// Returns the elapsed seconds, and the processor seconds used, since the start.
    fn seconds(&self) -> (f64, f64) {
        (
            self.0.elapsed().as_secs_f64(),
            (used() - self.1).as_secs_f64(),
        )
    }
}

fn used() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime)
        .try_into()
        .unwrap_or_default()
}

/// Elapsed and processor seconds of a run, and its result.
type TimedRun = Result<((f64, f64), String), Box<dyn Error>>;

/// Contents of files, and buffers for results.
#[derive(Default)]
struct BenchFiles {
    files: BTreeMap<String, Vec<u8>>,
    to: Vec<u8>,
}

impl BenchFiles {
    fn run(&mut self, what: &str, name: &str, number: usize) -> TimedRun {
        if what == "scale-in-place" {
            return scale(name);
        }
        if !self.files.contains_key(name) {
            self.files.insert(name.to_owned(), std::fs::read(name)?);
        }
        let from = &self.files[name];
        self.to.resize(from.len(), 1);
        let signal: Vec<f64> = match what {
            "heartbeat" => from
                .as_chunks::<8>()
                .0
                .iter()
                .map(|x| f64::from_le_bytes(*x))
                .collect(),
            _ => Vec::new(),
        };
        let start = Start::now();
        let found = match what {
            "copy" => {
                self.to.copy_from_slice(from);
                String::new()
            }
            "transpose" => {
                memory::transpose(from, 8, number, &mut self.to)?;
                String::new()
            }
            "sobel" => {
                memory::sobel(from, number, &mut self.to)?;
                let seconds = start.seconds();
                let sum: u64 = self.to.iter().map(|pixel| u64::from(*pixel)).sum();
                return Ok((seconds, sum.to_string()));
            }
            "fingerprint" => format!("{:016x}", memory::fingerprint(from)),
            "heartbeat" => {
                #[allow(clippy::cast_precision_loss, reason = "a rate is a small number")]
                let peaks = memory::r_peaks(&signal, number as f64);
                peaks
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            }
            _ => return Err(format!("{what} is not known").into()),
        };
        Ok((start.seconds(), found))
    }
}

/// Scales a file in place, mapped for writing.
fn scale(name: &str) -> TimedRun {
    let file = OpenOptions::new().read(true).write(true).open(name)?;
    let length = usize::try_from(file.metadata()?.len())?;
    let start = Start::now();
    // SAFETY: a new mapping at an address of the system's choice; no other process has the file open during a benchmark.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let fd = file.as_fd();
        let map = rustix::mm::mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0)?;
        memory::scale_in_place(
            std::slice::from_raw_parts_mut(map.cast(), length),
            1.5,
            -0.25,
        );
        rustix::mm::munmap(map, length)?;
    }
    Ok((start.seconds(), String::new()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut memory = BenchFiles::default();
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split('\t').collect();
        let [what, name, number @ ..] = words.as_slice() else {
            return Err("WHAT FILE [NUMBER]".into());
        };
        let number = number.first().map_or(Ok(0), |number| number.parse())?;
        let ((seconds, used), found) = memory.run(what, name, number)?;
        writeln!(answers, "{seconds}\t{used}\t{found}")?;
        answers.flush()?;
    }
    Ok(())
}
