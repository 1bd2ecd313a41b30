//! What Comity reads from a certificate: one SPIFFE id and two dates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::IdentityError;
use crate::spiffe::{SpiffeId, TrustDomain};

/// Read, not verified: the caller verifies the chain.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFacts {
    pub(crate) id: SpiffeId,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl CertificateFacts {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        Ok(Self {
            id: only_uri(&certificate)?.parse()?,
            not_before: instant(certificate.validity().not_before.timestamp()),
            not_after: instant(certificate.validity().not_after.timestamp()),
        })
    }
}

/// A root says its trust domain as `spiffe://<trust domain>` (SPIFFE X.509-SVID, section 4.1: a
/// signing certificate's id has no path).
pub(super) fn root_trust_domain(der: &CertificateDer<'_>) -> Result<TrustDomain, IdentityError> {
    let certificate = parse(der)?;
    if !certificate.is_ca() {
        let reason = "it is not the certificate of a certificate authority".to_owned();
        return Err(IdentityError::Certificate { reason });
    }
    let uri = only_uri(&certificate)?;
    let domain = uri.strip_prefix("spiffe://").unwrap_or(uri);
    Ok(TrustDomain::new(domain)?)
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    let fail = |reason: String| IdentityError::Certificate { reason };
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| fail(error.to_string()))?;
    if rest.is_empty() { Ok(certificate) } else { Err(fail("bytes follow its end".to_owned())) }
}

fn only_uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, IdentityError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
    let uris: Vec<&str> = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    match uris.as_slice() {
        [uri] => Ok(uri),
        _ => Err(IdentityError::UriNames { found: uris.len() }),
    }
}

fn instant(unix_seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0))
}
