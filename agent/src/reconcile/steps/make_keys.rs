//! Step `make-keys`: generates the keys of one epoch of a peering, and sends them in a signed bundle.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use prost::Message as _;

use super::{Context, StepError};
use crate::fabric::WireguardKey;
use crate::keys::bundle;
use crate::keys::seal::hpke_public;
use crate::model::side::Side;
use crate::state::record::{PeeringRecord, ReportKey, SecretKey};

pub(super) async fn run(context: &Context, peering: &str, epoch: u32, side: Side) -> Result<(), StepError> {
    let fresh = make(context, peering, epoch, side);
    let key = ReportKey::Keys(peering.to_owned(), epoch);
    let update = context.store.update(move |change| {
        // Keys made before a restart are sent again: others would be refused in this epoch.
        let record = match change.records().peering(&fresh.peering, epoch) {
            Some(record) => PeeringRecord::clone(record),
            None => {
                change.drop_closed(&fresh.peering);
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

fn make(context: &Context, peering: &str, epoch: u32, side: Side) -> PeeringRecord {
    let random = || {
        let mut bytes = zeroize::Zeroizing::new([0; 32]);
        context.entropy.fill(bytes.as_mut());
        SecretKey::new(*bytes)
    };
    let (wireguard_secret, hpke_secret) = (random(), random());
    let bundle = v1::KeyBundle {
        peering: peering.to_owned(),
        epoch,
        cluster: context.cluster.clone(),
        side: v1::Side::from(side).into(),
        wireguard_public: WireguardKey::from_bytes(*wireguard_secret.expose()).public().to_bytes().to_vec(),
        hpke_public: hpke_public(&hpke_secret).as_bytes().to_vec(),
        endpoints: context.endpoints.clone(),
        network: context.network.clone(),
        ..v1::KeyBundle::default()
    };
    let bundle = bundle::sign(bundle, &context.identity, context.voucher.as_ref());
    PeeringRecord::new(&bundle, side, wireguard_secret, hpke_secret)
}
