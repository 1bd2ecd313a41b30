//! The nodes of one institution and its local scheduler.

use std::ops::Range;

use comity_core::packing::{Mix, NodeState, Shape, StateIndex, Task};

/// The resources of one placed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) node: usize,
    /// Indices of the devices.
    pub(super) devices: Vec<usize>,
    /// Thousandths of each.
    pub(super) milli_each: u16,
    pub(super) cpu_milli: u64,
    pub(super) memory_mib: u64,
}

/// The free resources of a node.
#[derive(Clone, Debug)]
struct FreeResources {
    cpu_milli: u64,
    memory_mib: u64,
    /// Thousandths of each device, by index.
    devices: Vec<u16>,
}

/// The nodes of one institution, by number.
#[derive(Debug)]
pub(super) struct Site {
    pool: StateIndex,
    nodes: Vec<FreeResources>,
}

impl Site {
    /// Idle nodes, whose scheduler expects work like `mix`.
    pub(super) fn new(shapes: &[&Shape], mix: &Mix) -> Self {
        let mut pool = StateIndex::default();
        pool.expect(mix.clone());
        let mut nodes = Vec::with_capacity(shapes.len());
        for (number, shape) in (0..).zip(shapes) {
            let idle = shape.idle();
            let (cpu_milli, memory_mib, devices) = (idle.cpu_milli, idle.memory_mib, idle.devices.to_vec());
            nodes.push(FreeResources { cpu_milli, memory_mib, devices });
            pool.set(0, number, shape, idle);
        }
        Self { pool, nodes }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Places a task by the broker's value function; `None` if it fits nowhere.
    pub(super) fn place(&mut self, task: &Task) -> Option<Allocation> {
        let asked = self.pool.ask(task);
        let choice = self.pool.choose(0, asked)?;
        let level = if task.devices > 1 { task.milli } else { choice.level };
        let node = self.pool.first_node(choice)? as usize;
        let free = self.nodes.get(node)?;
        let fitting = free.devices.iter().enumerate().filter(|(_, free)| **free == level).map(|(index, _)| index);
        let devices: Vec<usize> = fitting.take(usize::from(task.devices)).collect();
        let allocation = Allocation {
            node,
            devices,
            milli_each: task.milli,
            cpu_milli: task.cpu_milli,
            memory_mib: task.memory_mib,
        };
        self.take(&allocation);
        Some(allocation)
    }

    /// Subtracts an allocation of the institution or of a borrower.
    pub(super) fn take(&mut self, allocation: &Allocation) {
        let Some(free) = self.nodes.get_mut(allocation.node) else { return };
        free.cpu_milli = free.cpu_milli.saturating_sub(allocation.cpu_milli);
        free.memory_mib = free.memory_mib.saturating_sub(allocation.memory_mib);
        for &device in &allocation.devices {
            if let Some(free) = free.devices.get_mut(device) {
                *free = free.saturating_sub(allocation.milli_each);
            }
        }
        let state = NodeState::new(free.cpu_milli, free.memory_mib, free.devices.iter().copied());
        self.pool.update(0, u32::try_from(allocation.node).unwrap_or(u32::MAX), state);
    }

    /// Free thousandths of the devices of some nodes.
    pub(super) fn free_milli(&self, nodes: Range<usize>) -> u64 {
        self.nodes[nodes].iter().flat_map(|free| &free.devices).map(|&milli| u64::from(milli)).sum()
    }
}
