//! Splits the mix over node shapes: each shape is valued under the work that will reach it.

use std::collections::BTreeMap;

use crate::scheduler::packing::mix::TypeInMix;
use crate::scheduler::packing::task::Task;

/// The capacity of all nodes of one shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShapeTotal {
    /// Thousandths of devices.
    pub(crate) device_milli: u64,
    /// CPU in thousandths of a core.
    pub(crate) cpu_milli: u64,
}

/// Fixed-point factor of split weights: divided demand stays precise enough in integers.
const PRECISION: u128 = 1 << 16;
/// A shape whose capacity is split already still takes 1/50 of it.
const LEAST_PART: u128 = 50;

/// For each shape, the weight of each task type. Types with the fewest suitable shapes are split first; each is split
/// over its shapes in proportion to their remaining capacity. Demand is scaled to capacity. CPU-only types are split by
/// CPU.
pub(crate) fn split_demand(mix: &[TypeInMix<'_>], totals: &[ShapeTotal]) -> Vec<Vec<u64>> {
    let mut weights = vec![vec![0; mix.len()]; totals.len()];
    let demand: u128 = mix.iter().map(|of| u128::from(of.weight) * u128::from(of.task.device_milli())).sum();
    let capacity: u128 = totals.iter().map(|total| u128::from(total.device_milli)).sum();
    let mut dealt = vec![0_u128; totals.len()];
    for (_, types) in by_access(mix, totals) {
        let Some(&first) = types.first() else { continue };
        let open: Vec<usize> = (0..totals.len()).filter(|&shape| mix[first].shapes[shape]).collect();
        let room: Vec<u128> =
            open.iter().map(|&shape| remaining(totals[shape], dealt[shape], mix[first].task)).collect();
        let all: u128 = room.iter().sum();
        for &of in &types {
            for (&shape, &part) in open.iter().zip(&room) {
                let weight = u128::from(mix[of].weight);
                weights[shape][of] = u64::try_from(weight * PRECISION * part / all.max(1)).unwrap_or(u64::MAX);
                let milli = weight * u128::from(mix[of].task.device_milli()) * part / all.max(1);
                dealt[shape] += milli * capacity / demand.max(1);
            }
        }
    }
    weights
}

/// Remaining capacity of a shape for tasks like `task`: CPU for CPU-only tasks, else devices.
fn remaining(total: ShapeTotal, dealt: u128, task: &Task) -> u128 {
    if task.devices == 0 {
        return u128::from(total.cpu_milli).max(1);
    }
    let capacity = u128::from(total.device_milli);
    capacity.saturating_sub(dealt).max(capacity / LEAST_PART).max(1)
}

/// Indexes of types, grouped by the shapes that could run them. Groups with the least capacity come first, CPU-only
/// types last.
fn by_access(mix: &[TypeInMix<'_>], totals: &[ShapeTotal]) -> BTreeMap<(bool, u64, Vec<bool>), Vec<usize>> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, of) in mix.iter().enumerate() {
        let capacity =
            of.shapes.iter().zip(totals).filter(|(open, _)| **open).map(|(_, total)| total.device_milli).sum();
        groups.entry((of.task.devices == 0, capacity, of.shapes.clone())).or_default().push(index);
    }
    groups
}
