//! Filters of system calls as search trees over the numbers of calls.
//!
//! The operating system runs a new filter once for every existing call, to cache which calls are always allowed. Each start of a kernel
//! pays for this. With a list of a hundred comparisons it takes a fifth of a millisecond; a search tree has eight comparisons.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_IF_EQ: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_IF_GE: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Offsets of the call's number and of the architecture in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// First number of x32 calls: they have the same architecture constant as x86-64.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Verdict of a filter on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterVerdict {
    /// Value `SECCOMP_RET_…` with its data.
    Return(u32),
    /// Separate filter program that decides; it must end in a return for all arguments.
    Program(BpfProgram),
}

/// Returns the filter program. `others` gives the verdict on calls that are not in `answers`; it is called only for 0 and for the number
/// after each named call, so its verdict must change only after named calls. Calls of other architectures end the process; x32 calls fail
/// with EPERM.
pub(super) fn program(
    architecture: u32,
    answers: BTreeMap<u32, FilterVerdict>,
    others: impl Fn(u32) -> FilterVerdict,
) -> BpfProgram {
    // Start of each run of calls with the same answer.
    let mut runs: BTreeMap<u32, FilterVerdict> = BTreeMap::from([(0, others(0))]);
    for (number, answer) in answers {
        runs.insert(number, answer);
        runs.insert(number + 1, others(number + 1));
    }
    #[cfg(target_arch = "x86_64")]
    runs.insert(
        X32,
        FilterVerdict::Return(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
    );
    let mut runs: Vec<_> = runs.into_iter().collect();
    runs.dedup_by(|next, before| next.1 == before.1);
    let mut all = vec![
        instruction(LOAD_WORD, 0, 0, ARCHITECTURE_AT),
        instruction(JUMP_IF_EQ, 1, 0, architecture),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD_WORD, 0, 0, NUMBER_AT),
    ];
    all.extend(search(&runs));
    all
}

/// Returns a program that finds the last of the runs that begins at or below the call's number.
fn search(runs: &[(u32, FilterVerdict)]) -> BpfProgram {
    if let [(_, answer)] = runs {
        return match answer {
            FilterVerdict::Return(value) => vec![instruction(RETURN, 0, 0, *value)],
            FilterVerdict::Program(program) => program.clone(),
        };
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let below = search(low);
    let mut all = match u8::try_from(below.len()) {
        Ok(length) => vec![instruction(JUMP_IF_GE, length, 0, high[0].0)],
        // A conditional jump has a distance of one byte.
        Err(_) => vec![
            instruction(JUMP_IF_GE, 0, 1, high[0].0),
            instruction(JUMP, 0, 0, u32::try_from(below.len()).unwrap_or(u32::MAX)),
        ],
    };
    all.extend(below);
    all.extend(search(high));
    all
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHITECTURE: u32 = 7;

    fn allow() -> FilterVerdict {
        FilterVerdict::Return(libc::SECCOMP_RET_ALLOW)
    }

    /// Executes the instructions that filters of this module use; returns the result and the number of steps.
    fn run(program: &[sock_filter], number: u32, architecture: u32) -> (u32, usize) {
        let (mut at, mut word, mut steps) = (0, 0, 0);
        loop {
            let step = &program[at];
            steps += 1;
            at += 1 + match step.code {
                LOAD_WORD => {
                    word = if step.k == NUMBER_AT {
                        number
                    } else {
                        architecture
                    };
                    0
                }
                JUMP => step.k as usize,
                JUMP_IF_EQ => usize::from(if word == step.k { step.jt } else { step.jf }),
                JUMP_IF_GE => usize::from(if word >= step.k { step.jt } else { step.jf }),
                RETURN => return (step.k, steps),
                code => panic!("unknown instruction {code:#x}"),
            };
        }
    }

    #[test]
    fn seccomp_tree_answers_every_call_in_few_steps() {
        let own = vec![instruction(RETURN, 0, 0, 99); 300];
        let mut answers: BTreeMap<u32, FilterVerdict> = (0..400)
            .filter(|number| number % 3 != 1)
            .map(|number| (number, FilterVerdict::Return(1000 + number % 2)))
            .collect();
        answers.insert(0, FilterVerdict::Return(5));
        answers.insert(200, FilterVerdict::Program(own));
        let program = program(ARCHITECTURE, answers.clone(), |_| allow());
        for number in 0..1000 {
            let expected = match answers.get(&number) {
                Some(FilterVerdict::Return(value)) => *value,
                Some(FilterVerdict::Program(_)) => 99,
                None => libc::SECCOMP_RET_ALLOW,
            };
            let (got, steps) = run(&program, number, ARCHITECTURE);
            assert_eq!(got, expected, "call {number}");
            assert!(steps < 24, "call {number} takes {steps} steps");
        }
        let foreign = run(&program, 3, ARCHITECTURE + 1).0;
        assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn seccomp_tree_denies_x32_calls() {
        let program = program(ARCHITECTURE, BTreeMap::new(), |_| allow());
        let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        assert_eq!(run(&program, X32, ARCHITECTURE).0, denied);
        assert_eq!(run(&program, X32 + 59, ARCHITECTURE).0, denied);
        assert_eq!(
            run(&program, X32 - 1, ARCHITECTURE).0,
            libc::SECCOMP_RET_ALLOW
        );
    }
}
