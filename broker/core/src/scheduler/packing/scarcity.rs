//! Scarcity of shapes: where some work runs only on few shapes, unrestricted work pays a price for taking them.

use std::collections::BTreeMap;

use crate::scheduler::packing::mix::TypeInMix;

/// 1.0 in the fixed point of [`Scarcity::of_shapes`].
pub(crate) const SCARCITY_ONE: u64 = 1 << 10;
const MAX_SCARCITY: u64 = 2 * SCARCITY_ONE;

/// Demand that is restricted to some shapes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scarcity {
    /// The shapes open to a part of the demand, and the size of that part in units of 2^-16.
    parts: Vec<(Vec<usize>, u64)>,
}

impl Scarcity {
    pub(crate) fn of(mix: &[TypeInMix<'_>]) -> Self {
        let demand = |of: &TypeInMix<'_>| u128::from(of.weight) * u128::from(of.task.device_milli());
        let all: u128 = mix.iter().map(demand).sum();
        let mut by_access: BTreeMap<&[bool], u128> = BTreeMap::new();
        for of in mix.iter().filter(|of| of.shapes.contains(&false)) {
            *by_access.entry(&of.shapes).or_default() += demand(of);
        }
        let parts = by_access.into_iter().filter(|(_, part)| *part > 0).map(|(open, part)| {
            let open = (0..open.len()).filter(|&shape| open[shape]).collect();
            (open, u64::try_from((part << 16) / all.max(1)).unwrap_or(u64::MAX))
        });
        Self { parts: parts.collect() }
    }

    /// A class number for each of the `shapes` shapes. Shapes of one class are equally scarce whatever is free; classes
    /// are numbered in the order of their first shape.
    pub(crate) fn equal_scarcity_classes(&self, shapes: usize) -> Vec<u32> {
        let mut numbers: BTreeMap<Vec<bool>, u32> = BTreeMap::new();
        let bound = |shape| self.parts.iter().map(|(open, _)| open.contains(&shape)).collect();
        (0..shapes)
            .map(|shape| {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                *numbers.entry(bound(shape)).or_insert(next)
            })
            .collect()
    }

    /// The scarcity of each shape, from 0 to twice [`SCARCITY_ONE`]: restricted demand over free capacity.
    pub(crate) fn of_shapes(&self, free_milli: &[u64]) -> Vec<u64> {
        let all: u64 = free_milli.iter().sum();
        let mut scarcity = vec![0_u64; free_milli.len()];
        for (open, part) in &self.parts {
            let free: u64 = open.iter().map(|&shape| free_milli[shape]).sum();
            let pressure = (u128::from(*part) * u128::from(all) / u128::from(free.max(1))) >> 6;
            for &shape in open {
                scarcity[shape] =
                    scarcity[shape].saturating_add(u64::try_from(pressure).unwrap_or(MAX_SCARCITY)).min(MAX_SCARCITY);
            }
        }
        scarcity
    }
}
