//! Attacks on the donor's terms: the broker lends by a policy that its owners did not sign, or no longer.

use comity_proto::v1;

use super::AttackRound;
use crate::hostile::books::{DONOR_CLUSTER, FORGED_TENANT, FORMER_TENANT, KEPT_DATASET, SignedHistory};

/// A commit that nobody has.
const HIDDEN_COMMIT: &str = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e";

impl AttackRound<'_> {
    /// Puts a commit into force that nobody signed, and lends by it; returns the lease.
    pub(crate) fn forge_policy(&mut self) -> String {
        let forged = self.of_history(|history| history.forged.clone());
        self.lend_by(Some(forged), FORGED_TENANT, "its terms are forged")
    }

    /// Names a commit that it does not show, as one with narrower terms, and lends as before; returns the lease.
    pub(crate) fn hide_policy(&mut self) -> String {
        self.lend_by(Some(HIDDEN_COMMIT.to_owned()), "poly-ml", "the broker hides the policy in force")
    }

    /// Goes back to the commit before, and lends by it; returns the lease.
    pub(crate) fn roll_back_policy(&mut self) -> String {
        let first = self.of_history(|history| history.first.clone());
        self.lend_by(Some(first), FORMER_TENANT, "its terms were withdrawn")
    }

    /// Says that the policy comes from no repository, so that nobody would have to sign it; returns the lease.
    pub(crate) fn deny_signatures(&mut self) -> String {
        self.lend_by(Some(String::new()), "poly-ml", "the broker says that nobody signs the policy")
    }

    /// Lends for work that reads a dataset which its owner keeps; returns the lease.
    pub(crate) fn send_kept_data(&mut self) -> String {
        let (peering, placement) = (self.peering(), self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1)));
        let kept = v1::DataNeed { dataset: KEPT_DATASET.to_owned(), mib: 1 };
        self.invent_forbidden(&peering, placement, "its data may not go to the donor", |lease| {
            "poly-ml".clone_into(&mut lease.tenant);
            lease.data = vec![kept];
        })
    }

    fn of_history(&self, read: impl FnOnce(&SignedHistory) -> String) -> String {
        self.federation.broker.signed_history().map_or_else(String::new, |history| read(&history))
    }

    /// Lends a GPU to a tenant while `commit` is in force by its word.
    fn lend_by(&mut self, commit: Option<String>, tenant: &str, reason: &'static str) -> String {
        let broker = &self.federation.broker;
        broker.lie(|whims| whims.policy_commit = commit);
        let (peering, placement) = (self.peering(), broker.read(|books| books.place(DONOR_CLUSTER, 1)));
        self.invent_forbidden(&peering, placement, reason, |lease| tenant.clone_into(&mut lease.tenant))
    }
}
