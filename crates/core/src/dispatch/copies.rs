//! Copies of objects on elements other than the first: the objects that elements should have pulled for earlier labels, and the copies that
//! are kept permanently. This module only records them for the dispatcher.
//!
//! Pulled copies only influence estimated costs. Labels name an element that holds an object, and an element that dropped its copy pulls
//! the object again; so a wrong guess moves bytes but loses nothing. Permanent copies are equal to the first copy: an input is available as
//! long as an element with any of them is online.

use crate::id::{ElementId, ObjectId};
use crate::layout::{Layout, Selection, Striped};
use crate::object::Placed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Size of the copies that an element keeps after their last use by default, in bytes. Estimates assume this size.
pub const COPIES_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of copies per element that estimates consider.
pub const COPIES_MAX: usize = 4096;

/// Maximum number of recorded permanent copies: beyond it only the first copy of an object is known.
pub const LASTING_MAX: usize = 1 << 20;

/// Copies in the array.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Objects with the elements that keep a permanent copy in addition to the first copy.
    lasting: BTreeSet<(ObjectId, ElementId)>,
    /// Layouts of objects that consist of several objects.
    parts: BTreeMap<ObjectId, Layout>,
    /// Objects with elements whose copies were removed or are corrupt.
    gone: BTreeSet<(ObjectId, ElementId)>,
    /// Objects with the elements that should have a copy.
    holders: BTreeSet<(ObjectId, ElementId)>,
    kept: BTreeMap<ElementId, Kept>,
}

/// Copies of one element, oldest first.
#[derive(Debug, Default)]
struct Kept {
    order: VecDeque<(ObjectId, u64)>,
    bytes: u64,
}

impl Copies {
    /// Records that an element is to pull an object.
    pub(super) fn note(&mut self, element: ElementId, object: ObjectId, size: u64) {
        if self.lasting.contains(&(object, element)) || !self.holders.insert((object, element)) {
            return;
        }
        let kept = self.kept.entry(element).or_default();
        kept.order.push_back((object, size));
        kept.bytes = kept.bytes.saturating_add(size);
        // The newest copy stays, because it is in use.
        while kept.order.len() > 1
            && (kept.bytes > COPIES_BYTES_MAX || kept.order.len() > COPIES_MAX)
        {
            let Some((oldest, size)) = kept.order.pop_front() else {
                break;
            };
            kept.bytes = kept.bytes.saturating_sub(size);
            self.holders.remove(&(oldest, element));
        }
    }

    /// Records that an element has gained or lost a permanent copy; the element of the first copy may lose it, too.
    pub(super) fn set(&mut self, object: ObjectId, element: ElementId, there: bool) {
        if there {
            self.gone.remove(&(object, element));
            if self.lasting.len() < LASTING_MAX {
                self.lasting.insert((object, element));
            }
        } else {
            self.lasting.remove(&(object, element));
            if self.gone.len() < LASTING_MAX {
                self.gone.insert((object, element));
            }
        }
    }

    /// Records that an object consists of parts.
    pub(super) fn part(&mut self, object: ObjectId, layout: Layout) {
        self.parts.insert(object, layout);
    }

    /// Returns the parts of an object, each at its first location; `None` if the object has no parts.
    pub(super) fn parts(&self, object: ObjectId) -> Option<impl Iterator<Item = Placed> + '_> {
        if self.parts.is_empty() {
            return None;
        }
        let layout = self.parts.get(&object)?;
        Some((0..layout.parts().len()).filter_map(|part| placed(layout, part)))
    }

    /// Returns the stripes of an object; `None` if it is not striped.
    pub(super) fn striped(&self, object: ObjectId) -> Option<&Striped> {
        match self.parts.get(&object)? {
            Layout::Striped(striped) => Some(striped),
            Layout::Whole(_) | Layout::Extents(_) => None,
        }
    }

    /// Returns the parts that hold bytes of a selection, with the number of these bytes; `None` if the object has no parts.
    pub(super) fn selected(
        &self,
        object: ObjectId,
        selection: &Selection,
    ) -> Option<Vec<(Placed, u64)>> {
        if self.parts.is_empty() {
            return None;
        }
        let layout = self.parts.get(&object)?;
        if selection.is_whole() {
            let parts = self.parts(object)?.filter(|part| part.size > 0);
            return Some(parts.map(|part| (part, part.size)).collect());
        }
        // A selection beyond the object is refused when the object is read.
        let bytes = layout.selected(selection).map(|one| one.bytes_by_part());
        let bytes = bytes.unwrap_or_default().into_iter();
        let parts = bytes.filter_map(|(part, bytes)| Some((placed(layout, part)?, bytes)));
        Some(parts.collect())
    }

    /// Returns whether an element has lost an object that it was reported to hold.
    pub(super) fn is_gone(&self, object: ObjectId, element: ElementId) -> bool {
        self.gone.contains(&(object, element))
    }

    /// Returns whether permanent copies of an object, or their losses, were reported.
    pub(super) fn knows(&self, object: ObjectId) -> bool {
        self.lasting(object).next().is_some() || of(&self.gone, object).next().is_some()
    }

    /// Removes the records of an object's permanent copies, which nobody needs any more.
    pub(super) fn forget_lasting(&mut self, object: ObjectId) {
        if let Some(layout) = self.parts.remove(&object) {
            for part in layout.parts() {
                self.forget_lasting(part.object);
            }
        }
        let elements: Vec<ElementId> = self.lasting(object).collect();
        for element in elements {
            self.lasting.remove(&(object, element));
        }
        let gone: Vec<ElementId> = of(&self.gone, object).collect();
        for element in gone {
            self.gone.remove(&(object, element));
        }
    }

    /// Returns the elements that keep a permanent copy in addition to the first copy.
    pub(super) fn lasting(&self, object: ObjectId) -> impl Iterator<Item = ElementId> + '_ {
        of(&self.lasting, object)
    }

    /// Returns the elements that should have a copy.
    pub(super) fn of(&self, object: ObjectId) -> impl Iterator<Item = ElementId> + '_ {
        let pulled = of(&self.holders, object);
        let pulled = pulled.filter(move |&element| !self.lasting.contains(&(object, element)));
        self.lasting(object).chain(pulled)
    }

    /// Returns the copies that an element should have, oldest first.
    pub(super) fn on(&self, element: ElementId) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        let kept = self.kept.get(&element);
        kept.into_iter().flat_map(|kept| kept.order.iter().copied())
    }

    /// Removes the pulled copies of an element that restarts without them.
    pub(super) fn forget(&mut self, element: ElementId) {
        for (object, _) in self.kept.remove(&element).unwrap_or_default().order {
            self.holders.remove(&(object, element));
        }
    }
}

/// Returns a part at its first location.
fn placed(layout: &Layout, part: usize) -> Option<Placed> {
    let part = layout.parts().get(part)?;
    Some(Placed {
        object: part.object,
        element: part.copies.first()?.element,
        size: part.size,
    })
}

fn of(
    copies: &BTreeSet<(ObjectId, ElementId)>,
    object: ObjectId,
) -> impl Iterator<Item = ElementId> + '_ {
    let all = (object, ElementId(0))..=(object, ElementId(u32::MAX));
    copies.range(all).map(|(_, element)| *element)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(copies: &Copies, object: u64) -> Vec<u32> {
        copies
            .of(ObjectId(object))
            .map(|element| element.0)
            .collect()
    }

    #[test]
    fn oldest_copies_of_an_element_are_forgotten_first() {
        let mut copies = Copies::default();
        let (here, there) = (ElementId(1), ElementId(2));
        copies.note(there, ObjectId(7), 1);
        copies.note(here, ObjectId(7), COPIES_BYTES_MAX - 1);
        copies.note(here, ObjectId(8), 1);
        assert_eq!(
            (holders(&copies, 7), holders(&copies, 8)),
            (vec![1, 2], vec![1])
        );
        copies.note(here, ObjectId(9), 1);
        assert_eq!(
            (holders(&copies, 7), holders(&copies, 9)),
            (vec![2], vec![1])
        );
    }

    #[test]
    fn copies_are_bounded_in_number_and_bytes() {
        let mut copies = Copies::default();
        let element = ElementId(1);
        copies.note(element, ObjectId(1), 2 * COPIES_BYTES_MAX);
        assert_eq!(holders(&copies, 1), [1]);
        for object in 2..=COPIES_MAX as u64 + 2 {
            copies.note(element, ObjectId(object), 0);
        }
        assert_eq!(copies.kept[&element].order.len(), COPIES_MAX);
        assert_eq!((holders(&copies, 1), holders(&copies, 2)), (vec![], vec![]));
        copies.forget(element);
        assert!(copies.holders.is_empty() && copies.kept.is_empty());
    }
}
