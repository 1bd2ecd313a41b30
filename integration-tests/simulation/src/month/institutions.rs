//! The members and tenants of the simulated month, and their policy.

use std::fmt::Write as _;

/// An institution with one cluster of the same name.
pub(super) struct MonthMember {
    pub(super) name: &'static str,
    /// Nodes that it lends, of [`GPUS_PER_NODE`] GPUs.
    pub(super) nodes: usize,
    /// Hours by which its local time is ahead.
    pub(super) ahead: u64,
}

/// GPUs of a node.
pub(super) const GPUS_PER_NODE: usize = 8;
/// Five institutions in different time zones (the first lends most, the last nothing), and a centre that
/// only lends. Nobody borrows from itself, so without the centre the largest donor could borrow least.
pub(super) const MEMBERS: [MonthMember; 6] = [
    MonthMember { name: "atlas", nodes: 3, ahead: 0 },
    MonthMember { name: "borealis", nodes: 2, ahead: 5 },
    MonthMember { name: "cassini", nodes: 1, ahead: 10 },
    MonthMember { name: "daphne", nodes: 1, ahead: 14 },
    MonthMember { name: "eos", nodes: 0, ahead: 19 },
    MonthMember { name: CENTRE, nodes: 5, ahead: 0 },
];
/// Number of institutions; the member after them is the centre.
pub(super) const INSTITUTIONS: usize = MEMBERS.len() - 1;

/// All assignments of the lent nodes to the institutions, as nodes by member; that of [`MEMBERS`] comes first.
pub(super) fn arrangements() -> Vec<[usize; MEMBERS.len()]> {
    let mut found = vec![MEMBERS.map(|member| member.nodes)];
    // Swaps pairs until no new assignment appears.
    let mut next = 0;
    while let Some(&nodes) = found.get(next) {
        for (one, other) in (0..INSTITUTIONS).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let mut swapped = nodes;
            swapped.swap(one, other);
            if !found.contains(&swapped) {
                found.push(swapped);
            }
        }
        next += 1;
    }
    found
}

/// The member that only lends; it has no local work.
pub(super) const CENTRE: &str = "centre";

/// Tenants: name, index of the institution, weight within it.
pub(super) const TENANTS: [(&str, usize, u32); 6] = [
    ("atlas-physics", 0, 100),
    ("borealis-health", 1, 100),
    ("cassini-robots", 2, 150),
    ("cassini-courses", 2, 100),
    ("daphne-language", 3, 100),
    ("eos-climate", 4, 100),
];

/// The policy bundle. `peeringStep` is long because handshakes are not simulated.
pub(super) fn policy() -> String {
    const HEAD: &str = "apiVersion: policy.comity.dev/v1\n";
    let mut text = format!(
        "{HEAD}kind: Federation\nmetadata: {{name: month}}\nspec:\n  trustDomain: month.example\n  \
         maintainers: [\"spiffe://month.example/user/admin\"]\n  defaults: {{peeringStep: 3650d, usageHalfLife: 6h}}\n\
         ---\n\
         {HEAD}kind: GpuClass\nmetadata: {{name: gpu}}\nspec: {{selector: 'device.memoryMiB > 0', rank: 1}}\n---\n\
         {HEAD}kind: Agreement\nmetadata: {{name: all}}\nspec: {{parties: [{}], classes: [gpu]}}\n",
        MEMBERS.map(|member| member.name).join(", ")
    );
    for MonthMember { name, .. } in &MEMBERS {
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
            "---\n{HEAD}kind: Tenant\nmetadata: {{name: {name}}}\nspec:\n  institution: {institution}\n  \
             weight: {weight}\n  \
             members: [{{id: \"spiffe://month.example/user/{name}\", role: submitter}}]\n  classes: [gpu]\n  \
             clusters: [{institution}]\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::month::ARRANGEMENTS;

    #[test]
    fn each_assignment_occurs_once() {
        let all = arrangements();
        assert_eq!(all.len(), usize::from(ARRANGEMENTS));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(all.first(), Some(&MEMBERS.map(|member| member.nodes)));
        assert!(all.iter().all(|nodes| nodes.last() == Some(&5) && nodes.iter().sum::<usize>() == 12));
    }
}
