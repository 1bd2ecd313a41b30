#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;

use x509_parser::prelude::{FromDer, X509Certificate};

use rcgen::BasicConstraints;

use super::template::uri_name;
use super::*;
use crate::identity::CertificateFacts;
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
    assert_eq!(chain.len(), 3);
    assert_eq!(chain[1..2], ca.chain);
    assert_eq!(RootHash::of(&chain[2]), ca.root_sha256());
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
    let late = ca.not_after() + VALIDITY;
    let ended = ca.issue(&good, &cluster(), &[], VALIDITY, late, 0).unwrap_err();
    assert!(matches!(ended, CaError::IntermediateEnded { .. }), "{ended}");
    assert!(ended.to_string().contains("comity-broker ca intermediate"), "{ended}");
    let hosts = vec!["a.test".parse().unwrap(); MAX_NAMES + 1];
    assert!(matches!(ca.issue(&good, &cluster(), &hosts, VALIDITY, now, 0), Err(CaError::Names { .. })));
}

#[test]
fn saved_once_with_mode_0600_and_loaded_again() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    ca.save(home.path()).unwrap();
    let mode = std::fs::metadata(CertificateAuthority::key_file(home.path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let loaded = CertificateAuthority::load(home.path()).unwrap();
    assert_eq!(loaded.root_sha256(), ca.root_sha256());
    assert_eq!(loaded.trust_domain(), &domain());
    let identity = loaded.new_identity(&cluster(), &[], VALIDITY, SystemTime::now()).unwrap();
    TlsIdentity::from_pem(&identity).unwrap();
    assert!(authority().save(home.path()).is_err());
    assert_eq!(CertificateAuthority::load(home.path()).unwrap().root_sha256(), ca.root_sha256());
    assert!(!format!("{ca:?}").contains("PRIVATE"));
}

#[test]
fn a_key_of_another_authority_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    authority().save(one.path()).unwrap();
    authority().save(two.path()).unwrap();
    std::fs::copy(CertificateAuthority::key_file(two.path()), CertificateAuthority::key_file(one.path())).unwrap();
    let error = CertificateAuthority::load(one.path()).unwrap_err().to_string();
    assert!(error.contains("tls.key is not the key"), "{error}");
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
        verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now()).is_ok()
    };
    assert!(["lb.test", "127.0.0.1", "::1"].into_iter().all(accepts));
    assert!(!["other.test", "127.0.0.2"].into_iter().any(accepts));
}

#[test]
fn a_certificate_never_outlives_its_intermediate() {
    let now = SystemTime::now();
    let root = RootAuthority::create(domain(), now).unwrap();
    let ca = root.intermediate(VALIDITY, PreviousRoot::Trusted, now).unwrap();
    let csr = KeyAndCsr::generate().unwrap().csr;
    let issued = ca.issue(&csr, &cluster(), &[], VALIDITY * 2, now, 0).unwrap();
    assert_eq!(issued.not_after, ca.not_after());
    assert!(ca.not_after() <= now + VALIDITY);
    let within = ca.issue(&csr, &cluster(), &[], VALIDITY / 2, now, 0).unwrap();
    assert_eq!(within.not_after, now + VALIDITY / 2);
    // Two thirds of its life, which begins a day before its issue.
    assert!(ca.renew_at() < ca.not_after() && ca.renew_at() > ca.not_before());
}

#[test]
fn a_root_signs_intermediates_within_its_own_life() {
    let now = SystemTime::now();
    let root = RootAuthority::create(domain(), now).unwrap();
    let make = |validity, at| root.intermediate(validity, PreviousRoot::Trusted, at).map(drop);
    assert!(matches!(make(Duration::ZERO, now), Err(CaError::IntermediateValidity { .. })));
    assert!(matches!(make(MAX_INTERMEDIATE_VALIDITY + VALIDITY, now), Err(CaError::IntermediateValidity { .. })));
    assert!(matches!(make(VALIDITY, root.not_after()), Err(CaError::RootEnds)));
}

#[test]
fn a_root_is_saved_once_and_never_leaves_its_directory() {
    let home = tempfile::tempdir().unwrap();
    let (root_dir, ca_dir) = (home.path().join("root"), home.path().join("ca"));
    let root = RootAuthority::create(domain(), SystemTime::now()).unwrap();
    root.save(&root_dir).unwrap();
    let key = std::fs::read_to_string(root_dir.join("root-key.pem")).unwrap();
    let mode = std::fs::metadata(root_dir.join("root-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(RootAuthority::create(domain(), SystemTime::now()).unwrap().save(&root_dir).is_err());
    let loaded = RootAuthority::load(&root_dir).unwrap();
    assert_eq!(loaded.sha256(), root.sha256());

    let ca = loaded.intermediate(VALIDITY, PreviousRoot::Trusted, SystemTime::now()).unwrap();
    assert_eq!(ca.root_sha256(), root.sha256());
    ca.save(&ca_dir).unwrap();
    let secret = key.lines().nth(1).unwrap();
    for file in std::fs::read_dir(&ca_dir).unwrap() {
        assert!(!std::fs::read_to_string(file.unwrap().path()).unwrap().contains(secret));
    }
    assert!(!format!("{root:?} {ca:?}").contains("PRIVATE"));
}

#[test]
fn a_successor_is_accepted_by_those_who_know_the_old_root_until_that_is_dropped() {
    let now = SystemTime::now();
    let home = tempfile::tempdir().unwrap();
    let old = RootAuthority::create(domain(), now).unwrap();
    let before = old.intermediate(VALIDITY, PreviousRoot::Trusted, now).unwrap();
    old.successor(now).unwrap().save(home.path()).unwrap();
    let new = RootAuthority::load(home.path()).unwrap();
    let both = new.intermediate(VALIDITY, PreviousRoot::Trusted, now).unwrap();
    let after = new.intermediate(VALIDITY, PreviousRoot::Dropped, now).unwrap();
    assert_eq!([both.root_sha256(), after.root_sha256()], [new.sha256(), new.sha256()]);
    assert!(both.roots().contains(&old.sha256()) && !after.roots().contains(&old.sha256()));

    let accepts = |roots: &Roots, issuer: &CertificateAuthority| {
        let pem = issuer.new_identity(&SpiffeId::broker(domain(), 1), &[], VALIDITY, now).unwrap();
        let chain = parse_chain("chain", &pem.chain).unwrap();
        roots.verify_server(&chain[0], &roots.authorities(&chain[1..]), UnixTime::now()).is_ok()
    };
    for (verifier, issuer, expected) in [
        (&before, &both, true),
        (&both, &before, true),
        (&both, &after, true),
        (&after, &both, true),
        (&before, &after, false),
        (&after, &before, false),
    ] {
        assert_eq!(accepts(verifier.roots(), issuer), expected, "{verifier:?} {issuer:?}");
    }
}

#[test]
fn a_replacement_that_a_crash_interrupted_is_finished() {
    let (home, prepared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (old, new) = (authority(), authority());
    old.save(home.path()).unwrap();
    new.replace(home.path()).unwrap();
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!(
        (CertificateAuthority::load(home.path()).unwrap().root_sha256(), names(home.path())),
        (new.root_sha256(), 3)
    );

    // Killed after the first file was moved out of the complete folder.
    let last = authority();
    last.save(prepared.path()).unwrap();
    std::fs::rename(prepared.path(), home.path().join("next")).unwrap();
    std::fs::rename(home.path().join("next/ca.crt"), home.path().join("ca.crt")).unwrap();
    assert_eq!(CertificateAuthority::load(home.path()).unwrap().root_sha256(), last.root_sha256());
    assert_eq!(names(home.path()), 3);
    // Killed before the folder was complete.
    std::fs::create_dir(home.path().join(".next")).unwrap();
    assert_eq!(CertificateAuthority::load(home.path()).unwrap().root_sha256(), last.root_sha256());
    new.replace(home.path()).unwrap();
    assert_eq!(CertificateAuthority::load(home.path()).unwrap().root_sha256(), new.root_sha256());
}

#[test]
fn a_live_authority_stays_in_its_federation() {
    let live = LiveAuthority::new(authority());
    let next = authority();
    let (expected, mut changes) = (next.root_sha256(), live.subscribe());
    live.replace(next).unwrap();
    assert!(changes.has_changed().unwrap() && changes.borrow_and_update().root_sha256() == expected);
    let other = CertificateAuthority::create(TrustDomain::new("other.test").unwrap(), SystemTime::now()).unwrap();
    assert!(matches!(live.replace(other), Err(CaError::OtherAuthority { .. })));
    assert_eq!(live.root_sha256(), expected);
}

/// A root and an intermediate that OpenSSL made, as any other authority may.
fn by_openssl(dir: &Path, uri: &str) {
    std::fs::create_dir_all(dir).unwrap();
    let names = format!("basicConstraints=critical,CA:TRUE,pathlen:0\nsubjectAltName=URI:{uri}\n");
    std::fs::write(dir.join("names"), names).unwrap();
    let run = |arguments: &str| {
        let done = std::process::Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().unwrap();
        assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let key = "ecparam -name prime256v1 -genkey -noout";
    for name in ["root", "tls"] {
        run(&format!("{key} -out {name}.sec1"));
        run(&format!("pkcs8 -topk8 -nocrypt -in {name}.sec1 -out {name}.key"));
    }
    std::fs::set_permissions(dir.join("tls.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    run("req -x509 -new -key root.key -subj /O=Example/CN=Root -days 30 -out ca.crt");
    run("req -new -key tls.key -subj /O=Example/CN=Intermediate -out tls.csr");
    run("x509 -req -in tls.csr -CA ca.crt -CAkey root.key -CAcreateserial -days 10 -extfile names -out tls.crt");
}

#[test]
fn an_intermediate_of_another_authority_is_used_if_it_names_the_trust_domain() {
    let home = tempfile::tempdir().unwrap();
    by_openssl(home.path(), "spiffe://dev.test");
    let ca = CertificateAuthority::load(home.path()).unwrap();
    assert_eq!(ca.trust_domain(), &domain());
    let pem = ca.new_identity(&cluster(), &[], VALIDITY, SystemTime::now()).unwrap();
    let identity = TlsIdentity::from_pem(&pem).unwrap();
    assert!(ca.has_issued(&identity) && !authority().has_issued(&identity));
    assert!(identity.roots().contains(&ca.root_sha256()));

    let other = tempfile::tempdir().unwrap();
    by_openssl(other.path(), "https://dev.test");
    let error = CertificateAuthority::load(other.path()).unwrap_err();
    assert!(error.to_string().contains("trust domain"), "{error}");
    // The intermediate of another root.
    std::fs::copy(other.path().join("ca.crt"), home.path().join("ca.crt")).unwrap();
    let error = CertificateAuthority::load(home.path()).unwrap_err().to_string();
    assert!(error.contains("does not lead to a root in ca.crt"), "{error}");
}

#[test]
fn authority_key_is_readable_for_others() {
    let home = tempfile::tempdir().unwrap();
    let (root_dir, dir) = (home.path().join("root"), home.path().join("ca"));
    let root = RootAuthority::create(domain(), SystemTime::now()).unwrap();
    root.save(&root_dir).unwrap();
    authority().save(&dir).unwrap();
    let (root_key, key) = (root_dir.join("root-key.pem"), CertificateAuthority::key_file(&dir));
    let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o644, 0o604, 0o602, 0o666] {
        set(&root_key, mode);
        set(&key, mode);
        let refused = [RootAuthority::load(&root_dir).err(), CertificateAuthority::load(&dir).err()];
        for (error, path) in refused.into_iter().zip([&root_key, &key]) {
            let error = error.unwrap().to_string();
            assert!(error.ends_with(&format!("run: chmod go= {}", path.display())), "{mode:o}: {error}");
        }
    }
    for mode in [0o600, 0o400] {
        set(&root_key, mode);
        set(&key, mode);
        RootAuthority::load(&root_dir).unwrap();
        CertificateAuthority::load(&dir).unwrap();
    }
}
