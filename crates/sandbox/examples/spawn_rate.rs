//! Measures the rate of kernel starts (with and without the sandbox) and the read rate of built-in kernels, and prints both as JSON lines.
//! Build this example with `--release`.
//!
//! `spawn_rate [RUNS [MEBIBYTES]]`

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tidemill_compute::run_builtin;
use tidemill_sandbox::{CodeSource, InputsAs, Launcher, LauncherSettings, Run, child};

fn main() -> Result<(), Box<dyn Error>> {
    child::main_if_child();
    let mut args = std::env::args().skip(1);
    let runs: u32 = args.next().map_or(Ok(500), |arg| arg.parse())?;
    let mebibytes: usize = args.next().map_or(Ok(256), |arg| arg.parse())?;
    let directory = std::env::temp_dir().join(format!("spawn-rate-{}", std::process::id()));
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o711))?;
    let measured = spawns(&directory, runs).and_then(|()| scans(&directory, mebibytes));
    fs::remove_dir_all(&directory)?;
    measured
}

fn spawns(directory: &Path, runs: u32) -> Result<(), Box<dyn Error>> {
    let launcher = Launcher::new(LauncherSettings::default())?;
    for round in 0..2 {
        let begin = Instant::now();
        for _ in 0..runs {
            Command::new("/bin/true").stdin(Stdio::null()).status()?;
        }
        report("plain", runs, begin);
        let begin = Instant::now();
        for number in 0..runs {
            let mut run = Run::new(
                CodeSource::Program("/bin/true".into()),
                directory.join(format!("{round}-{number}")),
            );
            run.inputs_as = InputsAs::Symlink;
            let exit = launcher.spawn(&launcher.prepare(run)?)?.wait()?;
            assert!(exit.success());
        }
        report("sandboxed, with its private directory", runs, begin);
        let run = Run::new(
            CodeSource::Program("/bin/true".into()),
            directory.join(format!("{round}")),
        );
        let prepared = launcher.prepare(run)?;
        let begin = Instant::now();
        for _ in 0..runs {
            launcher.spawn(&prepared)?.wait()?;
        }
        report("sandboxed, one directory for all", runs, begin);
    }
    Ok(())
}

fn report(what: &str, runs: u32, begin: Instant) {
    let rate = f64::from(runs) / begin.elapsed().as_secs_f64();
    println!(r#"{{"measure":"spawn","what":"{what}","runs":{runs},"per_second":{rate:.0}}}"#);
}

fn scans(directory: &Path, mebibytes: usize) -> Result<(), Box<dyn Error>> {
    let path = directory.join("data");
    let mut file = File::create(&path)?;
    // Small numbers in any type, with some newlines and spaces for the text kernels.
    let piece: Vec<u8> = (0_u32..1 << 20)
        .map(|byte| {
            if byte % 8 == 7 {
                0x3f
            } else {
                (byte % 61) as u8
            }
        })
        .collect();
    for _ in 0..mebibytes {
        file.write_all(&piece)?;
    }
    drop(file);
    let inputs = [path.to_string_lossy().into_owned()];
    for name in ["max", "mean", "stddev", "linreg"] {
        for dtype in ["f64", "f32", "i32", "i64", "u8"] {
            scan(name, &[format!("dtype={dtype}")], &inputs, mebibytes)?;
        }
    }
    scan("wordcount", &[], &inputs, mebibytes)?;
    scan("grep", &["-c".into(), "0123".into()], &inputs, mebibytes)
}

fn scan(
    name: &str,
    args: &[String],
    inputs: &[String],
    mebibytes: usize,
) -> Result<(), Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begin = Instant::now();
        run_builtin(name, args, inputs, &mut std::io::sink())?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    let rate = (mebibytes << 20) as f64 / best / 1e9;
    let args = args.join(" ");
    println!(
        r#"{{"measure":"scan","kernel":"{name}","args":"{args}","gigabytes_per_second":{rate:.2}}}"#
    );
    Ok(())
}
