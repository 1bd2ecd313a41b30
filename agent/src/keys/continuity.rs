//! Continuity of identity keys: a cluster keeps the one that this agent knows, in every peering, on either side and in
//! every epoch. A broker can name another key, but only the cluster's institution or a person can make it count.

use comity_agent_state::record::{MAX_PEERS, PeerRecord, RefusedKey, RemoteKeys, Trust};
use comity_agent_state::store::Change;
use comity_runtime::IdentityPublicKey;

/// Why a cluster's identity key is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContinuityError {
    /// The cluster has another one.
    #[error(
        "cluster {cluster} shows identity key {shown}, and this agent knows it by {known}: somebody may impersonate \
         it. Ask its operators for their key: if it is the new one, run `comity-agent peers accept {cluster} --key KEY` \
         here with the one that they say, or have them give it a voucher"
    )]
    Changed {
        /// The cluster.
        cluster: String,
        /// Its identity key.
        known: IdentityPublicKey,
        /// The one that it shows.
        shown: IdentityPublicKey,
    },
    /// Another institution vouches for the cluster than the one that did before.
    #[error(
        "institution {shown:?} vouches for cluster {cluster}, which belongs to institution {known:?}: list the cluster \
         under pinnedInstitutions of its institution, or forget it (comity-agent peers forget {cluster})"
    )]
    OtherInstitution {
        /// The cluster.
        cluster: String,
        /// Its institution.
        known: String,
        /// The institution that vouches now.
        shown: String,
    },
    /// No more clusters are remembered, and none may be replaced.
    #[error(
        "this agent remembers {MAX_PEERS} other clusters, all with leases, vouchers or a person's word, so cluster \
         {cluster} is not trusted: list them (comity-agent peers list), and forget those that are gone (comity-agent \
         peers forget CLUSTER)"
    )]
    Full {
        /// The cluster.
        cluster: String,
    },
}

/// Checks verified keys against what is known of their cluster, and remembers a cluster that is new. A key that is
/// refused is remembered beside the known one, for the operator.
///
/// A broker can invent clusters, each with a key of its own. When the table is full, a new cluster takes the place of
/// the newest one that never mattered here, so that inventions replace each other.
///
/// # Errors
/// [`ContinuityError`]; nothing may be sealed for these keys.
pub fn note(change: &mut Change<'_>, remote: &RemoteKeys, claimed: &str, now_ms: u64) -> Result<(), ContinuityError> {
    let known = change.records().peers.get(&remote.cluster).cloned();
    match judge(known.as_deref(), remote, claimed, now_ms) {
        Ok(None) => Ok(()),
        Ok(Some(record)) => {
            if known.is_none() && change.records().peers.len() >= MAX_PEERS {
                make_room(change, &remote.cluster)?;
            }
            change.put_peer(record);
            Ok(())
        }
        Err(error) => {
            if let (ContinuityError::Changed { .. }, Some(known)) = (&error, known) {
                let refused = Some(RefusedKey { identity_key: remote.identity_key, at_ms: now_ms });
                change.put_peer(PeerRecord { refused, ..PeerRecord::clone(&known) });
            }
            Err(error)
        }
    }
}

fn make_room(change: &mut Change<'_>, new: &str) -> Result<(), ContinuityError> {
    let Some(unused) = change.records().replaceable_peer().map(|peer| peer.cluster.clone()) else {
        return Err(ContinuityError::Full { cluster: new.to_owned() });
    };
    tracing::warn!(cluster = unused, new, "a cluster that never had a lease here is forgotten for a new one");
    change.drop_peer(&unused);
    Ok(())
}

/// The record to keep from now on, if it is not the known one.
fn judge(
    known: Option<&PeerRecord>,
    remote: &RemoteKeys,
    claimed: &str,
    now_ms: u64,
) -> Result<Option<PeerRecord>, ContinuityError> {
    let cluster = || remote.cluster.clone();
    let trust = if remote.institution.is_some() { Trust::Voucher } else { Trust::FirstUse };
    let fresh = |institution: &str| PeerRecord {
        cluster: cluster(),
        identity_key: remote.identity_key,
        trust,
        institution: institution.to_owned(),
        since_ms: now_ms,
        had_lease: known.is_some_and(|known| known.had_lease),
        refused: None,
    };
    let vouching = remote.institution.as_deref();
    let Some(known) = known else { return Ok(Some(fresh(vouching.unwrap_or(claimed)))) };
    let is_same_key = known.identity_key == remote.identity_key;
    match vouching {
        Some(shown) if known.vouched_institution().is_some_and(|before| before != shown) => {
            Err(ContinuityError::OtherInstitution {
                cluster: cluster(),
                known: known.institution.clone(),
                shown: shown.to_owned(),
            })
        }
        // The voucher of its own institution replaces a key without a person.
        Some(shown) if !is_same_key && known.institution == shown => Ok(Some(fresh(shown))),
        Some(shown) if is_same_key && known.trust != Trust::Voucher => {
            let refused = known.refused;
            Ok(Some(PeerRecord { since_ms: known.since_ms, refused, ..fresh(shown) }))
        }
        _ if is_same_key => Ok(None),
        _ => {
            Err(ContinuityError::Changed { cluster: cluster(), known: known.identity_key, shown: remote.identity_key })
        }
    }
}

/// Why a person's decision cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// The cluster is not remembered.
    #[error("this agent remembers no cluster {cluster:?}; comity-agent peers list shows those that it does")]
    Unknown {
        /// The cluster.
        cluster: String,
    },
    /// The key is none that the cluster showed.
    #[error(
        "cluster {cluster} has identity key {known}, and did not show {key}; compare the key with the one that \
         comity-agent identity-key prints there"
    )]
    NotShown {
        /// The cluster.
        cluster: String,
        /// Its identity key.
        known: IdentityPublicKey,
        /// The given key.
        key: IdentityPublicKey,
    },
}

/// Accepts, by a person's decision, the key that was refused; or keeps the known one and drops the refused one. What a
/// voucher proves stays vouched for; any other cluster is one that a person accepted.
///
/// # Errors
/// [`DecisionError`]; nothing is then changed.
pub fn accept(
    change: &mut Change<'_>,
    cluster: &str,
    key: IdentityPublicKey,
    now_ms: u64,
) -> Result<PeerRecord, DecisionError> {
    let known = change.records().peers.get(cluster).cloned();
    let known = known.ok_or_else(|| DecisionError::Unknown { cluster: cluster.to_owned() })?;
    let decided = if known.identity_key == key {
        let trust = if known.trust == Trust::Voucher { Trust::Voucher } else { Trust::Accepted };
        PeerRecord { trust, refused: None, ..PeerRecord::clone(&known) }
    } else if known.refused.is_some_and(|refused| refused.identity_key == key) {
        let (trust, since_ms) = (Trust::Accepted, now_ms);
        PeerRecord { identity_key: key, trust, since_ms, refused: None, ..PeerRecord::clone(&known) }
    } else {
        let known = known.identity_key;
        return Err(DecisionError::NotShown { cluster: cluster.to_owned(), known, key });
    };
    change.put_peer(decided.clone());
    Ok(decided)
}

/// Forgets a cluster, by a person's decision: its next key counts as its first.
///
/// # Errors
/// [`DecisionError::Unknown`].
pub fn forget(change: &mut Change<'_>, cluster: &str) -> Result<(), DecisionError> {
    if change.drop_peer(cluster) { Ok(()) } else { Err(DecisionError::Unknown { cluster: cluster.to_owned() }) }
}

#[cfg(test)]
mod tests;
