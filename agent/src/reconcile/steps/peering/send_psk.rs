//! Step `send-psk`: the donor makes the pre-shared key of a tunnel and seals it for the origin.

use comity_agent_state::record::ReportKey;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use zeroize::Zeroizing;

use crate::keys::bundle::{self, Expected};
use crate::keys::continuity;
use crate::reconcile::envelope::PSK;
use crate::reconcile::parts::{Parts, Subject};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: verifies the origin's keys, makes the pre-shared key and seals it.
#[derive(Clone, Debug, PartialEq)]
pub struct SendPsk {
    /// The expected sender of the bundle.
    pub expected: Expected,
    /// The origin's keys.
    pub bundle: Box<v1::KeyBundle>,
}

impl Kind for SendPsk {
    const NAME: &'static str = "send-psk";

    fn object(&self) -> String {
        self.expected.peering.to_string()
    }

    async fn run(&self, Parts { member, store, clock, .. }: &Parts) -> Result<(), StepError> {
        let (peering, epoch) = (self.expected.peering, self.expected.epoch);
        let remote = match bundle::verify(&self.bundle, &self.expected, &member.pins) {
            Ok(remote) => remote,
            Err(error) => return epoch::fail(store, peering, epoch, "bad-keys", &error.to_string()).await,
        };
        let mut record = epoch::record(store, peering, epoch)?;
        let preshared = record.preshared.get_or_insert_with(|| member.secret()).clone();
        let nonce = record.nonce.get_or_insert_with(|| member.secret()).clone();
        record.sealed_sequence += 1;
        let content = Zeroizing::new([preshared.expose().as_slice(), nonce.expose()].concat());
        let sequence = record.sealed_sequence;
        let subject = Subject { keys: &record, remote: &remote, lease: None, step: PSK, sequence };
        let sealed = member.seal(subject, &content);
        record.remote = Some(remote.clone());
        let envelope = match sealed {
            Ok(envelope) => envelope,
            Err(error) => return epoch::fail(store, peering, epoch, "bad-keys", &error.to_string()).await,
        };
        let (key, claimed, now_ms) =
            (ReportKey::Psk(peering, epoch), self.expected.institution.clone(), clock.unix_ms());
        let update = store.update(move |change| {
            let noted = continuity::note(change, &remote, &claimed, now_ms);
            if noted.is_ok() {
                change.put_peering(record);
                change.send(key, Body::Envelope(envelope));
            }
            noted
        });
        match update.await? {
            Ok(()) => Ok(()),
            Err(error) => epoch::fail_continuity(store, peering, epoch, &error).await,
        }
    }
}
