//! Evicted clusters, revoked users, suspended institutions and stolen keys, through the API of one broker and of three.

use std::time::{Duration, Instant};

use comity_broker::Broker;
use comity_broker::provision::revoked_user::is_revoked;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::broker_message::Body as Reply;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::ca::KeyAndCsr;
use comity_runtime::entropy::SystemEntropy;
use comity_runtime::identity::{IdentityPem, TlsIdentity};
use comity_runtime::join_token::JoinToken;
use comity_runtime::signing::IdentityKey;
use comity_runtime::spiffe::{SpiffeId, UserName};
use comity_runtime::tls::BrokerChannel;
use comity_testkit::timing::in_time;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::fake_agent::message;
use crate::federation::{Federation, Member, detail, join_request, spec, within};

/// Time within which streams, watches and calls end on every broker.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

fn spiffe(pem: &IdentityPem) -> SpiffeId {
    TlsIdentity::from_pem(pem).unwrap().id().clone()
}

/// Renews with the certificate in `pem`; `signer` signs, if there is one.
async fn renew(channel: BrokerChannel, pem: &IdentityPem, signer: Option<&IdentityKey>) -> Result<IdentityPem, Status> {
    let fresh = KeyAndCsr::generate().unwrap();
    let sign = |key: &IdentityKey| key.sign_renewal(&spiffe(pem), fresh.csr.as_bytes()).as_bytes().to_vec();
    let request = v1::RenewCertificateRequest {
        csr_der: fresh.csr.as_bytes().to_vec(),
        identity_proof: signer.map(sign).unwrap_or_default(),
    };
    let reply = FederationServiceClient::new(channel).renew_certificate(request).await?.into_inner();
    Ok(IdentityPem { key: fresh.key_pem, chain: reply.certificate_pem, ca: reply.ca_pem })
}

/// A token with which an agent takes the place of a member's.
async fn replacement(federation: &Federation, cluster: &str) -> JoinToken {
    let invite = v1::InviteClusterRequest {
        cluster: cluster.to_owned(),
        ttl_ms: 0,
        idempotency_key: format!("replace-{cluster}"),
        replace: true,
    };
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    admin.invite_cluster(invite).await.unwrap().into_inner().token.parse().unwrap()
}

/// Joins in the place of a member, with its identity key or another one.
async fn replace(federation: &Federation, cluster: &str, identity: IdentityKey) -> Member {
    let token = replacement(federation, cluster).await;
    let (request, key) = join_request(cluster, token.secret.expose(), &identity);
    let reply = FederationServiceClient::new(federation.anonymous()).join(request).await.unwrap().into_inner();
    let pem = IdentityPem { key: key.key_pem, chain: reply.certificate_pem, ca: reply.ca_pem };
    Member { name: cluster.to_owned(), identity, pem }
}

async fn evict(federation: &Federation, cluster: &str) -> v1::RevocationEffects {
    let request = v1::EvictClusterRequest {
        cluster: cluster.to_owned(),
        idempotency_key: format!("evict-{cluster}"),
        ..v1::EvictClusterRequest::default()
    };
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    admin.evict_cluster(request).await.unwrap().into_inner().effects.unwrap()
}

fn revocation_of_alice() -> v1::RevokeUserRequest {
    v1::RevokeUserRequest {
        user: "alice".to_owned(),
        idempotency_key: "alice".to_owned(),
        ..v1::RevokeUserRequest::default()
    }
}

fn code(status: &Status) -> (Code, String) {
    (status.code(), detail(status).code)
}

fn revoked() -> (Code, String) {
    (Code::PermissionDenied, "revoked".to_owned())
}

/// An agent's stream.
struct OpenStream {
    reports: mpsc::Sender<v1::AgentMessage>,
    replies: Streaming<v1::BrokerMessage>,
}

impl OpenStream {
    async fn open(channel: BrokerChannel) -> Result<Self, Status> {
        let (reports, receiver) = mpsc::channel(16);
        let hello = v1::Hello { instance: "one process".to_owned(), ..v1::Hello::default() };
        reports.send(message(0, Body::Hello(hello))).await.unwrap();
        let mut replies = AgentServiceClient::new(channel).connect(ReceiverStream::new(receiver)).await?.into_inner();
        let first = replies.message().await?.and_then(|reply| reply.body);
        assert!(matches!(first, Some(Reply::Welcome(_))), "{first:?}");
        Ok(Self { reports, replies })
    }

    /// How the stream ends. Fails if it carries a report until then.
    async fn end(mut self) -> Status {
        loop {
            match self.replies.message().await {
                Ok(Some(v1::BrokerMessage { body: Some(Reply::Ack(ack)) })) => {
                    assert!(ack.error.is_some(), "a report was carried out: {ack:?}");
                }
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a word"),
                Err(status) => return status,
            }
        }
    }
}

async fn watch(channel: BrokerChannel) -> Result<Streaming<v1::WatchEvent>, Status> {
    let mut events = WatchServiceClient::new(channel).watch(v1::WatchRequest::default()).await?.into_inner();
    events.message().await?;
    Ok(events)
}

async fn end_of_watch(mut events: Streaming<v1::WatchEvent>) -> Status {
    loop {
        match events.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the watch ended without a word"),
            Err(status) => return status,
        }
    }
}

/// Asserts that all of these ends come in time, each because of a revocation.
async fn all_end(ends: impl IntoIterator<Item = impl Future<Output = Status>>) {
    let began = Instant::now();
    for status in within("the ends", futures::future::join_all(ends)).await {
        assert_eq!(code(&status), revoked(), "{status:?}");
    }
    assert!(began.elapsed() <= ENDS_WITHIN, "{:?}", began.elapsed());
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_a_revoked_user_would_get_offline_is_known_to_be_void() {
    let federation = Federation::start().await;
    let alice = UserName::new("alice").unwrap();
    assert_eq!(is_revoked(&federation.data(), &alice), Some(false), "while the broker runs");
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    admin.revoke_user(revocation_of_alice()).await.unwrap();
    assert_eq!(is_revoked(&federation.data(), &alice), Some(true));
    assert_eq!(is_revoked(tempfile::tempdir().unwrap().path(), &alice), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_cluster_cert_renews_after_replace() {
    let federation = Federation::start().await;
    let member = federation.join("ncc-main").await;
    // The thief has the TLS key and the certificate, and not the identity key.
    let thief = IdentityKey::generate(&SystemEntropy);
    for signer in [None, Some(&thief)] {
        let refused = renew(federation.channel(&member.pem), &member.pem, signer).await.unwrap_err();
        assert_eq!(detail(&refused).field, "identity_proof", "{refused:?}");
    }
    let renewed = renew(federation.channel(&member.pem), &member.pem, Some(&member.identity)).await.unwrap();
    assert!(OpenStream::open(federation.channel(&renewed)).await.is_ok());

    // The machine was rebuilt and joined again with the identity key of its state folder, which the thief may have, too.
    let old = [member.pem, renewed];
    let member = replace(&federation, "ncc-main", member.identity).await;
    for pem in &old {
        let refused = renew(federation.channel(pem), pem, Some(&member.identity)).await.unwrap_err();
        assert_eq!(code(&refused), revoked(), "{refused:?}");
    }
    renew(federation.channel(&member.pem), &member.pem, Some(&member.identity)).await.unwrap();
}

#[test]
fn old_stream_on_other_broker_acks_envelopes() {
    in_time(|| {
        run(async {
            let federation = Federation::of_three().await;
            let member = federation.join("ncc-main").await;
            let mut streams = Vec::new();
            for channel in federation.channels(&member.pem) {
                streams.push(OpenStream::open(channel).await.unwrap());
            }
            let new = replace(&federation, "ncc-main", IdentityKey::generate(&SystemEntropy)).await;
            let report = v1::EnvelopeAck { peering: "peer-1".to_owned(), epoch: 1, ..v1::EnvelopeAck::default() };
            for stream in &streams {
                // The stream may have ended already.
                let _ = stream.reports.send(message(1, Body::EnvelopeAck(report.clone()))).await;
            }
            all_end(streams.into_iter().map(OpenStream::end)).await;
            for channel in federation.channels(&member.pem) {
                assert_eq!(code(&OpenStream::open(channel).await.err().unwrap()), revoked());
            }
            for channel in federation.channels(&new.pem) {
                OpenStream::open(channel).await.unwrap();
            }
        });
    });
}

#[test]
fn an_evicted_clusters_streams_end_on_every_broker() {
    in_time(|| {
        run(async {
            let federation = Federation::of_three().await;
            let (member, other) = (federation.join("ncc-main").await, federation.join("startup-pc").await);
            let mut streams = Vec::new();
            let mut watches = Vec::new();
            for channel in federation.channels(&member.pem) {
                streams.push(OpenStream::open(channel.clone()).await.unwrap());
                watches.push(watch(channel).await.unwrap());
            }
            let bystander = OpenStream::open(federation.channel(&other.pem)).await.unwrap();
            assert_eq!(evict(&federation, "ncc-main").await.clusters, ["ncc-main"]);
            all_end(streams.into_iter().map(OpenStream::end)).await;
            all_end(watches.into_iter().map(end_of_watch)).await;
            for channel in federation.channels(&member.pem) {
                let mut client = FederationServiceClient::new(channel);
                let refused = client.list_clusters(v1::ListClustersRequest::default()).await.unwrap_err();
                assert_eq!(code(&refused), revoked());
            }
            let refused =
                renew(federation.channel(&member.pem), &member.pem, Some(&member.identity)).await.unwrap_err();
            assert_eq!(code(&refused), revoked());
            let still = tokio::time::timeout(Duration::from_millis(200), bystander.end()).await;
            assert!(still.is_err(), "another member's stream ended: {still:?}");
        });
    });
}

#[test]
fn a_revoked_users_watches_end_on_every_broker() {
    in_time(|| {
        run(async {
            let federation = Federation::of_three().await;
            let alice = federation.pem_of("alice");
            let mut watches = Vec::new();
            for channel in federation.channels(&alice) {
                watches.push(watch(channel).await.unwrap());
            }
            let mut admin = FederationServiceClient::new(federation.user("admin"));
            let request = revocation_of_alice();
            admin.revoke_user(request).await.unwrap();
            all_end(watches.into_iter().map(end_of_watch)).await;
            let refused = renew(federation.channel(&alice), &alice, None).await.unwrap_err();
            assert_eq!(code(&refused), revoked());
            assert!(detail(&refused).remedy.contains("comity user add alice"), "{refused:?}");
        });
    });
}

/// Invites users one after the other until the caller is revoked.
async fn invite_without_end(channel: BrokerChannel, flooder: usize) {
    let mut client = FederationServiceClient::new(channel);
    for number in 0.. {
        let request = v1::InviteUserRequest {
            user: "mallory".to_owned(),
            ttl_ms: 0,
            idempotency_key: format!("flood-{flooder}-{number}"),
        };
        match client.invite_user(request).await {
            Err(status) if code(&status) == revoked() => return,
            // There is room again once the revocation has voided the open ones.
            Err(status) => {
                assert!(["limit-reached", "unavailable"].contains(&detail(&status).code.as_str()), "{status:?}")
            }
            Ok(_) => {}
        }
    }
}

#[test]
fn a_revoked_maintainers_flood_of_invitations_leaves_none_open() {
    in_time(|| {
        run(async {
            let federation = Federation::of_three().await;
            let thief = federation.pem_of("ingrid");
            // Followers forward, and each broker has commands that wait for their turn.
            let channels = (0..8).flat_map(|_| federation.channels(&thief)).enumerate();
            let flood = channels.map(|(flooder, channel)| tokio::spawn(invite_without_end(channel, flooder)));
            let flood: Vec<_> = flood.collect();
            let mut admin = FederationServiceClient::new(federation.user("admin"));
            let mut open = async || {
                let list = v1::ListInvitationsRequest::default();
                admin.list_invitations(list).await.unwrap().into_inner().invitations.len()
            };
            within("the flood", async { while open().await == 0 {} }).await;
            let request = v1::RevokeUserRequest {
                user: "ingrid".to_owned(),
                idempotency_key: "ingrid".to_owned(),
                ..v1::RevokeUserRequest::default()
            };
            FederationServiceClient::new(federation.user("admin")).revoke_user(request).await.unwrap();
            for flooder in flood {
                within("the end of the flood", flooder).await.unwrap();
            }
            assert_eq!(open().await, 0, "invitations were made after the revocation");
        });
    });
}

#[test]
fn the_leases_of_a_revoked_users_requests_end_as_the_caller_asks() {
    in_time(|| {
        run(async {
            let federation = Federation::start().await;
            federation.join("polytech-campus").await;
            let submit = v1::SubmitRequestRequest {
                spec: Some(spec()),
                idempotency_key: "one".to_owned(),
                queue_anyway: true,
                ..v1::SubmitRequestRequest::default()
            };
            let mut alice = RequestServiceClient::new(federation.user("alice"));
            alice.submit_request(submit).await.unwrap();
            let mut admin = FederationServiceClient::new(federation.user("admin"));
            let mut revoke = async |leases: i32, dry_run| {
                let request = v1::RevokeUserRequest { leases, dry_run, ..revocation_of_alice() };
                admin.revoke_user(request).await.map(|response| response.into_inner().effects.unwrap().requests)
            };
            let unknown = revoke(9, true).await.unwrap_err();
            let error = detail(&unknown);
            assert_eq!((error.field.as_str(), error.value.as_str()), ("leases", "9"), "{unknown:?}");
            for (leases, requests) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
                assert_eq!(revoke(leases, true).await.unwrap(), requests, "treatment {leases}");
            }
            assert_eq!(revoke(v1::LeaseTreatment::Stop.into(), false).await.unwrap(), 1);
            let list = v1::ListRequestsRequest { include_ended: true, ..v1::ListRequestsRequest::default() };
            let all = RequestServiceClient::new(federation.user("admin")).list_requests(list).await.unwrap();
            let [request] = &all.into_inner().requests[..] else { panic!("one request") };
            assert_eq!(request.state(), v1::RequestState::Cancelled);
            assert!(request.message.contains("was revoked"), "{}", request.message);
        });
    });
}

#[test]
fn restarted_broker_answers_revoked_user() {
    in_time(|| {
        run(async {
            let mut federation = Federation::of_three().await;
            let (alice, admin) = (federation.user_pem("alice"), federation.user_pem("admin"));
            let stale = || v1::ListClustersRequest {
                consistency: v1::Consistency::Stale.into(),
                ..v1::ListClustersRequest::default()
            };
            let list = async |broker: &Broker, federation: &Federation| {
                FederationServiceClient::new(federation.channel_to(broker, &alice)).list_clusters(stale()).await
            };
            for channel in federation.channels(&alice) {
                // It has the policy, too.
                FederationServiceClient::new(channel).list_clusters(v1::ListClustersRequest::default()).await.unwrap();
            }
            let third = federation.stop(3).await;
            let request = revocation_of_alice();
            FederationServiceClient::new(federation.user("admin")).revoke_user(request).await.unwrap();
            let (second, first) = (federation.stop(2).await, federation.stop(1).await);

            // It knows nothing of the revocation, and nobody tells it.
            let third = Broker::start(third).await.unwrap();
            let refused = list(&third, &federation).await.unwrap_err();
            assert_eq!(code(&refused), (Code::Unavailable, "unavailable".to_owned()));
            let mut status = RaftServiceClient::new(federation.channel_to(&third, &admin));
            let status = status.get_raft_status(v1::GetRaftStatusRequest {}).await.unwrap().into_inner();
            assert_eq!((status.id, status.leader), (3, 0));

            let others = [Broker::start(first).await.unwrap(), Broker::start(second).await.unwrap()];
            let refused = within("an answer of the third broker", async {
                loop {
                    match list(&third, &federation).await {
                        Err(error) if error.code() == Code::Unavailable => {}
                        other => return other.unwrap_err(),
                    }
                }
            });
            assert_eq!(code(&refused.await), revoked());
            for broker in others.into_iter().chain([third]) {
                broker.shutdown().await;
            }
        });
    });
}

#[test]
fn a_suspended_institution_is_let_in_again_when_it_is_resumed() {
    in_time(|| {
        run(async {
            let federation = Federation::of_three().await;
            let member = federation.join("polytech-campus").await;
            let alice = federation.pem_of("alice");
            let (mut streams, mut watches) = (Vec::new(), Vec::new());
            for (agent, user) in federation.channels(&member.pem).into_iter().zip(federation.channels(&alice)) {
                streams.push(OpenStream::open(agent).await.unwrap());
                watches.push(watch(user).await.unwrap());
            }
            let mut admin = FederationServiceClient::new(federation.user("admin"));
            let suspend = v1::SuspendInstitutionRequest {
                institution: "polytechnic".to_owned(),
                leases: v1::LeaseTreatment::Drain.into(),
                idempotency_key: "suspend".to_owned(),
                ..v1::SuspendInstitutionRequest::default()
            };
            let effects = admin.suspend_institution(suspend).await.unwrap().into_inner().effects.unwrap();
            assert_eq!(effects.clusters, ["polytech-campus"]);
            all_end(streams.into_iter().map(OpenStream::end)).await;
            all_end(watches.into_iter().map(end_of_watch)).await;
            let shown = v1::GetClusterRequest { cluster: "polytech-campus".to_owned(), consistency: 0 };
            let shown = admin.get_cluster(shown).await.unwrap().into_inner().cluster.unwrap();
            assert!(shown.suspended_at_ms > 0 && !shown.connected, "{shown:?}");

            let resume = v1::ResumeInstitutionRequest {
                institution: "polytechnic".to_owned(),
                idempotency_key: "resume".to_owned(),
            };
            admin.resume_institution(resume).await.unwrap();
            for channel in federation.channels(&member.pem) {
                OpenStream::open(channel).await.unwrap();
            }
            for channel in federation.channels(&alice) {
                watch(channel).await.unwrap();
            }
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_cluster_replays_join_for_certificate() {
    let federation = Federation::start().await;
    let token: JoinToken = federation.invite("ncc-main", "invite").await.unwrap().token.parse().unwrap();
    let identity = IdentityKey::generate(&SystemEntropy);
    let (request, key) = join_request("ncc-main", token.secret.expose(), &identity);
    let mut client = FederationServiceClient::new(federation.anonymous());
    let facts = |reply: v1::JoinResponse| {
        let pem = IdentityPem { key: key.key_pem.clone(), chain: reply.certificate_pem, ca: reply.ca_pem };
        let identity = TlsIdentity::from_pem(&pem).unwrap();
        (identity.not_after(), identity.generation(), reply.not_after_ms)
    };
    let first = facts(client.join(request.clone()).await.unwrap().into_inner());
    // While the membership stands, an agent that lost the answer gets no more than it said.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(facts(client.join(request.clone()).await.unwrap().into_inner()), first);

    evict(&federation, "ncc-main").await;
    let refused = client.join(request.clone()).await.unwrap_err();
    assert_eq!(code(&refused), revoked(), "{refused:?}");
    // Nor after it joined again, even with the same identity key.
    replace(&federation, "ncc-main", identity).await;
    let refused = client.join(request).await.unwrap_err();
    assert_eq!(code(&refused), revoked(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_an_eviction_would_end_and_a_repeated_one_has_one_effect() {
    let federation = Federation::start().await;
    federation.join("ncc-main").await;
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    let request = v1::EvictClusterRequest {
        cluster: "ncc-main".to_owned(),
        dry_run: true,
        idempotency_key: "k".to_owned(),
        ..v1::EvictClusterRequest::default()
    };
    let revision = federation.revision().await;
    let effects = admin.evict_cluster(request.clone()).await.unwrap().into_inner().effects.unwrap();
    assert_eq!((effects.clusters, federation.revision().await), (vec!["ncc-main".to_owned()], revision));
    let request = v1::EvictClusterRequest { dry_run: false, ..request };
    for _ in 0..2 {
        admin.evict_cluster(request.clone()).await.unwrap();
    }
    let again = v1::EvictClusterRequest { idempotency_key: "another".to_owned(), ..request };
    let refused = admin.evict_cluster(again).await.unwrap_err();
    assert_eq!(detail(&refused).code, "wrong-state", "{refused:?}");
    // An operator of another institution.
    let foreign = v1::EvictClusterRequest {
        cluster: "polytech-campus".to_owned(),
        idempotency_key: "foreign".to_owned(),
        ..v1::EvictClusterRequest::default()
    };
    let refused = FederationServiceClient::new(federation.user("chen")).evict_cluster(foreign).await.unwrap_err();
    assert_eq!(code(&refused).0, Code::PermissionDenied, "{refused:?}");
}
