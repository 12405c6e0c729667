//! `tidemill kernel bench`: measures kernels as a node runs them, sandbox included, and stores the results for
//! `tidemill plan offload`.
//!
//! Runs over two sizes separate the start from the work: a run over [`SMALL_BYTES`] is all start.

mod nodes;
mod subject;

use crate::calibration::{Calibration, CalibrationError, KernelSpeed, keep};
use crate::context::CommandContext;
use crate::format::{self, ByteSize};
use crate::output::kernel::MeasuredRates;
use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};
use subject::{BenchData, RESULT, SMALL_BYTES, Subject};
use tidemill_compute::builtin_names;
use tidemill_sandbox::{Launcher, LauncherSettings};

const EXAMPLES: &str = "Examples:
  tidemill kernel bench                             all built-in kernels on this machine
  tidemill kernel bench max grep --size 1Gi         over more input than the default
  tidemill kernel bench od -- -A n -t x1 -v         a program: data on standard input, result on standard output
  tidemill kernel bench --nodes max                 on this machine, on each node, and the network to it

Input is generated from a seed and is in the page cache. The file keeps earlier results of other kernels.";

/// Minimum size of an input: results of smaller inputs mean nothing.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Maximum size of an input that is chosen here: each node gets a copy.
const SIZE_BYTES_MAX: u64 = 256 << 20;

/// Time that the work of a run should take: long compared with the variation of its start.
const WORK: Duration = Duration::from_millis(200);

/// Measure kernels on this machine and on nodes, for `tidemill plan offload`, and store the rates in a calibration file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Built-in kernels, or programs that filter standard input [default: all built-in kernels]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Size of the input [default: 1Mi to 256Mi, so that a run takes about 0.2 s]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Number of runs of each kernel
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Seed of the generated input
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Kind of the generated input [default: text for grep, wordcount and programs, else numbers]
    #[arg(long, value_name = "KIND")]
    data: Option<BenchData>,
    /// Measure on each storage node, too, by small jobs. The command puts their data into the cluster and removes it at the end
    #[arg(long)]
    nodes: bool,
    /// Directory of the cluster for the data of --nodes
    #[arg(long, value_name = "PATH", default_value = "/", requires = "nodes")]
    path: std::ffi::OsString,
    /// Calibration file [default: DIR/calibration.toml]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Arguments of the kernel; only with one name
    #[arg(last = true)]
    args: Vec<String>,
}

/// Input files by kind and size, made on first use.
#[derive(Debug)]
struct Inputs {
    directory: tempfile::TempDir,
    seed: u64,
    runs: u32,
}

impl Inputs {
    /// Returns the file of a kind and size.
    ///
    /// # Errors
    /// If it can't be made.
    fn file(&self, data: BenchData, bytes: u64) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join(Self::name(data, bytes));
        if !path.exists() {
            data.write(&path, bytes, self.seed)?;
        }
        Ok(path)
    }

    /// Returns its name.
    fn name(data: BenchData, bytes: u64) -> String {
        format!("{}-{bytes}", data.name())
    }
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    ensure!(
        args.args.is_empty() || args.names.len() == 1,
        "{} kernels: arguments after `--` are for one kernel; name one kernel",
        args.names.len()
    );
    if let Some(ByteSize(bytes)) = args.size {
        ensure!(
            bytes >= SIZE_BYTES_MIN,
            "--size {bytes}: too small; give at least 1Mi"
        );
    }
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| context.cluster.calibration());
    let mut all = before(&path, context)?;
    let mut measured = all.clone();
    (measured.kernels, measured.nodes) = (Vec::new(), Vec::new());
    let server = match args.nodes {
        true => Some(context.connect().await?),
        false => None,
    };
    let launcher = Launcher::new(LauncherSettings::default())?;
    let mut subjects = subjects(&args, &launcher)?;
    let inputs = Inputs {
        directory: tempfile::tempdir().context("can't make a directory for the input")?,
        seed: args.seed,
        runs: args.runs,
    };
    let command = tokio::task::block_in_place(|| command(&inputs, &launcher))?;
    let command = u64::try_from(command.as_nanos())?;
    (measured.command_ns, all.command_ns) = (command, command);
    for subject in &mut subjects {
        context.note(format_args!("{} on this machine", subject.name));
        let speed = tokio::task::block_in_place(|| {
            subject.bytes = match args.size {
                Some(ByteSize(bytes)) => bytes / 8 * 8,
                None => suitable(subject, &inputs, &launcher)?,
            };
            here(subject, &inputs, &launcher, all.cores)
        });
        let speed = speed.with_context(|| format!("can't measure {}", subject.name))?;
        keep(&mut measured.kernels, speed.clone());
        keep(&mut all.kernels, speed);
    }
    if let Some(server) = server {
        for speed in nodes::measure(server, &subjects, &inputs, &args.path, context).await? {
            measured.nodes.push(speed.clone());
            all.keep_node(speed);
        }
    }
    all.save(&path)?;
    context.output.show(&MeasuredRates(measured))?;
    context.note(format_args!("stored in {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the calibration that the file already has, if it is from this machine.
fn before(path: &Path, context: &CommandContext) -> anyhow::Result<Calibration> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let cores = std::thread::available_parallelism()
        .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
    let new = Calibration::new(host, cores);
    match Calibration::load(path) {
        Ok(old) if old.host == new.host && old.cores == new.cores => Ok(old),
        Ok(old) => {
            let path = path.display();
            context.note(format_args!(
                "{path} was measured on {}: it is replaced",
                old.host
            ));
            Ok(new)
        }
        Err(CalibrationError::Missing(_)) => Ok(new),
        Err(error) => Err(error.into()),
    }
}

fn subjects(args: &Args, launcher: &Launcher) -> anyhow::Result<Vec<Subject>> {
    let mut names = args.names.clone();
    if names.is_empty() {
        names = builtin_names().into_iter().map(str::to_owned).collect();
    }
    names.sort();
    names.dedup();
    names
        .iter()
        .map(|name| Subject::new(name, &args.args, args.data, launcher))
        .collect()
}

/// Returns a size of input that takes about [`WORK`], found by trying larger sizes.
fn suitable(subject: &Subject, inputs: &Inputs, launcher: &Launcher) -> anyhow::Result<u64> {
    let time = |bytes: u64| Ok(at_once(subject, inputs, launcher, bytes, 1)?.0);
    time(SMALL_BYTES)?;
    let start: anyhow::Result<_> = time(SMALL_BYTES);
    let start = start?;
    let mut bytes = SIZE_BYTES_MIN;
    loop {
        let work = time(bytes)?.saturating_sub(start);
        if bytes >= SIZE_BYTES_MAX || work * 2 >= WORK {
            return Ok(bytes);
        }
        bytes = larger(bytes, work);
    }
}

/// Returns the next size to try after a size with less than half of [`WORK`]: a multiple of it, 2 to 16.
fn larger(bytes: u64, work: Duration) -> u64 {
    let times = WORK.as_nanos() / work.as_nanos().max(1);
    let times = u64::try_from(times).unwrap_or(u64::MAX).clamp(2, 16);
    (bytes * times).min(SIZE_BYTES_MAX)
}

/// Measures a kernel on this machine.
fn here(
    subject: &Subject,
    inputs: &Inputs,
    launcher: &Launcher,
    cores: u32,
) -> anyhow::Result<KernelSpeed> {
    let at_once = |bytes: u64, count: u32| at_once(subject, inputs, launcher, bytes, count);
    at_once(subject.bytes, 1)?;
    let share = launcher.probe(inputs.directory.path().join("probe"), None)?;
    let mut times = RunTimes::default();
    let (mut starts, mut all_cores, mut output_bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..inputs.runs {
        starts.push(cold(subject, inputs)?);
        times.small.push(at_once(SMALL_BYTES, 1)?.0);
        let (wall, bytes) = at_once(subject.bytes, 1)?;
        times.large.push(wall);
        output_bytes = bytes;
        all_cores.push(at_once(subject.bytes, cores)?.0);
    }
    // The larger result excludes a momentary load of the machine.
    let share = share.max(launcher.probe(inputs.directory.path().join("probe"), None)?);
    let start = least(&times.small);
    let mut speed = times.speed(subject, inputs)?;
    speed.start_ns = u64::try_from(median(&mut starts).as_nanos())?;
    (speed.output_bytes, speed.share) = (output_bytes, share);
    let work = least(&all_cores).saturating_sub(start).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let bytes = (subject.bytes - SMALL_BYTES) as f64 * f64::from(cores);
    speed.all_cores_bytes_per_sec = (work > 0.0).then(|| bytes / work);
    Ok(speed)
}

/// Returns the time of a run over almost no bytes by a new launcher, as a command does it.
fn cold(subject: &Subject, inputs: &Inputs) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let launcher = Launcher::new(LauncherSettings::default())?;
    let made = start.elapsed();
    Ok(made + at_once(subject, inputs, &launcher, SMALL_BYTES, 1)?.0)
}

/// Returns the overhead of a command: the time of `kernel test` in a new process, minus the same run in this process.
fn command(inputs: &Inputs, launcher: &Launcher) -> anyhow::Result<Duration> {
    let program = std::env::current_exe()?;
    let subject = Subject::new("count", &[], None, launcher)?;
    let data = inputs.file(subject.data, SMALL_BYTES)?;
    let (mut outside, mut inside) = (Vec::new(), Vec::new());
    for _ in 0..inputs.runs {
        let start = Instant::now();
        let mut command = Command::new(&program);
        command
            .args(["--quiet", "kernel", "test", "count"])
            .arg(&data);
        command.args(["--result", RESULT]).stdout(Stdio::null());
        let ended = command.status()?;
        ensure!(ended.success(), "{} can't try a kernel", program.display());
        outside.push(start.elapsed());
        inside.push(cold(&subject, inputs)?);
    }
    Ok(median(&mut outside).saturating_sub(median(&mut inside)))
}

/// Runs a kernel `count` times at once. Returns the time until the last run has ended, and the size of the result.
fn at_once(
    subject: &Subject,
    inputs: &Inputs,
    launcher: &Launcher,
    bytes: u64,
    count: u32,
) -> anyhow::Result<(Duration, u64)> {
    let directory = tempfile::tempdir().context("can't make a directory for the run")?;
    let data = inputs.file(subject.data, bytes)?;
    let prepared: Vec<_> = (0..count)
        .map(|number| {
            launcher.prepare(subject.run(&data, directory.path().join(number.to_string())))
        })
        .collect::<Result<_, _>>()?;
    let start = Instant::now();
    let running: Vec<_> = prepared
        .iter()
        .map(|prepared| launcher.spawn(prepared))
        .collect::<Result<_, _>>()?;
    let mut result_bytes = 0;
    let mut ended = Vec::with_capacity(running.len());
    for running in running {
        ended.push(running.wait()?);
    }
    let wall = start.elapsed();
    for (exit, prepared) in ended.iter().zip(&prepared) {
        ensure!(
            exit.success(),
            "{}: {}",
            exit.message(&prepared.run().limits),
            exit.stderr.text().trim_end()
        );
        result_bytes = prepared.output(RESULT)?.size()?;
    }
    Ok((wall, result_bytes))
}

/// Times of runs over both sizes.
#[derive(Debug, Default)]
struct RunTimes {
    small: Vec<Duration>,
    large: Vec<Duration>,
}

impl RunTimes {
    /// The work is the difference of the shortest times: other programs only ever lengthen a run, and the caller asks for their
    /// share when it matters. The start is the median, since every run pays it in full.
    ///
    /// # Errors
    /// If the input was too small to separate start and work.
    fn speed(mut self, subject: &Subject, inputs: &Inputs) -> anyhow::Result<KernelSpeed> {
        let start = median(&mut self.small);
        let work = least(&self.large).checked_sub(least(&self.small));
        let work = work
            .filter(|work| !work.is_zero())
            .context("the large input took no longer than almost no input; give a larger --size")?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = (subject.bytes - SMALL_BYTES) as f64;
        Ok(KernelSpeed {
            name: subject.name.clone(),
            args: subject.args.clone(),
            hash: subject.hash.clone(),
            measured: format::time(i64::try_from(since.as_nanos())?),
            seed: inputs.seed,
            input_bytes: subject.bytes,
            output_bytes: 0,
            runs: inputs.runs,
            start_ns: u64::try_from(start.as_nanos())?,
            bytes_per_sec: bytes / work.as_secs_f64(),
            share: 1.0,
            all_cores_bytes_per_sec: None,
        })
    }
}

/// Returns the middle value; of an even number of values the lower of the two.
fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let middle = times.len().saturating_sub(1) / 2;
    times.get(middle).copied().unwrap_or_default()
}

fn least(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_few_times_is_one_of_them() {
        let mut times = [3, 1, 2].map(Duration::from_secs);
        assert_eq!(median(&mut times), Duration::from_secs(2));
        let mut times = [4, 1, 3, 2].map(Duration::from_secs);
        assert_eq!(median(&mut times), Duration::from_secs(2));
        assert_eq!(median(&mut []), Duration::ZERO);
    }

    #[test]
    fn larger_input_size_is_bounded() {
        assert_eq!(larger(1 << 20, WORK / 10), 10 << 20);
        assert_eq!(larger(1 << 20, Duration::ZERO), 16 << 20);
        assert_eq!(larger(200 << 20, WORK / 3), SIZE_BYTES_MAX);
    }

    #[test]
    fn speed_separates_start_from_work_time() {
        let launcher = Launcher::new(LauncherSettings::default()).unwrap();
        let mut subject = Subject::new("max", &[], None, &launcher).unwrap();
        subject.bytes = SMALL_BYTES + 1000;
        let inputs = Inputs {
            directory: tempfile::tempdir().unwrap(),
            seed: 1,
            runs: 3,
        };
        let times = |large: [u64; 3]| RunTimes {
            small: [7, 2, 3].map(Duration::from_secs).into(),
            large: large.map(Duration::from_secs).into(),
        };
        let speed = times([5, 9, 5]).speed(&subject, &inputs).unwrap();
        assert_eq!(speed.start_ns, 3_000_000_000);
        assert!((speed.bytes_per_sec - 1000.0 / 3.0).abs() < 1e-9);
        let error = times([3, 3, 2]).speed(&subject, &inputs).unwrap_err();
        assert!(error.to_string().contains("larger --size"), "{error}");
    }
}
