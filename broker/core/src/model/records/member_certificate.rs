//! Under which root members got their newest certificates, so that an operator knows when nobody needs an old root.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::model::limits::MAX_MEMBER_CERTIFICATES;
use crate::model::time::Timestamp;

/// A member that gets certificates from brokers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateHolder {
    /// A cluster.
    Cluster(ClusterId),
    /// A user, by the last part of the SPIFFE id.
    User(String),
}

/// A member's newest certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCertificate {
    /// SHA-256 of the root that its issuer is under, in hex.
    pub root_sha256: String,
    /// When it expires.
    pub not_after: Timestamp,
}

/// The newest certificate of each member. One that has expired is forgotten at the next issue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCertificates {
    /// Those of clusters.
    pub clusters: BTreeMap<ClusterId, MemberCertificate>,
    /// Those of users, by name.
    pub users: BTreeMap<String, MemberCertificate>,
}

/// Valid certificates under a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootUse {
    /// Clusters whose newest certificate is one of them.
    pub clusters: BTreeSet<ClusterId>,
    /// Number of users whose newest certificate is one of them.
    pub users: usize,
    /// When the last one expires.
    pub last_not_after: Timestamp,
}

impl MemberCertificates {
    /// Whether none is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.users.is_empty()
    }

    /// The newest certificate of a member, if it is recorded.
    #[must_use]
    pub fn get(&self, holder: &CertificateHolder) -> Option<&MemberCertificate> {
        match holder {
            CertificateHolder::Cluster(id) => self.clusters.get(id),
            CertificateHolder::User(name) => self.users.get(name),
        }
    }

    /// Records a certificate at `now`. Beyond [`MAX_MEMBER_CERTIFICATES`] no further member is recorded.
    pub(crate) fn record(&mut self, holder: &CertificateHolder, certificate: MemberCertificate, now: Timestamp) {
        let is_valid = |held: &MemberCertificate| held.not_after > now;
        self.clusters.retain(|_, held| is_valid(held));
        self.users.retain(|_, held| is_valid(held));
        let has_room = self.clusters.len() + self.users.len() < MAX_MEMBER_CERTIFICATES;
        match holder {
            CertificateHolder::Cluster(id) if has_room || self.clusters.contains_key(id) => {
                self.clusters.insert(id.clone(), certificate);
            }
            CertificateHolder::User(name) if has_room || self.users.contains_key(name) => {
                self.users.insert(name.clone(), certificate);
            }
            CertificateHolder::Cluster(_) | CertificateHolder::User(_) => {}
        }
    }

    /// Forgets the certificate of a member, which is void.
    pub(crate) fn forget(&mut self, holder: &CertificateHolder) {
        match holder {
            CertificateHolder::Cluster(id) => _ = self.clusters.remove(id),
            CertificateHolder::User(name) => _ = self.users.remove(name),
        }
    }

    /// Who has a certificate that is valid at `now`, by root.
    #[must_use]
    pub fn by_root(&self, now: Timestamp) -> BTreeMap<&str, RootUse> {
        let mut roots: BTreeMap<&str, RootUse> = BTreeMap::new();
        for (id, held) in self.clusters.iter().filter(|(_, held)| held.not_after > now) {
            let root = roots.entry(&held.root_sha256).or_default();
            root.clusters.insert(id.clone());
            root.last_not_after = root.last_not_after.max(held.not_after);
        }
        for held in self.users.values().filter(|held| held.not_after > now) {
            let root = roots.entry(&held.root_sha256).or_default();
            root.users += 1;
            root.last_not_after = root.last_not_after.max(held.not_after);
        }
        roots
    }
}
