//! Who is in the federation.

use std::fmt::Write as _;

/// An institution with one cluster of the same name.
pub(super) struct Member {
    pub(super) name: &'static str,
    /// Nodes of eight GPUs that it lends of.
    pub(super) nodes: usize,
    /// Hours by which its clock is ahead.
    pub(super) ahead: u64,
}

/// Five on as many sides of the world; the first lends most, the last nothing. And a centre that lends to all and asks for
/// nothing: nobody borrows from itself, so that without it who lends most would have least to borrow.
pub(super) const MEMBERS: [Member; 6] = [
    Member { name: "atlas", nodes: 3, ahead: 0 },
    Member { name: "borealis", nodes: 2, ahead: 5 },
    Member { name: "cassini", nodes: 1, ahead: 10 },
    Member { name: "daphne", nodes: 1, ahead: 14 },
    Member { name: "eos", nodes: 0, ahead: 19 },
    Member { name: CENTRE, nodes: 5, ahead: 0 },
];
/// It has no local work.
pub(super) const CENTRE: &str = "centre";

/// Name, index of the institution, weight within it.
pub(super) const TENANTS: [(&str, usize, u32); 6] = [
    ("atlas-physics", 0, 100),
    ("borealis-health", 1, 100),
    ("cassini-robots", 2, 150),
    ("cassini-courses", 2, 100),
    ("daphne-language", 3, 100),
    ("eos-climate", 4, 100),
];

/// The policy. Handshakes are not simulated: a step of one may take as long as it likes.
pub(super) fn policy() -> String {
    const HEAD: &str = "apiVersion: policy.comity.dev/v1\n";
    let mut text = format!(
        "{HEAD}kind: Federation\nmetadata: {{name: month}}\nspec:\n  trustDomain: month.example\n  \
         maintainers: [\"spiffe://month.example/user/admin\"]\n  defaults: {{peeringStep: 3650d, usageHalfLife: 6h}}\n---\n\
         {HEAD}kind: GpuClass\nmetadata: {{name: gpu}}\nspec: {{selector: 'device.memoryMiB > 0', rank: 1}}\n---\n\
         {HEAD}kind: Agreement\nmetadata: {{name: all}}\nspec: {{parties: [{}], classes: [gpu]}}\n",
        MEMBERS.map(|member| member.name).join(", ")
    );
    for Member { name, .. } in &MEMBERS {
        let _ = write!(
            text,
            "---\n{HEAD}kind: Institution\nmetadata: {{name: {name}}}\n\
             spec: {{displayName: {name}, contact: ops@{name}.example, clusters: [{name}]}}\n\
             ---\n{HEAD}kind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{institution: {name}, lends: [{{classes: [gpu]}}]}}\n"
        );
    }
    for (name, of, weight) in &TENANTS {
        let institution = MEMBERS[*of].name;
        let _ = write!(
            text,
            "---\n{HEAD}kind: Tenant\nmetadata: {{name: {name}}}\nspec:\n  institution: {institution}\n  weight: {weight}\n  \
             members: [{{id: \"spiffe://month.example/user/{name}\", role: submitter}}]\n  classes: [gpu]\n  \
             clusters: [{institution}]\n"
        );
    }
    text
}
