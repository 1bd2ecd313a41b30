#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;

use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;
use crate::identity::{CertificateFacts, TlsIdentity, parse_chain};
use crate::spiffe::ClusterName;

const VALIDITY: Duration = Duration::from_secs(3600);

fn domain() -> TrustDomain {
    TrustDomain::new("dev.test").unwrap()
}

fn cluster() -> SpiffeId {
    SpiffeId::cluster(domain(), ClusterName::new("ethz").unwrap())
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create(domain(), SystemTime::now()).unwrap()
}

#[test]
fn the_broker_decides_the_content_of_a_certificate() {
    let ca = authority();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["evil.test".to_owned()]).unwrap();
    params.subject_alt_names.push(uri_name("spiffe://dev.test/broker/1").unwrap());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let csr = CsrDer::new(params.serialize_request(&key).unwrap().der().to_vec()).unwrap();
    let now = SystemTime::now();
    let hosts = ["a.test", "127.0.0.1", "::1"].map(|host| host.parse::<HostName>().unwrap());
    let issued = ca.issue(&csr, &cluster(), &hosts, VALIDITY, now, 0).unwrap();

    let chain = parse_chain("chain", &issued.chain_pem).unwrap();
    assert_eq!(chain.len(), 2);
    assert_eq!(RootHash::of(&chain[1]), ca.root_sha256());
    let facts = CertificateFacts::of(&chain[0]).unwrap();
    assert_eq!(facts.id, cluster());
    let seconds = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(seconds(facts.not_after), seconds(now + VALIDITY));
    assert_eq!(seconds(facts.not_before), seconds(now - BACKDATE));
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    assert!(!leaf.is_ca());
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth && !usage.any);
    assert!(leaf.name_constraints().unwrap().is_none());
    let names = &leaf.subject_alternative_name().unwrap().unwrap().value.general_names;
    assert_eq!(names.len(), 4);
    assert_eq!(facts.hosts, hosts);
    assert!(!format!("{names:?}").contains("evil"));
    assert_eq!(hex::encode(leaf.raw_serial()), issued.serial);
}

#[test]
fn serials_differ_for_the_same_key() {
    let ca = authority();
    let request = KeyAndCsr::generate().unwrap();
    let issue = || ca.issue(&request.csr, &cluster(), &[], VALIDITY, SystemTime::now(), 0).unwrap().serial;
    assert_ne!(issue(), issue());
}

#[test]
fn a_certificate_carries_its_generation() {
    let ca = authority();
    let request = KeyAndCsr::generate().unwrap();
    for generation in [0, 1, 4_711, (1 << 62) - 1] {
        let issued = ca.issue(&request.csr, &cluster(), &[], VALIDITY, SystemTime::now(), generation).unwrap();
        let chain = parse_chain("chain", &issued.chain_pem).unwrap();
        assert_eq!(CertificateFacts::of(&chain[0]).unwrap().generation, generation);
    }
    let first = ca.new_identity(&cluster(), &[], VALIDITY, SystemTime::now()).unwrap();
    assert_eq!(TlsIdentity::from_pem(&first).unwrap().generation(), 0);
}

#[test]
fn a_request_with_a_wrong_signature_is_refused() {
    let ca = authority();
    let mut der = KeyAndCsr::generate().unwrap().csr.as_bytes().to_vec();
    *der.last_mut().unwrap() ^= 1;
    let refused = ca.issue(&CsrDer::new(der).unwrap(), &cluster(), &[], VALIDITY, SystemTime::now(), 0);
    assert!(matches!(refused, Err(CaError::CsrSignature)), "{refused:?}");
}

#[test]
fn a_request_with_the_public_key_of_another_party_is_refused() {
    // The request has another party's public key, but the signature of its own key.
    let ca = authority();
    let (mine, theirs) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut der = CertificateParams::default().serialize_request(&mine).unwrap().der().to_vec();
    let (from, to) = (mine.public_key_raw(), theirs.public_key_raw());
    let at = der.windows(from.len()).position(|window| window == from).unwrap();
    der[at..at + to.len()].copy_from_slice(to);
    let refused = ca.issue(&CsrDer::new(der).unwrap(), &cluster(), &[], VALIDITY, SystemTime::now(), 0);
    assert!(matches!(refused, Err(CaError::CsrSignature)), "{refused:?}");
}

#[test]
fn garbage_is_refused_with_a_reason() {
    let ca = authority();
    let now = SystemTime::now();
    let good = KeyAndCsr::generate().unwrap().csr;
    let issue = |der: Vec<u8>| ca.issue(&CsrDer::new(der)?, &cluster(), &[], VALIDITY, now, 0);
    assert!(matches!(issue(vec![]), Err(CaError::CsrMalformed { .. })));
    assert!(matches!(issue(vec![0x30; 300]), Err(CaError::CsrMalformed { .. })));
    assert!(matches!(issue(vec![0; 9000]), Err(CaError::CsrTooLarge { bytes: 9000 })));
    let cut = good.as_bytes()[..good.as_bytes().len() - 5].to_vec();
    assert!(matches!(issue(cut), Err(CaError::CsrMalformed { .. })));
    let mut longer = good.as_bytes().to_vec();
    longer.push(0);
    assert!(matches!(issue(longer), Err(CaError::CsrMalformed { .. })));
    let other = SpiffeId::broker(TrustDomain::new("other.test").unwrap(), 1);
    let refused = ca.issue(&good, &other, &[], VALIDITY, now, 0);
    assert!(matches!(refused, Err(CaError::OtherTrustDomain { .. })));
    for validity in [Duration::ZERO, MAX_VALIDITY + VALIDITY] {
        let refused = ca.issue(&good, &cluster(), &[], validity, now, 0);
        assert!(matches!(refused, Err(CaError::Validity { .. })));
    }
    let late = now + ROOT_VALIDITY;
    assert!(matches!(ca.issue(&good, &cluster(), &[], VALIDITY, late, 0), Err(CaError::RootEnds)));
    let hosts = vec!["a.test".parse().unwrap(); MAX_NAMES + 1];
    assert!(matches!(ca.issue(&good, &cluster(), &hosts, VALIDITY, now, 0), Err(CaError::Names { .. })));
}

#[test]
fn saved_once_with_mode_0600_and_loaded_again() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    ca.save(home.path()).unwrap();
    let mode = std::fs::metadata(home.path().join(KEY_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let loaded = CertificateAuthority::load(home.path()).unwrap();
    assert_eq!(loaded.root_sha256(), ca.root_sha256());
    assert_eq!(loaded.trust_domain(), &domain());
    let identity = loaded.new_identity(&cluster(), &[], VALIDITY, SystemTime::now()).unwrap();
    crate::identity::TlsIdentity::from_pem(&identity).unwrap();
    assert!(authority().save(home.path()).is_err());
    assert_eq!(CertificateAuthority::load(home.path()).unwrap().root_sha256(), ca.root_sha256());
    assert!(!format!("{ca:?}").contains("PRIVATE"));
}

#[test]
fn a_key_of_another_root_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    authority().save(one.path()).unwrap();
    authority().save(two.path()).unwrap();
    std::fs::copy(two.path().join(KEY_FILE), one.path().join(KEY_FILE)).unwrap();
    let error = CertificateAuthority::load(one.path()).unwrap_err().to_string();
    assert!(error.contains("not the key of ca.pem"), "{error}");
}

#[test]
fn clients_that_check_host_names_accept_a_broker_by_its_names_only() {
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;

    let (ca, now) = (authority(), SystemTime::now());
    let hosts = ["lb.test", "127.0.0.1", "::1"].map(|host| host.parse::<HostName>().unwrap());
    let pem = ca.new_identity(&SpiffeId::broker(domain(), 1), &hosts, VALIDITY, now).unwrap();
    let chain = parse_chain("chain", &pem.chain).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(parse_chain("root", ca.root_pem()).unwrap().remove(0)).unwrap();
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots.into(), crate::crypto::provider()).build().unwrap();
    let accepts = |name: &str| {
        let name = name.to_owned().try_into().unwrap();
        verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], rustls_pki_types::UnixTime::now()).is_ok()
    };
    assert!(["lb.test", "127.0.0.1", "::1"].into_iter().all(accepts));
    assert!(!["other.test", "127.0.0.2"].into_iter().any(accepts));
}
