//! Where new files go.

use super::WIDTH_MAX;
use crate::id::{ElementId, Inode};

/// What placement needs to know of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The element.
    pub element: ElementId,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Whether it was heard of lately. One that hangs gets new files only if it was named, or if all hang.
    pub answers: bool,
    /// Whether it is being emptied: it gets no new files.
    pub leaving: bool,
    /// Whether what it keeps lies in memory: it gets new files only where that is asked for.
    pub memory: bool,
    /// Whether what is written there goes on to others: it gets new files before they do.
    pub burst: bool,
    /// Whether its files stay in a store outside of the array: it gets new files when no other can take them.
    pub outside: bool,
}

impl Room {
    /// Whether it takes files that nobody wants anywhere.
    fn takes_any(&self) -> bool {
        !self.memory && !self.burst
    }
}

/// What an element keeps objects in, as the attribute of a folder asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// What outlives its host.
    Disk,
    /// Memory of its host.
    Memory,
}

impl std::str::FromStr for Medium {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "disk" => Ok(Self::Disk),
            "memory" => Ok(Self::Memory),
            _ => Err(format!("{text:?} is no medium: give memory, or disk")),
        }
    }
}

/// A new file can't be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The array has no element that keeps data.
    #[error("the array has no storage element that is up; start one with `tidemill element`")]
    NoElement,
    /// Only elements in memory or of the burst tier are up, and the file was not to go there.
    #[error(
        "the elements that are up keep what they have in memory, where files go only if their folder asks for it \
         (user.tidemill.medium), or only until it has drained; start one that stores on a disk with `tidemill element`"
    )]
    NoStore,
    /// The elements of the burst tier that are up have no room before something has drained.
    #[error(
        "the elements of the burst tier are full, and drain; it is tried again, see `tidemill status` for how far they are"
    )]
    BurstFull,
    /// The element that was asked for is not there.
    #[error("element {0} is not part of the array or is down; see `tidemill status`")]
    Unknown(ElementId),
    /// The element that could take it is suspended.
    #[error("element {0} is suspended, and is woken now; try again in a moment")]
    Asleep(ElementId),
    /// The element that was asked for is being emptied.
    #[error("element {0} is being emptied; name another one, or none")]
    Leaving(ElementId),
    /// The element that was asked for is full.
    #[error("element {0} is full; remove files on it or name another element")]
    Full(ElementId),
    /// A file is to be striped over more elements than can take some of it.
    #[error(
        "a file can't be striped over {width} elements: {able} are up and have room; give fewer, or see `tidemill status`"
    )]
    Width {
        /// How many were asked for.
        width: usize,
        /// How many there are.
        able: usize,
    },
    /// All are full.
    #[error("every storage element is full; remove files or add an element")]
    AllFull,
}

/// Bytes an element must have free to be given another file.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Chooses the element of a new file: the one that was named, else inode modulo the elements
/// (AnalyzeThis §3.3), else the next that is not full and answers. None that is being emptied is chosen, and none in memory
/// or of the burst tier unless it was named.
///
/// `rooms` are the storage elements that are up, in order of their ids.
///
/// # Errors
/// See [`PlacementError`]. A named element is never replaced silently.
pub fn place(
    inode: Inode,
    named: Option<ElementId>,
    rooms: &[Room],
) -> Result<ElementId, PlacementError> {
    if let Some(element) = named {
        let room = rooms.iter().find(|room| room.element == element);
        return match room {
            None => Err(PlacementError::Unknown(element)),
            Some(room) if room.leaving => Err(PlacementError::Leaving(element)),
            Some(room) if room.free_bytes < RESERVE_BYTES => Err(PlacementError::Full(element)),
            Some(_) => Ok(element),
        };
    }
    let stays = |room: &&Room| !room.leaving && room.takes_any();
    if rooms.iter().all(|room| stays(&room) && !room.outside) {
        return place_among(inode, rooms);
    }
    let staying = rooms.iter().filter(stays).copied();
    let (outside, inside): (Vec<Room>, Vec<Room>) = staying.partition(|room| room.outside);
    if inside.is_empty() && outside.is_empty() && rooms.iter().any(|room| !room.leaving) {
        return Err(PlacementError::NoStore);
    }
    match place_among(inode, &inside) {
        Err(_) if !outside.is_empty() => place_among(inode, &outside),
        placed => placed,
    }
}

/// Inode modulo these, else the next that is not full and answers.
fn place_among(inode: Inode, rooms: &[Room]) -> Result<ElementId, PlacementError> {
    if rooms.is_empty() {
        return Err(PlacementError::NoElement);
    }
    let first = usize::try_from(inode.0 % rooms.len() as u64).unwrap_or(0);
    let (before, from) = rooms.split_at(first);
    let mut takes = from
        .iter()
        .chain(before)
        .filter(|room| room.free_bytes >= RESERVE_BYTES);
    let any = takes.clone().next();
    takes
        .find(|room| room.answers)
        .or(any)
        .map(|room| room.element)
        .ok_or(PlacementError::AllFull)
}

/// Which of the elements that sleep are to be woken for a file that can't be placed on those that are up.
#[must_use]
pub fn to_wake(error: PlacementError, asleep: &[Room]) -> Vec<ElementId> {
    let able = asleep
        .iter()
        .filter(|room| !room.leaving && room.takes_any() && room.free_bytes >= RESERVE_BYTES);
    let able = able.map(|room| room.element);
    match error {
        PlacementError::Unknown(named) => {
            let mut named = asleep.iter().filter(|room| room.element == named);
            named.next().map(|room| room.element).into_iter().collect()
        }
        PlacementError::NoElement | PlacementError::NoStore | PlacementError::AllFull => {
            able.take(1).collect()
        }
        PlacementError::Width { width, able: awake } => {
            let able: Vec<ElementId> = able.take(width.saturating_sub(awake)).collect();
            // Waking some and not enough would be in vain.
            if awake + able.len() < width {
                return Vec::new();
            }
            able
        }
        PlacementError::Asleep(_)
        | PlacementError::Leaving(_)
        | PlacementError::Full(_)
        | PlacementError::BurstFull => Vec::new(),
    }
}

/// Chooses the element in memory of a file that is to be there: of those `here`, on which whoever writes it can, the one with the
/// most room, if that is enough for so many bytes. `None`: it goes elsewhere.
#[must_use]
pub fn place_in_memory(here: &[ElementId], bytes: u64, rooms: &[Room]) -> Option<ElementId> {
    let needed = bytes.saturating_add(RESERVE_BYTES);
    let able = rooms.iter().filter(|room| {
        let takes = room.memory && room.answers && !room.leaving;
        takes && here.contains(&room.element) && room.free_bytes >= needed
    });
    able.max_by_key(|room| (room.free_bytes, std::cmp::Reverse(room.element)))
        .map(|room| room.element)
}

/// Chooses the element of the burst tier for a version of so many bytes: one of those `here`, on which whoever writes it can in
/// place, else any; of these one that is not in `apart`, which have other parts of the same file, and of these the one that has the most
/// room. `None`: none of the tier is up.
///
/// # Errors
/// [`PlacementError::BurstFull`]: some are, and none has room.
pub fn place_in_burst(
    here: &[ElementId],
    apart: &[ElementId],
    bytes: u64,
    rooms: &[Room],
) -> Result<Option<ElementId>, PlacementError> {
    let needed = bytes.saturating_add(RESERVE_BYTES);
    let bursts = rooms
        .iter()
        .filter(|room| room.burst && room.answers && !room.leaving);
    let able = bursts.clone().filter(|room| room.free_bytes >= needed);
    let best = able.max_by_key(|room| {
        (
            here.contains(&room.element),
            !apart.contains(&room.element),
            room.free_bytes,
            std::cmp::Reverse(room.element),
        )
    });
    match best {
        Some(room) => Ok(Some(room.element)),
        None if bursts.clone().next().is_some() => Err(PlacementError::BurstFull),
        None => Ok(None),
    }
}

/// Chooses the elements of a striped file, none of them in memory, of the burst tier or with its files outside: `width` of them, all if that is 0, one after the other from inode modulo the
/// elements on, those before that answer.
///
/// # Errors
/// See [`PlacementError`].
pub fn place_stripes(
    inode: Inode,
    width: usize,
    rooms: &[Room],
) -> Result<Vec<ElementId>, PlacementError> {
    if rooms.is_empty() {
        return Err(PlacementError::NoElement);
    }
    let disk = |room: &Room| room.takes_any() && !room.outside;
    let disks: Vec<Room> = rooms.iter().copied().filter(disk).collect();
    if disks.is_empty() {
        return Err(PlacementError::NoStore);
    }
    let first = usize::try_from(inode.0 % disks.len() as u64).unwrap_or(0);
    let (before, from) = disks.split_at(first);
    let takes = from.iter().chain(before);
    let mut takes: Vec<&Room> = takes
        .filter(|room| room.free_bytes >= RESERVE_BYTES && !room.leaving)
        .collect();
    if takes.is_empty() {
        return Err(PlacementError::AllFull);
    }
    takes.sort_by_key(|room| !room.answers);
    let answering = takes.iter().filter(|room| room.answers).count();
    let able = takes.len().min(WIDTH_MAX);
    let chosen = match width {
        0 if answering > 0 => answering.min(able),
        0 => able,
        width => width,
    };
    if chosen > able {
        return Err(PlacementError::Width { width, able });
    }
    Ok(takes[..chosen].iter().map(|room| room.element).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(free: &[u64]) -> Vec<Room> {
        (0..)
            .zip(free)
            .map(|(id, &free_bytes)| Room {
                element: ElementId(id),
                free_bytes,
                answers: true,
                leaving: false,
                memory: false,
                burst: false,
                outside: false,
            })
            .collect()
    }

    #[test]
    fn placement_uses_inode_modulo_elements_and_skips_full() {
        let all = rooms(&[1 << 30; 4]);
        assert_eq!(place(Inode(6), None, &all), Ok(ElementId(2)));
        let some = rooms(&[1 << 30, 1 << 30, 0, 1 << 30]);
        assert_eq!(place(Inode(6), None, &some), Ok(ElementId(3)));
        assert_eq!(
            place(Inode(6), None, &rooms(&[0, 0])),
            Err(PlacementError::AllFull)
        );
        assert_eq!(place(Inode(6), None, &[]), Err(PlacementError::NoElement));
    }

    #[test]
    fn placement_uses_outside_elements_as_last_resort() {
        let mut some = rooms(&[1 << 30, 1 << 50, 1 << 30]);
        some[1].outside = true;
        for inode in 0..6 {
            assert_ne!(place(Inode(inode), None, &some), Ok(ElementId(1)));
        }
        assert_eq!(place(Inode(6), Some(ElementId(1)), &some), Ok(ElementId(1)));
        (some[0].free_bytes, some[2].free_bytes) = (0, 0);
        assert_eq!(place(Inode(6), None, &some), Ok(ElementId(1)));
        let all = place_stripes(Inode(6), 0, &some).map(|all| all.len());
        assert_ne!(all, Ok(1));
        some[1].free_bytes = 0;
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::AllFull));
    }

    #[test]
    fn placement_skips_hanging_element_unless_named_or_only() {
        let mut some = rooms(&[1 << 30, 1 << 30, 0]);
        some[0].answers = false;
        assert_eq!(place(Inode(6), None, &some), Ok(ElementId(1)));
        assert_eq!(place(Inode(6), Some(ElementId(0)), &some), Ok(ElementId(0)));
        some[1].answers = false;
        assert_eq!(place(Inode(6), None, &some), Ok(ElementId(0)));
        assert_eq!(place(Inode(7), None, &some), Ok(ElementId(1)));
    }

    #[test]
    fn placement_skips_draining_element() {
        let mut some = rooms(&[1 << 30; 3]);
        some[1].leaving = true;
        for inode in 0..4 {
            let expected = [0, 2, 0, 2][usize::try_from(inode).unwrap()];
            assert_eq!(place(Inode(inode), None, &some), Ok(ElementId(expected)));
        }
        let named = place(Inode(6), Some(ElementId(1)), &some);
        assert_eq!(named, Err(PlacementError::Leaving(ElementId(1))));
        some.retain(|room| room.leaving);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoElement));
    }

    #[test]
    fn placement_uses_memory_only_on_request_and_if_it_fits() {
        let mut some = rooms(&[1 << 30, 1 << 30, 2 << 30]);
        some[1].memory = true;
        some[2].memory = true;
        for inode in 0..4 {
            assert_eq!(place(Inode(inode), None, &some), Ok(ElementId(0)));
            assert_eq!(
                place_stripes(Inode(inode), 0, &some),
                Ok(vec![ElementId(0)])
            );
        }
        let both = [ElementId(1), ElementId(2)];
        assert_eq!(place_in_memory(&both, 0, &some), Some(ElementId(2)));
        assert_eq!(place_in_memory(&both[..1], 0, &some), Some(ElementId(1)));
        assert_eq!(place_in_memory(&both, 2 << 30, &some), None);
        assert_eq!(place_in_memory(&[ElementId(0)], 0, &some), None);
        some[2].leaving = true;
        assert_eq!(place_in_memory(&both, 0, &some), Some(ElementId(1)));
        assert_eq!(place(Inode(6), Some(ElementId(1)), &some), Ok(ElementId(1)));
        some.remove(0);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoStore));
        assert_eq!(
            place_stripes(Inode(6), 0, &some),
            Err(PlacementError::NoStore)
        );
    }

    #[test]
    fn burst_placement_prefers_elements_near_the_writer() {
        let mut some = rooms(&[1 << 30, 1 << 30, 2 << 30]);
        assert_eq!(place_in_burst(&[ElementId(0)], &[], 0, &some), Ok(None));
        some[1].burst = true;
        some[2].burst = true;
        let placed = |here: &[u32], bytes, some: &[Room]| {
            let here: Vec<ElementId> = here.iter().copied().map(ElementId).collect();
            place_in_burst(&here, &[], bytes, some).map(|placed| placed.map(|element| element.0))
        };
        assert_eq!(placed(&[0, 1], 0, &some), Ok(Some(1)));
        assert_eq!(placed(&[0], 0, &some), Ok(Some(2)));
        // Parts of a file are apart, but near whoever writes them.
        let part = |here: &[ElementId], apart: &[ElementId]| place_in_burst(here, apart, 0, &some);
        assert_eq!(part(&[], &[ElementId(2)]), Ok(Some(ElementId(1))));
        let both = [ElementId(1), ElementId(2)];
        assert_eq!(part(&[], &both), Ok(Some(ElementId(2))));
        assert_eq!(part(&both[1..], &both[1..]), Ok(Some(ElementId(2))));
        assert_eq!(placed(&[1], 1 << 30, &some), Ok(Some(2)));
        assert_eq!(placed(&[1], 2 << 30, &some), Err(PlacementError::BurstFull));
        some[1].answers = false;
        assert_eq!(placed(&[1], 0, &some), Ok(Some(2)));
        some[2].leaving = true;
        assert_eq!(placed(&[1], 0, &some), Ok(None));
        for inode in 0..3 {
            assert_eq!(place(Inode(inode), None, &some), Ok(ElementId(0)));
            let stripes = place_stripes(Inode(inode), 0, &some);
            assert_eq!(stripes, Ok(vec![ElementId(0)]));
        }
        assert_eq!(place(Inode(6), Some(ElementId(1)), &some), Ok(ElementId(1)));
        some.remove(0);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoStore));
    }

    #[test]
    fn named_element_is_never_replaced() {
        let some = rooms(&[1 << 30, 0]);
        assert_eq!(place(Inode(6), Some(ElementId(0)), &some), Ok(ElementId(0)));
        assert_eq!(
            place(Inode(6), Some(ElementId(1)), &some),
            Err(PlacementError::Full(ElementId(1)))
        );
        assert_eq!(
            place(Inode(6), Some(ElementId(7)), &some),
            Err(PlacementError::Unknown(ElementId(7)))
        );
    }

    #[test]
    fn striped_placement_uses_answering_elements_with_space() {
        let ids = |elements: Vec<ElementId>| elements.iter().map(|e| e.0).collect::<Vec<_>>();
        let mut all = rooms(&[1 << 30; 4]);
        assert_eq!(ids(place_stripes(Inode(6), 3, &all).unwrap()), [2, 3, 0]);
        assert_eq!(ids(place_stripes(Inode(6), 0, &all).unwrap()), [2, 3, 0, 1]);
        all[3].answers = false;
        assert_eq!(ids(place_stripes(Inode(6), 0, &all).unwrap()), [2, 0, 1]);
        assert_eq!(ids(place_stripes(Inode(6), 4, &all).unwrap()), [2, 0, 1, 3]);
        all[0].free_bytes = 0;
        assert_eq!(
            place_stripes(Inode(6), 4, &all),
            Err(PlacementError::Width { width: 4, able: 3 })
        );
        assert_eq!(
            place_stripes(Inode(6), 1, &[]),
            Err(PlacementError::NoElement)
        );
        assert_eq!(
            place_stripes(Inode(6), 0, &rooms(&[0, 0])),
            Err(PlacementError::AllFull)
        );
    }
}
