//! Views of the broker's answers: stable JSON and YAML for scripts, tables for people.
//!
//! Keys are camelCase, ids are strings, times are milliseconds since 1970, absent values are `null`. Files named
//! `*_view` hold whole answers; the others hold parts of answers.
//!
//! The types are separate from the protobuf types, because scripts need other JSON than generated code writes:
//! canonical proto3 JSON (pbjson, prost-reflect) has 64-bit numbers as strings and states as `LEASE_STATE_ACTIVE`.
//! Derived serde on the protobuf types would need an attribute for most fields, would publish each new field of the
//! wire, and would save less than a third of these lines: more than half are tables, texts for people, and tests.

mod cluster_view;
mod delivery;
mod device;
mod donor_verdict;
mod earliest_start;
mod explanation_view;
mod lease_view;
mod list;
mod offer_view;
mod peering_view;
mod placement;
mod policy_view;
mod quota_use;
mod quote_view;
mod raft_view;
mod reclaim;
mod reclaimed_leases;
mod request_view;
mod spec;
mod value;

pub use cluster_view::Cluster;
pub use delivery::VirtualNode;
pub use device::{Device, Node, NumaAmounts, RdmaBandwidth};
pub use donor_verdict::DonorVerdict;
pub use explanation_view::{Explanation, QueuePosition};
pub use lease_view::Lease;
#[cfg(test)]
pub(crate) use lease_view::lease_at_centre;
pub use list::{List, Row};
pub use offer_view::{ClassSummary, DataSite, Egress, Offer, OfferDetail};
pub use peering_view::Peering;
pub use placement::{DeviceShare, NodePlacement, Placement};
pub use policy_view::{
    BorrowingEffect, CapacityEffect, CohortEffect, CohortTerms, CommitJudged, DocumentChange, DocumentChanged,
    ExpectedDifference, FieldChange, FileDetail, InstitutionEffect, LeaseEffect, MissingSignature, PolicyApplied,
    PolicyChecked, PolicyFile, PolicyHistory, PolicyInForce, PolicyPlan, PolicyPlanned, PolicyProblem,
    PolicyPullFailure, PolicyPushed, PolicyShown, PolicySourceShown, PolicyTested, QueuePlace, RequestEffect,
    Reservation, RollbackPlanned, ScenarioResult,
};
pub use quota_use::{QuotaUse, Quotas};
pub use quote_view::{Alternative, Quote};
pub use raft_view::{OldRoot, RaftBroker, RaftMember, RaftMembers, RaftStatus, RebasedTime};
pub use request_view::{Request, RequestState, RequestTemplate};
pub use spec::{DataNeed, Gpus, Members, RequestSpec, Share, Topology};
pub use value::Known;
