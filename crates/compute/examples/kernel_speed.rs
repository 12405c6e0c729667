//! Measures built-in kernels for `bench/kernels/kernels.py`, which sends the runs, one on each line: `HOW FILE KERNEL [ARGUMENT…]`,
//! separated by tabs. `HOW` is `map` (the file is mapped) or `read` (read in pieces into one buffer) or `cache` (the file's first 256 KiB
//! repeatedly, as many bytes as the file has). The answer contains the elapsed seconds, a tab, and the first line of the result.
//!
//! `plain-sum` with `dtype=i32`, `f32` or `f64` is the run to compare memory-bound kernels with: only a sum, as fast as memory delivers the
//! bytes. `run` in place of `HOW` runs a kernel that is no fold, over the whole file.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::ptr;
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags};
use tidemill_compute::{fold_builtin, run_builtin};

/// Number of bytes in a read; see `docs/kernels.md` for the effect of other sizes.
const READ_BYTES: usize = 256 << 10;

/// Measured work: processes pieces of a file, and returns a result.
trait BenchJob {
    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>>;
    fn end(self: Box<Self>) -> Result<String, Box<dyn Error>>;
}

struct FoldJob(tidemill_compute::Folding);

impl BenchJob for FoldJob {
    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        Ok(self.0.update(offset, bytes)?)
    }

    fn end(self: Box<Self>) -> Result<String, Box<dyn Error>> {
        let mut result = Vec::new();
        self.0.finish(&mut result)?;
        Ok(String::from_utf8_lossy(&result).trim().replace('\n', "; "))
    }
}

#[derive(Clone, Copy)]
enum BenchNumber {
    I32(i64),
    F32(f32),
    F64(f64),
}

impl BenchJob for BenchNumber {
    fn take(&mut self, _: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            unsafe { wide(self, bytes) };
            return Ok(());
        }
        sum(self, bytes);
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<String, Box<dyn Error>> {
        Ok(match *self {
            Self::I32(sum) => sum.to_string(),
            Self::F32(sum) => sum.to_string(),
            Self::F64(sum) => sum.to_string(),
        })
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn wide(plain: &mut BenchNumber, bytes: &[u8]) {
    sum(plain, bytes);
}

#[inline(always)]
fn sum(plain: &mut BenchNumber, bytes: &[u8]) {
    const LANES: usize = 64;
    match plain {
        BenchNumber::I32(sum) => {
            let mut lanes = [0_i64; LANES];
            for row in bytes.as_chunks::<4>().0.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    lanes[lane] += i64::from(i32::from_le_bytes(row[lane]));
                }
            }
            *sum += lanes.iter().sum::<i64>();
        }
        BenchNumber::F32(sum) => {
            let mut lanes = [0_f32; LANES];
            for row in bytes.as_chunks::<4>().0.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    lanes[lane] += f32::from_le_bytes(row[lane]);
                }
            }
            *sum += lanes.iter().sum::<f32>();
        }
        BenchNumber::F64(sum) => {
            let mut lanes = [0_f64; LANES];
            for row in bytes.as_chunks::<8>().0.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    lanes[lane] += f64::from_le_bytes(row[lane]);
                }
            }
            *sum += lanes.iter().sum::<f64>();
        }
    }
}

/// Passes the whole file, mapped, to the job.
fn mapped(file: &File, job: &mut dyn BenchJob) -> Result<(), Box<dyn Error>> {
    let length = usize::try_from(file.metadata()?.len())?;
    // SAFETY: a new mapping at an address of the system's choice; no process changes the file during a benchmark.
    unsafe {
        let fd = file.as_fd();
        let start = rustix::mm::mmap(
            ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::SHARED,
            fd,
            0,
        )?;
        let done = job.take(0, std::slice::from_raw_parts(start.cast(), length));
        rustix::mm::munmap(start, length)?;
        done
    }
}

fn read(mut file: &File, buffer: &mut [u8], job: &mut dyn BenchJob) -> Result<(), Box<dyn Error>> {
    let mut offset = 0;
    loop {
        let count = file.read(buffer)?;
        if count == 0 {
            return Ok(());
        }
        job.take(offset, &buffer[..count])?;
        offset += count as u64;
    }
}

/// Passes the first piece of the file to the job as often as it fits into the file.
fn cached(
    mut file: &File,
    buffer: &mut [u8],
    job: &mut dyn BenchJob,
) -> Result<(), Box<dyn Error>> {
    file.read_exact(buffer)?;
    let size = buffer.len() as u64;
    for number in 0..file.metadata()?.len() / size {
        job.take(number * size, buffer)?;
    }
    Ok(())
}

fn run(words: &[&str], buffer: &mut [u8]) -> Result<String, Box<dyn Error>> {
    let [how, name, kernel, args @ ..] = words else {
        return Err("HOW FILE KERNEL [ARGUMENT…]".into());
    };
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    if *how == "run" {
        let mut result = Vec::new();
        run_builtin(kernel, &args, &[(*name).to_owned()], &mut result)?;
        let line = result.split(|byte| *byte == b'\n').next();
        return Ok(String::from_utf8_lossy(line.unwrap_or_default()).into_owned());
    }
    let mut job: Box<dyn BenchJob> = match (*kernel, args.first().map_or("", String::as_str)) {
        ("plain-sum", "dtype=i32") => Box::new(BenchNumber::I32(0)),
        ("plain-sum", "dtype=f32") => Box::new(BenchNumber::F32(0.0)),
        ("plain-sum", _) => Box::new(BenchNumber::F64(0.0)),
        _ => Box::new(FoldJob(fold_builtin(kernel, &args)?)),
    };
    let file = File::open(name)?;
    match *how {
        "map" => mapped(&file, &mut *job)?,
        "read" => read(&file, buffer, &mut *job)?,
        "cache" => cached(&file, buffer, &mut *job)?,
        _ => return Err(format!("{how} is neither map, read, cache nor run").into()),
    }
    job.end()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![1; READ_BYTES];
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split('\t').collect();
        let start = Instant::now();
        let result = run(&words, &mut buffer)?;
        writeln!(answers, "{}\t{result}", start.elapsed().as_secs_f64())?;
        answers.flush()?;
    }
    Ok(())
}
