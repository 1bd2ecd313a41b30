//! Records a member's renewed certificate.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Timestamp;
use crate::state::transition::Transition;

/// Records when a cluster's new certificate expires, before it is issued. Refuses an agent that another one replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCertificate {
    /// The member.
    pub cluster: ClusterId,
    /// Its identity key, "ed25519:BASE64", which signed the request.
    pub identity_key: String,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

impl RecordCertificate {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let state = transition.state();
        state.check_part(&self.cluster)?;
        let cluster = state.clusters.get(&self.cluster);
        let cluster = cluster.ok_or_else(|| Refusal::not_found("cluster", &self.cluster, "cluster"))?;
        if cluster.identity_key != self.identity_key {
            return Err(Refusal::invalid_bytes(
                "identity_proof",
                "is a signature of a key that is not the cluster's any more",
                "stop this agent: another one joined in its place with `comity cluster invite --replace`",
            ));
        }
        let generation = state.certificate_generation;
        transition.change_cluster(&self.cluster, |cluster| {
            cluster.certificate_not_after = cluster.certificate_not_after.max(self.not_after);
        });
        Ok(ReplyBody::Certificate { generation, not_after: self.not_after })
    }
}
