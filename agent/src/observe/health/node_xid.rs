//! Errors of NVIDIA's driver ("Xid") in the conditions of a node, as node-problem-detector writes them.
//!
//! A condition names a GPU by its PCI address, and Kubernetes does not map that to one of the node's devices. So it
//! only raises the number of unhealthy devices. The type of the condition is the operator's choice; the driver's words
//! in its message are not.

use std::collections::BTreeSet;

use comity_proto::v1::Device;
use k8s_openapi::api::core::v1::NodeCondition;

use super::HARMLESS_XIDS;
use crate::observe::MAX_DEVICES;
use crate::observe::not_offered::NotOffered;

/// The start of a line of the driver: `NVRM: Xid (PCI:0000:11:00): 79, pid=1234, …`.
const XID_LINE: &str = "NVRM: Xid (PCI:";
/// Longest PCI address: `0000:11:00.0`, with room for a longer domain.
const MAX_PCI_BYTES: usize = 16;

/// An error of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeXid {
    /// PCI address of the GPU, as the driver writes it.
    pci: String,
    /// Number of the error.
    number: u32,
}

impl NodeXid {
    fn of_message(message: &str) -> Option<Self> {
        let (_, line) = message.split_once(XID_LINE)?;
        let (pci, rest) = line.split_once("): ")?;
        let is_address = pci.len() <= MAX_PCI_BYTES && pci.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c));
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..digits].parse().ok()?;
        (is_address && !pci.is_empty()).then(|| Self { pci: pci.to_ascii_lowercase(), number })
    }
}

/// The errors in a node's conditions for which the device plugin withdraws a GPU.
pub(crate) fn of_conditions(conditions: &[NodeCondition]) -> Vec<NodeXid> {
    let present = conditions.iter().filter(|condition| condition.status == "True");
    let found = present.filter_map(|condition| NodeXid::of_message(condition.message.as_deref()?));
    let found: BTreeSet<NodeXid> = found.filter(|xid| !HARMLESS_XIDS.contains(&xid.number)).collect();
    found.into_iter().take(MAX_DEVICES).collect()
}

/// Marks devices until as many are unhealthy as GPUs are named, idle ones first. The device plugin may have counted
/// them already. Returns a line for the log for each error.
pub(crate) fn count_unhealthy(node: &str, xids: &[NodeXid], devices: &mut [Device]) -> Vec<NotOffered> {
    let named = xids.iter().map(|xid| &xid.pci).collect::<BTreeSet<_>>().len();
    let counted = devices.iter().filter(|device| !device.healthy).count();
    for _ in counted..named {
        let idle = devices.iter().rposition(|device| device.healthy && device.local_use_milli == 0);
        let Some(chosen) = idle.or_else(|| devices.iter().rposition(|device| device.healthy)) else { break };
        devices[chosen].healthy = false;
    }
    let line = |xid: &NodeXid| NotOffered {
        node: node.to_owned(),
        resource: format!("GPU at PCI {}", xid.pci),
        reason: format!("a condition of the node has XID {}; it counts as unhealthy while it is there", xid.number),
    };
    xids.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(status: &str, message: &str) -> NodeCondition {
        let (status, message) = (status.to_owned(), Some(message.to_owned()));
        NodeCondition { type_: "GpuXid".to_owned(), status, message, ..NodeCondition::default() }
    }

    fn xid(pci: &str, number: u32) -> NodeXid {
        NodeXid { pci: pci.to_owned(), number }
    }

    #[test]
    fn the_drivers_words_name_a_gpu_and_an_error() {
        let lines = [
            "NVRM: Xid (PCI:0000:1A:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "kernel: [12.3] NVRM: Xid (PCI:0000:11:00): 48",
            "NVRM: Xid (PCI:0000:11:00): 48, once more",
            "NVRM: Xid (PCI:0000:12:00): 31, a program's error",
            "NVRM: Xid (PCI:0000:13:00): many",
            "NVRM: Xid (PCI:): 79",
            "NVRM: Xid (PCI:not an address): 79",
            "kubelet is posting ready status",
        ];
        let mut conditions: Vec<NodeCondition> = lines.iter().map(|line| condition("True", line)).collect();
        conditions.push(condition("False", "NVRM: Xid (PCI:0000:14:00): 79"));
        assert_eq!(of_conditions(&conditions), [xid("0000:11:00", 48), xid("0000:1a:00", 79)]);
    }

    #[test]
    fn as_many_devices_are_unhealthy_as_gpus_are_named() {
        let healths = |counted: usize, xids: &[NodeXid]| {
            let mut devices = vec![Device { healthy: true, ..Device::default() }; 4];
            devices[2].local_use_milli = 1_000;
            devices[3].healthy = counted == 0;
            let lines = count_unhealthy("n", xids, &mut devices);
            assert_eq!(lines.len(), xids.len());
            devices.iter().map(|device| device.healthy).collect::<Vec<_>>()
        };
        let two = [xid("0000:11:00", 48), xid("0000:11:00", 79), xid("0000:12:00", 79)];
        assert_eq!(healths(0, &[]), [true; 4]);
        assert_eq!(healths(0, &two[..2]), [true, true, true, false], "two errors of one GPU");
        assert_eq!(healths(1, &two[..2]), [true, true, true, false], "the device plugin counts it, too");
        assert_eq!(healths(1, &two), [true, false, true, false], "not the one that local work uses");
        let many: Vec<NodeXid> = (0..6).map(|bus| xid(&format!("0000:{bus:02x}:00"), 79)).collect();
        assert_eq!(healths(0, &many), [false; 4]);
    }
}
