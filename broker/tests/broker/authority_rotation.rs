//! Intermediates and the root change on a running broker: streams stay open, and what was stolen before is void.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_broker::provision::authority_commands::{OldRoots, install, make_intermediate, make_root};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::ca::{CertificateAuthority, KeyAndCsr, PreviousRoot};
use comity_runtime::identity::{IdentityDir, IdentityPem, IdentitySource, TlsIdentity, TrustedRoots};
use comity_runtime::join_token::JoinToken;
use comity_runtime::tls::{BrokerChannel, BrokerEndpoints, ClientTls, connect};
use comity_runtime::{IdentityKey, SystemEntropy};
use tonic::Code;

use super::fake_agent::FakeAgent;
use super::federation::{Federation, Member, identity_of, join_request, within};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A client that trusts the roots that came with its certificate, as agents and contexts do.
fn client(federation: &Federation, pem: &IdentityPem) -> BrokerChannel {
    let source = IdentitySource::new(TlsIdentity::from_pem(pem).unwrap());
    let brokers = BrokerEndpoints::new([federation.broker().client_addr().to_string()]).unwrap();
    connect(&brokers, &ClientTls::new(TrustedRoots::of(&source), source.subscribe()))
}

async fn get_federation(federation: &Federation, pem: &IdentityPem) -> v1::GetFederationResponse {
    let mut client = FederationServiceClient::new(client(federation, pem));
    client.get_federation(v1::GetFederationRequest {}).await.unwrap().into_inner()
}

fn admin_dir(federation: &Federation) -> PathBuf {
    federation.data().with_file_name("admin")
}

/// The admin's next certificate.
async fn renewed(federation: &Federation, pem: &IdentityPem) -> IdentityPem {
    let key = KeyAndCsr::generate().unwrap();
    let request = v1::RenewCertificateRequest { csr_der: key.csr.as_bytes().to_vec(), ..Default::default() };
    let mut client = FederationServiceClient::new(client(federation, pem));
    let answer = client.renew_certificate(request).await.unwrap().into_inner();
    let pem = IdentityPem { key: key.key_pem, chain: answer.certificate_pem, ca: answer.ca_pem };
    // As agents and contexts store it: with no root of a stranger.
    IdentityDir::new(admin_dir(federation)).renew(&pem).unwrap();
    pem
}

struct Rotation {
    federation: Federation,
    admin: IdentityPem,
    agent: FakeAgent,
    generation: u64,
}

impl Rotation {
    fn beside(&self, name: &str) -> PathBuf {
        self.federation.data().with_file_name(name)
    }

    /// Installs an intermediate, and waits until the broker issues with it. The stream from before goes on.
    async fn install(&mut self, from: &Path) {
        let expected = install(from, &self.federation.data(), OldRoots::MayChange).unwrap();
        let until = expected.not_after.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        within("the next intermediate", async {
            while get_federation(&self.federation, &self.admin).await.ca_intermediate_not_after_ms / 1_000 != until {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        self.generation += 1;
        let offer = Body::Offer(self.agent.offer(self.generation, 1));
        assert_eq!(self.agent.report(offer).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn intermediate_and_root_rotate_while_streams_stay_open_and_void_what_was_stolen() {
    let federation = Federation::start().await;
    let member = federation.join("ncc-main").await;
    let agent = FakeAgent::connect(&federation, &member).await.unwrap();
    let (admin, _) = IdentityDir::new(admin_dir(&federation)).load().unwrap();
    let invited = federation.invite("startup-pc", "before").await.unwrap();
    let root = federation.data().with_file_name("broker-1-root");
    let mut rotation = Rotation { federation, admin, agent, generation: 0 };

    let next = rotation.beside("next");
    make_intermediate(&root, DAY * 30, PreviousRoot::Trusted, &next).unwrap();
    rotation.install(&next).await;
    let stolen = CertificateAuthority::load(&next).unwrap();
    let repeated = rotation.federation.invite("startup-pc", "before").await.unwrap();
    assert_eq!(repeated.token, invited.token, "tokens do not depend on the intermediate");

    // The new root: who knows the old one only is served, and its next certificate brings both roots.
    let second = rotation.beside("root-2");
    let next_root = make_root(None, Some(&root), &second).unwrap();
    let token_root = get_federation(&rotation.federation, &rotation.admin).await.ca_sha256;
    let both = rotation.beside("both");
    make_intermediate(&second, DAY * 40, PreviousRoot::Trusted, &both).unwrap();
    rotation.install(&both).await;
    let token: JoinToken = invited.token.parse().unwrap();
    let identity = IdentityKey::generate(&SystemEntropy);
    let (request, key) = join_request("startup-pc", token.secret.expose(), &identity);
    let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
    let joined = FederationServiceClient::new(connect(&token.brokers, &tls)).join(request).await.unwrap().into_inner();
    let pem = IdentityPem { key: key.key_pem, chain: joined.certificate_pem, ca: joined.ca_pem };
    let member = Member { name: "startup-pc".to_owned(), identity, pem };
    let under_the_new_root = FakeAgent::connect(&rotation.federation, &member).await.unwrap();
    let under_the_old_root = std::mem::replace(&mut rotation.agent, under_the_new_root);
    rotation.generation = 0;
    rotation.admin = renewed(&rotation.federation, &rotation.admin).await;
    assert_eq!(TlsIdentity::from_pem(&rotation.admin).unwrap().roots().hashes().count(), 2);

    // The operator sees who has yet to renew.
    let mut raft = RaftServiceClient::new(client(&rotation.federation, &rotation.admin));
    let status = raft.get_raft_status(v1::GetRaftStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.issuing_root_sha256, next_root.to_string());
    let [old] = &status.old_roots[..] else { panic!("{:?}", status.old_roots) };
    assert_eq!((old.sha256.as_str(), old.clusters.join(",").as_str()), (token_root.as_str(), "ncc-main"));
    assert_eq!((old.cluster_count, old.user_count), (1, 0));
    assert!(old.last_not_after_ms > status.log_time_ms, "{old:?}");

    // The new root alone.
    let last = rotation.beside("last");
    make_intermediate(&second, DAY * 50, PreviousRoot::Dropped, &last).unwrap();
    let forged = identity_of(&stolen, "ncc-main");
    let trusting = |rotation: &Rotation| rotation.federation.channel(&forged);
    let mut held = FederationServiceClient::new(trusting(&rotation));
    held.get_federation(v1::GetFederationRequest {}).await.unwrap();
    rotation.install(&last).await;
    // Open connections are of no further use, to a thief or to a member that did not renew.
    let ended = within("the end of the old root's stream", under_the_old_root.obey()).await;
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended:?}");
    let refused = held.get_federation(v1::GetFederationRequest {}).await.unwrap_err();
    assert!(refused.message().contains("was replaced"), "{refused:?}");
    rotation.admin = renewed(&rotation.federation, &rotation.admin).await;
    assert_eq!(TlsIdentity::from_pem(&rotation.admin).unwrap().roots().hashes().count(), 1);
    FederationServiceClient::new(client(&rotation.federation, &rotation.admin))
        .get_federation(v1::GetFederationRequest {})
        .await
        .unwrap();
    // The listener changes right after the authority does.
    let refused = within("a refusal", async {
        loop {
            match FederationServiceClient::new(trusting(&rotation)).get_federation(v1::GetFederationRequest {}).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(refused) => return refused,
            }
        }
    })
    .await;
    assert!(refused.message().contains("refused this side's certificate"), "{refused:?}");
}
