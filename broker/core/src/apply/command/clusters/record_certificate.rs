//! Records a member's renewed certificate.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Timestamp;
use crate::state::transition::Transition;

/// Records when a cluster's newest certificate expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCertificate {
    /// The member.
    pub cluster: ClusterId,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

impl RecordCertificate {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        if !transition.state().clusters.contains_key(&self.cluster) {
            return Err(Refusal::not_found("cluster", &self.cluster, "cluster"));
        }
        transition.change_cluster(&self.cluster, |cluster| {
            cluster.certificate_not_after = cluster.certificate_not_after.max(self.not_after);
        });
        Ok(ReplyBody::Done)
    }
}
