//! The origin's proof that it opened the pre-shared key.

use comity_agent_state::record::PeeringRecord;
use comity_proto::v1;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::reconcile::envelope::PROOF;
use crate::reconcile::parts::{Member, Subject};
use crate::reconcile::steps::error::StepError;

/// Domain separation for SHA-256.
const PROOF_DOMAIN: &[u8] = b"comity-proof-v1";

/// Seals the proof under the next sequence.
pub(super) fn seal_proof(member: &Member, record: &mut PeeringRecord) -> Result<v1::Envelope, StepError> {
    record.sealed_sequence += 1;
    let content = proof(record).ok_or(StepError::Gone("the pre-shared key"))?;
    let remote = record.remote.as_ref().ok_or(StepError::Gone("the donor's keys"))?;
    let subject = Subject { keys: record, remote, lease: None, step: PROOF, sequence: record.sealed_sequence };
    member.seal(subject, content.as_slice()).map_err(|_| StepError::Gone("a usable key of the donor"))
}

/// SHA-256 over a domain, the pre-shared key and the nonce, each of a fixed length; it travels sealed, and the seal
/// binds peering and epoch.
pub(super) fn proof(record: &PeeringRecord) -> Option<Zeroizing<[u8; 32]>> {
    let (preshared, nonce) = (record.preshared.as_ref()?, record.nonce.as_ref()?);
    let digest = Sha256::new()
        .chain_update(PROOF_DOMAIN)
        .chain_update(preshared.expose())
        .chain_update(nonce.expose())
        .finalize();
    Some(Zeroizing::new(digest.into()))
}
