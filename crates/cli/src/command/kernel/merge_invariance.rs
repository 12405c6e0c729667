//! `tidemill kernel test --merge-invariance`: whether the result of a fold depends on how its input was cut.

use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::MergeInvariance;
use anyhow::{Context as _, ensure};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_sandbox::child::PIECE_ALIGN;
use tidemill_sandbox::{CodeSource, Launcher, Run, RunInput, RunPart};

/// Number of cuts that are tried.
const CUTS: u64 = 8;

/// Maximum number of pieces of an input.
const PIECES_MAX: u64 = 6;

/// Name of the one output of all runs.
const OUTPUT: &str = "result";

pub(super) fn run(
    launcher: &Launcher,
    whole: &Run,
    directory: &Path,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    ensure!(
        matches!(whole.code, CodeSource::Native(_) | CodeSource::Wasm(_)),
        "merge invariance is tested for folds of one's own: shared objects and modules; those built in are tested with the program"
    );
    let mut trial = KernelTrial {
        launcher,
        whole,
        directory,
        runs: 0,
    };
    let expected = trial.run(RunPart::Whole, whole.inputs.clone())?;
    let expected = fs::read(expected)?;
    let mut broken = None;
    for seed in 0..CUTS {
        let (result, pieces) = trial.in_pieces(seed)?;
        if fs::read(result)? != expected {
            broken = Some((seed, pieces));
            break;
        }
    }
    let text = match &broken {
        None => format!(
            "merge invariance holds: {CUTS} cuts gave the same {} bytes as the whole",
            expected.len()
        ),
        Some((seed, pieces)) => format!(
            "merge invariance is violated: cut {seed}, of {pieces} pieces, gave another result than the whole; the result must \
             not depend on how the input is cut, on the order of the pieces, or on the order of merging"
        ),
    };
    let (holds, cuts) = (broken.is_none(), CUTS);
    context
        .output
        .show(&Message(text, MergeInvariance { holds, cuts }))?;
    Ok(ExitCode::from(u8::from(broken.is_some())))
}

struct KernelTrial<'a> {
    launcher: &'a Launcher,
    whole: &'a Run,
    directory: &'a Path,
    runs: u32,
}

impl KernelTrial<'_> {
    fn run(&mut self, part: RunPart, inputs: Vec<RunInput>) -> anyhow::Result<PathBuf> {
        self.runs += 1;
        let mut run = self.whole.clone();
        run.directory = self.directory.join(format!("part-{}", self.runs));
        (run.part, run.inputs, run.outputs) = (part, inputs, vec![OUTPUT.to_owned()]);
        let prepared = self.launcher.prepare(run)?;
        let exit = self.launcher.spawn(&prepared)?.wait()?;
        let message = exit.message(&prepared.run().limits);
        ensure!(
            exit.success(),
            "{part:?}: {message}\n{}",
            exit.stderr.text()
        );
        prepared.output(OUTPUT)?;
        Ok(prepared.run().directory.join(OUTPUT))
    }

    /// Returns the result of one cut, and the number of its pieces.
    fn in_pieces(&mut self, seed: u64) -> anyhow::Result<(PathBuf, usize)> {
        let mut chance = StdRng::seed_from_u64(seed);
        let mut states = Vec::new();
        for (input, whole) in self.whole.inputs.iter().enumerate() {
            let size = fs::metadata(&whole.path)?.len();
            for (begin, end) in cut(size, &mut chance) {
                let path = self.piece(&whole.path, begin, end)?;
                let part = RunPart::Piece {
                    input,
                    offset: begin,
                };
                states.push(self.run(part, vec![named(0, path)])?);
            }
        }
        let pieces = states.len();
        states.shuffle(&mut chance);
        while states.len() > 3 {
            let group: Vec<_> = states.drain(..chance.random_range(2..=3)).collect();
            states.push(self.run(RunPart::Merge, all_named(group))?);
        }
        Ok((self.run(RunPart::Finish, all_named(states))?, pieces))
    }

    fn piece(&self, whole: &Path, begin: u64, end: u64) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(format!("piece-{}", self.runs));
        let mut from = File::open(whole).with_context(|| whole.display().to_string())?;
        from.seek(SeekFrom::Start(begin))?;
        std::io::copy(&mut from.take(end - begin), &mut File::create(&path)?)?;
        Ok(path)
    }
}

fn named(number: usize, path: PathBuf) -> RunInput {
    let name = format!("in-{number}");
    RunInput { name, path }
}

fn all_named(paths: Vec<PathBuf>) -> Vec<RunInput> {
    let paths = paths.into_iter().enumerate();
    paths.map(|(number, path)| named(number, path)).collect()
}

/// Cuts an input at random places at which pieces may begin.
fn cut(size: u64, chance: &mut StdRng) -> Vec<(u64, u64)> {
    let steps = size.div_ceil(PIECE_ALIGN);
    let count = chance.random_range(1..=PIECES_MAX);
    let mut places: Vec<u64> = (1..count)
        .map(|_| chance.random_range(0..=steps) * PIECE_ALIGN)
        .chain([0, size])
        .map(|place| place.min(size))
        .collect();
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_pieces_are_aligned_and_cover_whole_input() {
        for seed in 0..100 {
            let mut chance = StdRng::seed_from_u64(seed);
            for size in [0, 1, PIECE_ALIGN, 10 * PIECE_ALIGN + 7] {
                let pieces = cut(size, &mut chance);
                let mut at = 0;
                for (begin, end) in pieces {
                    assert!(begin == at && end > begin && begin.is_multiple_of(PIECE_ALIGN));
                    at = end;
                }
                assert_eq!(at, size);
            }
        }
    }
}
