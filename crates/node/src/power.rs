//! Power meter of the node's host. The meter reads the number that a command prints, or the counters of the host's processors (RAPL).

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of readings of the meter.
const PERIOD: Duration = Duration::from_secs(1);
/// Time limit of a command that prints the power.
const LIMIT: Duration = Duration::from_secs(5);
/// Time after which a reading is stale.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a command's output.
const PRINTED_BYTES_MAX: usize = 256;
/// Maximum power of a package of processors in watts. A counter that shows more power was reset.
const PACKAGE_WATTS_MAX: u64 = 5000;
/// Linux's directory of the power counters.
const POWERCAP: &str = "/sys/class/powercap";

/// Source of the power readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meter {
    /// Counters of the host's processors.
    Rapl,
    /// Shell command that prints watts.
    Command(String),
}

/// Last reading of the meter.
#[derive(Clone, Debug, Default)]
pub(crate) struct PowerReading(Arc<Mutex<Option<(Instant, u64)>>>);

impl PowerReading {
    /// Returns the power in thousandths of a watt; `None` if the last reading is stale.
    pub(crate) fn milliwatts(&self) -> Option<u64> {
        let read = *self.0.lock();
        read.filter(|(at, _)| at.elapsed() < FRESH)
            .map(|(_, milli)| milli)
    }
}

impl Meter {
    /// Returns a human-readable description of the meter.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Rapl => "measured by RAPL, only the processors of its host".into(),
            Self::Command(line) => {
                format!("measured by `{}`", tidemill_model::display::line(line))
            }
        }
    }

    /// Starts a thread that reads the meter periodically, until the reading is dropped.
    pub(crate) fn start(&self) -> PowerReading {
        let (meter, reading) = (self.clone(), PowerReading::default());
        let to = Arc::downgrade(&reading.0);
        std::thread::spawn(move || {
            let (mut before, mut logged) = (None, false);
            while let Some(to) = to.upgrade() {
                let read = match &meter {
                    Self::Rapl => Ok(rapl(Path::new(POWERCAP), &mut before)),
                    Self::Command(line) => command(line, LIMIT).map(Some),
                };
                match read {
                    Ok(Some(milli)) => *to.lock() = Some((Instant::now(), milli)),
                    Ok(None) => {}
                    Err(why) if logged => tracing::debug!("{why}"),
                    Err(why) => tracing::warn!("the power meter failed: {why}"),
                }
                logged = true;
                drop(to);
                std::thread::sleep(PERIOD);
            }
        });
        reading
    }
}

/// Returns the power that a command prints in watts, in thousandths of a watt.
fn command(line: &str, limit: Duration) -> Result<u64, String> {
    let named = |what: &str| format!("`{}` {what}", tidemill_model::display::line(line));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::null());
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| named(&format!("can't be run: {error}")))?;
    let pid = rustix::process::Pid::from_child(&child);
    let printed = child.stdout.take().map(|pipe| until_end(pipe, limit));
    // The command has printed enough, or takes too long.
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    let _ = child.wait();
    let printed = printed
        .flatten()
        .ok_or_else(|| named("does not end in time, or prints nothing"))?;
    let watts: f64 = printed
        .trim()
        .parse()
        .map_err(|_| named("does not print a number of watts"))?;
    milli(watts).ok_or_else(|| named("prints a number that is no valid power"))
}

/// Returns the output of a pipe until its end or until [`PRINTED_BYTES_MAX`]; `None` if the pipe does not end in time, for instance because
/// a process that has left its process group has the pipe open.
fn until_end(mut pipe: ChildStdout, limit: Duration) -> Option<String> {
    let end = Instant::now() + limit;
    let mut printed = Vec::new();
    let mut piece = [0; PRINTED_BYTES_MAX];
    while printed.len() < PRINTED_BYTES_MAX {
        let left = end.checked_duration_since(Instant::now())?;
        let left = rustix::event::Timespec::try_from(left).ok()?;
        let mut asked = [PollFd::new(&pipe, PollFlags::IN)];
        match rustix::event::poll(&mut asked, Some(&left)) {
            Ok(0) => return None,
            Ok(_) => match pipe.read(&mut piece).ok()? {
                0 => break,
                more => printed.extend_from_slice(&piece[..more]),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    // The caller reports text that is not a number.
    Some(String::from_utf8_lossy(&printed).into_owned())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is neither negative nor large"
)]
fn milli(watts: f64) -> Option<u64> {
    (0.0..1e9)
        .contains(&watts)
        .then(|| (watts * 1000.0).round() as u64)
}

/// Returns the power since the last reading in thousandths of a watt, from the packages' counters, which count microjoules.
fn rapl(directory: &Path, before: &mut Option<(Instant, Vec<u64>)>) -> Option<u64> {
    let packages = packages(directory);
    let number = |package: &PathBuf, name| {
        let text = std::fs::read_to_string(package.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let counters: Option<Vec<u64>> = packages
        .iter()
        .map(|package| number(package, "energy_uj"))
        .collect();
    let counters = counters.filter(|counters| !counters.is_empty())?;
    let (at, earlier) = before.replace((Instant::now(), counters.clone()))?;
    if earlier.len() != counters.len() {
        return None;
    }
    let micros = u64::try_from(at.elapsed().as_micros()).ok()?.max(1);
    let each = packages.iter().zip(counters.iter().zip(&earlier));
    let joules: Option<Vec<u64>> = each
        .map(|(package, (now, then))| match now.checked_sub(*then) {
            Some(more) => Some(more),
            // The counter wrapped around. A counter that was reset is left out until the next reading.
            None => {
                let round = number(package, "max_energy_range_uj")?;
                let more = round.checked_sub(*then)?.checked_add(*now)?;
                (more / micros <= PACKAGE_WATTS_MAX).then_some(more)
            }
        })
        .collect();
    let sum: u64 = joules?.iter().sum();
    u64::try_from(u128::from(sum) * 1000 / u128::from(micros)).ok()
}

/// Returns the directories of processor packages, such as `intel-rapl:0`, without the directories of parts of packages.
fn packages(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut packages: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| {
                name.starts_with("intel-rapl:") && name.matches(':').count() == 1
            })
        })
        .collect();
    packages.sort();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_with_bad_output_or_hang_measures_nothing() {
        let read = |line: &str| command(line, Duration::from_millis(500));
        assert_eq!(read("echo 63.5"), Ok(63_500));
        for line in [
            "echo many",
            "echo -3",
            "echo nan",
            "exit 1",
            "sleep 1000",
            // The process has left its process group and keeps the pipe open.
            "setsid sleep 2 & echo 5",
            "printf '5 6'",
            "echo 1e300",
            "yes",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    /// Fake counters of packages: the value of each counter, and the value at which it wraps around.
    struct Counters(tempfile::TempDir);

    impl Counters {
        fn set(&self, package: &str, energy: &str) {
            let package = self.0.path().join(package);
            std::fs::create_dir_all(&package).unwrap();
            std::fs::write(package.join("energy_uj"), energy).unwrap();
            std::fs::write(package.join("max_energy_range_uj"), "262143328850").unwrap();
        }

        fn read(&self, before: &mut Option<(Instant, Vec<u64>)>) -> Option<u64> {
            std::thread::sleep(Duration::from_millis(2));
            rapl(self.0.path(), before)
        }
    }

    #[test]
    fn power_reading_skips_counters_that_reset_or_appear() {
        let counters = Counters(tempfile::tempdir().unwrap());
        let mut before = None;
        assert_eq!(counters.read(&mut before), None);
        counters.set("intel-rapl:0", "1000");
        counters.set("intel-rapl:1", "1000");
        counters.set("intel-rapl:0:0", "7");
        assert_eq!(counters.read(&mut before), None);
        counters.set("intel-rapl:0", "900000001000");
        assert!(counters.read(&mut before).unwrap() > 0);
        // The counter of 1 is reset, then the new package 2 appears, then its value is no number.
        counters.set("intel-rapl:1", "5");
        assert_eq!(counters.read(&mut before), None);
        counters.set("intel-rapl:2", "5");
        assert_eq!(counters.read(&mut before), None);
        counters.set("intel-rapl:2", "many");
        assert_eq!(counters.read(&mut before), None);
    }

    #[test]
    fn power_reading_continues_when_counter_wraps() {
        let counters = Counters(tempfile::tempdir().unwrap());
        let mut before = None;
        counters.set("intel-rapl:0", "262143328800");
        assert_eq!(counters.read(&mut before), None);
        counters.set("intel-rapl:0", "150");
        // The counter shows 200 microjoules in more than 2 ms.
        let milliwatts = counters.read(&mut before).unwrap();
        assert!(milliwatts <= 100, "{milliwatts}");
    }
}
