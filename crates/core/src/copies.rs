//! Copies: a sealed object may lie on several elements, under one id. What is to be done so that there are as many as
//! wanted, on elements of different hosts first.

use crate::id::{ElementId, ObjectId};
use crate::layout::RESERVE_BYTES;
use crate::random::Source;

/// Copies of one object, the first included.
pub const COPIES_MAX: u32 = 8;

/// How one element has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyState {
    /// A label is making it.
    Coming,
    /// All of it is there.
    Current,
    /// The element has been away for longer than the array waits.
    Lost,
    /// It is about to be removed there.
    Going,
    /// What is there is not what was sealed.
    Damaged,
}

/// An element that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Which.
    pub element: ElementId,
    /// What it shares its fate with: its host.
    pub host: String,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Whether copies may be put there: it keeps data, and answers.
    pub takes: bool,
}

/// An object and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Which.
    pub object: ObjectId,
    /// Its length in bytes.
    pub size: u64,
    /// How many copies there should be.
    pub wanted: usize,
    /// The elements that have it or will, the first copy first.
    pub holders: Vec<(ElementId, CopyState)>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: there are enough.
    Enough,
    /// Nothing before a label has ended.
    Wait,
    /// Another copy; or one in the place of the one that is damaged there.
    Make {
        /// An element that has one.
        from: ElementId,
        /// The element that is to have one.
        to: ElementId,
    },
    /// These are more than are wanted.
    Remove(Vec<ElementId>),
    /// There are more than are wanted, but none may go before an element that has one is up again.
    Later,
    /// No element that is up has one.
    NoSource,
    /// No element that is up can take one.
    NoPlace,
}

impl Kept {
    /// How many copies would be left if nothing came of those that are being made.
    #[must_use]
    pub fn left(&self) -> usize {
        let current = |(_, state): &&(ElementId, CopyState)| *state == CopyState::Current;
        self.holders.iter().filter(current).count()
    }

    /// What is to be done next, where these elements are up.
    #[must_use]
    pub fn next(&self, sites: &[Site]) -> Next {
        let site = |element: ElementId| sites.iter().find(|site| site.element == element);
        let of = |wanted: CopyState| {
            let holders = self.holders.iter().copied();
            holders.filter_map(move |(element, state)| (state == wanted).then_some(element))
        };
        let up: Vec<&Site> = of(CopyState::Current).filter_map(site).collect();
        if up.len() > self.wanted {
            return Next::Remove(self.surplus(&up));
        }
        if self.left() > self.wanted {
            return Next::Later;
        }
        let coming = of(CopyState::Coming).count();
        let enough = self.left() + coming >= self.wanted;
        let damaged: Vec<&Site> = of(CopyState::Damaged).filter_map(site).collect();
        if let Some(next) = self.mend(&damaged, up.first().copied(), enough) {
            return next;
        }
        if enough {
            let rest = of(CopyState::Damaged).next().map(|_| Next::Later);
            return if coming > 0 {
                Next::Wait
            } else {
                rest.unwrap_or(Next::Enough)
            };
        }
        let Some(from) = up.first() else {
            return Next::NoSource;
        };
        let hosts = of(CopyState::Current).chain(of(CopyState::Coming));
        let hosts: Vec<&str> = hosts
            .filter_map(site)
            .map(|one| one.host.as_str())
            .collect();
        let has = |element: ElementId| self.holders.iter().any(|(holder, _)| *holder == element);
        let to = sites
            .iter()
            .filter(|one| one.takes && self.fits(one) && !has(one.element))
            .min_by_key(|one| {
                let shared = hosts.contains(&one.host.as_str());
                (shared, self.draw(one.element), one.element)
            });
        to.map_or(Next::NoPlace, |to| Next::Make {
            from: from.element,
            to: to.element,
        })
    }

    /// What is to be done with copies that are damaged: they are made anew where they are, so that nobody has to be told of
    /// another place. One that is not the first goes instead if there are enough without it.
    fn mend(&self, damaged: &[&Site], from: Option<&Site>, enough: bool) -> Option<Next> {
        let from = from?.element;
        let first = self.holders.first().map(|(element, _)| *element);
        let surplus = |one: &&&Site| enough && Some(one.element) != first;
        if let Some(one) = damaged.iter().find(surplus) {
            return Some(Next::Remove(vec![one.element]));
        }
        let to = damaged.iter().find(|one| self.fits(one))?.element;
        Some(Next::Make { from, to })
    }

    /// Whether an element has room for it.
    fn fits(&self, site: &Site) -> bool {
        site.free_bytes >= self.size.saturating_add(RESERVE_BYTES)
    }

    /// A label makes a copy there from now on.
    pub fn comes(&mut self, to: ElementId) {
        match self.holders.iter_mut().find(|(element, _)| *element == to) {
            Some((_, state)) => *state = CopyState::Coming,
            None => self.holders.push((to, CopyState::Coming)),
        }
    }

    /// A number for each object and element: copies of many objects spread over elements that are alike.
    fn draw(&self, element: ElementId) -> u64 {
        let element = Source::seeded(element.0.into()).next_u64();
        Source::seeded(self.object.0 ^ element).next_u64()
    }

    /// Those to be removed: never the first copy, sooner one that shares its host with one that stays.
    fn surplus(&self, up: &[&Site]) -> Vec<ElementId> {
        let first = self.holders.first().map(|(element, _)| *element);
        let mut stays: Vec<&Site> = up.to_vec();
        let mut goes = Vec::new();
        while stays.len() > self.wanted {
            let shared = |at: usize| {
                let others = stays.iter().enumerate();
                let mut others = others.filter(|(other, _)| *other != at);
                others.any(|(_, one)| one.host == stays[at].host)
            };
            let candidates = (0..stays.len()).rev();
            let mut candidates = candidates.filter(|&at| Some(stays[at].element) != first);
            let last = candidates.clone().next();
            let Some(at) = candidates.find(|&at| shared(at)).or(last) else {
                break;
            };
            goes.push(stays.remove(at).element);
        }
        goes
    }
}

#[cfg(test)]
mod tests {
    use super::CopyState::{Coming, Current, Damaged, Lost};
    use super::*;

    const MUCH: u64 = 1 << 40;

    fn sites(hosts: &[&str]) -> Vec<Site> {
        let site = |(id, host): (u32, &&str)| Site {
            element: ElementId(id),
            host: (*host).to_owned(),
            free_bytes: MUCH,
            takes: true,
        };
        (0..).zip(hosts).map(site).collect()
    }

    fn kept(wanted: usize, holders: &[(u32, CopyState)]) -> Kept {
        let holders = holders.iter();
        Kept {
            object: ObjectId(7),
            size: 100,
            wanted,
            holders: holders.map(|&(id, state)| (ElementId(id), state)).collect(),
        }
    }

    fn made(next: Next) -> (u32, u32) {
        match next {
            Next::Make { from, to } => (from.0, to.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn copies_go_to_other_hosts_first_and_then_to_other_elements() {
        let two = sites(&["a", "a", "a", "b"]);
        assert_eq!(made(kept(2, &[(0, Current)]).next(&two)), (0, 3));
        let third = kept(3, &[(0, Current), (3, Coming)]).next(&two);
        assert!(matches!(made(third), (0, 1 | 2)));
        let one = sites(&["a", "a"]);
        assert_eq!(made(kept(2, &[(0, Current)]).next(&one)), (0, 1));
        assert_eq!(
            kept(3, &[(0, Current), (1, Current)]).next(&one),
            Next::NoPlace
        );
    }

    #[test]
    fn objects_spread_over_elements_that_are_alike() {
        let many = sites(&["a", "b", "c", "d", "e"]);
        let mut counts = [0; 5];
        for object in 0..400 {
            let one = Kept {
                object: ObjectId(object),
                ..kept(2, &[(0, Current)])
            };
            counts[made(one.next(&many)).1 as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts[1..].iter().all(|&count| count > 60), "{counts:?}");
    }

    #[test]
    fn what_is_lost_is_made_again_of_what_is_left() {
        let mut left = sites(&["a", "b", "c"]);
        left.remove(0);
        let lost = kept(2, &[(0, Lost), (1, Current)]);
        assert_eq!(made(lost.next(&left)), (1, 2));
        // One that is only away for a moment is waited for.
        let away = kept(2, &[(0, Current), (1, Current)]);
        assert_eq!(away.next(&left), Next::Enough);
        assert_eq!(kept(2, &[(0, Lost)]).next(&left), Next::NoSource);
        let under_way = kept(2, &[(0, Lost), (1, Current), (2, Coming)]);
        assert_eq!(under_way.next(&left), Next::Wait);
    }

    #[test]
    fn a_damaged_copy_is_made_anew_where_it_is() {
        let all = sites(&["a", "b", "c"]);
        // The first one, too, and before any other is made.
        let mut first = kept(2, &[(0, Damaged), (1, Current)]);
        assert_eq!(made(first.next(&all)), (1, 0));
        first.comes(ElementId(0));
        assert_eq!(first.holders.len(), 2);
        assert_eq!(first.next(&all), Next::Wait);
        assert_eq!(
            made(kept(2, &[(0, Current), (1, Damaged)]).next(&all)),
            (0, 1)
        );
        // One that is too much goes, but never the first.
        let three = kept(2, &[(0, Current), (1, Damaged), (2, Current)]);
        assert_eq!(three.next(&all), Next::Remove(vec![ElementId(1)]));
        let three = kept(2, &[(0, Damaged), (1, Current), (2, Current)]);
        assert_eq!(made(three.next(&all)), (1, 0));
        // Nothing can be done for the only one.
        assert_eq!(kept(1, &[(0, Damaged)]).next(&all), Next::NoSource);
        let gone = kept(2, &[(0, Damaged), (1, Lost)]);
        assert_eq!(gone.next(&all), Next::NoSource);
    }

    #[test]
    fn where_there_is_no_room_to_mend_another_copy_is_made() {
        let mut all = sites(&["a", "b", "c"]);
        all[0].free_bytes = 0;
        let mut damaged = kept(2, &[(0, Damaged), (1, Current)]);
        assert_eq!(made(damaged.next(&all)), (1, 2));
        damaged.holders.push((ElementId(2), Current));
        assert_eq!(damaged.next(&all), Next::Later);
        all[0].free_bytes = MUCH;
        assert_eq!(made(damaged.next(&all)), (1, 0));
        // Or where its element is away.
        all.remove(0);
        let away = kept(2, &[(0, Damaged), (1, Current)]);
        assert_eq!(made(away.next(&all)), (1, 2));
    }

    #[test]
    fn full_silent_and_compute_elements_get_none() {
        let mut all = sites(&["a", "b", "c"]);
        all[1].free_bytes = RESERVE_BYTES + 99;
        all[2].takes = false;
        assert_eq!(kept(2, &[(0, Current)]).next(&all), Next::NoPlace);
        all[1].free_bytes += 1;
        assert_eq!(made(kept(2, &[(0, Current)]).next(&all)), (0, 1));
    }

    #[test]
    fn surplus_goes_but_never_the_first_and_only_while_enough_others_are_up() {
        let all = sites(&["a", "b", "b", "c"]);
        let four = kept(2, &[(0, Current), (1, Current), (2, Current), (3, Current)]);
        let Next::Remove(goes) = four.next(&all) else {
            panic!()
        };
        assert_eq!(goes, [ElementId(2), ElementId(3)]);
        let same_host = kept(1, &[(2, Current), (1, Current)]);
        assert_eq!(same_host.next(&all), Next::Remove(vec![ElementId(1)]));
        let mut two = all.clone();
        two.truncate(2);
        assert_eq!(four.next(&two), Next::Later, "the others are away");
    }
}
