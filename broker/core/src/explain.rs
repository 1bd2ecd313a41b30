//! Answers for people: why a request waits, when it could start, what a new request would get, and what a bundle would
//! change.

pub(crate) mod alternatives;
pub(crate) mod answer;
pub(crate) mod explanation;
pub(crate) mod kept_gpus;
pub(crate) mod outlook;
pub(crate) mod pending;
pub(crate) mod policy_plan;
pub(crate) mod queue_position;
pub(crate) mod quota_uses;
pub(crate) mod quote;
pub(crate) mod reclaims;
pub(crate) mod rule_warnings;
pub(crate) mod unservable;

pub use alternatives::{Alternative, alternatives};
pub use answer::Explanation;
pub use explanation::{Waiting, explain, explain_waiting};
pub use kept_gpus::{KeptGpus, kept_gpus};
pub use pending::explain_pending;
pub use policy_plan::{
    BorrowingEffect, CapacityEffect, CohortEffect, Effects, InstitutionEffect, LeaseEffect, NextInQueue, PolicyPlan,
    Prospect, RequestEffect, policy_plan,
};
pub use queue_position::QueuePosition;
pub use quota_uses::{quota_uses, tenant_quotas};
pub use quote::{Quote, quote};
pub use reclaims::{ReclaimedLease, Reclaims};
pub use rule_warnings::rule_warnings;
pub use unservable::unservable;
