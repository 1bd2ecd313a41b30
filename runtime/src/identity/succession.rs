//! What may take the place of an identity when a broker renews it.
//!
//! A broker answers with a certificate and with the roots to trust from now on. One that was taken over could name its
//! own root, and be trusted still after the federation has shut it out. So a new root needs a certificate that a root
//! signed which is trusted already: brokers have no key that can, as no intermediate may sign an authority.
//!
//! While the federation moves to its next root, members trust both. Whoever stole an intermediate of the earlier root
//! could then renew a member with that root alone, and keep it to itself once honest brokers trust only the next one.
//! So a renewal never takes the newest root away, unless that root signed its successor.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate::{AuthorityFacts, authority_signed_by};
use super::roots::{RootHash, Roots};
use super::{IdentityError, TlsIdentity};

/// Checks that `next` is the same member, that its roots accept it, that each of them is trusted already or signed by
/// one that is, and that the newest one that is trusted stays.
pub(super) fn check(current: &TlsIdentity, next: &TlsIdentity) -> Result<(), IdentityError> {
    if current.id() != next.id() {
        return Err(IdentityError::OtherId { expected: current.id().clone(), found: next.id().clone() });
    }
    let chain = next.certified_key();
    let [leaf, presented @ ..] = chain.cert.as_slice() else { return Ok(()) };
    let authorities = next.roots().authorities(presented);
    let begins = authorities.iter().filter_map(|authority| AuthorityFacts::of(authority).ok());
    let at = begins.map(|authority| authority.not_before).fold(next.not_before(), Ord::max);
    let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap_or_default());
    next.roots()
        .verify_server(leaf, &authorities, at)
        .map_err(|error| IdentityError::Certificate { reason: format!("its roots do not accept it: {error}") })?;
    let known = current.roots();
    for root in unknown_roots(known, next.roots()) {
        let mut trusted = known.certificates().iter();
        let is_introduced = trusted.any(|trusted| introduces(trusted, root, &authorities, next.not_before()));
        if !is_introduced {
            return Err(IdentityError::NewRoot { sha256: RootHash::of(root) });
        }
    }
    match dropped_root(known, next.roots(), &authorities, next.not_before()) {
        Some(sha256) => Err(IdentityError::DroppedRoot { sha256 }),
        None => Ok(()),
    }
}

/// The newest of the known roots, if it is neither among the next ones nor signed one of them with a certificate that
/// is valid at a time. Of roots that begin at the same time, all count as the newest.
pub(crate) fn dropped_root(
    known: &Roots,
    next: &Roots,
    authorities: &[CertificateDer<'_>],
    at: SystemTime,
) -> Option<RootHash> {
    let newest = known.certificates().iter().filter_map(begin).max();
    let stays = |root: &CertificateDer<'_>| {
        next.contains(&RootHash::of(root))
            || unknown_roots(known, next).any(|successor| introduces(root, successor, authorities, at))
    };
    known.certificates().iter().find(|root| begin(root) == newest && !stays(root)).map(RootHash::of)
}

/// The next roots that are not known and begin before the newest known one: most often roots that were dropped.
pub(crate) fn returning_roots(known: &Roots, next: &Roots) -> Vec<RootHash> {
    let newest = known.certificates().iter().filter_map(begin).max();
    unknown_roots(known, next).filter(|root| begin(root) < newest).map(RootHash::of).collect()
}

fn begin(root: &CertificateDer<'_>) -> Option<SystemTime> {
    AuthorityFacts::of(root).map(|facts| facts.not_before).ok()
}

fn unknown_roots<'a>(known: &Roots, next: &'a Roots) -> impl Iterator<Item = &'a CertificateDer<'static>> {
    next.certificates().iter().filter(|root| !known.contains(&RootHash::of(root)))
}

/// Whether one of the authorities is the certificate by which a trusted root introduces another one.
fn introduces(
    trusted: &CertificateDer<'_>,
    root: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    at: SystemTime,
) -> bool {
    authorities.iter().any(|cross| authority_signed_by(cross, root, trusted, at))
}
