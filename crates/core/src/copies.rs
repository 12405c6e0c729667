//! Copies: a sealed object may lie on several elements, under one id. What is to be done so that there are as many as
//! wanted, on elements of different hosts first, and none where none is to be any more. A move is a copy and then a removal.

use crate::id::{ElementId, ObjectId};
use crate::layout::RESERVE_BYTES;
use crate::random::Source;
use std::fmt;
use std::str::FromStr;

/// Copies of one object, the first included.
pub const COPIES_MAX: u32 = 8;

/// How many copies there are to be of a version, as people say it: `2`, or `2,now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// So many, the first included.
    pub copies: u32,
    /// Whoever waits for the seal waits for them, too.
    pub now: bool,
}

impl Wanted {
    /// The file itself.
    pub const ONE: Self = Self {
        copies: 1,
        now: false,
    };
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (copies, now) = match text.split_once(',') {
            Some((copies, now)) => (copies, now.trim() == "now"),
            None => (text, false),
        };
        let wrong =
            || format!("{text:?} is no number of copies: give 1 to {COPIES_MAX}, or such as 2,now");
        let known = now == text.contains(',');
        let copies: u32 = copies.trim().parse().map_err(|_| wrong())?;
        match known && (1..=COPIES_MAX).contains(&copies) {
            true => Ok(Self { copies, now }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = if self.now { ",now" } else { "" };
        write!(f, "{}{now}", self.copies)
    }
}

/// How one element has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyState {
    /// A label is making it.
    Coming,
    /// All of it is there.
    Current,
    /// All of it is there, on an element of the burst tier: it is none of those that are wanted, and stays until its room is.
    Burst,
    /// The element has been away for longer than the array waits.
    Lost,
    /// All of it is there, and is to go from there as soon as there are enough others.
    Leaving,
    /// The same of an element that has been away for longer than the array waits.
    LostLeaving,
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
    /// Whether what it keeps lies in memory: copies are put there only if it is named.
    pub memory: bool,
    /// Whether it is of the burst tier: no copies are put there.
    pub burst: bool,
    /// Whether its files stay in a store outside of the array: what drains goes there rather than elsewhere, other copies only if
    /// there is no other place.
    pub outside: bool,
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
    /// The element that is to have one of the copies, if one was named.
    pub target: Option<ElementId>,
    /// How many elements there are that could have copies, whether they are full or away for a moment or not.
    pub places: usize,
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
    /// These are more than are wanted, or are to go.
    Remove {
        /// They.
        goes: Vec<ElementId>,
        /// One that stays and is the first from now on.
        first: ElementId,
    },
    /// There are more than are wanted, but none may go before an element that has one is up again.
    Later,
    /// No element that is up has one.
    NoSource,
    /// No element that is up can take one.
    NoPlace,
    /// What was to move is where it was to go, and what it was moved from is needed all the same: there is no other place for as
    /// many copies as are wanted.
    Stay,
}

impl Kept {
    /// How many copies would be left if nothing came of those that are being made and those that are to go had gone.
    #[must_use]
    pub fn left(&self) -> usize {
        self.of(&[CopyState::Current]).count()
    }

    /// How many copies there are that can be read, now or when their elements are up again.
    #[must_use]
    pub fn has(&self) -> usize {
        let there = [CopyState::Current, CopyState::Burst, CopyState::Leaving];
        self.of(&there).count()
    }

    /// Whether there are as many copies as there can be, beside those in the burst tier.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.left() >= self.enough()
    }

    /// As many as are wanted, or as there are elements for.
    fn enough(&self) -> usize {
        self.wanted.min(self.places).max(1)
    }

    /// Whether only places are to change: nothing is in danger.
    #[must_use]
    pub fn only_moves(&self) -> bool {
        let more = self.left() < self.has() || self.target.is_some();
        more && self.has() >= self.wanted
    }

    /// Whether it is copied for another reason than that it is new.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let old = [CopyState::Leaving, CopyState::LostLeaving, CopyState::Lost];
        self.target.is_some() || self.of(&old).next().is_some()
    }

    fn of<'a>(&'a self, states: &'a [CopyState]) -> impl Iterator<Item = ElementId> + 'a {
        let holders = self.holders.iter();
        let wanted = holders.filter(|(_, state)| states.contains(state));
        wanted.map(|(element, _)| *element)
    }

    /// What is to be done next, where these elements are up.
    #[must_use]
    pub fn next(&self, sites: &[Site]) -> Next {
        let site = |element: ElementId| sites.iter().find(|site| site.element == element);
        let current = self.of(&[CopyState::Current]);
        let up: Vec<&Site> = current.filter_map(site).collect();
        let target = self.target.filter(|target| {
            let mut current = self.of(&[CopyState::Current]);
            !current.any(|element| element == *target)
        });
        let others = [CopyState::Burst, CopyState::Leaving];
        let others = self.of(&others).filter_map(site);
        let from = up.iter().copied().chain(others).next();
        let damaged: Vec<&Site> = self.of(&[CopyState::Damaged]).filter_map(site).collect();
        if up.len() <= self.wanted.max(1)
            && let Some(next) = self.mend(&damaged, from)
        {
            return next;
        }
        if target.is_none()
            && let Some(settled) = self.settled(&up)
        {
            return settled;
        }
        if let Some(target) = target
            && self
                .of(&[CopyState::Coming])
                .any(|element| element == target)
        {
            return Next::Wait;
        }
        let Some(from) = from else {
            return Next::NoSource;
        };
        let has = |element: ElementId| self.holders.iter().any(|(holder, _)| *holder == element);
        let takes = |one: &&Site| one.takes && self.fits(one) && !has(one.element);
        let to = match target {
            Some(target) => site(target).filter(takes),
            None => {
                let disks = sites.iter().filter(|one| !one.memory && !one.burst);
                self.best(disks.filter(takes), &site)
            }
        };
        match to {
            Some(to) => Next::Make {
                from: from.element,
                to: to.element,
            },
            None if target.is_none() && self.target.is_some() => Next::Stay,
            None => Next::NoPlace,
        }
    }

    /// What is to be done if no other copy is to be made now; those that are current are on these elements that are up.
    fn settled(&self, up: &[&Site]) -> Option<Next> {
        let leaving: Vec<ElementId> = self
            .of(&[CopyState::Leaving, CopyState::LostLeaving])
            .collect();
        // What is to go goes, too, where there are not enough elements for as many copies as are wanted.
        if up.len() >= self.enough() && !leaving.is_empty() {
            return Some(Next::Remove {
                goes: leaving,
                first: up[0].element,
            });
        }
        if up.len() > self.wanted.max(1) {
            return Some(self.surplus(up));
        }
        if self.left() > self.wanted {
            return Some(Next::Later);
        }
        let coming = self.of(&[CopyState::Coming]).count();
        if self.left() + coming < self.wanted {
            return None;
        }
        let waits = !leaving.is_empty() || self.of(&[CopyState::Damaged]).next().is_some();
        Some(match (coming, waits) {
            (0, false) => Next::Enough,
            (0, true) => Next::Later,
            _ => Next::Wait,
        })
    }

    /// Where another copy goes: to a host that has none, if there is one.
    fn best<'a>(
        &self,
        takes: impl Iterator<Item = &'a Site>,
        site: &impl Fn(ElementId) -> Option<&'a Site>,
    ) -> Option<&'a Site> {
        let stays = self.of(&[CopyState::Current, CopyState::Coming]);
        let hosts = stays.filter_map(site).map(|one| one.host.as_str());
        let hosts: Vec<&str> = hosts.collect();
        let drains = hosts.is_empty() && self.of(&[CopyState::Burst]).next().is_some();
        takes.min_by_key(|one| {
            let shared = hosts.contains(&one.host.as_str());
            let other = one.outside != drains;
            (shared, other, self.draw(one.element), one.element)
        })
    }

    /// What is to be done with copies that are damaged: they are made anew where they are, so that nobody has to be told of
    /// another place. One that is not the first goes instead if there are enough without it.
    fn mend(&self, damaged: &[&Site], from: Option<&Site>) -> Option<Next> {
        let from = from?.element;
        let coming = self.of(&[CopyState::Coming]).count();
        let enough = self.left() + coming >= self.wanted;
        let first = self.holders.first().map(|(element, _)| *element);
        let surplus = |one: &&&Site| enough && Some(one.element) != first;
        if let Some(one) = damaged.iter().find(surplus) {
            return Some(Next::Remove {
                goes: vec![one.element],
                first: first.unwrap_or(from),
            });
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

    /// These are about to be removed from now on, and this one that stays is the first.
    pub fn go(&mut self, goes: &[ElementId], first: ElementId) {
        for (element, state) in &mut self.holders {
            if goes.contains(element) {
                *state = CopyState::Going;
            }
        }
        if let Some(at) = self
            .holders
            .iter()
            .position(|(element, _)| *element == first)
        {
            self.holders.swap(0, at);
        }
    }

    /// A number for each object and element: copies of many objects spread over elements that are alike.
    fn draw(&self, element: ElementId) -> u64 {
        let element = Source::seeded(element.0.into()).next_u64();
        Source::seeded(self.object.0 ^ element).next_u64()
    }

    /// Those beyond what is wanted: never the first copy, sooner one that shares its host with one that stays.
    fn surplus(&self, up: &[&Site]) -> Next {
        let first = self.holders.first().map(|(element, _)| *element);
        let mut stays: Vec<&Site> = up.to_vec();
        let mut goes = Vec::new();
        while stays.len() > self.wanted.max(1) {
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
        let first = first.unwrap_or(stays[0].element);
        Next::Remove { goes, first }
    }
}

#[cfg(test)]
mod tests {
    use super::CopyState::{Coming, Current, Damaged, Going, Leaving, Lost, LostLeaving};
    use super::*;

    const MUCH: u64 = 1 << 40;

    fn sites(hosts: &[&str]) -> Vec<Site> {
        let site = |(id, host): (u32, &&str)| Site {
            element: ElementId(id),
            host: (*host).to_owned(),
            free_bytes: MUCH,
            takes: true,
            memory: false,
            burst: false,
            outside: false,
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
            target: None,
            places: usize::MAX,
        }
    }

    fn made(next: Next) -> (u32, u32) {
        match next {
            Next::Make { from, to } => (from.0, to.0),
            other => panic!("{other:?}"),
        }
    }

    fn removed(goes: &[u32], first: u32) -> Next {
        Next::Remove {
            goes: goes.iter().copied().map(ElementId).collect(),
            first: ElementId(first),
        }
    }

    #[test]
    fn drained_copies_are_placed_outside_and_others_inside() {
        let mut some = sites(&["a", "b", "c", "c (outside)"]);
        (some[0].burst, some[3].outside) = (true, true);
        for object in 0..20 {
            let mut kept = kept(1, &[(0, CopyState::Burst)]);
            kept.object = ObjectId(object);
            assert!(matches!(kept.next(&some), Next::Make { to, .. } if to == ElementId(3)));
            let mut kept = self::kept(2, &[(1, Current)]);
            kept.object = ObjectId(object);
            assert!(matches!(kept.next(&some), Next::Make { to, .. } if to == ElementId(2)));
        }
    }

    #[test]
    fn burst_copy_is_removed_only_after_copy_elsewhere() {
        use CopyState::Burst;
        let mut some = sites(&["a", "a", "b"]);
        some[0].burst = true;
        some[1].burst = true;
        assert_eq!(made(kept(1, &[(0, Burst)]).next(&some)), (0, 2));
        let coming = kept(1, &[(0, Burst), (2, Coming)]);
        assert_eq!(coming.next(&some), Next::Wait);
        assert_eq!(
            kept(1, &[(0, Leaving), (2, Coming)]).next(&some),
            Next::Wait
        );
        let both = kept(1, &[(0, Burst), (2, Current)]);
        assert_eq!(
            (both.next(&some), both.left(), both.has()),
            (Next::Enough, 1, 2)
        );
        let leaving = kept(1, &[(0, Leaving), (2, Current)]);
        assert_eq!(leaving.next(&some), removed(&[0], 2));
        // Never before it is elsewhere, and on an element that is up.
        assert_eq!(made(kept(1, &[(0, Leaving)]).next(&some)), (0, 2));
        let away = kept(1, &[(0, Leaving), (3, Current)]);
        assert_ne!(away.next(&some), removed(&[0], 3));
        assert_eq!(
            kept(2, &[(0, Burst), (2, Current)]).next(&some),
            Next::NoPlace
        );
        some.pop();
        assert_eq!(kept(1, &[(0, Burst)]).next(&some), Next::NoPlace);
        assert_eq!(kept(1, &[(0, Leaving)]).next(&some), Next::NoPlace);
    }

    #[test]
    fn copies_prefer_other_hosts_then_other_elements() {
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
    fn objects_spread_over_equal_elements() {
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
    fn lost_copy_is_recreated_from_remaining_copies() {
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
    fn damaged_copy_is_recreated_in_place() {
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
        assert_eq!(
            three.next(&all),
            Next::Remove {
                goes: vec![ElementId(1)],
                first: ElementId(0)
            }
        );
        let three = kept(2, &[(0, Damaged), (1, Current), (2, Current)]);
        assert_eq!(made(three.next(&all)), (1, 0));
        // Nothing can be done for the only one.
        assert_eq!(kept(1, &[(0, Damaged)]).next(&all), Next::NoSource);
        let gone = kept(2, &[(0, Damaged), (1, Lost)]);
        assert_eq!(gone.next(&all), Next::NoSource);
    }

    #[test]
    fn damaged_copy_is_recreated_elsewhere_if_its_element_is_full() {
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
    fn full_silent_and_compute_elements_get_no_copies() {
        let mut all = sites(&["a", "b", "c"]);
        all[1].free_bytes = RESERVE_BYTES + 99;
        all[2].takes = false;
        assert_eq!(kept(2, &[(0, Current)]).next(&all), Next::NoPlace);
        all[1].free_bytes += 1;
        assert_eq!(made(kept(2, &[(0, Current)]).next(&all)), (0, 1));
    }

    #[test]
    fn surplus_copy_is_removed_while_enough_others_are_up() {
        let all = sites(&["a", "b", "b", "c"]);
        let four = kept(2, &[(0, Current), (1, Current), (2, Current), (3, Current)]);
        assert_eq!(four.next(&all), removed(&[2, 3], 0));
        let same_host = kept(1, &[(2, Current), (1, Current)]);
        assert_eq!(same_host.next(&all), removed(&[1], 2));
        let mut two = all.clone();
        two.truncate(2);
        assert_eq!(four.next(&two), Next::Later, "the others are away");
    }

    #[test]
    fn leaving_copy_is_copied_first_and_is_no_longer_first() {
        let all = sites(&["a", "b"]);
        let mut sole = kept(1, &[(0, Leaving)]);
        assert_eq!((sole.left(), sole.has(), sole.only_moves()), (0, 1, true));
        assert_eq!(made(sole.next(&all)), (0, 1));
        sole.holders.push((ElementId(1), Coming));
        assert_eq!(sole.next(&all), Next::Wait);
        sole.holders[1].1 = Current;
        assert_eq!(sole.next(&all), removed(&[0], 1));
        // The copy is away for a moment: both are kept until it is back.
        assert_eq!(sole.next(&all[..1]), Next::Later);
        sole.holders = vec![(ElementId(1), Current), (ElementId(0), Going)];
        assert_eq!(sole.next(&all), Next::Enough);
        assert_eq!(kept(1, &[(0, Leaving)]).next(&all[..1]), Next::NoPlace);
        assert_eq!(kept(1, &[(0, Leaving)]).next(&all[1..]), Next::NoSource);
    }

    #[test]
    fn leaving_copy_on_lost_element_is_recreated_from_others() {
        let left = &sites(&["a", "b", "c"])[1..];
        let two = kept(2, &[(0, LostLeaving), (1, Current)]);
        assert_eq!((two.has(), two.only_moves()), (1, false));
        assert_eq!(made(two.next(left)), (1, 2));
        let two = kept(2, &[(0, LostLeaving), (1, Current), (2, Current)]);
        assert_eq!(two.next(left), removed(&[0], 1));
        assert_eq!(kept(1, &[(0, LostLeaving)]).next(left), Next::NoSource);
    }

    #[test]
    fn leaving_copy_needs_no_more_copies_than_places() {
        let all = sites(&["a", "b"]);
        let mut two = kept(2, &[(0, Leaving), (1, Current)]);
        // There is one that is full or away.
        assert_eq!(two.next(&all), Next::NoPlace);
        two.places = 1;
        assert_eq!(two.next(&all), removed(&[0], 1));
    }

    #[test]
    fn move_uses_only_its_target() {
        let mut all = sites(&["a", "b", "c"]);
        let mut moved = Kept {
            target: Some(ElementId(2)),
            ..kept(1, &[(0, Leaving)])
        };
        assert!(moved.can_wait());
        assert_eq!(made(moved.next(&all)), (0, 2));
        moved.holders.push((ElementId(2), Coming));
        assert_eq!(moved.next(&all), Next::Wait);
        moved.holders[1].1 = Current;
        assert_eq!(moved.next(&all), removed(&[0], 2));
        // As many as are wanted can only be where it is to go from, too.
        moved.wanted = 2;
        moved.places = 2;
        assert_eq!(made(moved.next(&all)).1, 1);
        assert_eq!(moved.next(&[all[0].clone(), all[2].clone()]), Next::Stay);
        moved.wanted = 1;
        moved.holders.pop();
        all[2].free_bytes = RESERVE_BYTES;
        assert_eq!(moved.next(&all), Next::NoPlace);
    }

    /// Whatever the elements do, the steps lead to copies at the wanted places, and at least one copy exists at all
    /// times.
    #[test]
    fn copy_steps_reach_wanted_count_and_never_lose_last_copy() {
        for seed in 0..2000 {
            let mut dice = Source::seeded(seed);
            let mut roll = |sides: u64| dice.next_u64() % sides;
            let hosts = ["a", "b", "c", "d"].map(|host| if roll(2) == 0 { "a" } else { host });
            let all = sites(&hosts[..2 + usize::try_from(roll(3)).unwrap()]);
            let count = u32::try_from(all.len()).unwrap();
            let leaving: Vec<u32> = (0..count - 1).filter(|_| roll(3) == 0).collect();
            let stay = all.len() - leaving.len();
            let state = |id: u32| {
                if leaving.contains(&id) {
                    Leaving
                } else {
                    Current
                }
            };
            let mut one = kept(1 + usize::try_from(roll(3)).unwrap(), &[]);
            one.places = stay;
            let mut sites = all.clone();
            for site in &mut sites {
                site.takes = !leaving.contains(&site.element.0);
            }
            let first = u32::try_from(roll(count.into())).unwrap();
            one.holders.push((ElementId(first), state(first)));
            let other = (first + 1) % count;
            if roll(2) == 0 {
                one.holders.push((ElementId(other), state(other)));
            }
            let end = loop {
                match one.next(&sites) {
                    Next::Make { to, .. } => one.holders.push((to, Current)),
                    Next::Remove { goes, first } => one.go(&goes, first),
                    end => break end,
                }
                assert!(one.has() > 0, "seed {seed}");
            };
            let expected = one.wanted.min(stay);
            assert_eq!((one.left(), one.has()), (expected, expected), "seed {seed}");
            let short = one.wanted > stay;
            assert_eq!(
                end,
                if short { Next::NoPlace } else { Next::Enough },
                "seed {seed}"
            );
        }
    }
}
