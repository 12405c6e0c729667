//! Programs on this host about which the server has asked. The module reports installed and removed programs to the server (next:
//! `server/src/cluster.rs`), so that tasks are placed only on nodes that have their programs.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Maximum number of names that the node checks repeatedly. Queries about further names are answered once.
const NAMES_MAX: usize = 4096;

/// Names about which the server has asked, with the last answer.
#[derive(Debug, Default)]
pub struct KnownPrograms {
    known: Mutex<BTreeMap<String, bool>>,
}

impl KnownPrograms {
    /// Answers a query of the server. `has` returns whether a program exists. A lock makes the last report equal the recorded state.
    pub fn answer(
        &self,
        question: v1::FindPrograms,
        has: impl Fn(&str) -> bool,
        tell: impl FnOnce(v1::Programs),
    ) {
        let (found, missing) = question.names.into_iter().partition(|name| has(name));
        let answer = v1::Programs {
            request: question.request,
            found,
            missing,
        };
        let mut known = self.known.lock();
        for (names, there) in [(&answer.found, true), (&answer.missing, false)] {
            for name in names {
                if known.len() < NAMES_MAX || known.contains_key(name) {
                    known.insert(name.clone(), there);
                }
            }
        }
        tell(answer);
    }

    /// Checks all recorded names again and reports the differences, if any.
    pub fn look(&self, has: impl Fn(&str) -> bool, tell: impl FnOnce(v1::Programs)) {
        let names: Vec<String> = self.known.lock().keys().cloned().collect();
        // This runs without the lock: directories of programs may be slow.
        let now: Vec<(String, bool)> = names
            .into_iter()
            .map(|name| {
                let there = has(&name);
                (name, there)
            })
            .collect();
        let mut known = self.known.lock();
        let mut news = v1::Programs::default();
        for (name, there) in now {
            if known.insert(name.clone(), there) == Some(there) {
                continue;
            }
            if there {
                news.found.push(name);
            } else {
                news.missing.push(name);
            }
        }
        if !news.found.is_empty() || !news.missing.is_empty() {
            tell(news);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the report of the differences that a repeated check has found.
    fn news(
        programs: &KnownPrograms,
        has: impl Fn(&str) -> bool,
    ) -> Option<(Vec<String>, Vec<String>)> {
        let mut reported = None;
        programs.look(has, |news| {
            assert_eq!(news.request, 0);
            reported = Some((news.found, news.missing));
        });
        reported
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn known_programs_are_reported_again_on_change() {
        let programs = KnownPrograms::default();
        let question = v1::FindPrograms {
            request: 7,
            names: names(&["a", "b"]),
        };
        programs.answer(
            question,
            |name| name == "a",
            |answer| {
                assert_eq!(answer.request, 7);
                assert_eq!(
                    (answer.found, answer.missing),
                    (names(&["a"]), names(&["b"]))
                );
            },
        );
        assert_eq!(news(&programs, |name| name == "a"), None);
        let changed = news(&programs, |name| name == "b");
        assert_eq!(changed, Some((names(&["b"]), names(&["a"]))));
        assert_eq!(news(&programs, |name| name == "b"), None);
    }

    #[test]
    fn known_programs_keep_limited_number_of_names() {
        let programs = KnownPrograms::default();
        let names = (0..2 * NAMES_MAX).map(|n| n.to_string()).collect();
        let question = v1::FindPrograms { request: 1, names };
        programs.answer(
            question,
            |_| true,
            |answer| {
                assert_eq!(answer.found.len(), 2 * NAMES_MAX);
            },
        );
        let (_, missing) = news(&programs, |_| false).unwrap();
        assert_eq!(missing.len(), NAMES_MAX);
    }
}
