//! What a meter says that the element's host draws: the number that a command prints, or the counters of the host's processors
//! (RAPL), where they can be read.

use parking_lot::Mutex;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long what was read is believed.
const FRESH: Duration = Duration::from_secs(10);
/// Bytes of what a command prints.
const SAID_BYTES_MAX: u64 = 256;
/// Where Linux shows the counters.
const POWERCAP: &str = "/sys/class/powercap";

/// Where what is drawn is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meter {
    /// The processors' own counters.
    Rapl,
    /// A line for the shell that prints watts.
    Command(String),
}

/// What was read last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading(Arc<Mutex<Option<(Instant, u64)>>>);

impl Reading {
    /// In thousandths of a watt; `None`: nothing was read lately.
    pub(crate) fn milliwatts(&self) -> Option<u64> {
        let read = *self.0.lock();
        read.filter(|(at, _)| at.elapsed() < FRESH)
            .map(|(_, milli)| milli)
    }
}

impl Meter {
    /// What it is, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Rapl => "measured by RAPL, the processors of its host only".into(),
            Self::Command(line) => {
                format!("measured by `{}`", tidemill_core::shown::line(line))
            }
        }
    }

    /// Reads it from time to time, for as long as somebody has the reading.
    pub(crate) fn start(&self) -> Reading {
        let (meter, reading) = (self.clone(), Reading::default());
        let to = Arc::downgrade(&reading.0);
        std::thread::spawn(move || {
            let (mut before, mut told) = (None, false);
            while let Some(to) = to.upgrade() {
                let read = match &meter {
                    Self::Rapl => Ok(rapl(Path::new(POWERCAP), &mut before)),
                    Self::Command(line) => command(line, LIMIT).map(Some),
                };
                match read {
                    Ok(Some(milli)) => *to.lock() = Some((Instant::now(), milli)),
                    Ok(None) => {}
                    Err(why) if told => tracing::debug!("{why}"),
                    Err(why) => tracing::warn!("the meter: {why}"),
                }
                told = true;
                drop(to);
                std::thread::sleep(PERIOD);
            }
        });
        reading
    }
}

/// The watts that a command prints, in thousandths.
fn command(line: &str, limit: Duration) -> Result<u64, String> {
    let named = |what: &str| format!("`{}` {what}", tidemill_core::shown::line(line));
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
    let (sender, said) = std::sync::mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            // What is not a number is told below.
            let _ = pipe.take(SAID_BYTES_MAX).read_to_string(&mut text);
            let _ = sender.send(text);
        });
    }
    let said = said.recv_timeout(limit);
    // It has said all that is wanted, or takes too long.
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    let _ = child.wait();
    let said = said.map_err(|_| named("says nothing"))?;
    let watts: f64 = said
        .trim()
        .parse()
        .map_err(|_| named("does not print a number of watts"))?;
    milli(watts).ok_or_else(|| named("prints no power"))
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

/// What the packages' counters, in microjoules, say since they were read before.
fn rapl(folder: &Path, before: &mut Option<(Instant, Vec<u64>)>) -> Option<u64> {
    let packages = packages(folder);
    let counters: Option<Vec<u64>> = packages
        .iter()
        .map(|package| {
            let text = std::fs::read_to_string(package.join("energy_uj")).ok()?;
            text.trim().parse().ok()
        })
        .collect();
    let counters = counters.filter(|counters| !counters.is_empty())?;
    let (at, earlier) = before.replace((Instant::now(), counters.clone()))?;
    let micros = at.elapsed().as_micros();
    // A counter that has begun anew is left out until the next time.
    let each = counters.iter().zip(&earlier);
    let joules: Option<Vec<u64>> = each.map(|(now, then)| now.checked_sub(*then)).collect();
    let sum: u64 = joules?.iter().sum();
    u64::try_from(u128::from(sum) * 1000 / micros.max(1)).ok()
}

/// `intel-rapl:0` and its like, not the parts of packages.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
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
    fn a_meter_that_lies_or_hangs_measures_nothing() {
        let read = |line: &str| command(line, Duration::from_millis(500));
        assert_eq!(read("echo 63.5"), Ok(63_500));
        for line in [
            "echo many",
            "echo -3",
            "echo nan",
            "exit 1",
            "sleep 1000",
            "yes",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn counters_of_processors_are_summed_and_one_that_begins_anew_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let set = |package: &str, energy: &str| {
            let package = folder.path().join(package);
            std::fs::create_dir_all(&package).unwrap();
            std::fs::write(package.join("energy_uj"), energy).unwrap();
        };
        let mut before = None;
        assert_eq!(rapl(folder.path(), &mut before), None);
        set("intel-rapl:0", "1000");
        set("intel-rapl:1", "1000");
        set("intel-rapl:0:0", "7");
        assert_eq!(rapl(folder.path(), &mut before), None);
        std::thread::sleep(Duration::from_millis(2));
        set("intel-rapl:0", "900000001000");
        assert!(rapl(folder.path(), &mut before).unwrap() > 0);
        set("intel-rapl:1", "5");
        assert_eq!(rapl(folder.path(), &mut before), None);
    }
}
