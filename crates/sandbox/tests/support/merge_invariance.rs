//! Runs a fold whole and in parts, each part in a separate process.

#![allow(clippy::cast_possible_truncation, reason = "numbers by chance")]

use std::fs;

use tidemill_sandbox::child::PIECE_ALIGN;
use tidemill_sandbox::{CodeSource, Launcher, Run, RunInput, RunPart};

use super::Place;

pub(crate) struct Fold<'a> {
    pub(crate) place: &'a Place,
    pub(crate) launcher: &'a Launcher,
    pub(crate) code: CodeSource,
    pub(crate) args: &'a [&'a str],
}

/// Returns bytes without a pattern that could hide an error of a cut.
pub(crate) fn series(length: usize, salt: u64) -> Vec<u8> {
    let mut chance = LawRandom(salt + 1);
    (0..length).map(|_| (chance.next() >> 32) as u8).collect()
}

/// Returns a cut of all inputs: input, start, end of each piece.
pub(crate) fn cuts(inputs: &[Vec<u8>], seed: u64) -> Vec<(usize, usize, usize)> {
    let mut chance = LawRandom(seed);
    let mut pieces = Vec::new();
    for (number, input) in inputs.iter().enumerate() {
        let mut begin = 0;
        while begin < input.len() {
            let length = PIECE_ALIGN as usize * (1 + (chance.next() % 6) as usize);
            let end = (begin + length).min(input.len());
            pieces.push((number, begin, end));
            begin = end;
        }
    }
    pieces
}

impl Fold<'_> {
    fn run(&self, part: RunPart, inputs: &[&[u8]]) -> Vec<u8> {
        let mut run: Run = self.place.run(self.code.clone(), self.args);
        run.part = part;
        run.outputs.push("out".into());
        for (number, bytes) in inputs.iter().enumerate() {
            let directory = run.directory.file_name().unwrap().to_str().unwrap();
            let path = self.place.object(&format!("{directory}-{number}"), bytes);
            run.inputs.push(RunInput {
                name: format!("in-{number}"),
                path,
            });
        }
        let prepared = self.launcher.prepare(run).unwrap();
        let exit = self.launcher.spawn(&prepared).unwrap().wait().unwrap();
        assert!(exit.success(), "{part:?}: {}", exit.stderr.text());
        fs::read(prepared.run().directory.join("out")).unwrap()
    }

    pub(crate) fn whole(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        self.run(RunPart::Whole, &inputs)
    }

    /// Folds the pieces in a random order, and merges their states in random groups.
    pub(crate) fn in_parts(
        &self,
        inputs: &[Vec<u8>],
        pieces: &[(usize, usize, usize)],
        seed: u64,
    ) -> Vec<u8> {
        let mut chance = LawRandom(seed ^ 0x5555);
        let mut states: Vec<Vec<u8>> = pieces
            .iter()
            .map(|(input, begin, end)| {
                let part = RunPart::Piece {
                    input: *input,
                    offset: *begin as u64,
                };
                self.run(part, &[&inputs[*input][*begin..*end]])
            })
            .collect();
        for at in (1..states.len()).rev() {
            states.swap(at, (chance.next() % (at as u64 + 1)) as usize);
        }
        while states.len() > 3 {
            let count = 1 + (chance.next() % 3) as usize;
            let some: Vec<_> = states.drain(..count).collect();
            let some: Vec<_> = some.iter().map(Vec::as_slice).collect();
            let merged = self.run(RunPart::Merge, &some);
            let at = (chance.next() % (states.len() as u64 + 1)) as usize;
            states.insert(at, merged);
        }
        let states: Vec<_> = states.iter().map(Vec::as_slice).collect();
        self.run(RunPart::Finish, &states)
    }
}

/// Random number generator SplitMix64.
struct LawRandom(u64);

impl LawRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
