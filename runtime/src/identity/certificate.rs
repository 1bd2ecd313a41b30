//! Reads the SPIFFE id, the host names and the validity of a certificate.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::IdentityError;
use crate::host_name::HostName;
use crate::spiffe::{SpiffeId, TrustDomain};

/// How long before its issue a certificate begins, so that machines with slower clocks accept it. More would not help:
/// a leader whose clock is off by as much hands over.
pub(crate) const BACKDATE: Duration = Duration::from_secs(3600);

/// The facts of a certificate that Comity uses. Not verified: the caller verifies the chain.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFacts {
    pub(crate) id: SpiffeId,
    pub(crate) hosts: Vec<HostName>,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// Generation in which it was issued; see [`generation_of`].
    pub(crate) generation: u64,
}

impl CertificateFacts {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        Ok(Self {
            id: single_uri_name(&certificate)?.parse()?,
            hosts: names(&certificate)?.iter().filter_map(|name| host_name(name)).collect(),
            not_before: from_unix_seconds(certificate.validity().not_before.timestamp()),
            not_after: from_unix_seconds(certificate.validity().not_after.timestamp()),
            generation: generation_of(certificate.raw_serial()),
        })
    }
}

/// Bytes of a serial number that hold the generation.
const GENERATION_BYTES: usize = 8;

/// Sets the bit that keeps a serial number positive and of full length.
const SERIAL_MARK: u64 = 1 << 62;

/// The beginning of a serial number: the generation below a mark. Random bytes follow, which make it unique.
pub(crate) const fn serial_prefix(generation: u64) -> [u8; GENERATION_BYTES] {
    (SERIAL_MARK | (generation & (SERIAL_MARK - 1))).to_be_bytes()
}

/// The generation in a serial number; 0 in one of another form, so that a revocation voids it.
fn generation_of(serial: &[u8]) -> u64 {
    let prefix = serial.first_chunk::<GENERATION_BYTES>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    if serial.len() == 2 * GENERATION_BYTES && prefix & SERIAL_MARK != 0 { prefix & (SERIAL_MARK - 1) } else { 0 }
}

/// The facts of an authority's certificate. Not verified.
#[derive(Debug, Clone)]
pub(crate) struct AuthorityFacts {
    /// From its URI name `spiffe://<trust domain>`; `None` without a URI name. SPIFFE X.509-SVID, section 4.1: the id of
    /// a signing certificate has no path.
    pub(crate) trust_domain: Option<TrustDomain>,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl AuthorityFacts {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        if !certificate.is_ca() {
            let reason = "it is not the certificate of a certificate authority".to_owned();
            return Err(IdentityError::Certificate { reason });
        }
        let trust_domain = match uri_names(&certificate)?.as_slice() {
            [] => None,
            [uri] => Some(TrustDomain::new(uri.strip_prefix("spiffe://").unwrap_or(uri))?),
            more => return Err(IdentityError::UriNames { found: more.len() }),
        };
        Ok(Self {
            trust_domain,
            not_before: from_unix_seconds(certificate.validity().not_before.timestamp()),
            not_after: from_unix_seconds(certificate.validity().not_after.timestamp()),
        })
    }
}

/// Whether `cross` certifies the key and the name of `root` as an authority above intermediates, is signed by `trusted`,
/// and has not ended at a time. An intermediate does not qualify: its own key could pass for a root.
pub(super) fn authority_signed_by(
    cross: &CertificateDer<'_>,
    root: &CertificateDer<'_>,
    trusted: &CertificateDer<'_>,
    at: SystemTime,
) -> bool {
    let (Ok(cross), Ok(root), Ok(trusted)) = (parse(cross), parse(root), parse(trusted)) else { return false };
    let constraints = cross.basic_constraints().ok().flatten().map(|extension| extension.value);
    let signs_authorities =
        constraints.is_some_and(|it| it.ca && it.path_len_constraint.is_some_and(|length| length >= 1));
    let same_authority =
        cross.subject().as_raw() == root.subject().as_raw() && cross.public_key().raw == root.public_key().raw;
    let by_trusted = cross.issuer().as_raw() == trusted.subject().as_raw()
        && cross.verify_signature(Some(trusted.public_key())).is_ok();
    signs_authorities && same_authority && by_trusted && from_unix_seconds(cross.validity().not_after.timestamp()) >= at
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    let fail = |reason: String| IdentityError::Certificate { reason };
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| fail(error.to_string()))?;
    if rest.is_empty() { Ok(certificate) } else { Err(fail("bytes follow its end".to_owned())) }
}

fn names<'a>(certificate: &'a X509Certificate<'_>) -> Result<Vec<&'a GeneralName<'a>>, IdentityError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
    Ok(names.into_iter().flat_map(|extension| &extension.value.general_names).collect())
}

fn host_name(name: &GeneralName<'_>) -> Option<HostName> {
    match name {
        GeneralName::DNSName(dns) => dns.parse().ok(),
        GeneralName::IPAddress(bytes) => {
            let v4 = || <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
            v4().or_else(|_| v6()).ok().map(HostName::from)
        }
        _ => None,
    }
}

fn uri_names<'a>(certificate: &'a X509Certificate<'_>) -> Result<Vec<&'a str>, IdentityError> {
    let uri = |name: &'a GeneralName<'a>| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    };
    Ok(names(certificate)?.into_iter().filter_map(uri).collect())
}

fn single_uri_name<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, IdentityError> {
    match uri_names(certificate)?.as_slice() {
        [uri] => Ok(uri),
        uris => Err(IdentityError::UriNames { found: uris.len() }),
    }
}

fn from_unix_seconds(unix_seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0))
}
