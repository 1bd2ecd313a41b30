//! Joins a cluster, or rejoins it with a new identity.

use std::collections::BTreeMap;

use comity_types::{ClusterId, InstitutionId, PeeringId};
use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::check_invite;
use crate::model::cluster::Cluster;
use crate::model::health::Health;
use crate::model::invite::InviteSubject;
use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Timestamp;
use crate::state::transition::Transition;

/// Consumes a join token and makes its cluster a member. If it was one, its certificates until now are void. An agent
/// with another identity key is another agent: the leases and peerings of the one before end at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinCluster {
    /// The joining cluster.
    pub cluster: ClusterId,
    /// SHA-256 of the token's secret, in hex.
    pub secret_sha256: String,
    /// Its identity key, "ed25519:BASE64".
    pub identity_key: String,
    /// Expiry of the certificate that the broker issues to it.
    pub certificate_not_after: Timestamp,
}

impl JoinCluster {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let invite = check_invite(
            transition.state(),
            transition.now(),
            &self.secret_sha256,
            &InviteSubject::Cluster(self.cluster.clone()),
        )?;
        // The inviter may have been a maintainer then.
        transition.state().check_readmission(&self.cluster, &invite.inviter)?;
        let policy = transition.state().policy.as_ref().ok_or_else(Refusal::no_policy)?;
        let institution = policy.bundle.institution_of_cluster(self.cluster.as_str()).ok_or_else(|| {
            Refusal::invalid(
                "cluster",
                &self.cluster,
                "is not in the policy bundle any more",
                "ask your federation's maintainers",
            )
        })?;
        transition.state().check_institution(institution)?;
        let institution = InstitutionId::parse(institution, "institution")?;

        transition.remove_invite(&self.secret_sha256);
        let (now, identity_key) = (transition.now(), self.identity_key.clone());
        if let Some(known) = transition.state().clusters.get(&self.cluster) {
            let is_another = known.identity_key != identity_key;
            // The certificates of the agent that it replaces are void from now on.
            let generation = transition.raise_generation();
            transition.change_cluster(&self.cluster, |cluster| {
                cluster.institution = institution;
                cluster.identity_key = identity_key;
                cluster.certificate_not_after = self.certificate_not_after;
                cluster.void_before = generation;
                cluster.evicted = None;
            });
            // Whoever had the old certificate may have made the offer.
            transition.withdraw_offer(&self.cluster);
            if is_another {
                // Somebody else may have the old agent's keys of tunnels and its tokens.
                transition.end_part(&self.cluster, "joined again with another identity key");
            }
            // The new certificate invalidates everything that was begun with the old one.
            let peerings: Vec<PeeringId> = transition.state().peerings_of(&self.cluster).map(|(id, _)| id).collect();
            for id in peerings {
                transition.fail_peering(id, "one side joined again");
            }
            transition.refresh_drained_sides();
        } else {
            let cluster = Cluster {
                institution,
                identity_key,
                joined_at: now,
                certificate_not_after: self.certificate_not_after,
                void_before: 0,
                evicted: None,
                connected: false,
                since: now,
                offer: None,
                withdrawn_generation: 0,
                health: Health::default(),
                last_fencing_token: 0,
                refused_donors: BTreeMap::new(),
                revision: 0,
            };
            transition.insert_cluster(&self.cluster, cluster);
        }
        let generation = transition.state().certificate_generation;
        Ok(ReplyBody::Certificate { generation, not_after: self.certificate_not_after })
    }
}
