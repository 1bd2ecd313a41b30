//! Users and brokers join with single-use tokens; a joined broker has the authority and votes. Invitations are listed
//! and revoked.

use std::time::Duration;

use comity_broker::config::Config;
use comity_broker::group::MemberAddress;
use comity_broker::provision::join_group::{JoinGroupError, join_group};
use comity_broker::provision::sealed_authority::SealingKey;
use comity_broker::{Broker, Listeners};
use comity_proto::v1;
use comity_proto::v1::broker_message::Body as Reply;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::ca::{CertificateAuthority, KeyAndCsr};
use comity_runtime::identity::{IdentityPem, TlsIdentity};
use comity_runtime::join_token::JoinToken;
use comity_runtime::tls::BROKERS_METADATA;
use comity_runtime::{IdentityKey, SystemEntropy};
use tonic::{Code, Status};

use super::fake_agent::FakeAgent;
use super::federation::{Federation, detail, join_request, local_listeners, within};

async fn invite_broker(federation: &Federation, key: &str) -> (u64, JoinToken) {
    let request = v1::InviteBrokerRequest { idempotency_key: key.to_owned(), ..v1::InviteBrokerRequest::default() };
    let reply = RaftServiceClient::new(federation.user("admin")).invite_broker(request).await.unwrap().into_inner();
    (reply.broker, reply.token.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_join_with_tokens_and_vote() {
    let federation = Federation::start().await;
    let donor = federation.join("ncc-main").await;
    let mut agent = FakeAgent::connect(&federation, &donor).await.unwrap();
    let mut addresses = vec![federation.broker().client_addr().to_string()];
    let mut others: Vec<Broker> = Vec::new();
    for number in [2, 3] {
        let (broker, token) = invite_broker(&federation, &format!("broker-{number}")).await;
        assert_eq!((broker, token.broker().unwrap()), (number, number));
        let (listeners, address): (Listeners, _) = local_listeners().await;
        let data = federation.data().with_file_name(format!("broker-{number}"));
        let settings = join_group(&token, &data, &address).await.unwrap();
        assert_eq!(settings.members[&number], address);
        let copy = CertificateAuthority::load(&data.join("ca")).unwrap();
        assert_eq!(copy.key_pem().expose(), federation.ca().key_pem().expose());
        let mut config = Config::load(&data).unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        others.push(Broker::start_on(config, listeners).await.unwrap());
        let voters = || federation.broker().group().members().iter().filter(|member| member.voter).count() as u64;
        within("a vote", async {
            while voters() < number {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;

        // Agents and users learn where the new broker is.
        addresses.push(address.client.clone());
        let told = async {
            loop {
                if let Reply::Brokers(list) = agent.next().await.unwrap()
                    && list.addresses == addresses
                {
                    return;
                }
            }
        };
        within("the list of brokers", told).await;
        let mut client = FederationServiceClient::new(federation.user("admin"));
        let answer = client.who_am_i(v1::WhoAmIRequest {}).await.unwrap();
        assert_eq!(answer.metadata().get(BROKERS_METADATA).unwrap(), addresses.join(",").as_str());
        let mut anyone = FederationServiceClient::new(federation.anonymous());
        let answer = anyone.get_federation(v1::GetFederationRequest {}).await.unwrap();
        assert_eq!(answer.metadata().get(BROKERS_METADATA), None);

        let again = join_group(&token, &data.with_extension("again"), &address).await.unwrap_err();
        let JoinGroupError::Refused { reason, .. } = again else { panic!("{again:?}") };
        assert!(reason.contains("already used"), "{reason}");
    }
    for broker in others {
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_joins_once_with_a_token_and_gets_a_certificate_of_that_name() {
    let federation = Federation::start().await;
    let request = v1::InviteUserRequest {
        user: "alice".to_owned(),
        idempotency_key: "alice".to_owned(),
        ..v1::InviteUserRequest::default()
    };
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    let invited = admin.invite_user(request.clone()).await.unwrap().into_inner();
    let repeated = admin.invite_user(request).await.unwrap().into_inner();
    assert_eq!(invited.token, repeated.token, "a repeated invitation gives the same token");
    let token: JoinToken = invited.token.parse().unwrap();
    assert_eq!(token.user().unwrap().as_str(), "alice");

    let key = KeyAndCsr::generate().unwrap();
    let good = v1::JoinUserRequest {
        user: "alice".to_owned(),
        secret: token.secret.expose().to_vec(),
        csr_der: key.csr.as_bytes().to_vec(),
    };
    let mut anyone = FederationServiceClient::new(federation.anonymous());
    let other = v1::JoinUserRequest { user: "admin".to_owned(), ..good.clone() };
    let status = anyone.join_user(other).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));
    let bad = v1::JoinUserRequest { csr_der: vec![0; 9_000], ..good.clone() };
    assert_eq!(anyone.join_user(bad).await.unwrap_err().code(), Code::InvalidArgument);

    let joined = anyone.join_user(good.clone()).await.unwrap().into_inner();
    let pem = IdentityPem { key: key.key_pem, chain: joined.certificate_pem, ca: joined.ca_pem };
    let identity = TlsIdentity::from_pem(&pem).unwrap();
    assert_eq!(identity.id().to_string(), "spiffe://comity.example/user/alice");
    // The same call gets its answer again; the token in another call does not.
    anyone.join_user(good.clone()).await.unwrap();
    let reused = v1::JoinUserRequest { csr_der: KeyAndCsr::generate().unwrap().csr.as_bytes().to_vec(), ..good };
    let status = anyone.join_user(reused).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));
}

/// Seed of the sealing key of a broker that lost the answer to its join, or of a thief.
const SEED: [u8; 32] = [7; 32];

/// A join that is sent again and again.
struct RepeatedJoin {
    token: JoinToken,
    request: v1::JoinBrokerRequest,
    listeners: Listeners,
    address: MemberAddress,
}

impl RepeatedJoin {
    /// Of a broker with a token of `admin`, who operates the brokers.
    async fn first(federation: &Federation) -> Self {
        let (broker, token) = invite_broker(federation, "lost").await;
        let (listeners, address) = local_listeners().await;
        let request = v1::JoinBrokerRequest {
            broker,
            secret: token.secret.expose().to_vec(),
            sealing_key: SealingKey::of_seed(SEED.into()).public().to_vec(),
            raft_address: address.raft.clone(),
            client_address: address.client.clone(),
        };
        let join = Self { token, request, listeners, address };
        join.again(federation).await.unwrap();
        join
    }

    async fn again(&self, federation: &Federation) -> Result<v1::JoinBrokerResponse, Status> {
        let mut anyone = FederationServiceClient::new(federation.anonymous());
        Ok(anyone.join_broker(self.request.clone()).await?.into_inner())
    }

    /// Starts the broker, with what an interrupted `up --join` leaves, and waits until it votes.
    async fn start(self, federation: &Federation) -> (v1::JoinBrokerRequest, Broker) {
        let (broker, data) = (self.request.broker, federation.data().with_file_name("lost"));
        let seed = format!("sealing-seed-{}", &hex::encode(self.token.secret_hash())[..16]);
        std::fs::create_dir_all(data.join(".setup")).unwrap();
        std::fs::write(data.join(".setup").join(seed), SEED).unwrap();
        let settings = join_group(&self.token, &data, &self.address).await.unwrap();
        assert_eq!((settings.id, settings.members[&broker].clone()), (broker, self.address));
        assert!(CertificateAuthority::load(&data.join("ca")).is_ok() && !data.join(".setup").exists());
        let mut config = Config::load(&data).unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        let started = Broker::start_on(config, self.listeners).await.unwrap();
        within("a vote", async {
            while !federation.broker().group().members().iter().any(|member| member.id == broker && member.voter) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        (self.request, started)
    }
}

fn assert_no_secrets(reply: Result<v1::JoinBrokerResponse, Status>, reason: &str) {
    let status = reply.map(drop).unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"), "{status:?}");
    assert!(status.message().contains(reason) && detail(&status).remedy.contains("comity raft invite"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_repeats_join_after_admission() {
    let federation = Federation::start().await;
    // A broker whose answer was lost joins with the same token, until it is a member.
    let (request, broker) = RepeatedJoin::first(&federation).await.start(&federation).await;
    let again = FederationServiceClient::new(federation.anonymous()).join_broker(request).await;
    assert_no_secrets(again.map(tonic::Response::into_inner), "already used");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_broker_repeats_join() {
    let federation = Federation::start().await;
    let join = RepeatedJoin::first(&federation).await;
    let change = v1::change_members_request::Change::Remove(v1::Remove { id: join.request.broker });
    let remove = v1::ChangeMembersRequest { change: Some(change) };
    RaftServiceClient::new(federation.user("admin")).change_members(remove).await.unwrap();
    assert_no_secrets(join.again(&federation).await, "already used");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_inviters_broker_repeats_join() {
    let federation = Federation::start().await;
    let join = RepeatedJoin::first(&federation).await;
    let revoke = v1::RevokeUserRequest {
        user: "admin".to_owned(),
        idempotency_key: "thief".to_owned(),
        ..v1::RevokeUserRequest::default()
    };
    FederationServiceClient::new(federation.user("ingrid")).revoke_user(revoke).await.unwrap();
    assert_no_secrets(join.again(&federation).await, "the certificates of user admin were revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_invitations_are_listed_without_their_tokens_and_revoked() {
    let federation = Federation::start().await;
    let (broker, token) = invite_broker(&federation, "revoked").await;
    federation.invite("ncc-main", "kept").await.unwrap();
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    let mut list =
        async || admin.list_invitations(v1::ListInvitationsRequest::default()).await.unwrap().into_inner().invitations;
    let open = list().await;
    let shown: Vec<_> = open.iter().map(|it| (it.kind.as_str(), it.invited.as_str())).collect();
    assert_eq!(shown, [("broker", broker.to_string().as_str()), ("cluster", "ncc-main")]);
    assert!(open.iter().all(|it| it.inviter == "spiffe://comity.example/user/admin"), "{open:?}");
    let revoke = v1::RevokeInvitationRequest { invitation: open[0].id.clone() };
    // ingrid maintains the federation and does not operate its brokers.
    let mut ingrid = FederationServiceClient::new(federation.user("ingrid"));
    assert_eq!(ingrid.revoke_invitation(revoke.clone()).await.unwrap_err().code(), Code::NotFound);
    FederationServiceClient::new(federation.user("admin")).revoke_invitation(revoke).await.unwrap();
    assert_eq!(list().await.len(), 1);

    let (_listeners, address) = local_listeners().await;
    let data = federation.data().with_file_name("revoked");
    let error = join_group(&token, &data, &address).await.unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_id_of_an_invitation_never_reaches_the_log() {
    let federation = Federation::start().await;
    let mut admin = FederationServiceClient::new(federation.user("admin"));
    let size = || federation.broker().group().peek(|state| state.audit.size());
    let before = size();
    for text in ["x".repeat(1 << 20), "\u{1b}[31m".into(), "0123456789aB".into(), "0123456789abc".into(), String::new()]
    {
        let refused =
            admin.revoke_invitation(v1::RevokeInvitationRequest { invitation: text.clone() }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(text.len() < 6 || !refused.message().contains(&text), "{refused:?}");
    }
    assert_eq!(size(), before, "nothing is recorded");
    // One that might be is recorded, as a refusal.
    let other = v1::RevokeInvitationRequest { invitation: "0123456789ab".into() };
    assert_eq!(admin.revoke_invitation(other).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(size(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_broker_lives_an_hour_at_most_and_a_member_is_replaced_explicitly() {
    let federation = Federation::start().await;
    let mut admin = RaftServiceClient::new(federation.user("admin"));
    let request = |key: &str| v1::InviteBrokerRequest { idempotency_key: key.to_owned(), ..Default::default() };
    let long = v1::InviteBrokerRequest { ttl_ms: 3_600_001, ..request("long") };
    let status = admin.invite_broker(long).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).field.as_str()), (Code::InvalidArgument, "ttl_ms"));
    let member = v1::InviteBrokerRequest { broker: 1, ..request("member") };
    let status = admin.invite_broker(member.clone()).await.unwrap_err();
    assert!(status.message().contains("a member already") && status.message().contains("--replace"), "{status:?}");
    admin.invite_broker(v1::InviteBrokerRequest { replace: true, ..member }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_replaced_gets_no_certificate_by_repeating_its_join() {
    let federation = Federation::start().await;
    // The token authorizes, whoever calls.
    let mut client = FederationServiceClient::new(federation.user("admin"));
    let mut join_by = async |replace: bool| {
        let invite = v1::InviteClusterRequest {
            cluster: "ncc-main".to_owned(),
            ttl_ms: 0,
            idempotency_key: format!("replace-{replace}"),
            replace,
        };
        let token: JoinToken = client.invite_cluster(invite).await.unwrap().into_inner().token.parse().unwrap();
        let identity = IdentityKey::generate(&SystemEntropy);
        let (request, _) = join_request("ncc-main", token.secret.expose(), &identity);
        client.join(request.clone()).await.unwrap();
        request
    };
    let (first, second) = (join_by(false).await, join_by(true).await);
    let refused = client.join(first).await.unwrap_err();
    assert_eq!(detail(&refused).code, "revoked", "{refused:?}");
    // The one that joined last may have lost the answer.
    client.join(second).await.unwrap();
}
