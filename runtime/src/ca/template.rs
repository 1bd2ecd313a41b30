//! Parts that the certificates of this crate have in common.

use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyUsagePurpose, SanType, SerialNumber,
};

use super::{CaError, MAX_NAMES};
use crate::entropy::{Entropy, SystemEntropy};
use crate::host_name::HostName;
use crate::identity::serial_prefix;
use crate::spiffe::{SpiffeKind, TrustDomain};

/// Characters of a common name, at most (X.520).
const COMMON_NAME_MAX_CHARS: usize = 64;

pub(super) fn subject(kind: &SpiffeKind) -> String {
    match kind {
        SpiffeKind::Broker(node) => format!("broker {node}"),
        SpiffeKind::Cluster(cluster) => format!("cluster {cluster}"),
        SpiffeKind::User(user) => format!("user {user}"),
    }
}

pub(super) fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text.chars().take(COMMON_NAME_MAX_CHARS).collect::<String>());
    name
}

pub(super) fn uri_name(uri: &str) -> Result<SanType, CaError> {
    uri.try_into().map(SanType::URI).map_err(CaError::encoding)
}

pub(super) fn host_names(hosts: &[HostName]) -> Result<Vec<SanType>, CaError> {
    if hosts.len() > MAX_NAMES {
        let reason = format!("{} given, at most {MAX_NAMES} are allowed", hosts.len());
        return Err(CaError::Names { reason });
    }
    let name = |host: &HostName| match host.ip() {
        Some(ip) => Ok(SanType::IpAddress(ip)),
        None => host.dns().unwrap_or_default().try_into().map(SanType::DnsName).map_err(CaError::encoding),
    };
    hosts.iter().map(name).collect()
}

/// The certificate of a root or an intermediate, which signs at most `further` authorities in a row. Each has a subject
/// of its own, so that nobody takes one for another.
pub(super) fn authority_params(
    trust_domain: &TrustDomain,
    kind: &str,
    further: u8,
    validity: (SystemTime, SystemTime),
) -> Result<CertificateParams, CaError> {
    let serial = serial_of(0);
    let mut params = CertificateParams::default();
    let number = hex::encode(&serial.to_bytes()[8..12]);
    params.distinguished_name = common_name(&format!("comity {kind} {number} {trust_domain}"));
    params.subject_alt_names = vec![uri_name(&format!("spiffe://{trust_domain}"))?];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(further));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial);
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, validity.0, validity.1);
    Ok(params)
}

/// A serial number: positive, as X.509 requires; the generation and 64 random bits make it unique.
pub(super) fn serial_of(generation: u64) -> SerialNumber {
    let mut random = [0; 8];
    SystemEntropy.fill(&mut random);
    SerialNumber::from_slice(&[serial_prefix(generation), random].concat())
}

pub(super) fn set_validity(params: &mut CertificateParams, from: SystemTime, until: SystemTime) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + since_epoch(from);
    params.not_after = epoch + since_epoch(until);
}
