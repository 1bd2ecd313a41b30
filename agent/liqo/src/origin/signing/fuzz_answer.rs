//! Fuzzes what a donor sends: only text of the form of a nonce may be signed.

use comity_fuzz::fuzz;

use super::*;
use crate::messages::Message as _;
use crate::{BearerToken, IdentityParams, PeerCredential};

#[test]
fn messages_of_donors() {
    let seed = [7; 32];
    let der = [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20][..], &seed].concat();
    let key = pem_block("PRIVATE KEY", &der);
    let challenge = Challenge { nonce: STANDARD.encode(STANDARD.encode([9; NONCE_BYTES])) };
    let identity = |credential| IdentityParams {
        ca: "Q0E=".into(),
        credential,
        api_server: "https://donor.test:6443".into(),
        tenant_namespace: "liqo-tenant-south".into(),
    };
    let valid = vec![
        challenge.encode(),
        identity(PeerCredential::Token(BearerToken::new("token".into()))).encode(),
        identity(PeerCredential::Certificate("Q0VSVA==".into())).encode(),
    ];
    fuzz!("liqo_answer", valid, move |bytes: &[u8]| {
        let Ok(challenge) = Challenge::decode(bytes) else { return IdentityParams::decode(bytes).is_ok() };
        let answer = answer(&challenge, key.as_bytes(), "south");
        let signed = STANDARD.decode(&challenge.nonce).ok().and_then(|text| STANDARD.decode(text).ok());
        assert_eq!(answer.is_ok(), signed.is_some_and(|nonce| nonce.len() == NONCE_BYTES), "signed: {answer:?}");
        answer.is_ok()
    });
}
