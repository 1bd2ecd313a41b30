//! Step `make-keys`: generates the keys of one epoch of a peering, and sends them in a signed bundle.

use comity_agent_fabric::WireguardKey;
use comity_agent_state::record::{PeeringRecord, ReportKey};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::{PeeringId, Side};
use prost::Message as _;

use crate::keys::bundle;
use crate::keys::seal::hpke_public;
use crate::reconcile::parts::{Member, Parts};
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Generates keys for an epoch, or sends the existing ones again.
#[derive(Clone, Debug, PartialEq)]
pub struct MakeKeys {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
    /// Which side this is.
    pub side: Side,
}

impl Kind for MakeKeys {
    const NAME: &'static str = "make-keys";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { member, store, .. }: &Parts) -> Result<(), StepError> {
        let (fresh, epoch) = (self.make(member), self.epoch);
        let key = ReportKey::Keys(self.peering, epoch);
        let update = store.update(move |change| {
            // Keys made before a restart are sent again: others would be refused in this epoch.
            let record = match change.records().peering(fresh.peering, epoch) {
                Some(record) => PeeringRecord::clone(record),
                None => {
                    change.drop_closed(fresh.peering);
                    change.put_peering(fresh.clone());
                    fresh
                }
            };
            if let Ok(bundle) = v1::KeyBundle::decode(record.bundle.as_slice()) {
                change.send(key, Body::KeyBundle(bundle));
            }
        });
        Ok(update.await?)
    }
}

impl MakeKeys {
    fn make(&self, member: &Member) -> PeeringRecord {
        let (wireguard_secret, hpke_secret) = (member.secret(), member.secret());
        let bundle = v1::KeyBundle {
            peering: self.peering.to_string(),
            epoch: self.epoch,
            cluster: member.cluster.clone(),
            side: v1::Side::from(self.side).into(),
            wireguard_public: WireguardKey::from_bytes(*wireguard_secret.expose()).public().to_bytes().to_vec(),
            hpke_public: hpke_public(&hpke_secret).as_bytes().to_vec(),
            endpoints: member.endpoints.clone(),
            network: member.network.clone(),
            ..v1::KeyBundle::default()
        };
        let bundle = bundle::sign(bundle, &member.identity, member.voucher.as_ref());
        PeeringRecord::new(self.peering, &bundle, self.side, wireguard_secret, hpke_secret)
    }
}
