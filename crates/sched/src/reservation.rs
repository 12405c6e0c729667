//! Reservations in the burst tier: computes the space of a node in which new files may begin, given the node's free space, the files that
//! are being written, and the reservations. This module does no I/O.

use tidemill_model::layout::RESERVE_BYTES;

/// Reservation of space on a node, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceReservation {
    /// Reserved space, in bytes.
    pub bytes: u64,
    /// Size of closed files on the node that count towards the reservation until they leave the node, in bytes.
    pub used: u64,
    /// Number of files that are being written within the reservation.
    pub open: u64,
}

impl SpaceReservation {
    /// Returns the part of the reservation that closed files have not used, in bytes.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }

    fn open_bytes(&self) -> u64 {
        self.open.saturating_mul(RESERVE_BYTES)
    }

    /// Returns the space in which no file outside of the reservation may begin, in bytes. It is a little more than the unused part: the
    /// last file of a reservation needs space to begin, and so does a file that begins after another file has left the node.
    #[must_use]
    pub fn aside(&self) -> u64 {
        let left = self.left().saturating_add(RESERVE_BYTES);
        self.open_bytes().max(left)
    }

    /// Returns whether one more file that begins with `bytes` bytes fits into the reservation, in addition to the space set aside for files
    /// that are being written.
    #[must_use]
    pub fn takes(&self, bytes: u64) -> bool {
        let left = self.left();
        left > self.open_bytes() && left >= self.open_bytes().saturating_add(bytes)
    }
}

/// Space of a node of the burst tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSpace {
    /// Free space in the last report of the node's device, in bytes.
    pub free: u64,
    /// Size of files that were closed since the last report of the node's device, in bytes.
    pub unheard: u64,
    /// Number of files that are being written outside of reservations.
    pub open: u64,
}

impl TierSpace {
    /// Returns the space in which new files outside of reservations may not begin, in bytes: the reservations and the space set aside for
    /// files that are being written.
    #[must_use]
    pub fn aside(&self, reservations: &[SpaceReservation]) -> u64 {
        let open = self.open.saturating_mul(RESERVE_BYTES);
        reservations
            .iter()
            .map(SpaceReservation::aside)
            .fold(open, u64::saturating_add)
    }

    /// Returns the space for a new file within a reservation that has space for it, in bytes: files of other users do not count.
    #[must_use]
    pub fn within(&self) -> u64 {
        self.free.saturating_sub(self.unheard)
    }

    /// Returns the space for a new file outside of reservations, in bytes.
    #[must_use]
    pub fn beside(&self, reservations: &[SpaceReservation]) -> u64 {
        self.within().saturating_sub(self.aside(reservations))
    }

    /// Returns the number of bytes that are missing for one more reservation, even after all evictable files are evicted. `coming` bytes
    /// are about to be copied to the node.
    #[must_use]
    pub fn missing(
        &self,
        bytes: u64,
        reservations: &[SpaceReservation],
        (evictable, coming): (u64, u64),
    ) -> u64 {
        let asked = SpaceReservation {
            bytes,
            used: 0,
            open: 0,
        };
        let needed = [
            self.aside(reservations),
            asked.aside(),
            coming,
            self.unheard,
        ];
        let needed = needed.into_iter().fold(0, u64::saturating_add);
        needed.saturating_sub(self.free.saturating_add(evictable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn reservation_excludes_its_space_from_others() {
        let space = TierSpace {
            free: 100 * MIB,
            unheard: 4 * MIB,
            open: 1,
        };
        assert_eq!(space.beside(&[]), 80 * MIB);
        let mut reservation = SpaceReservation {
            bytes: 40 * MIB,
            used: 0,
            open: 0,
        };
        assert_eq!(space.beside(&[reservation]), 24 * MIB);
        assert_eq!(space.within(), 96 * MIB);
        // The reservation's own open files are part of it.
        reservation.open = 2;
        assert_eq!(space.beside(&[reservation]), 24 * MIB);
        assert!(reservation.takes(0) && reservation.takes(8 * MIB) && !reservation.takes(9 * MIB));
        reservation.open = 3;
        assert!(!reservation.takes(0));
        reservation = SpaceReservation {
            bytes: 40 * MIB,
            used: 50 * MIB,
            open: 0,
        };
        assert!(!reservation.takes(0));
        assert_eq!(space.beside(&[reservation]), 64 * MIB);
        assert_eq!(space.missing(48 * MIB, &[reservation], (0, 0)), 0);
        assert_eq!(space.missing(49 * MIB, &[reservation], (0, 0)), MIB);
        assert_eq!(space.missing(49 * MIB, &[reservation], (MIB, 0)), 0);
        assert_eq!(space.missing(48 * MIB, &[reservation], (0, 9)), 9);
        assert_eq!(
            space.missing(u64::MAX, &[reservation], (0, 0)),
            u64::MAX - 100 * MIB
        );
    }

    /// File on a node, within a reservation or outside of reservations.
    #[derive(Clone, Copy, Debug)]
    struct File {
        reservation: Option<usize>,
        bytes: u64,
    }

    /// Model of a node whose users stay within their reservations, or otherwise within the space set aside for an open file.
    #[derive(Debug, Default)]
    struct ReservationModel {
        free: u64,
        reservations: Vec<SpaceReservation>,
        open: Vec<File>,
        closed: Vec<File>,
    }

    impl ReservationModel {
        fn space(&self) -> TierSpace {
            let open = self.open.iter().filter(|file| file.reservation.is_none());
            TierSpace {
                free: self.free,
                unheard: 0,
                open: open.count() as u64,
            }
        }

        fn begin(&mut self, reservation: Option<usize>) {
            let space = match reservation {
                Some(own) if self.reservations[own].takes(0) => {
                    self.reservations[own].open += 1;
                    // The guarantee of a reservation: there is space, whatever other users have done.
                    assert!(self.space().within() >= RESERVE_BYTES, "{self:?}");
                    return self.open.push(File {
                        reservation,
                        bytes: 0,
                    });
                }
                _ => self.space().beside(&self.reservations),
            };
            if space >= RESERVE_BYTES {
                self.open.push(File {
                    reservation: None,
                    bytes: 0,
                });
            }
        }

        fn write(&mut self, at: usize, bytes: u64) {
            let file = self.open[at];
            let most = match file.reservation {
                None => RESERVE_BYTES - file.bytes,
                Some(own) => {
                    let open = self
                        .open
                        .iter()
                        .filter(|file| file.reservation == Some(own));
                    let open: u64 = open.map(|file| file.bytes).sum();
                    self.reservations[own].left().saturating_sub(open)
                }
            };
            let bytes = bytes.min(most);
            assert!(self.free >= bytes, "no space for {bytes}: {self:?}");
            self.free -= bytes;
            self.open[at].bytes += bytes;
        }

        fn close(&mut self, at: usize) {
            let file = self.open.swap_remove(at);
            if let Some(own) = file.reservation {
                self.reservations[own].open -= 1;
                self.reservations[own].used += file.bytes;
            }
            self.closed.push(file);
        }

        fn remove(&mut self, at: usize) {
            let file = self.closed.swap_remove(at);
            self.free += file.bytes;
            if let Some(own) = file.reservation {
                self.reservations[own].used -= file.bytes;
            }
        }

        fn step(&mut self, (what, which, bytes): (u8, usize, u64)) {
            match what {
                0 if self.reservations.len() < 4
                    && self.space().missing(bytes, &self.reservations, (0, 0)) == 0 =>
                {
                    self.reservations.push(SpaceReservation {
                        bytes,
                        used: 0,
                        open: 0,
                    });
                }
                1 => self.begin(None),
                2 | 3 if !self.reservations.is_empty() => {
                    self.begin(Some(which % self.reservations.len()));
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
        fn reservation_guarantees_its_space_for_any_other_writes(
            free in 0..2000 * MIB,
            steps in proptest::collection::vec((0..9_u8, 0..64_usize, 0..300 * MIB), 1..300),
        ) {
            let mut model = ReservationModel { free, ..ReservationModel::default() };
            for step in steps {
                model.step(step);
            }
        }
    }
}
