//! Measures the duration of a kernel's run, from `spawn` to its end, and prints it as JSON lines. The kernel reads an input of 8 bytes, in
//! an existing private directory. For comparison, the program also measures the plain fork and exec of a program, and the bare child of
//! built-in kernels. The measurements take turns, so that other load affects all of them alike. Build this example with `--release`.
//!
//! `kernel_start [ROUNDS]`

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidemill_sandbox::{
    CodeSource, InputsAs, Launcher, LauncherSettings, Prepared, Run, RunInput, User, child,
};

const MODULE: &str = include_str!("../tests/kernels/places.wat");
const USER: User = User {
    uid: 1000,
    gid: 1000,
};
const LIBRARY: &str = "tests/kernels/places.c";

fn main() -> Result<(), Box<dyn Error>> {
    child::main_if_child();
    let rounds = std::env::args().nth(1).map_or(Ok(300), |arg| arg.parse())?;
    let directory = std::env::temp_dir().join(format!("kernel-start-{}", std::process::id()));
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o711))?;
    let measured = measure(&directory, rounds);
    fs::remove_dir_all(&directory)?;
    measured
}

fn build_library(directory: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let library = directory.join("places.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-I"])
        .arg(source.join("include"))
        .arg("-o")
        .args([&library, &source.join(LIBRARY)])
        .status()?;
    if !built.success() {
        return Err("the C compiler failed".into());
    }
    Ok(library)
}

fn measure(directory: &Path, rounds: usize) -> Result<(), Box<dyn Error>> {
    let input = directory.join("input");
    fs::write(&input, [1; 8])?;
    let module = directory.join("places.wasm");
    fs::write(&module, wat::parse_str(MODULE)?)?;
    let library = build_library(directory)?;
    let modules = Some(directory.join("modules"));
    let launcher = Launcher::new(LauncherSettings {
        modules,
        ..LauncherSettings::default()
    })?;
    let run = |code: CodeSource, name: &str, args: &[&str]| {
        let mut run = Run::new(code, directory.join(name));
        run.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        run.inputs_as = InputsAs::Symlink;
        // A node that runs as root runs kernels of its users in this way.
        run.user = rustix::process::geteuid().is_root().then_some(USER);
        let path = input.clone();
        let name = "input".to_owned();
        run.inputs.push(RunInput { name, path });
        launcher.prepare(run)
    };
    let begin = Instant::now();
    let wasm = run(CodeSource::Wasm(module), "wasm", &["1"])?;
    report("module, compiled and prepared", &mut [begin.elapsed()]);
    let kernels = [
        (
            "program in the sandbox",
            run(CodeSource::Program("/bin/true".into()), "program", &[])?,
        ),
        (
            "built-in",
            run(CodeSource::Builtin("count".into()), "builtin", &[])?,
        ),
        (
            "shared object",
            run(CodeSource::Native(library), "native", &["1"])?,
        ),
        ("module, compiled before", wasm),
    ];
    let mut plain = Vec::with_capacity(rounds);
    let mut bare = Vec::with_capacity(rounds);
    let mut times = vec![Vec::with_capacity(rounds); kernels.len()];
    let own = std::env::current_exe()?;
    for _ in 0..rounds {
        plain.push(timed(|| exec(Path::new("/bin/true"), &[]))?);
        // This child loads the program, and then ends at once because it does not know its argument.
        bare.push(timed(|| exec(&own, &["__kernel", "nothing"]))?);
        for ((_, prepared), times) in kernels.iter().zip(&mut times) {
            times.push(timed(|| whole(&launcher, prepared))?);
        }
    }
    let plain = report("program, plain fork and exec", &mut plain);
    report("this program, plain fork and exec", &mut bare);
    for ((what, _), times) in kernels.iter().zip(&mut times) {
        let median = report(what, times);
        if *what == "program in the sandbox" {
            println!(
                r#"{{"measure":"start","what":"sandbox against plain","ratio":{:.2}}}"#,
                median / plain
            );
        }
    }
    Ok(())
}

fn exec(program: &Path, args: &[&str]) -> Result<(), Box<dyn Error>> {
    let quiet = Stdio::null;
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet());
    command.status()?;
    Ok(())
}

fn whole(launcher: &Launcher, prepared: &Prepared) -> Result<(), Box<dyn Error>> {
    let exit = launcher.spawn(prepared)?.wait()?;
    if exit.success() {
        return Ok(());
    }
    Err(exit.stderr.text().into())
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

/// Prints the median and the 10th percentile of the times; returns the median in milliseconds.
fn report(what: &str, times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 10].as_secs_f64() * 1e3;
    let (median, low) = (at(5), at(1));
    let runs = times.len();
    println!(
        r#"{{"measure":"start","what":"{what}","runs":{runs},"median_ms":{median:.3},"tenth_ms":{low:.3}}}"#
    );
    let _ = std::io::stdout().flush();
    median
}
