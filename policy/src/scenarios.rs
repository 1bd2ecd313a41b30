//! Tests beside policies: files that say what a bundle must decide, and for which facts.
//!
//! This module reads them. `comity-policy-test` runs them with the broker's own state and scheduler.

pub use asked::{AskedPreemption, AskedRequest, AskedShare};
pub use expected::{Citation, Expected, ExpectedDecision, ExpectedReason, ExpectedReclaim};
pub use given::{GivenCluster, GivenLease, GivenNode, GivenSharing, WaitingRequest};
pub use products::GivenDevice;
pub(crate) use read_tests::read_file;
pub use read_tests::{TEST_KIND, read_tests};

mod asked;
mod expected;
mod given;
mod products;
mod read_tests;

/// One scenario: what holds, what is requested, and what must become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Path of the file within the directory.
    pub file: String,
    /// Line of its name, from 1.
    pub line: u32,
    /// `name`: unique within its file.
    pub name: String,
    /// `given.now`, in milliseconds since 1970.
    pub now_ms: u64,
    /// `given.clusters`: those of the scenario in place of the file's with the same name.
    pub clusters: Vec<GivenCluster>,
    /// `given.leases`: the file's and the scenario's.
    pub leases: Vec<GivenLease>,
    /// `given.waiting`: the file's and the scenario's.
    pub waiting: Vec<WaitingRequest>,
    /// `request`: submitted at `now`. Without one, the scenario is about reclaims.
    pub request: Option<AskedRequest>,
    /// `expect`.
    pub expected: Expected,
}
