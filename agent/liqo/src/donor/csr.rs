//! Checks certificate requests of consumers. Liqo checks only the first organisation of the subject, and organisations
//! are groups: a consumer could get any group of this cluster.
//!
//! An admission policy cannot parse certificates. But the bytes of an honest request up to its public key are known, so
//! the policy compares this prefix; the lengths in it leave no room for another name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Organisation of control-plane identities.
const CONTROL_PLANE: &str = "liqo.io";
const PEM_BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
/// Characters of a line of PEM.
const PEM_LINE: usize = 64;
const ORGANISATION_OID: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// The kinds of keys that Liqo makes.
struct KeyKind {
    /// How a SubjectPublicKeyInfo of this kind begins.
    spki_begin: &'static [u8],
    /// Bytes of the whole SubjectPublicKeyInfo.
    spki: usize,
    /// Bytes of signature algorithm and signature.
    signature: usize,
}

const ED25519: KeyKind = KeyKind {
    spki_begin: &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00],
    spki: 44,
    signature: 7 + 67,
};
const RSA_2048: KeyKind = KeyKind {
    spki_begin: &[
        0x30, 0x82, 0x01, 0x22, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05,
        0x00,
    ],
    spki: 294,
    signature: 15 + 261,
};

/// The user name of a slice's credential: Liqo's rule.
#[must_use]
pub fn slice_user(slice: &str, consumer: &str) -> String {
    let hash = Sha256::digest(consumer.as_bytes());
    format!("{slice}-{}", hex::encode(hash.get(..6).unwrap_or_default()))
}

/// How the base64 text of `ResourceSlice.spec.csr` must begin, one for each kind of key.
pub(crate) fn slice_csr_beginnings(slice: &str, consumer: &str) -> [String; 2] {
    let name = subject(consumer, &slice_user(slice, consumer));
    [ED25519, RSA_2048].map(|kind| beginning(&name, &kind))
}

/// How the base64 text of a control plane's `Renew.spec.csr` must begin. Keys are exchanged with Ed25519 only.
pub(crate) fn tenant_csr_beginning(consumer: &str) -> String {
    beginning(&subject(CONTROL_PLANE, consumer), &ED25519)
}

fn beginning(name: &[u8], kind: &KeyKind) -> String {
    const VERSION: [u8; 3] = [0x02, 0x01, 0x00];
    const ATTRIBUTES: usize = 2;
    let info = VERSION.len() + name.len() + kind.spki + ATTRIBUTES;
    let info_header = header(0x30, info);
    let mut der = header(0x30, info_header.len() + info + kind.signature);
    der.extend(info_header);
    der.extend(VERSION);
    der.extend(name);
    der.extend(kind.spki_begin);
    // Only whole groups of three bytes, which are whole characters: the last characters would depend on the following
    // bytes. The bytes removed belong to the key's kind, never to the name.
    der.truncate(der.len() / 3 * 3);
    let mut pem = PEM_BEGIN.to_owned();
    for (at, character) in STANDARD.encode(der).chars().enumerate() {
        if at > 0 && at % PEM_LINE == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    let mut text = pem.into_bytes();
    text.truncate(text.len() / 3 * 3);
    STANDARD.encode(text)
}

/// SEQUENCE { SET { O }, SET { CN } }, as Go writes names.
fn subject(organisation: &str, common_name: &str) -> Vec<u8> {
    let attribute = |kind: [u8; 3], value: &str| {
        let mut inner = vec![0x06, 0x03];
        inner.extend(kind);
        inner.extend(header(0x13, value.len()));
        inner.extend(value.as_bytes());
        wrap(0x31, wrap(0x30, inner))
    };
    let mut names = attribute(ORGANISATION_OID, organisation);
    names.extend(attribute(COMMON_NAME, common_name));
    wrap(0x30, names)
}

fn wrap(tag: u8, content: Vec<u8>) -> Vec<u8> {
    let mut der = header(tag, content.len());
    der.extend(content);
    der
}

/// Tag and length, in the shortest form.
fn header(tag: u8, length: usize) -> Vec<u8> {
    let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    match (length, u8::try_from(bytes.len())) {
        (0..=0x7f, _) => vec![tag, u8::try_from(length).unwrap_or_default()],
        (_, Ok(count)) => [vec![tag, 0x80 | count], bytes].concat(),
        (_, Err(_)) => unreachable!("a usize has eight bytes"),
    }
}

/// Whether a control-plane request (PEM) names exactly this consumer and nothing else.
#[must_use]
pub fn tenant_subject_is(pem: &[u8], consumer: &str) -> bool {
    let Ok((rest, pem)) = x509_parser::pem::parse_x509_pem(pem) else { return false };
    if !rest.iter().all(u8::is_ascii_whitespace) || pem.label != "CERTIFICATE REQUEST" {
        return false;
    }
    let Ok((rest, request)) = X509CertificationRequest::from_der(&pem.contents) else { return false };
    rest.is_empty() && is_control_plane(&request.certification_request_info.subject, consumer)
}

/// Whether a signed certificate (PEM) names exactly this consumer.
pub(crate) fn certificate_is(pem: &[u8], consumer: &str) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    is_control_plane(certificate.subject(), consumer)
}

fn is_control_plane(subject: &X509Name<'_>, consumer: &str) -> bool {
    let organisation = |value: &AttributeTypeAndValue<'_>| value.as_str().is_ok_and(|text| text == CONTROL_PLANE);
    let name = |value: &AttributeTypeAndValue<'_>| value.as_str().is_ok_and(|text| text == consumer);
    subject.iter_attributes().count() == 2
        && subject.iter_organization().any(organisation)
        && subject.iter_common_name().any(name)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Made by Go's crypto/x509, as Liqo makes them: O=origin, CN=lease-7-181fdd46fc4a.
    const ED25519_CSR: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHdk1HTUNBUUF3TURFUE1BMEdBMVVFQ2hNR2IzSnBaMmx1TVIwd0d3WURWUVFERXhSc1pXRnpaUzAzTFRFNApNV1prWkRRMlptTTBZVEFxTUFVR0F5dGxjQU1oQUFPaEI3L3p6aEMrSFhEZEdPZEx3SmxuNU5Zd202VU5YeDNjCmhtUVNWVEc0b0FBd0JRWURLMlZ3QTBFQWVNeGR3VnlGcElqMHRrN3BVckF5VVRkcDNjK3luam9VWTZYL1gwMnIKWGk0NUtjY0VWT0wxQ0NYcnlTb0ZraDAwMTJmeDA1WHBnUjRiSXdESTJ5WUNDUT09Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";
    const RSA_CSR_BEGIN: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlJQ2RUQ0NBVjBDQVFBd01ERVBNQTBHQTFVRUNoTUdiM0pwWjJsdU1SMHdHd1lEVlFRREV4UnNaV0Z6WlMwMwpMVEU0TVdaa1pEUTJabU0wWVRDQ0FTSXdEUVlKS29aSWh2Y05BUUVCQlFBRGdnRVBBRENDQVFvQ2dnRUJBTEljClVYK1NqVDhZSDdGMXo3";

    #[test]
    fn the_user_of_a_slice_is_named_as_liqo_names_it() {
        assert_eq!(slice_user("lease-7", "origin"), "lease-7-181fdd46fc4a");
    }

    #[test]
    fn requests_made_by_go_begin_as_computed_and_others_do_not() {
        let [ed25519, rsa] = slice_csr_beginnings("lease-7", "origin");
        assert!(ED25519_CSR.starts_with(&ed25519), "{ed25519}");
        assert!(RSA_CSR_BEGIN.starts_with(&rsa), "{rsa}");
        // The text contains the whole subject: it ends within the key's kind.
        let pem = STANDARD.decode(&ed25519).unwrap();
        let body: String = String::from_utf8(pem).unwrap().trim_start_matches(PEM_BEGIN).replace('\n', "");
        let body = body.get(..body.len() / 4 * 4).unwrap();
        let der = STANDARD.decode(body).unwrap();
        let name = subject("origin", "lease-7-181fdd46fc4a");
        assert!(der.len() >= name.len() + 9 && der.windows(name.len()).any(|window| window == name));
        for other in [slice_csr_beginnings("lease-8", "origin"), slice_csr_beginnings("lease-7", "origim")] {
            assert!(!ED25519_CSR.starts_with(&other[0]));
        }
    }

    #[test]
    fn a_tenant_may_ask_for_its_own_name_in_one_group_only() {
        let request = |organisations: &[&str], name: &str| {
            let mut subject = rcgen::DistinguishedName::new();
            subject.push(rcgen::DnType::CommonName, name);
            for (at, organisation) in organisations.iter().enumerate() {
                // rcgen keeps one value of each type; the second organisation is added as another type first.
                let kind =
                    if at == 0 { rcgen::DnType::OrganizationName } else { rcgen::DnType::OrganizationalUnitName };
                subject.push(kind, *organisation);
            }
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = subject;
            params.serialize_request(&key).unwrap().pem().unwrap().into_bytes()
        };
        assert!(tenant_subject_is(&request(&["liqo.io"], "origin"), "origin"));
        for wrong in [
            request(&["liqo.io"], "other"),
            request(&["system:masters"], "origin"),
            request(&["liqo.io", "admins"], "origin"),
            b"-----BEGIN CERTIFICATE REQUEST-----\n".to_vec(),
            Vec::new(),
        ] {
            assert!(!tenant_subject_is(&wrong, "origin"));
        }
        let slice = STANDARD.decode(ED25519_CSR).unwrap();
        assert!(!tenant_subject_is(&slice, "origin"));
    }
}
