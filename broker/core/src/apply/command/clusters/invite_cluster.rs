//! Records a join token.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::record_invite;
use crate::model::invite::InviteSubject;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::Reply;
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// Records the hash of a join token's secret. The proposer generated the secret and gives it to the caller only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteCluster {
    /// The cluster that may join with this token.
    pub cluster: ClusterId,
    /// SHA-256 of the secret, in hex.
    pub secret_sha256: String,
    /// How long the token is valid.
    pub ttl: Millis,
    /// Whether the cluster may already be a member: the joining agent then replaces the current one.
    pub replace: bool,
}

impl InviteCluster {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let policy = transition.state().policy.as_ref().ok_or_else(Refusal::no_policy)?;
        let institution = policy.bundle.institution_of_cluster(self.cluster.as_str()).ok_or_else(|| {
            Refusal::invalid(
                "cluster",
                &self.cluster,
                "is not in the policy bundle",
                "add a Cluster document for it and name it in its Institution's clusters, then apply the bundle",
            )
        })?;
        transition.state().check_institution(institution)?;
        transition.state().check_readmission(&self.cluster, transition.actor())?;
        let member = transition.state().clusters.get(&self.cluster).filter(|cluster| cluster.evicted.is_none());
        if !self.replace && member.is_some() {
            return Err(Refusal::new(
                Code::WrongState,
                format!("{} is a member already; a second agent would take its place", self.cluster),
                "to replace its agent for good, stop the old one and invite with --replace",
            )
            .at("cluster", &self.cluster));
        }
        record_invite(transition, &self.secret_sha256, InviteSubject::Cluster(self.cluster.clone()), self.ttl)
    }
}
