//! Which elements have copies of objects that others hold: what they should have pulled for earlier labels, and what is kept
//! there for good.
//!
//! With what they pulled only costs are reckoned. Labels name an element that holds an object, and an element that
//! dropped its copy pulls again; so a wrong guess moves bytes but loses nothing. What is kept for good is as the first copy:
//! an input can be had as long as an element with any of them is up.

use crate::id::{ElementId, ObjectId};
use crate::layout::{Layout, Selection, Striped};
use crate::object::Placed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of copies that an element keeps after their last use, unless it is told otherwise, and that are
/// reckoned with.
pub const COPIES_BYTES_MAX: u64 = 256 << 20;

/// Copies per element that are reckoned with.
pub const COPIES_MAX: usize = 4096;

/// Copies that are kept for good, which are reckoned with: beyond them the first copy is the only one that is known.
pub const LASTING_MAX: usize = 1 << 20;

/// Copies in the array.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Objects with the elements that keep a copy for good, beside the first.
    lasting: BTreeSet<(ObjectId, ElementId)>,
    /// What objects are made of that lie in several.
    parts: BTreeMap<ObjectId, Layout>,
    /// Objects with elements that have them no more, or damaged.
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
    /// An element is to pull an object.
    pub(super) fn note(&mut self, element: ElementId, object: ObjectId, size: u64) {
        if self.lasting.contains(&(object, element)) || !self.holders.insert((object, element)) {
            return;
        }
        let kept = self.kept.entry(element).or_default();
        kept.order.push_back((object, size));
        kept.bytes = kept.bytes.saturating_add(size);
        // The newest stays: it is in use.
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

    /// An element keeps a copy for good, or no more: one that had it first may lose it, too.
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

    /// An object lies in others.
    pub(super) fn part(&mut self, object: ObjectId, layout: Layout) {
        self.parts.insert(object, layout);
    }

    /// The objects that one lies in, each where it was first; `None`: it is all in one place.
    pub(super) fn parts(&self, object: ObjectId) -> Option<impl Iterator<Item = Placed> + '_> {
        if self.parts.is_empty() {
            return None;
        }
        let layout = self.parts.get(&object)?;
        Some((0..layout.parts().len()).filter_map(|part| placed(layout, part)))
    }

    /// How an object is striped; `None`: it is not.
    pub(super) fn striped(&self, object: ObjectId) -> Option<&Striped> {
        match self.parts.get(&object)? {
            Layout::Striped(striped) => Some(striped),
            Layout::Whole(_) | Layout::Extents(_) => None,
        }
    }

    /// The objects that have bytes of what is selected of one, and how many; `None`: it is all in one place.
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
        // What it does not have is refused where it is read.
        let bytes = layout.selected(selection).map(|one| one.bytes_by_part());
        let bytes = bytes.unwrap_or_default().into_iter();
        let parts = bytes.filter_map(|(part, bytes)| Some((placed(layout, part)?, bytes)));
        Some(parts.collect())
    }

    /// Whether an element that was said to have an object has it no more.
    pub(super) fn is_gone(&self, object: ObjectId, element: ElementId) -> bool {
        self.gone.contains(&(object, element))
    }

    /// Whether anything was told of where an object is kept for good.
    pub(super) fn knows(&self, object: ObjectId) -> bool {
        self.lasting(object).next().is_some() || of(&self.gone, object).next().is_some()
    }

    /// Nobody asks for the copies of an object any more.
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

    /// The elements that keep a copy for good, beside the first.
    pub(super) fn lasting(&self, object: ObjectId) -> impl Iterator<Item = ElementId> + '_ {
        of(&self.lasting, object)
    }

    /// The elements that should have a copy.
    pub(super) fn of(&self, object: ObjectId) -> impl Iterator<Item = ElementId> + '_ {
        let pulled = of(&self.holders, object);
        let pulled = pulled.filter(move |&element| !self.lasting.contains(&(object, element)));
        self.lasting(object).chain(pulled)
    }

    /// The copies that an element should have, oldest first.
    pub(super) fn on(&self, element: ElementId) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        let kept = self.kept.get(&element);
        kept.into_iter().flat_map(|kept| kept.order.iter().copied())
    }

    /// An element starts anew, without copies.
    pub(super) fn forget(&mut self, element: ElementId) {
        for (object, _) in self.kept.remove(&element).unwrap_or_default().order {
            self.holders.remove(&(object, element));
        }
    }
}

/// A part where it was first.
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
