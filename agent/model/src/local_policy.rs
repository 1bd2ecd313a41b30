//! The cluster's own limits on lending, and beside them those on borrowing. Its agent enforces them even against the
//! broker.

pub mod borrowing_policy;
mod peer_lists;

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use self::peer_lists::PeerLists;
use crate::settings::SettingChecks;

/// Most networks in each list of `sharing.egress`.
const MAX_EGRESS_NETWORKS: usize = 64;
/// An image whose program does nothing. Pinned, because it runs on nodes that are lent.
pub const PLACEHOLDER_IMAGE: &str =
    "registry.k8s.io/pause:3.10@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a";

/// Local sharing limits, as the configuration file says them under `sharing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalPolicy {
    /// Whether this cluster lends at all.
    pub enabled: bool,
    /// Most GPUs lent at a time, in whole devices; absent: as many as there are.
    pub max_lent_gpus: Option<u32>,
    /// Clusters that may borrow; empty: any.
    pub allowed_origins: BTreeSet<String>,
    /// Clusters that may not, whatever else is allowed.
    pub denied_origins: BTreeSet<String>,
    /// Institutions that may borrow; empty: any.
    pub allowed_institutions: BTreeSet<String>,
    /// Institutions that may not, whatever else is allowed.
    pub denied_institutions: BTreeSet<String>,
    /// Longest time a lease may last here, its renewals included, in seconds; absent: as long as the federation says.
    pub max_lease_seconds: Option<u64>,
    /// RuntimeClass under which pods of other clusters run here, as in "gvisor"; absent: the container runtime's own.
    pub runtime_class: Option<String>,
    /// Whether containers of other clusters' pods that request no NVIDIA GPU must have `NVIDIA_VISIBLE_DEVICES=void`.
    /// The agent's webhook sets it; without the section `webhook` nothing demands it.
    pub void_devices: bool,
    /// Whether containers of other clusters' pods must have `imagePullPolicy: Always`. Otherwise they run any image that
    /// a node keeps, also one that only the cluster's own pods may pull. The agent's webhook sets it.
    pub always_pull_images: bool,
    /// Which networks pods of other clusters reach besides public addresses.
    pub egress: GuestEgress,
    /// Whether placeholder pods hold leased GPUs that no pod of the lease uses yet.
    pub hold: bool,
    /// Image of placeholder pods; by default [`PLACEHOLDER_IMAGE`].
    pub placeholder_image: String,
    /// Whether the donor's cleaning pod runs on each node after a lease, before the lease ends.
    pub clean_nodes: bool,
    /// For which of its own pods that wait for leased GPUs the cluster wants leases reclaimed.
    pub reclaim_for_pending: ReclaimForPending,
}

/// Networks outside the cluster that pods of guests reach, besides public addresses. Private and link-local ones are
/// closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GuestEgress {
    /// Networks that they reach too, as in "10.20.0.0/16".
    pub allow: Vec<IpNet>,
    /// Networks that they do not reach, even if public or allowed: those of the donor's own services.
    pub deny: Vec<IpNet>,
}

impl GuestEgress {
    /// Checks the lists.
    pub fn check(&self, checks: &mut SettingChecks) {
        for (field, networks) in [("sharing.egress.allow", &self.allow), ("sharing.egress.deny", &self.deny)] {
            if networks.len() > MAX_EGRESS_NETWORKS {
                checks.refuse(field, networks.len(), format!("name at most {MAX_EGRESS_NETWORKS} networks"));
            }
            if let Some(bad) = networks.iter().find(|network| network.addr() != network.network()) {
                checks.refuse(field, bad, format!("bits are set behind the prefix; write {}", bad.trunc()));
            }
        }
    }
}

/// Pods of the cluster's own that count as local use once the scheduler finds too few GPUs because of leases.
///
/// On by default: a pod that finds a leased GPU unused takes it and gets leases reclaimed at once, so one that does not
/// find any should not wait for the end of a lease's term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReclaimForPending {
    /// Whether any pod does.
    pub enabled: bool,
    /// How long a pod waits before it counts, in seconds.
    pub after_seconds: u64,
    /// Lowest priority of these pods. Pods of negative priority commonly only keep nodes warm.
    pub min_priority: i32,
    /// Their namespaces; empty: all.
    pub namespaces: BTreeSet<String>,
}

impl ReclaimForPending {
    /// How long a pod waits before it counts.
    #[must_use]
    pub const fn after(&self) -> Duration {
        Duration::from_secs(self.after_seconds)
    }
}

impl Default for ReclaimForPending {
    fn default() -> Self {
        Self { enabled: true, after_seconds: 60, min_priority: 0, namespaces: BTreeSet::new() }
    }
}

impl Default for LocalPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            max_lent_gpus: None,
            allowed_origins: BTreeSet::new(),
            denied_origins: BTreeSet::new(),
            allowed_institutions: BTreeSet::new(),
            denied_institutions: BTreeSet::new(),
            max_lease_seconds: None,
            runtime_class: None,
            void_devices: true,
            always_pull_images: true,
            egress: GuestEgress::default(),
            hold: false,
            placeholder_image: PLACEHOLDER_IMAGE.to_owned(),
            clean_nodes: false,
            reclaim_for_pending: ReclaimForPending::default(),
        }
    }
}

/// A lease, as far as the policy checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms<'a> {
    /// Cluster that borrows.
    pub origin: &'a str,
    /// Its institution: that of its voucher; without one, as the broker says.
    pub institution: &'a str,
    /// Thousandths of GPUs.
    pub milli: u64,
    /// Length of one term in milliseconds.
    pub term_ms: u64,
    /// Thousandths of GPUs that are lent already.
    pub lent_milli: u64,
}

impl LocalPolicy {
    /// Checks whether a lease may be admitted.
    ///
    /// # Errors
    /// A sentence for the operator of the other cluster, naming the setting behind it.
    pub fn check(&self, terms: &LeaseTerms<'_>) -> Result<(), String> {
        self.check_peer(terms.origin, terms.institution)?;
        if let Some(most) = self.max_lent_gpus {
            let (most, sum) = (u64::from(most) * 1_000, terms.lent_milli.saturating_add(terms.milli));
            if sum > most {
                return Err(format!(
                    "{} milli-GPU are lent and {} more are requested, this cluster lends at most {most} \
                     (sharing.maxLentGpus)",
                    terms.lent_milli, terms.milli
                ));
            }
        }
        if let Some(most) = self.max_lease_ms()
            && terms.term_ms > most
        {
            return Err(format!(
                "a term of {} ms is requested, this cluster lends for at most {most} ms (sharing.maxLeaseSeconds)",
                terms.term_ms
            ));
        }
        Ok(())
    }

    /// Checks whether leases of a cluster could be admitted at all; otherwise it gets no tunnel.
    ///
    /// # Errors
    /// A sentence for the operator of the other cluster, naming the setting behind it.
    pub fn check_peer(&self, origin: &str, institution: &str) -> Result<(), String> {
        if !self.enabled {
            return Err("this cluster does not lend now (sharing.enabled is false)".to_owned());
        }
        let lists = PeerLists {
            section: "sharing",
            relation: "lend to",
            others: "Origins",
            allowed: &self.allowed_origins,
            denied: &self.denied_origins,
            allowed_institutions: &self.allowed_institutions,
            denied_institutions: &self.denied_institutions,
        };
        lists.check(origin, institution)
    }

    /// Longest time a lease may last here, in milliseconds.
    #[must_use]
    pub fn max_lease_ms(&self) -> Option<u64> {
        self.max_lease_seconds.map(|seconds| seconds.saturating_mul(1_000))
    }
}

/// Whether a list of allowed names has this one; an empty list has all.
pub(crate) fn is_allowed(list: &BTreeSet<String>, name: &str) -> bool {
    list.is_empty() || list.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms<'_> =
        LeaseTerms { origin: "lab", institution: "poly", milli: 3_000, term_ms: 60_000, lent_milli: 5_000 };

    fn names(name: &str) -> BTreeSet<String> {
        BTreeSet::from([name.to_owned()])
    }

    #[test]
    fn each_limit_refuses_by_its_name() {
        let limits = [
            (LocalPolicy { enabled: false, ..LocalPolicy::default() }, "sharing.enabled"),
            (LocalPolicy { denied_origins: names("lab"), ..LocalPolicy::default() }, "sharing.deniedOrigins"),
            (LocalPolicy { allowed_origins: names("other"), ..LocalPolicy::default() }, "sharing.allowedOrigins"),
            (
                LocalPolicy { denied_institutions: names("poly"), ..LocalPolicy::default() },
                "sharing.deniedInstitutions",
            ),
            (LocalPolicy { allowed_institutions: names("x"), ..LocalPolicy::default() }, "sharing.allowedInstitutions"),
            (LocalPolicy { max_lent_gpus: Some(7), ..LocalPolicy::default() }, "sharing.maxLentGpus"),
            (LocalPolicy { max_lease_seconds: Some(59), ..LocalPolicy::default() }, "sharing.maxLeaseSeconds"),
        ];
        for (policy, setting) in limits {
            let reason = policy.check(&TERMS).expect_err(setting);
            assert!(reason.contains(setting), "{reason}");
        }
    }

    #[test]
    fn networks_of_guests_are_bounded_and_have_no_bits_behind_the_prefix() {
        let refused = |text: &str, count: usize| {
            let networks = vec![text.parse().expect("a network"); count];
            let mut checks = SettingChecks::default();
            GuestEgress { allow: Vec::new(), deny: networks }.check(&mut checks);
            checks.finish().err().map(|error| error.to_string())
        };
        assert_eq!(refused("10.1.0.0/16", MAX_EGRESS_NETWORKS), None);
        let many = refused("10.1.0.0/16", MAX_EGRESS_NETWORKS + 1).expect("too many");
        assert!(many.contains("sharing.egress.deny \"65\" is refused: name at most 64"), "{many}");
        let odd = refused("10.1.2.0/16", 1).expect("bits behind the prefix");
        assert!(odd.contains("write 10.1.0.0/16"), "{odd}");
    }

    #[test]
    fn values_at_the_limit_are_allowed() {
        let policy = LocalPolicy {
            max_lent_gpus: Some(8),
            allowed_origins: names("lab"),
            allowed_institutions: names("poly"),
            max_lease_seconds: Some(60),
            ..LocalPolicy::default()
        };
        assert_eq!(policy.check(&TERMS), Ok(()));
        assert_eq!(LocalPolicy::default().check(&LeaseTerms { milli: u64::MAX, ..TERMS }), Ok(()));
    }
}
