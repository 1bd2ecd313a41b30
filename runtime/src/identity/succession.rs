//! What may take the place of an identity when a broker renews it.
//!
//! A broker answers with a certificate and with the roots to trust from now on. One that was taken over could name its
//! own root, and be trusted still after the federation has shut it out. So a new root needs a certificate that a root
//! signed which is trusted already: brokers have no key that can, as no intermediate may sign an authority.

use std::time::UNIX_EPOCH;

use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate::{AuthorityFacts, authority_signed_by};
use super::roots::RootHash;
use super::{IdentityError, TlsIdentity};

/// Checks that `next` is the same member, that its roots accept it, and that each of them is trusted already or signed
/// by one that is.
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
    let unknown = |root: &&CertificateDer<'static>| !known.contains(&RootHash::of(root));
    for root in next.roots().certificates().iter().filter(unknown) {
        let is_introduced = known.certificates().iter().any(|trusted| {
            authorities.iter().any(|cross| authority_signed_by(cross, root, trusted, next.not_before()))
        });
        if !is_introduced {
            return Err(IdentityError::NewRoot { sha256: RootHash::of(root) });
        }
    }
    Ok(())
}
