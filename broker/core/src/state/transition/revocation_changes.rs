//! Changes of void certificates and of suspensions.

use comity_types::{ClusterId, InstitutionId, LeaseTreatment};

use crate::model::limits::REVOCATION_KEPT_MS;
use crate::model::member_certificate::{CertificateHolder, MemberCertificate};
use crate::model::reply::Change;
use crate::model::revocation::{Exclusion, Revocation};
use crate::model::time::Millis;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Begins a new generation of certificates, and returns it.
    pub(crate) fn raise_generation(&mut self) -> u64 {
        self.note(Change::Revocations);
        let records = self.records();
        records.certificate_generation = records.certificate_generation.saturating_add(1);
        records.certificate_generation
    }

    /// Voids the certificates that a user has until now. Forgets revocations that no certificate can outlive.
    pub(crate) fn void_user_certificates(&mut self, user: &str) {
        let (at, by) = (self.now, self.actor.name());
        let void_before = self.raise_generation();
        let records = self.records();
        records.revoked_users.retain(|_, revoked| at.since(revoked.at) < Millis(REVOCATION_KEPT_MS));
        records.revoked_users.insert(user.to_owned(), Revocation { void_before, at, by });
        records.certificates.forget(&CertificateHolder::User(user.to_owned()));
    }

    /// Records a member's newest certificate.
    pub(crate) fn record_certificate(&mut self, holder: &CertificateHolder, certificate: MemberCertificate) {
        let now = self.now;
        self.records().certificates.record(holder, certificate, now);
    }

    /// Forgets the certificate of an evicted cluster.
    pub(crate) fn forget_certificate(&mut self, cluster: &ClusterId) {
        self.records().certificates.forget(&CertificateHolder::Cluster(cluster.clone()));
    }

    /// The actor's decision, as of now, to end the part of a cluster or institution.
    pub(crate) fn exclusion(&self, leases: LeaseTreatment) -> Exclusion {
        let by_maintainer = self.state.is_maintainer(self.actor);
        Exclusion { since: self.now, by: self.actor.name(), by_maintainer, leases }
    }

    /// Suspends an institution, or tightens its suspension.
    pub(crate) fn insert_suspension(&mut self, institution: InstitutionId, leases: LeaseTreatment) {
        let suspension = self.exclusion(leases).after(self.state.suspensions.get(&institution));
        self.records().suspensions.insert(institution, suspension);
        self.note(Change::Revocations);
    }

    /// Lifts a suspension.
    pub(crate) fn remove_suspension(&mut self, institution: &InstitutionId) {
        self.records().suspensions.remove(institution);
        self.note(Change::Revocations);
    }
}
