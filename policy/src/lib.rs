//! # comity-policy
//!
//! Policy documents to decisions: who may borrow which GPUs from whom, how many and for how long.
//!
//! ```text
//! YAML files ──▶ yaml (nodes with places) ──▶ documents (typed) ──▶ cross_check ──▶ Bundle
//!                                  └─ every problem of every file, at once ─┘         │
//!                         BorrowFacts, DeviceFacts, user id ──▶ decisions with reasons ◀┘
//! ```
//!
//! What this crate does: it reads all documents of a bundle, reports *all* problems with file, line, column and
//! snippet, warns of what compiles and is surely not meant ([`Bundle::warnings`]), and answers questions about the
//! compiled [`Bundle`]: [`Bundle::may_borrow`], [`Bundle::class_of`], [`Bundle::roles_of`]. Every allow and deny names
//! the documents and lines behind it.
//!
//! What it never does: no clock, no randomness, no network, no floating point, nothing that depends on hash order; the
//! same files give the same bundle and the same decisions on every replica. Only [`read_directory`] and
//! [`scan_directory`] touch the disk.

mod amounts;
mod borrow;
mod bundle;
mod compile;
mod cross_check;
mod device;
mod directory;
mod documents;
mod fields;
mod identifiers;
mod kind;
pub mod limits;
mod mig_profile;
mod place;
mod problem;
mod roles;
mod selector;
mod suggest;
mod usage;
mod warnings;
mod yaml;

pub use amounts::{show_duration, show_gpus};
pub use borrow::{Allowance, BorrowFacts, Decision, Denial, DenyCode, InUse};
pub use bundle::{Bundle, BundleSource, InvalidBundle, SourceFile, load};
pub use device::DeviceFacts;
pub use directory::{ReadError, Scan, read_directory, scan_directory};
pub use documents::{
    Agreement, AgreementSides, Cluster, Defaults, DeliveryKind, DocRef, Document, Federation, GpuClass, Institution,
    LendTerm, Limits, NodeSharing, NvLinkSharing, Origin, PriorityClass, Quota, QuotaSubject, Tenant, TenantRole,
};
pub use kind::{API_VERSION, Kind};
pub use mig_profile::is_mig_profile;
pub use problem::{Problem, ProblemCode, render_problems};
pub use roles::Roles;
pub use selector::{Selector, compile_selector};
pub use usage::{LeaseUse, UsageTable};
