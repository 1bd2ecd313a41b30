//! The authorization table over the wire: callers that it does not list are refused.

use comity_proto::v1;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::offer_service_client::OfferServiceClient;
use comity_proto::v1::peering_service_client::PeeringServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::ca::KeyAndCsr;
use comity_runtime::identity::{IdentitySource, TlsIdentity};
use comity_runtime::tls::{BrokerChannel, BrokerEndpoints, ClientTls, connect};
use http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::federation::{Federation, assert_refused, broker_identity, examples, identity_of, spec};

/// Calls every RPC as one caller. Returns each name and the authorization result: `Ok` if permitted, whatever the
/// outcome.
async fn all_calls(channel: &BrokerChannel) -> Vec<(&'static str, Result<(), Code>)> {
    fn gate<T>(reply: Result<T, Status>) -> Result<(), Code> {
        match reply {
            Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                Err(status.code())
            }
            _ => Ok(()),
        }
    }
    let key = || "deny".to_owned();
    let mut federation = FederationServiceClient::new(channel.clone());
    let mut offers = OfferServiceClient::new(channel.clone());
    let mut requests = RequestServiceClient::new(channel.clone());
    let mut leases = LeaseServiceClient::new(channel.clone());
    let mut peerings = PeeringServiceClient::new(channel.clone());
    let mut policies = PolicyServiceClient::new(channel.clone());
    let mut rafts = RaftServiceClient::new(channel.clone());
    let csr_der = KeyAndCsr::generate().unwrap().csr.as_bytes().to_vec();
    vec![
        ("GetFederation", gate(federation.get_federation(v1::GetFederationRequest {}).await)),
        (
            "InviteCluster",
            gate(
                federation
                    .invite_cluster(v1::InviteClusterRequest {
                        cluster: "startup-pc".into(),
                        ttl_ms: 0,
                        idempotency_key: key(),
                        replace: false,
                    })
                    .await,
            ),
        ),
        (
            "InviteUser",
            gate(
                federation
                    .invite_user(v1::InviteUserRequest {
                        user: "x".into(),
                        idempotency_key: "deny-user".into(),
                        ..v1::InviteUserRequest::default()
                    })
                    .await,
            ),
        ),
        ("ListInvitations", gate(federation.list_invitations(v1::ListInvitationsRequest::default()).await)),
        (
            "RevokeInvitation",
            gate(federation.revoke_invitation(v1::RevokeInvitationRequest { invitation: "0123456789ab".into() }).await),
        ),
        (
            "EvictCluster",
            gate(
                federation
                    .evict_cluster(v1::EvictClusterRequest {
                        cluster: "startup-pc".into(),
                        dry_run: true,
                        idempotency_key: key(),
                        ..v1::EvictClusterRequest::default()
                    })
                    .await,
            ),
        ),
        (
            "RevokeUser",
            // A name that cannot be: the call is let through and changes nothing.
            gate(
                federation
                    .revoke_user(v1::RevokeUserRequest {
                        user: "-".into(),
                        idempotency_key: key(),
                        ..v1::RevokeUserRequest::default()
                    })
                    .await,
            ),
        ),
        (
            "SuspendInstitution",
            gate(
                federation
                    .suspend_institution(v1::SuspendInstitutionRequest {
                        institution: "start-up".into(),
                        dry_run: true,
                        idempotency_key: key(),
                        ..v1::SuspendInstitutionRequest::default()
                    })
                    .await,
            ),
        ),
        (
            "ResumeInstitution",
            gate(
                federation
                    .resume_institution(v1::ResumeInstitutionRequest {
                        institution: "nobody".into(),
                        idempotency_key: key(),
                    })
                    .await,
            ),
        ),
        (
            "RenewCertificate",
            gate(
                federation
                    .renew_certificate(v1::RenewCertificateRequest {
                        csr_der,
                        ..v1::RenewCertificateRequest::default()
                    })
                    .await,
            ),
        ),
        ("WhoAmI", gate(federation.who_am_i(v1::WhoAmIRequest {}).await)),
        ("ListClusters", gate(federation.list_clusters(v1::ListClustersRequest::default()).await)),
        (
            "GetCluster",
            gate(federation.get_cluster(v1::GetClusterRequest { cluster: "x".into(), consistency: 0 }).await),
        ),
        ("ListOffers", gate(offers.list_offers(v1::ListOffersRequest::default()).await)),
        ("GetOffer", gate(offers.get_offer(v1::GetOfferRequest { cluster: "x".into(), consistency: 0 }).await)),
        (
            "SubmitRequest",
            gate(
                requests
                    .submit_request(v1::SubmitRequestRequest {
                        spec: Some(spec()),
                        idempotency_key: key(),
                        dry_run: true,
                        queue_anyway: true,
                    })
                    .await,
            ),
        ),
        (
            "GetRequest",
            gate(requests.get_request(v1::GetRequestRequest { request: "req-9".into(), consistency: 0 }).await),
        ),
        ("ListRequests", gate(requests.list_requests(v1::ListRequestsRequest::default()).await)),
        (
            "CancelRequest",
            gate(
                requests
                    .cancel_request(v1::CancelRequestRequest { request: "req-9".into(), idempotency_key: key() })
                    .await,
            ),
        ),
        (
            "ExplainRequest",
            gate(
                requests
                    .explain_request(v1::ExplainRequestRequest { request: "req-9".into(), ..Default::default() })
                    .await,
            ),
        ),
        (
            "QuoteRequest",
            gate(requests.quote_request(v1::QuoteRequestRequest { spec: Some(spec()), queue_anyway: true }).await),
        ),
        (
            "ListRequestTemplates",
            gate(requests.list_request_templates(v1::ListRequestTemplatesRequest::default()).await),
        ),
        ("ListQuotas", gate(requests.list_quotas(v1::ListQuotasRequest::default()).await)),
        ("GetLease", gate(leases.get_lease(v1::GetLeaseRequest { lease: "lease-9".into(), consistency: 0 }).await)),
        ("ListLeases", gate(leases.list_leases(v1::ListLeasesRequest::default()).await)),
        (
            "ReleaseLease",
            gate(
                leases.release_lease(v1::ReleaseLeaseRequest { lease: "lease-9".into(), idempotency_key: key() }).await,
            ),
        ),
        (
            "RenewLease",
            gate(
                leases
                    .renew_lease(v1::RenewLeaseRequest {
                        lease: "lease-9".into(),
                        duration_ms: 0,
                        idempotency_key: key(),
                        may_shorten: false,
                    })
                    .await,
            ),
        ),
        (
            "CheckpointLease",
            gate(
                leases
                    .checkpoint_lease(v1::CheckpointLeaseRequest { lease: "lease-9".into(), idempotency_key: key() })
                    .await,
            ),
        ),
        (
            "GetPeering",
            gate(peerings.get_peering(v1::GetPeeringRequest { peering: "peer-9".into(), consistency: 0 }).await),
        ),
        ("ListPeerings", gate(peerings.list_peerings(v1::ListPeeringsRequest::default()).await)),
        ("CheckPolicy", gate(policies.check_policy(v1::CheckPolicyRequest { bundle: Some(examples()) }).await)),
        (
            "PlanPolicy",
            gate(
                policies
                    .plan_policy(v1::PlanPolicyRequest { bundle: Some(examples()), ..v1::PlanPolicyRequest::default() })
                    .await,
            ),
        ),
        (
            "ApplyPolicy",
            gate(
                policies
                    .apply_policy(v1::ApplyPolicyRequest {
                        bundle: Some(examples()),
                        idempotency_key: key(),
                        ..v1::ApplyPolicyRequest::default()
                    })
                    .await,
            ),
        ),
        (
            "SetPolicySource",
            gate(
                policies
                    .set_policy_source(v1::SetPolicySourceRequest {
                        repository: "no address".into(),
                        ..v1::SetPolicySourceRequest::default()
                    })
                    .await,
            ),
        ),
        ("RemovePolicySource", gate(policies.remove_policy_source(v1::RemovePolicySourceRequest {}).await)),
        ("ListReservations", gate(policies.list_reservations(v1::ListReservationsRequest::default()).await)),
        ("GetPolicy", gate(policies.get_policy(v1::GetPolicyRequest::default()).await)),
        ("Watch", gate(WatchServiceClient::new(channel.clone()).watch(v1::WatchRequest::default()).await)),
        ("GetRaftStatus", gate(rafts.get_raft_status(v1::GetRaftStatusRequest {}).await)),
        ("ChangeMembers", gate(rafts.change_members(v1::ChangeMembersRequest::default()).await)),
        ("RebaseTime", gate(rafts.rebase_time(v1::RebaseTimeRequest { dry_run: true }).await)),
        (
            "InviteBroker",
            gate(
                rafts
                    .invite_broker(v1::InviteBrokerRequest {
                        idempotency_key: "deny-broker".into(),
                        ..v1::InviteBrokerRequest::default()
                    })
                    .await,
            ),
        ),
        (
            "Connect",
            gate(AgentServiceClient::new(channel.clone()).connect(tokio_stream::empty::<v1::AgentMessage>()).await),
        ),
    ]
}

async fn let_through(channel: &BrokerChannel) -> Vec<&'static str> {
    all_calls(channel).await.into_iter().filter(|(_, gate)| gate.is_ok()).map(|(name, _)| name).collect()
}

const READS: [&str; 12] = [
    "ListClusters",
    "GetCluster",
    "ListOffers",
    "GetOffer",
    "GetRequest",
    "ListRequests",
    "GetLease",
    "ListLeases",
    "GetPeering",
    "ListPeerings",
    "ListRequestTemplates",
    "ListReservations",
];

fn expected(parts: &[&[&'static str]]) -> Vec<&'static str> {
    let order = [
        "GetFederation",
        "InviteCluster",
        "InviteUser",
        "ListInvitations",
        "RevokeInvitation",
        "EvictCluster",
        "RevokeUser",
        "SuspendInstitution",
        "ResumeInstitution",
        "RenewCertificate",
        "WhoAmI",
        "ListClusters",
        "GetCluster",
        "ListOffers",
        "GetOffer",
        "SubmitRequest",
        "GetRequest",
        "ListRequests",
        "CancelRequest",
        "ExplainRequest",
        "QuoteRequest",
        "ListRequestTemplates",
        "ListQuotas",
        "GetLease",
        "ListLeases",
        "ReleaseLease",
        "RenewLease",
        "CheckpointLease",
        "GetPeering",
        "ListPeerings",
        "CheckPolicy",
        "PlanPolicy",
        "ApplyPolicy",
        "SetPolicySource",
        "RemovePolicySource",
        "ListReservations",
        "GetPolicy",
        "Watch",
        "GetRaftStatus",
        "ChangeMembers",
        "RebaseTime",
        "InviteBroker",
        "Connect",
    ];
    order.into_iter().filter(|name| *name == "GetFederation" || parts.iter().any(|part| part.contains(name))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_caller_gets_what_the_table_says_and_no_more() {
    let federation = Federation::start().await;
    let revision = federation.revision().await;
    let member = ["RenewCertificate", "WhoAmI", "CheckPolicy", "GetPolicy", "Watch", "ExplainRequest", "ListQuotas"];

    assert_eq!(let_through(&federation.anonymous()).await, expected(&[]));
    // A good certificate that no document names.
    assert_eq!(let_through(&federation.user("mallory")).await, expected(&[&["WhoAmI"]]));
    assert_eq!(let_through(&federation.user("hana")).await, expected(&[&READS, &member, &["QuoteRequest"]]));
    assert_eq!(
        let_through(&federation.user("alice")).await,
        expected(&[
            &READS,
            &member,
            &["QuoteRequest", "SubmitRequest", "CancelRequest", "ReleaseLease", "RenewLease", "CheckpointLease"]
        ])
    );
    // An operator of another institution: may not invite the start-up's cluster, may look at the group.
    let operates = ["GetRaftStatus", "ListInvitations", "RevokeInvitation", "RevokeUser"];
    assert_eq!(let_through(&federation.user("chen")).await, expected(&[&READS, &member, &operates]));
    assert_eq!(
        let_through(&federation.user("admin")).await,
        expected(&[
            &READS,
            &member,
            &operates,
            &["QuoteRequest", "InviteCluster", "PlanPolicy", "ApplyPolicy", "ChangeMembers", "RebaseTime"],
            &["InviteUser", "InviteBroker", "EvictCluster", "SuspendInstitution", "ResumeInstitution"],
            &["SetPolicySource", "RemovePolicySource"]
        ])
    );
    // A broker's certificate may name broker operators.
    let broker = let_through(&federation.channel(&broker_identity(&federation.ca()))).await;
    assert_eq!(
        broker,
        expected(&[&["WhoAmI", "CheckPolicy", "PlanPolicy", "ApplyPolicy", "GetPolicy", "GetRaftStatus"]])
    );
    // Nothing of all that changed the state but the three invitations that an admin may make.
    assert_eq!(federation.revision().await, revision + 3);
    let cluster = federation.join("ncc-main").await;
    assert_eq!(
        let_through(&federation.channel(&cluster.pem)).await,
        expected(&[
            &READS,
            &[
                "RenewCertificate",
                "WhoAmI",
                "Watch",
                "Connect",
                "ExplainRequest",
                "CancelRequest",
                "ReleaseLease",
                "RenewLease"
            ]
        ])
    );
    // Its invitation and the join. Its renewal was not signed by its identity key.
    assert_eq!(federation.revision().await, revision + 5);
    // The request comes from the campus: its own cluster may submit it, and still not quote or administer.
    let campus = identity_of(&federation.ca(), "polytech-campus");
    assert_eq!(
        let_through(&federation.channel(&campus)).await,
        expected(&[
            &READS,
            &[
                "RenewCertificate",
                "WhoAmI",
                "Watch",
                "Connect",
                "ExplainRequest",
                "CancelRequest",
                "ReleaseLease",
                "RenewLease"
            ],
            &["SubmitRequest"]
        ])
    );
    // A maintainer who is no broker operator.
    let ingrid = let_through(&federation.user("ingrid")).await;
    assert!(ingrid.contains(&"InviteUser") && !ingrid.contains(&"InviteBroker"), "{ingrid:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_bundle_only_the_bootstrap_admin_may_apply_one() {
    let federation = Federation::bare().await;
    assert_eq!(let_through(&federation.user("alice")).await, expected(&[&["WhoAmI"]]));
    let request = v1::ApplyPolicyRequest {
        bundle: Some(examples()),
        idempotency_key: "k".to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    let denied = PolicyServiceClient::new(federation.user("ingrid")).apply_policy(request.clone()).await;
    assert_refused(denied, Code::PermissionDenied, "", "");
    let invite = federation.invite("ncc-main", "too-early").await;
    assert_eq!(invite.unwrap_err().code(), Code::FailedPrecondition);
    federation.apply_examples("k").await.unwrap();
    // The bundle names her a maintainer.
    PolicyServiceClient::new(federation.user("ingrid")).apply_policy(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_their_own_part() {
    let federation = Federation::start().await;
    for cluster in ["polytech-campus", "ncc-main", "startup-pc"] {
        federation.join(cluster).await;
    }
    let names = |channel: BrokerChannel| async move {
        let reply =
            FederationServiceClient::new(channel).list_clusters(v1::ListClustersRequest::default()).await.unwrap();
        reply.into_inner().clusters.into_iter().map(|cluster| cluster.id).collect::<Vec<_>>()
    };
    assert_eq!(names(federation.user("admin")).await, ["ncc-main", "polytech-campus", "startup-pc"]);
    assert_eq!(names(federation.user("chen")).await, ["ncc-main"]);
    assert_eq!(names(federation.user("alice")).await, ["polytech-campus"]);
    let own = identity_of(&federation.ca(), "startup-pc");
    assert_eq!(names(federation.channel(&own)).await, ["startup-pc"]);
    let other = v1::GetClusterRequest { cluster: "ncc-main".to_owned(), consistency: 0 };
    let reply = FederationServiceClient::new(federation.channel(&own)).get_cluster(other).await;
    assert_refused(reply, Code::NotFound, "cluster", "ncc-main");
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_learns_who_they_are() {
    let federation = Federation::start().await;
    let ask = |channel: BrokerChannel| async move {
        FederationServiceClient::new(channel).who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner()
    };
    let alice = ask(federation.user("alice")).await;
    assert!(alice.id.ends_with("/user/alice") && alice.policy_in_force && !alice.maintainer, "{alice:?}");
    let rights = |caller: &v1::WhoAmIResponse| {
        caller.tenants.iter().map(|it| (it.tenant.clone(), it.may_submit)).collect::<Vec<_>>()
    };
    assert_eq!(rights(&alice), [("poly-ml".to_owned(), true)]);
    let hana = ask(federation.user("hana")).await;
    assert!(!hana.tenants.is_empty() && hana.tenants.iter().all(|it| !it.may_submit), "a viewer: {hana:?}");
    let admin = ask(federation.user("admin")).await;
    assert!(admin.maintainer && admin.broker_operator, "{admin:?}");
    let ingrid = ask(federation.user("ingrid")).await;
    assert!(ingrid.maintainer && !ingrid.broker_operator, "{ingrid:?}");
    assert_eq!(ask(federation.user("chen")).await.institutions, ["national-centre"]);
    let mallory = ask(federation.user("mallory")).await;
    assert!(mallory.tenants.is_empty() && mallory.institutions.is_empty() && !mallory.maintainer, "{mallory:?}");
    let campus = ask(federation.channel(&identity_of(&federation.ca(), "polytech-campus"))).await;
    assert_eq!((campus.kind.as_str(), &campus.institutions[..]), ("cluster", &["polytechnic".to_owned()][..]));
    assert!(rights(&campus).contains(&("poly-ml".to_owned(), true)), "{campus:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_bundle_the_bootstrap_admin_is_named_a_maintainer() {
    let federation = Federation::bare().await;
    for (name, maintains) in [("admin", true), ("alice", false)] {
        let client = FederationServiceClient::new(federation.user(name)).who_am_i(v1::WhoAmIRequest {}).await;
        let caller = client.unwrap().into_inner();
        assert_eq!((caller.maintainer, caller.policy_in_force), (maintains, false), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raft_port_decodes_nothing_of_a_user() {
    let federation = Federation::start().await;
    let source = IdentitySource::new(TlsIdentity::from_pem(&federation.user_pem("alice")).unwrap());
    let endpoints = BrokerEndpoints::new([federation.broker().raft_addr().to_string()]).unwrap();
    let channel = connect(&endpoints, &ClientTls::new(federation.ca().roots(), source.subscribe()));
    for rpc in ["Append", "Vote", "Transfer", "Propose"] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let path = PathAndQuery::try_from(format!("/comity.raft.v1.RaftTransport/{rpc}")).unwrap();
        // A number where a frame has bytes: whoever decodes it says so.
        let refused = client.unary(Request::new(7_u64), path, ProstCodec::<u64, ()>::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{rpc}: {refused:?}");
    }
}
