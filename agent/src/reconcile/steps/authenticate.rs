//! Steps `send-psk`, `open-psk`, `send-proof` and `check-proof`: the donor sends a pre-shared key, and the origin
//! proves that it opened it.

use std::sync::Arc;

use comity_agent_state::record::{PeeringRecord, RemoteKeys, ReportKey, SecretKey};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{Context, StepError, note_opened, peering_report};
use crate::keys::bundle::{self, Expected};
use crate::keys::seal::{self, Binding};

/// Domain separation for SHA-256.
const PROOF_DOMAIN: &[u8] = b"comity-proof-v1";

pub(super) async fn send_psk(context: &Context, expected: &Expected, bundle: &v1::KeyBundle) -> Result<(), StepError> {
    let (peering, epoch) = (expected.peering.as_str(), expected.epoch);
    let remote = match bundle::verify(bundle, expected, &context.pinned) {
        Ok(remote) => remote,
        Err(error) => return peering_report::fail(context, peering, epoch, "bad-keys", &error.to_string()).await,
    };
    let mut record = record(context, peering, epoch)?;
    let fresh = || {
        let mut bytes = Zeroizing::new([0; 32]);
        context.entropy.fill(bytes.as_mut());
        SecretKey::new(*bytes)
    };
    let preshared = record.preshared.get_or_insert_with(fresh).clone();
    let nonce = record.nonce.get_or_insert_with(fresh).clone();
    record.sealed_sequence += 1;
    let content = Zeroizing::new([preshared.expose().as_slice(), nonce.expose()].concat());
    let sealed = seal_for(context, &record, &remote, "psk", &content);
    record.remote = Some(remote);
    let envelope = match sealed {
        Ok(envelope) => envelope,
        Err(error) => return peering_report::fail(context, peering, epoch, "bad-keys", &error.to_string()).await,
    };
    let key = ReportKey::Psk(peering.to_owned(), epoch);
    let update = context.store.update(move |change| {
        change.put_peering(record);
        change.send(key, Body::Envelope(envelope));
    });
    Ok(update.await?)
}

pub(super) async fn open_psk(
    context: &Context,
    expected: &Expected,
    bundle: &v1::KeyBundle,
    envelope: &v1::Envelope,
) -> Result<(), StepError> {
    let (peering, epoch) = (expected.peering.as_str(), expected.epoch);
    let remote = match bundle::verify(bundle, expected, &context.pinned) {
        Ok(remote) => remote,
        Err(error) => return peering_report::fail(context, peering, epoch, "bad-keys", &error.to_string()).await,
    };
    let mut record = record(context, peering, epoch)?;
    let opened = match seal::open(&context.federation, envelope, &record.hpke_secret, &remote.identity_key) {
        Ok(opened) => opened,
        Err(error) => return peering_report::fail_envelope(context, envelope, &error.to_string()).await,
    };
    let halves =
        opened.split_first_chunk::<32>().and_then(|(preshared, nonce)| Some((preshared, nonce.try_into().ok()?)));
    let Some((preshared, nonce)) = halves else {
        return peering_report::fail_envelope(context, envelope, "the psk envelope does not hold a key and a nonce")
            .await;
    };
    record.preshared = Some(SecretKey::new(*preshared));
    record.nonce = Some(SecretKey::new(nonce));
    record.remote = Some(remote);
    let proof = seal_proof(context, &mut record)?;
    let (key, envelope) = (ReportKey::Proof(peering.to_owned(), epoch), envelope.clone());
    let update = context.store.update(move |change| {
        change.put_peering(record);
        note_opened(change, &envelope);
        change.send(key, Body::Envelope(proof));
    });
    Ok(update.await?)
}

pub(super) async fn send_proof(context: &Context, peering: &str, epoch: u32) -> Result<(), StepError> {
    let mut record = record(context, peering, epoch)?;
    let proof = seal_proof(context, &mut record)?;
    let key = ReportKey::Proof(peering.to_owned(), epoch);
    let update = context.store.update(move |change| {
        change.put_peering(record);
        change.send(key, Body::Envelope(proof));
    });
    Ok(update.await?)
}

pub(super) async fn check_proof(
    context: &Context,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let record = record(context, peering, epoch)?;
    if let Some(envelope) = envelope.filter(|_| !record.proven) {
        let remote = record.remote.as_ref().ok_or(StepError::Gone("the origin's keys"))?;
        let opened = match seal::open(&context.federation, envelope, &record.hpke_secret, &remote.identity_key) {
            Ok(opened) => opened,
            Err(error) => return peering_report::fail_envelope(context, envelope, &error.to_string()).await,
        };
        let wanted = proof(&record).ok_or(StepError::Gone("the pre-shared key"))?;
        if !bool::from(wanted.as_slice().ct_eq(&opened)) {
            return peering_report::fail_envelope(context, envelope, "the origin's proof is of another pre-shared key")
                .await;
        }
    }
    let (peering, opened) = (peering.to_owned(), envelope.cloned());
    let update = context.store.update(move |change| {
        change.change_peering(&peering, epoch, |record| record.proven = true);
        if let Some(envelope) = &opened {
            note_opened(change, envelope);
        }
        let outcome = v1::peering_report::Outcome::Authenticated(v1::peering_report::Authenticated {});
        let report = v1::PeeringReport { peering: peering.clone(), epoch, outcome: Some(outcome) };
        change.send(ReportKey::Authenticated(peering, epoch), Body::PeeringReport(report));
    });
    Ok(update.await?)
}

pub(super) fn record(context: &Context, peering: &str, epoch: u32) -> Result<PeeringRecord, StepError> {
    let records = context.store.records();
    let record = records.peering(peering, epoch).map(Arc::as_ref).cloned();
    record.ok_or(StepError::Gone("the epoch's record"))
}

fn seal_for(
    context: &Context,
    record: &PeeringRecord,
    remote: &RemoteKeys,
    step: &str,
    content: &[u8],
) -> Result<v1::Envelope, seal::SealError> {
    let binding = Binding {
        federation: context.federation.clone(),
        peering: record.peering.clone(),
        epoch: record.epoch,
        lease: String::new(),
        step: step.to_owned(),
        sequence: record.sealed_sequence,
        from: context.cluster.clone(),
        to: remote.cluster.clone(),
    };
    seal::seal(&binding, content, &remote.hpke_public, &context.identity, context.entropy.as_ref())
}

fn seal_proof(context: &Context, record: &mut PeeringRecord) -> Result<v1::Envelope, StepError> {
    record.sealed_sequence += 1;
    let content = proof(record).ok_or(StepError::Gone("the pre-shared key"))?;
    let remote = record.remote.clone().ok_or(StepError::Gone("the donor's keys"))?;
    seal_for(context, record, &remote, "proof", content.as_slice())
        .map_err(|_| StepError::Gone("a usable key of the donor"))
}

/// SHA-256 over a domain, the pre-shared key and the nonce, each of a fixed length; it travels sealed, and the seal
/// binds peering and epoch.
fn proof(record: &PeeringRecord) -> Option<Zeroizing<[u8; 32]>> {
    let (preshared, nonce) = (record.preshared.as_ref()?, record.nonce.as_ref()?);
    let digest = Sha256::new()
        .chain_update(PROOF_DOMAIN)
        .chain_update(preshared.expose())
        .chain_update(nonce.expose())
        .finalize();
    Some(Zeroizing::new(digest.into()))
}
