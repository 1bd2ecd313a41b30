//! A synthetic campus of 64 GPUs that replaces a trace.

use comity_core::packing::{Shape, Task};

use crate::trace::Trace;

/// Number of nodes, with eight GPUs each.
const NODES: usize = 8;
/// GPUs of a request, all on one node, and the number of such requests among twenty.
const MIX: [(u16, usize); 5] = [(1, 7), (2, 5), (3, 1), (4, 4), (8, 3)];

/// Eight nodes with eight GPUs. Of twenty requests, seven need one GPU, five two, one three, four four and three eight,
/// each with 14 cores and 100 GiB per GPU.
#[must_use]
pub fn campus() -> Trace {
    let shape = Shape { cpu_milli: 128_000, memory_mib: 1 << 20, devices: 8, kind: 0 };
    let task = |devices: u16| {
        let gpus = u64::from(devices);
        Task { cpu_milli: 14_000 * gpus, memory_mib: 102_400 * gpus, devices, milli: 1_000, kinds: Vec::new() }
    };
    Trace {
        nodes: (0..NODES).map(|number| (format!("campus-{number}"), shape.clone())).collect(),
        tasks: MIX.iter().flat_map(|(devices, times)| vec![task(*devices); *times]).collect(),
    }
}
