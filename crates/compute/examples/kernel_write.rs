//! Measures kernels that write as much as they read, for `bench/kernels/driver.py`, which sends the runs, one on each line: `OUTPUT
//! INPUT[|INPUT…] KERNEL [ARGUMENT…]`, separated by tabs. The answer contains the elapsed seconds for writing the output, and after a tab
//! the processor seconds of this process. The output file is recreated; without a name, the output is discarded.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidemill_compute::run_builtin;

fn main() -> Result<(), Box<dyn Error>> {
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let [output, inputs, kernel, args @ ..] = words.as_slice() else {
            return Err("OUTPUT INPUT KERNEL [ARGUMENT…]".into());
        };
        // A key, or initial centres, are inputs too.
        let named = args.iter().filter_map(|arg| {
            let (key, name) = arg.split_once('=')?;
            matches!(key, "key" | "start").then_some(name)
        });
        let inputs: Vec<_> = inputs.split('|').chain(named).map(str::to_owned).collect();
        let start = (Instant::now(), used());
        let mut result: Box<dyn Write> = match output.as_str() {
            "" => Box::new(io::sink()),
            output => Box::new(File::create(output)?),
        };
        run_builtin(kernel, args, &inputs, &mut result)?;
        let used = (used() - start.1).as_secs_f64();
        writeln!(answers, "{}\t{used}", start.0.elapsed().as_secs_f64())?;
        answers.flush()?;
    }
    Ok(())
}

fn used() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime)
        .try_into()
        .unwrap_or_default()
}
