//! Malformed, oversized, stale, reused or foreign input is refused with a reason and loses nothing.

use comity_broker::api::join_secret;
use comity_broker::group::Proposal;
use comity_core::command::InviteCluster;
use comity_core::{Command, Millis};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::entropy::SystemEntropy;
use comity_runtime::join_token::JoinToken;
use comity_runtime::signing::IdentityKey;
use comity_runtime::spiffe::{ClusterName, TrustDomain};
use comity_types::ClusterId;
use tonic::Code;

use crate::fake_agent::FakeAgent;
use crate::federation::{DOMAIN, Federation, assert_refused, detail, examples, identity_of, join_request, spec};

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_name_field_value_and_remedy_and_change_nothing() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    let revision = federation.revision().await;
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    let gpus = |change: fn(&mut v1::GpuDemand)| {
        let mut spec = spec();
        change(spec.gpus.as_mut().unwrap());
        spec
    };
    for (bad, field, value) in [
        (v1::RequestSpec { delivery: 42, ..spec() }, "spec.delivery", "42"),
        (v1::RequestSpec { duration_ms: u64::MAX, ..spec() }, "spec.duration_ms", "18446744073709551615"),
        (v1::RequestSpec { tenant: "Poly ML".into(), ..spec() }, "spec.tenant", "Poly ML"),
        (gpus(|g| g.count = u32::MAX), "spec.gpus.count", "4294967295"),
        (gpus(|g| g.memory_mib_per_gpu = u64::MAX), "spec.gpus.memory_mib_per_gpu", "18446744073709551615"),
        (gpus(|g| g.share = None), "spec.gpus.share", ""),
        (gpus(|g| g.class = String::new()), "spec.gpus.class", ""),
    ] {
        let call = v1::SubmitRequestRequest {
            spec: Some(bad),
            idempotency_key: "bad".into(),
            queue_anyway: true,
            dry_run: false,
        };
        assert_refused(requests.submit_request(call).await, Code::InvalidArgument, field, value);
    }
    let call = |spec, key: &str| v1::SubmitRequestRequest {
        spec: Some(spec),
        idempotency_key: key.into(),
        queue_anyway: true,
        dry_run: false,
    };
    assert_refused(requests.submit_request(call(spec(), "")).await, Code::InvalidArgument, "idempotency_key", "");
    let long = "k".repeat(129);
    let shown = format!("{}…", "k".repeat(80));
    assert_refused(
        requests.submit_request(call(spec(), &long)).await,
        Code::InvalidArgument,
        "idempotency_key",
        &shown,
    );
    let consistency = v1::ListRequestsRequest { consistency: 9, ..v1::ListRequestsRequest::default() };
    assert_refused(requests.list_requests(consistency).await, Code::InvalidArgument, "consistency", "9");
    let page = v1::ListRequestsRequest {
        page: Some(v1::PageRequest { size: 0, token: "nonsense".into() }),
        ..v1::ListRequestsRequest::default()
    };
    assert_refused(requests.list_requests(page).await, Code::InvalidArgument, "page.token", "nonsense");

    let huge = v1::RequestSpec { note: "x".repeat(5 << 20), ..spec() };
    let status = requests.submit_request(call(huge, "huge")).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::ResourceExhausted, "message-too-large"));
    assert!(detail(&status).value.ends_with(" bytes") && !detail(&status).remedy.is_empty());
    assert_eq!(federation.revision().await, revision);

    // A key that was used with another body.
    requests.submit_request(call(spec(), "once")).await.unwrap();
    let after = federation.revision().await;
    let other = requests.submit_request(call(gpus(|g| g.count = 2), "once")).await;
    assert_refused(other, Code::AlreadyExists, "idempotency_key", "once");
    assert_eq!(federation.revision().await, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn join_tokens_are_single_use_and_expire() {
    let federation = Federation::start().await;
    let first = federation.invite("ncc-main", "same").await.unwrap();
    let repeated = federation.invite("ncc-main", "same").await.unwrap();
    assert_eq!(first.token, repeated.token, "a repeated invitation gives the same token");
    let token: JoinToken = first.token.parse().unwrap();
    let identity = IdentityKey::generate(&SystemEntropy);
    let mut client = FederationServiceClient::new(federation.anonymous());
    let (good, _) = join_request("ncc-main", token.secret.expose(), &identity);
    let revision = federation.revision().await;

    // Checking a token does not use it.
    let check = v1::CheckJoinRequest {
        cluster: "ncc-main".to_owned(),
        secret: token.secret.expose().to_vec(),
        ..v1::CheckJoinRequest::default()
    };
    let checked = client.check_join(check.clone()).await.unwrap().into_inner();
    assert_eq!((checked.institution.as_str(), checked.replaces), ("national-centre", false));
    let other = v1::CheckJoinRequest { cluster: "startup-pc".to_owned(), ..check.clone() };
    assert_refused(client.check_join(other).await, Code::Unauthenticated, "cluster", "startup-pc");
    let many = v1::CheckJoinRequest { udp_endpoints: vec!["gw:51871".to_owned(); 5], ..check.clone() };
    assert_refused(client.check_join(many).await, Code::InvalidArgument, "udp_endpoints", "5");
    let short = v1::CheckJoinRequest { udp_endpoints: vec!["gw:51871".to_owned()], nonce: vec![1], ..check.clone() };
    assert_refused(client.check_join(short).await, Code::InvalidArgument, "nonce", "1 bytes");

    let bad = v1::JoinRequest { identity_proof: vec![7; 64], ..good.clone() };
    assert_refused(client.join(bad).await, Code::InvalidArgument, "identity_proof", "");
    let bad = v1::JoinRequest { secret: vec![7; 31], ..good.clone() };
    assert_refused(client.join(bad).await, Code::InvalidArgument, "secret", "31 bytes");
    let bad = v1::JoinRequest { voucher: vec![7; 64], ..good.clone() };
    let reply = client.join(bad).await;
    assert_eq!(
        detail(reply.as_ref().unwrap_err()).reason,
        "voucher is not a voucher of institution national-centre for this cluster and its identity key"
    );
    assert_refused(reply, Code::InvalidArgument, "voucher", "");
    let bad = v1::JoinRequest { csr_der: vec![0; 9_000], ..good.clone() };
    assert_refused(client.join(bad).await, Code::InvalidArgument, "csr_der", "9000 bytes");
    let (other_cluster, _) = join_request("startup-pc", token.secret.expose(), &identity);
    assert_refused(client.join(other_cluster).await, Code::Unauthenticated, "cluster", "startup-pc");
    let (guess, _) = join_request("ncc-main", &[7; 32], &identity);
    let status = client.join(guess).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));
    assert_eq!(federation.revision().await, revision, "nothing of that counted");

    client.join(good.clone()).await.unwrap();
    // The very same call gets its answer again; the token in another call does not.
    client.join(good).await.unwrap();
    let status = client.check_join(check).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));
    let (reused, _) = join_request("ncc-main", token.secret.expose(), &identity);
    let status = client.join(reused).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));

    // One that has expired: recorded with a life of a millisecond, as no call can ask for.
    let secret = [9; 32];
    let command = Command::InviteCluster(InviteCluster {
        cluster: ClusterId::parse("startup-pc", "cluster").unwrap(),
        secret_sha256: join_secret::hash_hex(&secret),
        ttl: Millis(1),
        replace: false,
    });
    federation.broker().group().propose(Proposal::of_leader(1, command)).await.unwrap().reply.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let (late, _) = join_request("startup-pc", &secret, &identity);
    let status = client.join(late).await.unwrap_err();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Unauthenticated, "invalid-token"));
    assert!(status.message().contains("expired") && status.message().contains("comity cluster invite"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_another_federation_get_no_connection() {
    let federation = Federation::start().await;
    federation.join("ncc-main").await;
    let revision = federation.revision().await;
    for domain in [DOMAIN, "other.example"] {
        let ca = CertificateAuthority::create(TrustDomain::new(domain).unwrap(), std::time::SystemTime::now()).unwrap();
        let mut client = FederationServiceClient::new(federation.channel(&identity_of(&ca, "ncc-main")));
        let status = client.list_clusters(v1::ListClustersRequest::default()).await.unwrap_err();
        assert!(matches!(status.code(), Code::Unavailable | Code::Unknown), "{status:?}");
    }
    // A good certificate of a cluster that never joined opens no stream.
    let name = ClusterName::new("startup-pc").unwrap();
    let stranger = crate::federation::Member {
        name: name.to_string(),
        identity: IdentityKey::generate(&SystemEntropy),
        pem: identity_of(&federation.ca(), "startup-pc"),
    };
    let refused = FakeAgent::connect(&federation, &stranger).await.map(|_| ()).unwrap_err();
    assert_eq!((refused.code(), detail(&refused).value.as_str()), (Code::NotFound, "startup-pc"));
    assert!(detail(&refused).remedy.contains("comity cluster invite"));
    assert_eq!(federation.revision().await, revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_and_foreign_reports_are_refused_for_good_and_the_stream_goes_on() {
    let federation = Federation::start().await;
    let donor = federation.join("ncc-main").await;
    let mut agent = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = |agent: &FakeAgent, generation| Body::Offer(agent.offer(generation, 1));
    assert_eq!(agent.report(offer(&agent, 5)).await.unwrap(), None);
    // Being heard moves the revision, once.
    federation.until_connected("ncc-main").await;
    let revision = federation.revision().await;

    let mut changed = agent.offer(5, 1);
    changed.nodes[0].cpu_milli = 1;
    let stale = agent.report(Body::Offer(changed)).await.unwrap().unwrap();
    assert_eq!(
        (stale.code.as_str(), stale.field.as_str(), stale.value.as_str()),
        ("stale-generation", "offer.generation", "5")
    );
    let foreign = v1::Offer { cluster: "polytech-campus".into(), ..agent.offer(9, 1) };
    let foreign = agent.report(Body::Offer(foreign)).await.unwrap().unwrap();
    assert_eq!((foreign.field.as_str(), foreign.value.as_str()), ("offer.cluster", "polytech-campus"));
    let report = v1::LeaseReport {
        lease: "lease-77".into(),
        fencing_token: 1,
        outcome: Some(v1::lease_report::Outcome::Clean(v1::lease_report::Clean {})),
    };
    let unknown = agent.report(Body::LeaseReport(report)).await.unwrap().unwrap();
    assert_eq!((unknown.code.as_str(), unknown.value.as_str()), ("not-found", "lease-77"));
    assert_eq!(federation.revision().await, revision);
    assert_eq!(agent.report(offer(&agent, 6)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_with_errors_in_five_files_lists_them_all_and_changes_nothing() {
    let federation = Federation::start().await;
    let revision = federation.revision().await;
    let mut bundle = examples();
    for file in bundle.files.iter_mut().filter(|file| file.path.starts_with("institutions/")) {
        file.text = file.text.replace("spec:", "spec:\n  motto: none");
    }
    let mut policies = PolicyServiceClient::new(federation.user("admin"));
    let request = v1::ApplyPolicyRequest {
        bundle: Some(bundle),
        idempotency_key: "bad".into(),
        ..v1::ApplyPolicyRequest::default()
    };
    let reply = policies.apply_policy(request).await.unwrap().into_inner();
    let files: std::collections::BTreeSet<&str> = reply.problems.iter().map(|problem| problem.file.as_str()).collect();
    assert_eq!(files.len(), 5, "{files:?}");
    for problem in &reply.problems {
        assert!(problem.line > 0 && problem.column > 0 && problem.rendered.contains("-->"), "{problem:?}");
    }
    assert!(!reply.changed && reply.hash.is_empty());
    assert_eq!(federation.revision().await, revision);
    let again = federation.apply_examples("again").await.unwrap();
    assert!(!again.changed, "it was in force already");
}
