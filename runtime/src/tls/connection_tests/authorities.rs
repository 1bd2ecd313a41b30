//! What a stolen intermediate, or another authority of the same root, can do; and how root and intermediates change.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

use super::*;
use crate::ca::{PreviousRoot, RootAuthority};
use crate::identity::{IdentityPem, TrustedRoots};
use crate::secret::SecretString;

const BROKER: &str = "spiffe://dev.test/broker/1";
const DOMAIN: &str = "spiffe://dev.test";

struct Certified {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate that `signer` signs; without one it signs itself.
fn certify(name: &str, uri: Option<&str>, is_ca: IsCa, signer: Option<&Certified>) -> Certified {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = uri.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap())).collect();
    params.is_ca = is_ca;
    let made = match signer {
        Some(signer) => params.signed_by(&key, &signer.issuer),
        None => params.self_signed(&key),
    };
    Certified { pem: made.unwrap().pem(), issuer: Issuer::new(params, key) }
}

fn authority(path_length: u8) -> IsCa {
    IsCa::Ca(BasicConstraints::Constrained(path_length))
}

/// The identity of a leaf with what its owner presents.
fn identity(leaf: &Certified, presented: &[&str], roots: &str) -> TlsIdentity {
    let chain = format!("{}{}", leaf.pem, presented.concat());
    let key = SecretString::new(leaf.issuer.key().serialize_pem());
    TlsIdentity::from_pem(&IdentityPem { key, chain, ca: roots.to_owned() }).unwrap()
}

/// The reasons why `ours` refuses `theirs`, which accepts it: as server, then as client.
async fn refusals(ours: &TlsIdentity, theirs: &TlsIdentity) -> [Option<String>; 2] {
    let roots = ours.roots();
    let client = |source: &IdentitySource| ClientTls::new(roots, source.subscribe());
    let server = |source: &IdentitySource| ServerTls::new(source.subscribe(), roots);
    let (ours, theirs) = (IdentitySource::new(ours.clone()), IdentitySource::new(theirs.clone()));
    let as_server = handshake(&server(&ours), &client(&theirs)).await.0;
    let as_client = handshake(&server(&theirs), &client(&ours)).await.1;
    [as_server.err().map(|error| error.to_string()), as_client.err().map(|error| error.to_string())]
}

#[tokio::test]
async fn stolen_intermediate_signs_no_further_authority() {
    let federation = Federation::new("dev.test");
    let ca = &federation.0;
    let key = KeyPair::from_pem(ca.key_pem().expose()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(ca.chain_pem(), key).unwrap();
    let stolen = Certified { pem: ca.chain_pem().to_owned(), issuer };
    let further = certify("further", Some(DOMAIN), authority(0), Some(&stolen));
    let leaf = certify("leaf", Some(BROKER), IsCa::ExplicitNoCa, Some(&further));
    let forged = identity(&leaf, &[&further.pem, &stolen.pem, ca.root_pem()], ca.root_pem());
    let ours = federation.identity(&federation.broker(2), HOUR);
    for refused in refusals(&ours, &forged).await {
        assert!(refused.is_some());
    }
    // The same leaf of the intermediate itself would do.
    let leaf = certify("leaf", Some(BROKER), IsCa::ExplicitNoCa, Some(&stolen));
    let good = identity(&leaf, &[&stolen.pem, ca.root_pem()], ca.root_pem());
    assert_eq!(refusals(&ours, &good).await, [None, None]);
}

#[tokio::test]
async fn foreign_authority_under_the_same_root_is_refused() {
    // An institution's root that signs for many purposes names no trust domain.
    let root = certify("institution", None, authority(2), None);
    let ours = certify("comity", Some(DOMAIN), authority(0), Some(&root));
    let mail = certify("mail", None, authority(0), Some(&root));
    let leaf = |signer| certify("leaf", Some(BROKER), IsCa::ExplicitNoCa, Some(signer));
    let member = identity(&leaf(&ours), &[&ours.pem, &root.pem], &root.pem);
    let peer = identity(&leaf(&ours), &[&ours.pem], &root.pem);
    assert_eq!(refusals(&member, &peer).await, [None, None]);

    let forged = identity(&leaf(&mail), &[&mail.pem, &ours.pem, &root.pem], &root.pem);
    for refused in refusals(&member, &forged).await {
        assert!(refused.unwrap().contains("not signed by the root of this federation"));
    }
    let forged = identity(&leaf(&root), &[&ours.pem, &root.pem], &root.pem);
    for refused in refusals(&member, &forged).await {
        assert!(refused.unwrap().contains("signed by the root itself"));
    }
}

#[tokio::test]
async fn stolen_intermediate_is_void_after_root_rotation() {
    let (now, domain) = (SystemTime::now(), TrustDomain::new("dev.test").unwrap());
    let old = RootAuthority::create(domain.clone(), now).unwrap();
    let stolen = old.intermediate(HOUR * 24, PreviousRoot::Trusted, now).unwrap();
    let new = old.successor(now).unwrap().intermediate(HOUR * 24, PreviousRoot::Dropped, now).unwrap();
    let of = |ca: &CertificateAuthority, number| {
        let pem = ca.new_identity(&SpiffeId::broker(domain.clone(), number), &[], HOUR, now).unwrap();
        TlsIdentity::from_pem(&pem).unwrap()
    };
    for refused in refusals(&of(&new, 1), &of(&stolen, 2)).await {
        assert!(refused.unwrap().contains("not signed by the root of this federation"));
    }
    assert_eq!(refusals(&of(&new, 1), &of(&new, 2)).await, [None, None]);
}

#[tokio::test]
async fn intermediates_and_roots_rotate_while_a_stream_stays_open() {
    let (now, domain) = (SystemTime::now(), TrustDomain::new("dev.test").unwrap());
    let root = RootAuthority::create(domain.clone(), now).unwrap();
    let successor = root.successor(now).unwrap();
    let next = |root: &RootAuthority, previous| root.intermediate(HOUR * 24, previous, now).unwrap();
    let authorities = [
        next(&root, PreviousRoot::Trusted),
        next(&root, PreviousRoot::Trusted),
        next(&successor, PreviousRoot::Trusted),
        next(&successor, PreviousRoot::Dropped),
    ];
    let issue = |ca: &CertificateAuthority, id: &SpiffeId| {
        TlsIdentity::from_pem(&ca.new_identity(id, &[], HOUR, now).unwrap()).unwrap()
    };
    let broker_id = SpiffeId::broker(domain.clone(), 1);
    let agent_id = SpiffeId::cluster(domain, ClusterName::new("ethz").unwrap());
    let server = IdentitySource::new(issue(&authorities[0], &broker_id));
    let agent = IdentitySource::new(issue(&authorities[0], &agent_id));
    let broker = Broker::start_with(ServerTls::new(server.subscribe(), TrustedRoots::of(&server)));
    let tls = ClientTls::new(TrustedRoots::of(&agent), agent.subscribe());
    let channel = connect(&broker.endpoints(), &tls);
    let mut stream = HealthClient::new(channel.clone()).watch(health_request()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();

    // A thief of the first intermediate connects once, and holds the connection.
    let thief = IdentitySource::new(issue(&authorities[0], &agent_id));
    let held = connect(&broker.endpoints(), &ClientTls::new(TrustedRoots::of(&agent), thief.subscribe()));
    check(&held).await.unwrap();
    let held_by_thief = broker.last_caller();
    let mut serving = true;
    for ca in &authorities[1..] {
        assert!(held_by_thief.is_trusted());
        // The broker changes first. The agent, which knows the old authority only, renews its certificate at it.
        server.update(issue(ca, &broker_id));
        dial(&broker.address.to_string(), &tls, SOON).await.unwrap();
        check(&connect(&broker.endpoints(), &tls)).await.unwrap();
        agent.update(issue(ca, &agent_id));
        check(&channel).await.unwrap();
        serving = !serving;
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        broker.health.set_service_status("", status).await;
        tokio::time::timeout(SOON, stream.message()).await.unwrap().unwrap().unwrap();
    }
    assert!(!held_by_thief.is_trusted());
    check(&channel).await.unwrap();
    assert!(broker.last_caller().is_trusted());
    // What the old root signed opens no connection any more, and what the new one signs is not accepted by it.
    let late = IdentitySource::new(issue(&authorities[1], &agent_id));
    let late = ClientTls::new(TrustedRoots::of(&agent), late.subscribe());
    assert!(check(&connect(&broker.endpoints(), &late)).await.is_err());
}
