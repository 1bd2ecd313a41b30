//! Records which root a member's certificate is under.

use serde::{Deserialize, Serialize};

use crate::model::member_certificate::{CertificateHolder, MemberCertificate};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Records which root a cluster's or user's new certificate is under, before it is issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordIssuer {
    /// The member.
    pub holder: CertificateHolder,
    /// Its certificate.
    pub certificate: MemberCertificate,
}

impl RecordIssuer {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        // The answer to a repeated join is issued again.
        if transition.state().certificates.get(&self.holder) != Some(&self.certificate) {
            transition.record_certificate(&self.holder, self.certificate.clone());
        }
        Ok(ReplyBody::Done)
    }
}
