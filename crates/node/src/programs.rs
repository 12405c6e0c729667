//! Programs on this host that the server has asked for. The module reports installed and removed programs to the server (next:
//! `server/src/cluster.rs`), so that tasks are placed only where their program exists.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidemill_wire::v1;

/// Maximum number of names that are checked again. Queries about further names are answered once.
const NAMES_MAX: usize = 4096;

/// Names that the server asked for, with the last answer.
#[derive(Debug, Default)]
pub struct KnownPrograms {
    known: Mutex<BTreeMap<String, bool>>,
}

impl KnownPrograms {
    /// Answers a query. `has` returns whether a program exists. The lock ensures that the last report always equals the state known here.
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

    /// Checks all names again and reports the differences, if any.
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

    /// Returns the report of a repeated check.
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
    fn found_programs_are_reported_again_on_change() {
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
    fn programs_keep_bounded_number_of_names() {
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
