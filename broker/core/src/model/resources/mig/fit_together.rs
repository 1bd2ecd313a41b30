//! Decides whether several instances fit on several devices of one board.
//!
//! Without the media extension, the answer is exact and needs no search. An instance of all slots needs an idle device,
//! and all idle devices are alike. After that, the halves of devices are independent, and so are the quarters once the
//! half-device shapes are placed. The choice among free halves or quarters does not matter, except that the upper half
//! and the last quarter accept fewer shapes. So the algorithm places larger shapes first, each where it obstructs
//! least; what does not fit then fits in no other way. The media extension ties the slots of a device together, so the
//! algorithm searches for the positions of instances with it.

use comity_types::mig::{Board, InUse, MAX_SHAPES, Slots};

/// Number of instances per shape, by the shape's index.
pub type InstanceCounts = [u32; MAX_SHAPES];

/// Attempts to place instances with the media extension before the search gives up.
const MAX_MEDIA_TRIES: u32 = 1_024;

/// Whether the `asked` instances fit on `devices` of `board` besides the used ones. Exact, unless instances with the
/// media extension have more than a thousand possible arrangements.
#[must_use]
pub fn fit_together(board: Board, devices: &[InUse], asked: &InstanceCounts) -> bool {
    let wanted =
        board.shapes().iter().zip(asked).fold(0_u64, |sum, (shape, &count)| {
            sum.saturating_add(u64::from(count).saturating_mul(u64::from(shape.size)))
        });
    let free: u64 =
        devices.iter().map(|device| u64::from(u32::from(board.slots()).saturating_sub(device.slots.count()))).sum();
    wanted <= free && place_media(board, &mut devices.to_vec(), &mut asked.clone(), &mut { MAX_MEDIA_TRIES })
}

/// Tries every position for the next instance with the media extension; once none is left, places the others.
fn place_media(board: Board, devices: &mut [InUse], asked: &mut InstanceCounts, tries: &mut u32) -> bool {
    let next = board.shapes().iter().enumerate().find(|(at, shape)| shape.media && asked[*at] > 0);
    let Some((at, shape)) = next else {
        *tries = tries.saturating_sub(1);
        return place_others(board, devices, asked);
    };
    asked[at] -= 1;
    let mut seen = Vec::new();
    for index in 0..devices.len() {
        let before = devices[index];
        if seen.contains(&before) {
            continue;
        }
        seen.push(before);
        for start in before.starts(shape) {
            devices[index] = before.with(shape, start);
            let fits = place_media(board, devices, asked, tries);
            devices[index] = before;
            if fits || *tries == 0 {
                asked[at] += 1;
                return fits;
            }
        }
    }
    asked[at] += 1;
    false
}

/// Places shapes without the media extension, largest first, each at the first of its starts that is free on any
/// device.
fn place_others(board: Board, devices: &[InUse], asked: &InstanceCounts) -> bool {
    let mut used: Vec<Slots> = devices.iter().map(|device| device.slots).collect();
    for (shape, &count) in board.shapes().iter().zip(asked).filter(|(shape, _)| !shape.media) {
        let mut left = count;
        for span in shape.starts.iter().map(|&start| Slots::span(start, shape.size)) {
            for slots in &mut used {
                if left > 0 && !slots.overlaps(span) {
                    *slots = slots.with(span);
                    left -= 1;
                }
            }
        }
        if left > 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::states;
    use super::*;

    fn boards() -> [Board; 2] {
        [Board::of("NVIDIA-H100-80GB-HBM3", 81_559).unwrap(), Board::of("NVIDIA-A30", 24_576).unwrap()]
    }

    /// All combinations that fit on `devices`, by exhaustive search.
    fn exhaustive(board: Board, devices: &[InUse]) -> BTreeSet<InstanceCounts> {
        let mut all = BTreeSet::from([[0; MAX_SHAPES]]);
        for &device in devices {
            let mut with_this = BTreeSet::new();
            for one in of_one(board, device) {
                with_this.extend(all.iter().map(|others| std::array::from_fn(|at| others[at] + one[at])));
            }
            all = with_this;
        }
        all
    }

    fn of_one(board: Board, device: InUse) -> BTreeSet<InstanceCounts> {
        let (mut all, mut open) = (BTreeSet::new(), BTreeSet::from([(device, [0; MAX_SHAPES])]));
        while let Some((device, placed)) = open.pop_first() {
            all.insert(placed);
            for (at, shape) in board.shapes().iter().enumerate() {
                for start in device.starts(shape) {
                    let mut more: InstanceCounts = placed;
                    more[at] += 1;
                    open.insert((device.with(shape, start), more));
                }
            }
        }
        all
    }

    /// All combinations up to this number of slots, whether or not they fit.
    fn asked_of(board: Board, slots: u32) -> Vec<InstanceCounts> {
        let mut all = vec![[0; MAX_SHAPES]];
        for (at, shape) in board.shapes().iter().enumerate() {
            let mut more = Vec::new();
            for asked in &all {
                let used: u32 =
                    board.shapes().iter().zip(asked).map(|(shape, count)| u32::from(shape.size) * count).sum();
                for count in 0..=(slots - used.min(slots)) / u32::from(shape.size) {
                    let mut next = *asked;
                    next[at] = count;
                    more.push(next);
                }
            }
            all = more;
        }
        all
    }

    #[test]
    fn one_device_matches_exhaustive_search() {
        for board in boards() {
            let all = asked_of(board, u32::from(board.slots()));
            for state in states(board) {
                let fits = of_one(board, state);
                for asked in &all {
                    assert_eq!(fit_together(board, &[state], asked), fits.contains(asked), "{asked:?} on {state:?}");
                }
            }
        }
    }

    #[test]
    fn two_devices_match_exhaustive_search() {
        for board in boards() {
            let all = asked_of(board, 2 * u32::from(board.slots()));
            let states: Vec<InUse> = states(board).into_iter().collect();
            // All pairs of states for an A30; for the others, a sample with a stride coprime to the number of states.
            let step = if board.slots() == 4 { 1 } else { 4_999 };
            for pair in (0..states.len() * states.len()).step_by(step) {
                let devices = [states[pair / states.len()], states[pair % states.len()]];
                let fits = exhaustive(board, &devices);
                for asked in &all {
                    assert_eq!(fit_together(board, &devices, asked), fits.contains(asked), "{asked:?} on {devices:?}");
                }
            }
        }
    }
}
