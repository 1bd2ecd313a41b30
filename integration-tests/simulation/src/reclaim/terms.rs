//! The members, their lending terms and their policy.

use std::fmt::Write as _;

use comity_core::Refusal;
use comity_core::inventory::Node;
use comity_types::ClusterId;

use crate::broker::hardware::h100s;

/// Donors: name, number of nodes with four GPUs, minutes of notice.
pub(crate) const DONORS: [(&str, usize, u64); 4] = [("north", 2, 5), ("east", 2, 30), ("south", 1, 1), ("west", 2, 10)];
/// Clusters that borrow; each has a tenant of the same name.
pub(crate) const ORIGINS: [&str; 2] = ["campus", "clinic"];
/// GPUs of each node of a donor.
pub(super) const DONOR_NODE_GPUS: u64 = 4;
/// Priority classes by value; the last may preempt.
pub(super) const PRIORITIES: [(&str, u32); 3] = [("low", 1), ("normal", 10), ("urgent", 1_000)];

/// The cluster of a member.
pub(crate) fn cluster(name: &str) -> Result<ClusterId, Refusal> {
    Ok(ClusterId::parse(name, "cluster")?)
}

/// The clusters of all members.
pub(crate) fn clusters() -> Result<Vec<ClusterId>, Refusal> {
    DONORS.iter().map(|(name, ..)| *name).chain(ORIGINS).map(cluster).collect()
}

/// An idle node of a donor.
pub(crate) fn node() -> Node {
    h100s(usize::try_from(DONOR_NODE_GPUS).unwrap_or(0))
}

/// A donor's current lending terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Maximum number of lent GPUs.
    pub(super) most: Option<u64>,
    /// Whether it has stopped lending.
    pub(super) withdrawn: bool,
}

/// The policy bundle with these terms. `peeringStep` is long because handshakes are not simulated.
pub(crate) fn policy(terms: &[Terms; DONORS.len()]) -> String {
    const HEAD: &str = "apiVersion: policy.comity.dev/v1\n";
    let members = DONORS.iter().map(|(name, ..)| *name).chain(ORIGINS);
    let mut text = format!(
        "{HEAD}kind: Federation\nmetadata: {{name: reclaims}}\nspec:\n  trustDomain: reclaims.example\n  \
         maintainers: [\"spiffe://reclaims.example/user/admin\"]\n  defaults: {{peeringStep: 3650d}}\n---\n\
         {HEAD}kind: GpuClass\nmetadata: {{name: gpu}}\nspec: {{selector: 'device.memoryMiB > 0', rank: 1}}\n---\n\
         {HEAD}kind: GpuClass\nmetadata: {{name: none}}\nspec: {{selector: 'device.memoryMiB < 0', rank: 1}}\n---\n\
         {HEAD}kind: Agreement\nmetadata: {{name: all}}\nspec: {{parties: [{}], classes: [gpu]}}\n",
        members.clone().collect::<Vec<_>>().join(", ")
    );
    for name in members {
        let _ = write!(
            text,
            "---\n{HEAD}kind: Institution\nmetadata: {{name: {name}}}\n\
             spec: {{displayName: {name}, contact: ops@{name}.example, clusters: [{name}]}}\n"
        );
    }
    for ((name, _, minutes), terms) in DONORS.iter().zip(terms) {
        let most = terms.most.map(|most| format!(", maxLentGpus: {most}")).unwrap_or_default();
        let class = if terms.withdrawn { "none" } else { "gpu" };
        let _ = write!(
            text,
            "---\n{HEAD}kind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{institution: {name}, lends: [{{classes: [{class}]}}], reclaimGrace: {minutes}m{most}}}\n"
        );
    }
    for name in ORIGINS {
        let _ = write!(
            text,
            "---\n{HEAD}kind: Tenant\nmetadata: {{name: {name}}}\nspec:\n  institution: {name}\n  \
             members: [{{id: \"spiffe://reclaims.example/user/{name}\", role: submitter}}]\n  classes: [gpu]\n  \
             clusters: [{name}]\n"
        );
    }
    for (name, value) in PRIORITIES {
        let preempts = value == PRIORITIES[2].1;
        let _ = write!(
            text,
            "---\n{HEAD}kind: PriorityClass\nmetadata: {{name: {name}}}\n\
             spec: {{value: {value}, mayPreempt: {preempts}}}\n"
        );
    }
    text
}
