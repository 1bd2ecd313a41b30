//! # comity-policy
//!
//! Compiles policy documents to a bundle that decides who may borrow which GPUs from whom, how many and for how long.
//!
//! ```text
//! YAML files ──▶ reading (nodes) ──▶ documents (typed) ──▶ compile::cross_check ──▶ Bundle
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
mod calendar;
mod compile;
mod device;
mod directory;
mod documents;
mod edit;
mod expression;
mod kind;
pub mod limits;
mod problem;
mod reading;
mod roles;
mod scenarios;
mod schema;
mod source;
mod warnings;

pub use amounts::{quantity, show_duration, show_gpu_hours, show_gpus, show_time};
pub use borrow::{
    Allowance, Booking, BorrowFacts, CohortShare, CohortTerms, CohortUse, DataRead, Decision, Denial, DenyCode,
    DonorUse, GpuTimeFacts, GpuTimeTable, HeldLease, InUse, LeaseUse, LimitKey, PreferenceFacts, QuotaDebt, QuotaUse,
    RemovedDocuments, UsageTable, WaitingClaims, Withdrawal,
};
pub use bundle::{
    Bundle, BundleChanges, CohortPeers, Difference, DocumentChange, FieldChange, ReclaimRule, ReclaimScope,
    ReclaimedLease,
};
pub use calendar::{CalendarPeriod, Phase, TimeSpan, ZoneRules, Zones};
pub use compile::{InvalidBundle, load};
pub use device::{DeviceFacts, is_mig_profile};
pub use directory::{ReadError, Scan, is_policy_file, read_directory, read_test_files, scan_directory};
pub use documents::{
    Agreement, AgreementData, AgreementSides, Cluster, CohortMembership, CommitKey, Dataset, Defaults, DocRef,
    Document, Federation, FederationData, GpuClass, GpuHours, Institution, LendTerm, Limits, MaintainerKey,
    NodeSharing, NvLinkSharing, PerUser, PriorityClass, Quota, QuotaSubject, ReclaimLimit, RequestTemplate,
    Reservation, Rule, RuleEffect, Schedule, Signatures, SourceLocation, TemplateAmount, TemplateDevices,
    TemplateField, TemplateGpus, TemplateIsolation, TemplateMembers, TemplateNvLink, TemplatePreemption,
    TemplateRequest, TemplateShare, TemplateTopology, Tenant, TenantRole, When, Window,
};
pub use edit::{EditError, Enrolment, add_member, enrol_cluster, minimal_bundle};
pub use expression::{RuleCondition, Selector, compile_selector};
pub use kind::{API_VERSION, Kind};
pub use problem::{Problem, ProblemCode, nearest, render_problems};
pub use roles::Roles;
pub use scenarios::{
    AskedPreemption, AskedRequest, AskedShare, Citation, Expected, ExpectedDecision, ExpectedReason, ExpectedReclaim,
    GivenCluster, GivenDevice, GivenLease, GivenNode, GivenSharing, Scenario, TEST_KIND, WaitingRequest, read_tests,
};
pub use schema::{policy_schema, schema, schema_kinds};
pub use source::{BundleSource, SourceFile};
