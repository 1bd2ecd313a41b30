//! The instances of one device, by the slot at which each starts.

use std::collections::BTreeMap;

use comity_types::mig::{Board, InUse, InstanceShape};

/// Profiles of a device's instances, by first slot.
pub(crate) type Instances = BTreeMap<u8, String>;
/// Number of instances by profile.
pub(crate) type ProfileCounts = BTreeMap<String, u32>;

/// How one device is partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceLayout {
    /// MIG mode is off.
    Whole,
    /// MIG mode is on.
    Cut(BTreeMap<u8, String>),
}

impl DeviceLayout {
    /// Its instances; none of a whole device.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (u8, &str)> {
        let instances = match self {
            Self::Whole => None,
            Self::Cut(instances) => Some(instances),
        };
        instances.into_iter().flatten().map(|(start, profile)| (*start, profile.as_str()))
    }

    /// Number of its instances by profile; `None` for a whole device.
    pub(crate) fn counts(&self) -> Option<ProfileCounts> {
        match self {
            Self::Whole => None,
            Self::Cut(instances) => Some(count(instances)),
        }
    }
}

/// Counts instances by profile.
pub(crate) fn count(instances: &Instances) -> ProfileCounts {
    let mut counts = ProfileCounts::new();
    for profile in instances.values() {
        *counts.entry(profile.clone()).or_default() += 1;
    }
    counts
}

/// Slots for instances: those in `fixed` start where it says, if the counts have them and the rest still fits. `None`
/// if the board does not hold the counts.
pub(crate) fn pack(board: Board, counts: &ProfileCounts, fixed: &Instances) -> Option<Instances> {
    let around_fixed = left_after(counts, fixed).and_then(|left| {
        let mut placed = fixed.clone();
        place(&shapes(board, &left)?, in_use(board, fixed)?, &mut placed).then_some(placed)
    });
    around_fixed.or_else(|| {
        let mut placed = Instances::new();
        place(&shapes(board, counts)?, InUse::default(), &mut placed).then_some(placed)
    })
}

/// The instances of `wanted`, then as many of `kept` as still fit, then more like the wanted ones, then the largest
/// that fit: a device in use cannot be cut, so no slot is left over. `None` if the wanted ones overlap.
pub(crate) fn fill(board: Board, wanted: &Instances, kept: &DeviceLayout) -> Option<Instances> {
    let (mut filled, mut state) = (wanted.clone(), in_use(board, wanted)?);
    let mut add = |profile: &str, shape: &InstanceShape, start: u8, state: &mut InUse| {
        if state.fits(shape, start) {
            filled.insert(start, profile.to_owned());
            *state = state.with(shape, start);
        }
    };
    for (start, profile) in kept.instances() {
        if let Some((_, shape)) = board.shape(profile) {
            add(profile, shape, start, &mut state);
        }
    }
    let like_wanted = wanted.values().filter_map(|profile| Some((profile.clone(), board.shape(profile)?.1)));
    let largest = board.shapes().iter().map(|shape| (board.name(shape), shape));
    for (profile, shape) in like_wanted.chain(largest).filter(|(_, shape)| !shape.media) {
        for &start in shape.starts {
            add(&profile, shape, start, &mut state);
        }
    }
    Some(filled)
}

/// The used part of a device with these instances; `None` if they overlap or the board has none of that profile.
fn in_use(board: Board, instances: &Instances) -> Option<InUse> {
    instances.iter().try_fold(InUse::default(), |state, (&start, profile)| {
        let (_, shape) = board.shape(profile)?;
        state.fits(shape, start).then(|| state.with(shape, start))
    })
}

/// The counts without the fixed instances; `None` if one of them is not counted.
fn left_after(counts: &ProfileCounts, fixed: &Instances) -> Option<ProfileCounts> {
    let mut left = counts.clone();
    for profile in fixed.values() {
        let count = left.get_mut(profile).filter(|count| **count > 0)?;
        *count -= 1;
    }
    Some(left)
}

/// A profile with its shape on a board.
type Named<'a> = (&'a str, &'static InstanceShape);

/// One entry for each instance, largest first.
fn shapes(board: Board, counts: &ProfileCounts) -> Option<Vec<Named<'_>>> {
    let mut all = Vec::new();
    for (profile, &count) in counts {
        let (_, shape) = board.shape(profile)?;
        // No board has more instances than slots.
        let count = usize::try_from(count).ok().filter(|count| *count <= usize::from(board.slots()))?;
        all.extend(std::iter::repeat_n((profile.as_str(), shape), count));
    }
    all.sort_by_key(|(_, shape)| std::cmp::Reverse((shape.size, shape.compute)));
    Some(all)
}

/// Places the shapes one after another. It tries every start: a board has at most eight.
fn place(left: &[Named<'_>], state: InUse, placed: &mut Instances) -> bool {
    let Some(((profile, shape), rest)) = left.split_first() else { return true };
    for start in state.starts(shape) {
        placed.insert(start, (*profile).to_owned());
        if place(rest, state.with(shape, start), placed) {
            return true;
        }
        placed.remove(&start);
    }
    false
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn h100() -> Board {
        Board::of("NVIDIA-H100-80GB-HBM3", 81_559).unwrap()
    }

    fn instances(list: &[(u8, &str)]) -> Instances {
        list.iter().map(|(start, profile)| (*start, (*profile).to_owned())).collect()
    }

    fn counts(list: &[(&str, u32)]) -> ProfileCounts {
        list.iter().map(|(profile, count)| ((*profile).to_owned(), *count)).collect()
    }

    #[test]
    fn counts_are_placed_around_the_instances_of_leases() {
        let balanced = counts(&[("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]);
        for fixed in [&[][..], &[(4, "3g.40gb")], &[(0, "1g.10gb"), (1, "1g.10gb")], &[(2, "2g.20gb")]] {
            let fixed = instances(fixed);
            let packed = pack(h100(), &balanced, &fixed).unwrap();
            assert_eq!(count(&packed), balanced);
            assert!(fixed.iter().all(|(start, profile)| packed.get(start) == Some(profile)), "{packed:?}");
        }
        // A lease whose instance is not there yet, and one that leaves no room for the others, fix nothing.
        for fixed in [&[(0, "4g.40gb")][..], &[(4, "2g.20gb"), (2, "1g.10gb")]] {
            assert_eq!(count(&pack(h100(), &balanced, &instances(fixed)).unwrap()), balanced);
        }
        assert_eq!(pack(h100(), &counts(&[("3g.40gb", 3)]), &Instances::new()), None, "a board holds two");
        assert_eq!(pack(h100(), &counts(&[("3g.20gb", 1)]), &Instances::new()), None, "another board's");
        assert_eq!(pack(h100(), &counts(&[("1g.10gb", u32::MAX)]), &Instances::new()), None);
    }

    #[test]
    fn what_a_lease_leaves_is_cut_too() {
        let filled =
            |wanted: &[(u8, &str)], kept: DeviceLayout| fill(h100(), &instances(wanted), &kept).map(|all| count(&all));
        let empty = || DeviceLayout::Cut(Instances::new());
        assert_eq!(filled(&[(4, "3g.40gb")], empty()), Some(counts(&[("3g.40gb", 2)])));
        assert_eq!(filled(&[(6, "1g.10gb")], empty()), Some(counts(&[("1g.10gb", 7)])));
        assert_eq!(filled(&[(4, "2g.20gb")], empty()), Some(counts(&[("2g.20gb", 3), ("1g.20gb", 1)])));
        assert_eq!(filled(&[(0, "7g.80gb")], empty()), Some(counts(&[("7g.80gb", 1)])));
        let kept = DeviceLayout::Cut(instances(&[(0, "1g.10gb"), (1, "1g.10gb"), (2, "2g.20gb"), (4, "3g.40gb")]));
        let beside = counts(&[("3g.40gb", 1), ("4g.40gb", 1)]);
        assert_eq!(filled(&[(0, "4g.40gb")], kept), Some(beside), "the instance that is not in the way stays");
        assert_eq!(filled(&[(0, "4g.40gb"), (2, "2g.20gb")], empty()), None);
    }
}
