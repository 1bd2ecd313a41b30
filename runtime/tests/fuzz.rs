//! Fuzzes what arrives before anybody is known: tokens, certificates, requests for them, and envelopes.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use comity_fuzz::fuzz;
use comity_runtime::ca::{CertificateAuthority, CsrDer, KeyAndCsr};
use comity_runtime::entropy::SeededEntropy;
use comity_runtime::identity::{IdentityPem, Roots, TlsIdentity};
use comity_runtime::join_token::JoinToken;
use comity_runtime::sealing::{SealContext, open, public_key, seal};
use comity_runtime::signing::{IdentityKey, IdentityPublicKey, IdentitySignature};
use comity_runtime::spiffe::{SpiffeId, TrustDomain};
use comity_runtime::tls::BrokerEndpoints;
use comity_runtime::{ClusterName, HostName, RootHash, UserName};
use comity_types::{is_printable, is_printable_text, printable, printable_json, printable_line, redact_secrets};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// Bytes of X-Wing's encapsulated key.
const ENCAPSULATED_BYTES: usize = 1_120;

fn authority() -> CertificateAuthority {
    CertificateAuthority::create(TrustDomain::new("dev.test").expect("a domain"), SystemTime::now()).expect("made")
}

fn id() -> SpiffeId {
    "spiffe://dev.test/cluster/campus".parse().expect("an id")
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn pem_of(der: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der))
}

#[test]
fn join_tokens() {
    let brokers: BrokerEndpoints = "127.0.0.1:7443,[::1]:7443,b.test:7443".parse().expect("endpoints");
    let root = "ab".repeat(32).parse().expect("a hash");
    let token = JoinToken::generate(brokers, root, id(), &SeededEntropy::new(1)).encode();
    let (prefix, json) = token.expose().rsplit_once('.').expect("a prefix");
    let (prefix, json) = (prefix.to_owned(), URL_SAFE_NO_PAD.decode(json).expect("base64"));
    // The JSON is edited, not its base64, which would only be refused as such.
    fuzz!("join_token", vec![json], move |json: &[u8]| {
        let as_token = format!("{prefix}.{}", URL_SAFE_NO_PAD.encode(json)).parse::<JoinToken>();
        let _ = text(json).map(str::parse::<JoinToken>);
        as_token.is_ok()
    });
}

/// Whether a text is a `T`. What was read is written, and reads the same.
fn reads<T: FromStr + Display + Debug + PartialEq>(text: &str) -> bool {
    let Ok(read) = text.parse::<T>() else { return false };
    assert_eq!(read.to_string().parse::<T>().ok(), Some(read));
    true
}

#[test]
fn names_and_addresses() {
    let key = IdentityKey::generate(&SeededEntropy::new(2));
    let voucher = key.vouch("polytechnic", &ClusterName::new("campus").expect("a name"), &key.public());
    let texts = [
        id().to_string(),
        key.public().to_string(),
        voucher.to_string(),
        "ab".repeat(32),
        "b.test:7443,[::1]:1".to_owned(),
        "LB.example.org".to_owned(),
        "ada.lovelace".to_owned(),
    ];
    fuzz!("names", texts.map(String::into_bytes).to_vec(), |bytes: &[u8]| {
        let Some(text) = text(bytes) else { return false };
        let _ = IdentitySignature::from_bytes(bytes);
        let is_key = reads::<IdentityPublicKey>(text) | reads::<IdentitySignature>(text) | reads::<RootHash>(text);
        let is_name = reads::<SpiffeId>(text) | reads::<TrustDomain>(text) | reads::<UserName>(text);
        let is_address = reads::<BrokerEndpoints>(text) | reads::<HostName>(text);
        is_key || is_name || is_address
    });
}

#[test]
fn certificates() {
    let authority = authority();
    let pem = authority.new_identity(&id(), &[], Duration::from_secs(3600), SystemTime::now()).expect("issued");
    let IdentityPem { key, chain, ca } = pem;
    let leaf = CertificateDer::from_pem_slice(chain.as_bytes()).expect("a certificate");
    let above = chain.split_once("-----END CERTIFICATE-----").map(|(_, above)| above.to_owned()).unwrap_or_default();
    fuzz!("certificate", vec![leaf.to_vec()], move |der: &[u8]| {
        let chain = pem_of(der) + &above;
        let domain = id().trust_domain().clone();
        let _ = Roots::from_pem(&pem_of(der), &domain);
        let _ = text(der).map(|text| Roots::from_pem(text, &domain));
        TlsIdentity::from_pem(&IdentityPem { key: key.clone(), chain, ca: ca.clone() }).is_ok()
    });
}

#[test]
fn certificates_as_text() {
    let pem = authority().new_identity(&id(), &[], Duration::from_secs(3600), SystemTime::now()).expect("issued");
    let IdentityPem { key, chain, ca } = pem;
    fuzz!("certificate_text", vec![chain.into_bytes()], move |bytes: &[u8]| {
        let Some(text) = text(bytes) else { return false };
        let _ = Roots::from_pem(text, id().trust_domain());
        TlsIdentity::from_pem(&IdentityPem { key: key.clone(), chain: text.to_owned(), ca: ca.clone() }).is_ok()
    });
}

#[test]
fn certificate_requests() {
    let authority = authority();
    let request = KeyAndCsr::generate().expect("a request");
    fuzz!("certificate_request", vec![request.csr.as_bytes().to_vec()], move |der: &[u8]| {
        let Ok(csr) = CsrDer::new(der.to_vec()) else { return false };
        authority.issue(&csr, &id(), &[], Duration::from_secs(3600), SystemTime::now(), 0).is_ok()
    });
}

#[test]
fn envelopes() {
    let (seed, context) = ([7; 32], SealContext { info: b"fuzz", associated: b"envelope" });
    let sealed = seal(&public_key(&seed), context, b"a credential", &SeededEntropy::new(3)).expect("sealed");
    let whole = [sealed.encapsulated_key, sealed.ciphertext].concat();
    fuzz!("envelope", vec![whole], move |bytes: &[u8]| {
        let (encapsulated, ciphertext) = bytes.split_at(bytes.len().min(ENCAPSULATED_BYTES));
        let _ = seal(bytes, context, b"to whatever key", &SeededEntropy::new(4));
        open(&seed, context, encapsulated, ciphertext).is_ok()
    });
}

#[test]
fn texts_for_people() {
    let valid =
        ["comity-join-v1.abc", "-----BEGIN PRIVATE KEY-----\nx", "    token: x\n", "{\"token\":\"x\"}", "\u{1b}[2J"];
    fuzz!("text", valid.iter().map(|text| text.as_bytes().to_vec()).collect(), |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let _ = redact_secrets(&text);
        assert!(is_printable(&printable_line(&text)) && is_printable_text(&printable(&text)));
        assert!(is_printable_text(&printable_json(&text)));
        true
    });
}
