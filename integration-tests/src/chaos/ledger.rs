//! An independent ledger: compares the brokers' leases with the objects on the donors' API servers.
//!
//! Pure code: observations go in, in the order of each donor's API server, and violations come out.

mod donor_nodes;
mod facts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use donor_nodes::DonorNodes;
pub use donor_nodes::{DonorNode, DonorPod};
pub use facts::LeaseFacts;

/// A whole device, in thousandths.
const WHOLE_MILLI: u64 = 1_000;

/// The observed state of one donor's API server.
#[derive(Debug, Default)]
struct DonorObservations {
    /// GPUs of its nodes, as Kubernetes counts them.
    capacity: u64,
    /// Leases with a namespace.
    namespaces: BTreeSet<String>,
    /// GPUs in the quotas of leases.
    quotas: BTreeMap<String, u64>,
    /// Sets of namespaces that were there at the same time, as long as the placement of one of them is not known.
    unresolved: BTreeSet<BTreeSet<String>>,
    /// Most GPUs granted at a time.
    most: u64,
    /// Its nodes with their pods.
    nodes: DonorNodes,
}

/// The ledger of one run.
#[derive(Debug, Default)]
pub struct Ledger {
    donors: BTreeMap<String, DonorObservations>,
    leases: BTreeMap<String, LeaseFacts>,
    /// Fencing tokens by donor and number of the lease.
    tokens: BTreeMap<String, BTreeMap<u64, u64>>,
    revision: u64,
    violations: BTreeSet<String>,
}

impl Ledger {
    /// GPUs of a donor's nodes.
    pub fn donor_has(&mut self, donor: &str, gpus: u64) {
        self.donors.entry(donor.to_owned()).or_default().capacity = gpus;
    }

    /// Records a violation.
    pub fn violated(&mut self, what: String) {
        if self.violations.insert(what.clone()) {
            eprintln!("VIOLATED: {what}");
        }
    }

    /// All violations.
    #[must_use]
    pub fn violations(&self) -> &BTreeSet<String> {
        &self.violations
    }

    /// All leases ever seen, in their last observed state.
    pub fn leases(&self) -> impl Iterator<Item = &LeaseFacts> {
        self.leases.values()
    }

    /// By donor, the maximum of GPUs granted at a time and the GPUs that it has.
    #[must_use]
    pub fn most_granted(&self) -> BTreeMap<&str, (u64, u64)> {
        self.donors.iter().map(|(id, donor)| (id.as_str(), (donor.most, donor.capacity))).collect()
    }

    /// The namespaces of leases that a donor's API server has now.
    pub fn namespaces_are(&mut self, donor: &str, leases: BTreeSet<String>) {
        let ledger = self.donors.entry(donor.to_owned()).or_default();
        ledger.namespaces = leases.clone();
        ledger.unresolved.insert(leases);
        self.resolve(donor);
    }

    /// The GPUs in the quotas of leases that a donor's API server has now.
    pub fn quotas_are(&mut self, donor: &str, quotas: BTreeMap<String, u64>) {
        let ledger = self.donors.entry(donor.to_owned()).or_default();
        let granted = quotas.values().sum();
        ledger.most = ledger.most.max(granted);
        ledger.quotas = quotas;
        if granted > ledger.capacity {
            let text = format!("{donor} has {} GPUs and grants {granted}: {:?}", ledger.capacity, ledger.quotas);
            self.violated(text);
        }
        self.compare_quotas(donor);
    }

    /// The nodes that a donor's API server has at a time since the start.
    pub fn nodes_are(&mut self, donor: &str, nodes: BTreeMap<String, DonorNode>, at: Duration) {
        self.donors.entry(donor.to_owned()).or_default().nodes.nodes = nodes;
        self.check_nodes(donor, at);
    }

    /// The bound pods that a donor's API server has at a time since the start, by "namespace/name".
    pub fn pods_are(&mut self, donor: &str, pods: BTreeMap<String, DonorPod>, at: Duration) {
        self.donors.entry(donor.to_owned()).or_default().nodes.pods = pods;
        self.check_nodes(donor, at);
    }

    /// Whether a donor's API server has shown a bound pod.
    #[must_use]
    pub fn has_pod(&self, donor: &str, pod: &str) -> bool {
        self.donors.get(donor).is_some_and(|donor| donor.nodes.pods.contains_key(pod))
    }

    /// Whether a node of a donor is over-committed.
    #[must_use]
    pub fn is_overcommitted(&self, donor: &str, node: &str) -> bool {
        let over =
            |donor: &DonorObservations| donor.nodes.overcommitted(&donor.quotas, &self.leases).contains_key(node);
        self.donors.get(donor).is_some_and(over)
    }

    /// By donor, the longest time that one of its nodes was over-committed.
    #[must_use]
    pub fn longest_overcommitted(&self) -> BTreeMap<&str, Duration> {
        self.donors.iter().map(|(id, donor)| (id.as_str(), donor.nodes.longest)).collect()
    }

    /// Checks that no node of a donor is over-committed for too long.
    pub fn check_nodes(&mut self, donor: &str, at: Duration) {
        let Some(ledger) = self.donors.get_mut(donor) else { return };
        let over = ledger.nodes.overcommitted(&ledger.quotas, &self.leases);
        for text in ledger.nodes.note(&over, at) {
            self.violated(format!("{donor}, {text}"));
        }
    }

    /// Leases as a quorum of the brokers has them at a revision.
    pub fn leases_are(&mut self, revision: u64, leases: Vec<LeaseFacts>) {
        if revision < self.revision {
            self.violated(format!("revision {} was read, and then {revision}", self.revision));
        }
        self.revision = self.revision.max(revision);
        let held = leases.iter().filter(|lease| lease.is_held());
        for text in overlaps("the brokers lend", held) {
            self.violated(text);
        }
        for lease in leases {
            self.note(lease);
        }
        for donor in self.donors.keys().cloned().collect::<Vec<_>>() {
            self.resolve(&donor);
            self.compare_quotas(&donor);
        }
    }

    /// Sets of namespaces that could not be checked because the brokers never reported one of their leases.
    #[must_use]
    pub fn unresolved(&self) -> Vec<String> {
        let unknown = |(id, donor): (&String, &DonorObservations)| {
            let leases: BTreeSet<&String> =
                donor.unresolved.iter().flatten().filter(|lease| !self.leases.contains_key(*lease)).collect();
            (!leases.is_empty()).then(|| format!("{id} had namespaces of {leases:?}, which no broker knows"))
        };
        self.donors.iter().filter_map(unknown).collect()
    }

    fn note(&mut self, lease: LeaseFacts) {
        for text in self.leases.get(&lease.id).map_or_else(Vec::new, |before| before.contradicts(&lease)) {
            self.violated(text);
        }
        let tokens = self.tokens.entry(lease.donor.clone()).or_default();
        tokens.insert(lease.number, lease.fencing_token);
        let below = tokens.range(..lease.number).next_back().is_some_and(|(_, token)| *token >= lease.fencing_token);
        let above = tokens.range(lease.number + 1..).next().is_some_and(|(_, token)| *token <= lease.fencing_token);
        if below || above {
            let text = format!("fencing tokens of {} do not rise: {tokens:?}", lease.donor);
            self.violated(text);
        }
        self.leases.insert(lease.id.clone(), lease);
    }

    /// Checks sets of simultaneous namespaces whose placements are all known.
    fn resolve(&mut self, donor: &str) {
        let Some(ledger) = self.donors.get_mut(donor) else { return };
        let known = |set: &BTreeSet<String>| set.iter().all(|lease| self.leases.contains_key(lease));
        let ready: Vec<BTreeSet<String>> = ledger.unresolved.iter().filter(|set| known(set)).cloned().collect();
        let mut texts = Vec::new();
        for set in ready {
            ledger.unresolved.remove(&set);
            let facts: Vec<&LeaseFacts> = set.iter().filter_map(|lease| self.leases.get(lease)).collect();
            texts.extend(overlaps(&format!("{donor} has namespaces that lend"), facts.iter().copied()));
            texts.extend(
                facts
                    .iter()
                    .filter(|lease| lease.donor != donor)
                    .map(|lease| format!("{donor} has a namespace of {}, which is of {}", lease.id, lease.donor)),
            );
        }
        for text in texts {
            self.violated(text);
        }
    }

    /// Checks that each quota equals the GPUs of its lease.
    fn compare_quotas(&mut self, donor: &str) {
        let Some(ledger) = self.donors.get(donor) else { return };
        let wrong: Vec<String> = ledger
            .quotas
            .iter()
            .filter_map(|(lease, gpus)| {
                let count = self.leases.get(lease)?.count;
                (count != *gpus).then(|| format!("{donor} grants {gpus} GPUs to {lease}, which is of {count}"))
            })
            .collect();
        for text in wrong {
            self.violated(text);
        }
    }
}

/// Devices that are lent by more than 100 %.
fn overlaps<'a>(who: &str, leases: impl Iterator<Item = &'a LeaseFacts>) -> Vec<String> {
    let mut taken: BTreeMap<(&str, &str, u64), (u64, Vec<&str>)> = BTreeMap::new();
    for lease in leases {
        for part in &lease.parts {
            let device = taken.entry((&lease.donor, &part.node, part.device)).or_default();
            device.0 += part.milli;
            device.1.push(&lease.id);
        }
    }
    taken
        .into_iter()
        .filter(|(_, (milli, _))| *milli > WHOLE_MILLI)
        .map(|((donor, node, device), (milli, leases))| {
            format!("{who} device {device} of node {node} of {donor} {milli}/1000: {}", leases.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests;
