//! What commands print: the stable shapes for scripts (JSON and YAML, camelCase, ids as text, times in milliseconds
//! since 1970, `null` for what is not there), and the tables for people.

mod cluster;
mod delivery;
mod device;
mod lease;
mod list;
mod offer;
mod peering;
mod placement;
mod policy;
mod raft;
mod reclaim;
mod reclaims;
mod request;
mod spec;
mod verdict;
mod wiring;

pub use cluster::{Cluster, Invitation};
pub use delivery::{Delivery, VirtualNode};
pub use device::{Device, Node};
pub use lease::{Lease, LeaseState};
pub use list::{List, Row};
pub use offer::{ClassSummary, DataSite, Egress, Offer, OfferDetail};
pub use peering::Peering;
pub use placement::{DeviceShare, NodePlacement, Placement};
pub use policy::{PolicyApplied, PolicyChecked, PolicyFile, PolicyProblem, PolicyShown};
pub use raft::{RaftBroker, RaftMember, RaftMembers, RaftStatus, RebasedTime};
pub use request::{Request, RequestState};
pub use spec::{DataNeed, Gpus, Members, RequestSpec, Share, Topology};
pub use verdict::{DonorVerdict, Explanation, Quote};
pub use wiring::{NumaAmounts, RdmaBandwidth};

/// `None` for protobuf's "no time".
fn time(ms: u64) -> Option<u64> {
    (ms > 0).then_some(ms)
}

/// `None` for protobuf's "no text".
fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A part of a GPU count in thousandths, for people: `3`, `0.25`.
fn gpus(milli: u64) -> String {
    let (whole, part) = (milli / 1_000, milli % 1_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{}", format!("{part:03}").trim_end_matches('0')) }
}

/// Memory in MiB, for people.
fn memory(mib: u64) -> String {
    match mib {
        0 => "-".to_owned(),
        mib if mib % 1_024 == 0 => format!("{}Gi", mib / 1_024),
        mib => format!("{mib}Mi"),
    }
}

/// CPU in thousandths of a core, for people.
fn cpu(milli: u64) -> String {
    if milli == 0 { "-".to_owned() } else { gpus(milli) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn amounts_read_well() {
        assert_eq!([0, 250, 1_000, 1_500, 3_050].map(super::gpus), ["0", "0.25", "1", "1.5", "3.05"]);
        assert_eq!([0, 512, 65_536].map(super::memory), ["-", "512Mi", "64Gi"]);
        assert_eq!([0, 500, 8_000].map(super::cpu), ["-", "0.5", "8"]);
    }
}
