//! Placement of new files: chooses elements from their status. This module does no I/O.

use super::WIDTH_MAX;
use crate::id::{ElementId, Inode};

/// Properties of an element that placement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Id of the element.
    pub element: ElementId,
    /// Free space, in bytes.
    pub free_bytes: u64,
    /// Whether the element answered recently. An element that does not answer gets new files only if it was named, or if no element
    /// answers.
    pub answers: bool,
    /// Whether the element is being drained: it gets no new files.
    pub leaving: bool,
    /// Whether the element stores data in memory: it gets new files only on request.
    pub memory: bool,
    /// Whether the element belongs to the burst tier, from which files drain to other elements: it gets new files before the others do.
    pub burst: bool,
    /// Whether the element stores its files outside of the array: it gets new files when no other element can take them.
    pub outside: bool,
}

impl Room {
    /// Returns whether the element takes files without a named element.
    fn takes_any(&self) -> bool {
        !self.memory && !self.burst
    }
}

/// Medium on which an element stores objects, as requested by the attribute of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Storage that survives the element's host.
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

/// Reason for which a new file can't be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No element of the array that stores data is online.
    #[error("the array has no storage element that is up; start one with `tidemill element`")]
    NoElement,
    /// Only elements in memory or of the burst tier are online, and the file must not be stored there.
    #[error(
        "the elements that are up keep what they have in memory, where files go only if their folder asks for it \
         (user.tidemill.medium), or only until it has drained; start one that stores on a disk with `tidemill element`"
    )]
    NoStore,
    /// The online elements of the burst tier are full until a file has drained.
    #[error(
        "the elements of the burst tier are full, and drain; it is tried again, see `tidemill status` for how far they are"
    )]
    BurstFull,
    /// The named element is unknown or offline.
    #[error("element {0} is not part of the array or is down; see `tidemill status`")]
    Unknown(ElementId),
    /// The element that could take the file is suspended.
    #[error("element {0} is suspended, and is woken now; try again in a moment")]
    Asleep(ElementId),
    /// The named element is being drained.
    #[error("element {0} is being emptied; name another one, or none")]
    Leaving(ElementId),
    /// The named element is full.
    #[error("element {0} is full; remove files on it or name another element")]
    Full(ElementId),
    /// A file is to be striped over more elements than can take a part of it.
    #[error(
        "a file can't be striped over {width} elements: {able} are up and have room; give fewer, or see `tidemill status`"
    )]
    Width {
        /// Requested number of elements.
        width: usize,
        /// Number of possible elements.
        able: usize,
    },
    /// All elements are full.
    #[error("no storage element has space; remove files or add an element")]
    AllFull,
}

/// Space that must be free on an element before it gets another file, in bytes.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Chooses the element of a new file: the named one, else inode modulo the elements (AnalyzeThis §3.3), else the next that is not full and
/// answers. Elements that are being drained are never chosen. Elements in memory or of the burst tier are chosen only if they are named,
/// and elements with files outside only if no other element can take the file.
///
/// `rooms` are the storage elements that are online, in order of their ids.
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

/// Returns the element at inode modulo the number of elements, else the next that is not full and answers.
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

/// Returns the suspended elements to resume for a file that can't be placed on online elements.
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
            // Resuming fewer elements than necessary would be useless.
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

/// Chooses the element in memory for a file that is to be stored in memory: among the elements `here`, which the writer can reach, the one
/// with the most free space, if this is enough for `bytes` bytes. `None` means that the file is stored on another kind of element.
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

/// Chooses the element of the burst tier for a version of `bytes` bytes. Elements `here`, to which the client can write in place, are
/// preferred. The next criterion is that an element is not in `apart`, whose elements have other parts of the same file, and the last one
/// is the most free space. Returns `None` if no element of the tier is online.
///
/// # Errors
/// [`PlacementError::BurstFull`] if elements of the tier are online, but all are full.
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

/// Chooses `width` elements for a striped file, or all if `width` is 0, one after the other from inode modulo the elements on. Elements
/// that answer come first. Elements in memory, of the burst tier or with files outside are excluded.
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
        // Parts of a file are stored on different elements, but on the writer's own elements if possible.
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
