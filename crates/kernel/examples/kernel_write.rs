//! Times kernels that give as much as they take, for `bench/kernels/reshape.py`, which tells it what to run, a line
//! a run: `OUTPUT INPUT KERNEL [ARGUMENT…]`, with tabs between. Answers with the seconds it took to write the output,
//! which is made anew.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use tidemill_kernel::run_builtin;

fn main() -> Result<(), Box<dyn Error>> {
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let [output, input, kernel, args @ ..] = words.as_slice() else {
            return Err("OUTPUT INPUT KERNEL [ARGUMENT…]".into());
        };
        let start = Instant::now();
        let mut file = File::create(output)?;
        run_builtin(kernel, args, std::slice::from_ref(input), &mut file)?;
        writeln!(answers, "{}", start.elapsed().as_secs_f64())?;
        answers.flush()?;
    }
    Ok(())
}
