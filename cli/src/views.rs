//! What commands print: the stable shapes for scripts (JSON and YAML, camelCase, ids as text, times in milliseconds
//! since 1970, `null` for what is not there), and the tables for people.

mod absent;
mod cluster_view;
mod delivery;
mod device;
mod lease_view;
mod list;
mod offer_view;
mod peering_view;
mod placement;
mod policy_view;
mod raft_view;
mod reclaim;
mod reclaimed_leases;
mod request_view;
mod spec;
mod verdict;
mod wiring;

pub use cluster_view::{Cluster, Invitation};
pub use delivery::{Delivery, VirtualNode};
pub use device::{Device, Node};
pub use lease_view::{Lease, LeaseState};
pub use list::{List, Row};
pub use offer_view::{ClassSummary, DataSite, Egress, Offer, OfferDetail};
pub use peering_view::Peering;
pub use placement::{DeviceShare, NodePlacement, Placement};
pub use policy_view::{PolicyApplied, PolicyChecked, PolicyFile, PolicyProblem, PolicyShown};
pub use raft_view::{RaftBroker, RaftMember, RaftMembers, RaftStatus, RebasedTime};
pub use request_view::{Request, RequestState};
pub use spec::{DataNeed, Gpus, Members, RequestSpec, Share, Topology};
pub use verdict::{DonorVerdict, Explanation, Quote};
pub use wiring::{NumaAmounts, RdmaBandwidth};
