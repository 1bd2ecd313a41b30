//! Fuzzes what an origin sends to be admitted. Its certificate request is tried by itself, too: edits would seldom get
//! past two layers of base64.

use comity_fuzz::fuzz;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::*;
use crate::messages::Message as _;

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

#[test]
fn requests_of_origins() {
    let peer = LiqoPeer { peering: "peer-3".into(), cluster: "campus".into(), liqo_id: "south".into() };
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "liqo.io");
    params.distinguished_name.push(DnType::CommonName, "south");
    let der = params.serialize_request(&key).expect("a request").der().to_vec();
    let request = |der: &[u8]| TenantRequest {
        public_key: STANDARD.encode("key"),
        csr: STANDARD.encode(pem("CERTIFICATE REQUEST", der)),
        signature: STANDARD.encode("signature"),
    };
    let valid = vec![request(&der).encode(), der];
    fuzz!("liqo_request", valid, move |bytes: &[u8]| {
        let _ = certificate_is(pem("CERTIFICATE", bytes).as_bytes(), &peer.liqo_id);
        let _ = tenant_subject_is(bytes, &peer.liqo_id);
        let as_sent = TenantRequest::decode(bytes).is_ok_and(|request| check_request(&peer, &request).is_ok());
        as_sent || check_request(&peer, &request(bytes)).is_ok()
    });
}
