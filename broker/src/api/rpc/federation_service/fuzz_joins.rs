//! Fuzzes the calls of those who have no certificate yet.

use comity_fuzz::fuzz;
use comity_proto::UDP_PROBE_NONCE_BYTES;
use comity_runtime::ca::KeyAndCsr;
use comity_runtime::join_token::SECRET_BYTES;
use comity_runtime::{IdentityKey, SeededEntropy};
use prost::Message as _;

use super::check_join::JoinCheck;
use super::*;

#[test]
fn calls_of_those_who_join() {
    let key = IdentityKey::generate(&SeededEntropy::new(7));
    let csr = KeyAndCsr::generate().expect("a request").csr;
    let join = v1::JoinRequest {
        cluster: "campus".to_owned(),
        secret: vec![1; SECRET_BYTES],
        csr_der: csr.as_bytes().to_vec(),
        voucher: vec![2; 64],
        ..v1::JoinRequest::default()
    };
    let check = v1::CheckJoinRequest {
        cluster: "campus".to_owned(),
        secret: vec![1; SECRET_BYTES],
        udp_endpoints: vec!["192.0.2.1:51871".to_owned()],
        nonce: vec![3; UDP_PROBE_NONCE_BYTES],
    };
    fuzz!("join_request", vec![join.encode_to_vec(), check.encode_to_vec()], move |bytes: &[u8]| {
        let checked = v1::CheckJoinRequest::decode(bytes).map(JoinCheck::parse);
        let joined = v1::JoinRequest::decode(bytes).map(|join| {
            let as_it_came = parse_join(join.clone()).map(drop);
            // Proved again: only so does an edit get past the proof.
            let proof = key.sign(JOIN_PROOF_DOMAIN, &[&join.csr_der]).as_bytes().to_vec();
            let proved = v1::JoinRequest { identity_key: key.public().to_string(), identity_proof: proof, ..join };
            let joined = parse_join(proved).map(drop);
            assert!(as_it_came.is_err() || joined.is_ok(), "{as_it_came:?}, and proved again {joined:?}");
            joined
        });
        let refusals = [checked.map(|checked| checked.map(drop)), joined];
        let named = refusals.iter().flatten().filter_map(|parsed| parsed.as_ref().err());
        for refusal in named {
            assert!(!refusal.field.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
        }
        refusals.iter().flatten().any(Result::is_ok)
    });
}
