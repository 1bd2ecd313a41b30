//! # comity-policy
//!
//! Compiles policy documents to a bundle that decides who may borrow which GPUs from whom, how many and for how long.
//!
//! ```text
//! YAML files ──▶ yaml (nodes) ──▶ documents (typed) ──▶ compile::cross_check ──▶ Bundle
//!                     └── every problem of every file, at once ──┘                  │
//!                          BorrowFacts, DeviceFacts, user id ──▶ decisions ◀────────┘
//! ```
//!
//! Compiling reports *all* problems with file, line, column and snippet. [`Bundle::warnings`] lists likely mistakes in
//! a valid bundle. The main questions to a [`Bundle`] are [`Bundle::may_borrow`], [`Bundle::class_of`] and
//! [`Bundle::roles_of`]. Every allowance and denial cites the documents and lines behind it.
//!
//! The same files give the same bundle and the same decisions on every replica: this crate uses no clock, randomness,
//! network, floating point or hash order. Only [`read_directory`] and [`scan_directory`] touch the disk.

mod amounts;
mod borrow;
mod bundle;
mod compile;
mod device;
mod directory;
mod documents;
mod edit;
mod fields;
mod identifiers;
mod kind;
pub mod limits;
mod phase;
mod problem;
mod roles;
mod selector;
mod source;
mod suggest;
mod warnings;
mod yaml;
mod zones;

pub use amounts::{quantity, show_duration, show_gpus};
pub use borrow::{Allowance, BorrowFacts, Decision, Denial, DenyCode, InUse, LeaseUse, UsageTable};
pub use bundle::{Bundle, ReclaimRule, ReclaimScope, ReclaimedLease};
pub use compile::{InvalidBundle, load};
pub use device::{DeviceFacts, is_mig_profile};
pub use directory::{ReadError, Scan, read_directory, scan_directory};
pub use documents::{
    Agreement, AgreementSides, Cluster, Defaults, DocRef, Document, Federation, GpuClass, Institution, LendTerm,
    Limits, NodeSharing, NvLinkSharing, PriorityClass, Quota, QuotaSubject, ReclaimLimit, Schedule, SourceLocation,
    Tenant, TenantRole, When, Window,
};
pub use edit::{EditError, Enrolment, add_member, enrol_cluster, minimal_bundle};
pub use kind::{API_VERSION, Kind};
pub use phase::Phase;
pub use problem::{Problem, ProblemCode, render_problems};
pub use roles::Roles;
pub use selector::{Selector, compile_selector};
pub use source::{BundleSource, SourceFile};
pub use suggest::nearest;
pub use zones::{ZoneRules, Zones};
