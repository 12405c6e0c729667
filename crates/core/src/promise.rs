//! Room in the burst tier that was promised before it is used: what of an element's room new files may begin in, given what it has
//! free, what is being written there, and what was promised of it.

use crate::layout::RESERVE_BYTES;

/// What was promised of an element, and what has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Bytes that were promised.
    pub bytes: u64,
    /// Bytes of closed files that lie there within the promise, until they have gone from the element.
    pub used: u64,
    /// Files that are being written there within it.
    pub open: u64,
}

impl Promise {
    /// Bytes that closed files have not used up.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }

    fn open_bytes(&self) -> u64 {
        self.open.saturating_mul(RESERVE_BYTES)
    }

    /// Bytes that no other files may begin in. It is a little more than what is left: the last file of a promise needs room to begin
    /// in, too, and so does one that begins when another has gone.
    #[must_use]
    pub fn aside(&self) -> u64 {
        let left = self.left().saturating_add(RESERVE_BYTES);
        self.open_bytes().max(left)
    }

    /// Whether one more file, which begins with so many bytes, is within it: something is left beside what is set aside for those
    /// that are being written.
    #[must_use]
    pub fn takes(&self, bytes: u64) -> bool {
        let left = self.left();
        left > self.open_bytes() && left >= self.open_bytes().saturating_add(bytes)
    }
}

/// The room of an element of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that its device had left when it said so last.
    pub free: u64,
    /// Bytes of what was closed since.
    pub unheard: u64,
    /// Files that are being written there within no promise.
    pub open: u64,
}

impl Space {
    /// Bytes that new files within no promise may not begin in: what is set aside for those that are being written, and what was
    /// promised.
    #[must_use]
    pub fn aside(&self, promises: &[Promise]) -> u64 {
        let open = self.open.saturating_mul(RESERVE_BYTES);
        promises
            .iter()
            .map(Promise::aside)
            .fold(open, u64::saturating_add)
    }

    /// Bytes for a new file within a promise that takes it: nobody else's files count.
    #[must_use]
    pub fn within(&self) -> u64 {
        self.free.saturating_sub(self.unheard)
    }

    /// Bytes for any other new file.
    #[must_use]
    pub fn beside(&self, promises: &[Promise]) -> u64 {
        self.within().saturating_sub(self.aside(promises))
    }

    /// Bytes that are missing for one more promise, even when all has gone that may. `coming` are about to be copied there.
    #[must_use]
    pub fn missing(&self, bytes: u64, promises: &[Promise], (may_go, coming): (u64, u64)) -> u64 {
        let asked = Promise {
            bytes,
            used: 0,
            open: 0,
        };
        let needed = [self.aside(promises), asked.aside(), coming, self.unheard];
        let needed = needed.into_iter().fold(0, u64::saturating_add);
        needed.saturating_sub(self.free.saturating_add(may_go))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn promise_excludes_its_space_from_others() {
        let space = Space {
            free: 100 * MIB,
            unheard: 4 * MIB,
            open: 1,
        };
        assert_eq!(space.beside(&[]), 80 * MIB);
        let mut promise = Promise {
            bytes: 40 * MIB,
            used: 0,
            open: 0,
        };
        assert_eq!(space.beside(&[promise]), 24 * MIB);
        assert_eq!(space.within(), 96 * MIB);
        // Its own open files are within it.
        promise.open = 2;
        assert_eq!(space.beside(&[promise]), 24 * MIB);
        assert!(promise.takes(0) && promise.takes(8 * MIB) && !promise.takes(9 * MIB));
        promise.open = 3;
        assert!(!promise.takes(0));
        promise = Promise {
            bytes: 40 * MIB,
            used: 50 * MIB,
            open: 0,
        };
        assert!(!promise.takes(0));
        assert_eq!(space.beside(&[promise]), 64 * MIB);
        assert_eq!(space.missing(48 * MIB, &[promise], (0, 0)), 0);
        assert_eq!(space.missing(49 * MIB, &[promise], (0, 0)), MIB);
        assert_eq!(space.missing(49 * MIB, &[promise], (MIB, 0)), 0);
        assert_eq!(space.missing(48 * MIB, &[promise], (0, 9)), 9);
        assert_eq!(
            space.missing(u64::MAX, &[promise], (0, 0)),
            u64::MAX - 100 * MIB
        );
    }

    /// A file on an element, within a promise or none.
    #[derive(Clone, Copy, Debug)]
    struct File {
        promise: Option<usize>,
        bytes: u64,
    }

    /// An element whose users keep to what they were promised, and within none to what is set aside for an open file.
    #[derive(Debug, Default)]
    struct Model {
        free: u64,
        promises: Vec<Promise>,
        open: Vec<File>,
        closed: Vec<File>,
    }

    impl Model {
        fn space(&self) -> Space {
            let open = self.open.iter().filter(|file| file.promise.is_none());
            Space {
                free: self.free,
                unheard: 0,
                open: open.count() as u64,
            }
        }

        fn begin(&mut self, promise: Option<usize>) {
            let room = match promise {
                Some(own) if self.promises[own].takes(0) => {
                    self.promises[own].open += 1;
                    // Here is the promise: whatever others have done, there is room.
                    assert!(self.space().within() >= RESERVE_BYTES, "{self:?}");
                    return self.open.push(File { promise, bytes: 0 });
                }
                _ => self.space().beside(&self.promises),
            };
            if room >= RESERVE_BYTES {
                self.open.push(File {
                    promise: None,
                    bytes: 0,
                });
            }
        }

        fn write(&mut self, at: usize, bytes: u64) {
            let file = self.open[at];
            let most = match file.promise {
                None => RESERVE_BYTES - file.bytes,
                Some(own) => {
                    let open = self.open.iter().filter(|file| file.promise == Some(own));
                    let open: u64 = open.map(|file| file.bytes).sum();
                    self.promises[own].left().saturating_sub(open)
                }
            };
            let bytes = bytes.min(most);
            assert!(self.free >= bytes, "no room for {bytes}: {self:?}");
            self.free -= bytes;
            self.open[at].bytes += bytes;
        }

        fn close(&mut self, at: usize) {
            let file = self.open.swap_remove(at);
            if let Some(own) = file.promise {
                self.promises[own].open -= 1;
                self.promises[own].used += file.bytes;
            }
            self.closed.push(file);
        }

        fn remove(&mut self, at: usize) {
            let file = self.closed.swap_remove(at);
            self.free += file.bytes;
            if let Some(own) = file.promise {
                self.promises[own].used -= file.bytes;
            }
        }

        fn step(&mut self, (what, which, bytes): (u8, usize, u64)) {
            match what {
                0 if self.promises.len() < 4
                    && self.space().missing(bytes, &self.promises, (0, 0)) == 0 =>
                {
                    self.promises.push(Promise {
                        bytes,
                        used: 0,
                        open: 0,
                    });
                }
                1 => self.begin(None),
                2 | 3 if !self.promises.is_empty() => {
                    self.begin(Some(which % self.promises.len()));
                }
                4..=6 if !self.open.is_empty() => self.write(which % self.open.len(), bytes),
                7 if !self.open.is_empty() => self.close(which % self.open.len()),
                8 if !self.closed.is_empty() => self.remove(which % self.closed.len()),
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn promise_guarantees_its_space_for_any_other_writes(
            free in 0..2000 * MIB,
            steps in proptest::collection::vec((0..9_u8, 0..64_usize, 0..300 * MIB), 1..300),
        ) {
            let mut model = Model { free, ..Model::default() };
            for step in steps {
                model.step(step);
            }
        }
    }
}
