//! Agents may submit requests only for their own cluster and their institution's tenants.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_event::Object;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use tonic::{Code, Request};

use crate::fake_agent::FakeAgent;
use crate::federation::{Federation, assert_refused, detail, identity_of, spec, within};

/// Two GPUs for pods of namespace `lab`, by virtual node.
fn burst() -> v1::RequestSpec {
    v1::RequestSpec {
        delivery: v1::Delivery::VirtualNode.into(),
        target_namespace: "lab".to_owned(),
        gpus: spec().gpus.map(|gpus| v1::GpuDemand { count: 2, ..gpus }),
        ..spec()
    }
}

fn submission(spec: v1::RequestSpec, key: &str) -> v1::SubmitRequestRequest {
    v1::SubmitRequestRequest { spec: Some(spec), idempotency_key: key.to_owned(), queue_anyway: true, dry_run: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_submits_follows_and_gives_back_what_its_pods_need() {
    let federation = Federation::start().await;
    let (origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let campus = federation.channel(&origin.pem);
    let mut requests = RequestServiceClient::new(campus.clone());

    let submitted = requests.submit_request(submission(burst(), "pod-7")).await.unwrap().into_inner().request.unwrap();
    assert_eq!(submitted.id, "req-1");
    assert_eq!(submitted.submitted_by, "spiffe://comity.example/cluster/polytech-campus");
    assert_eq!(submitted.spec.as_ref().unwrap().delivery(), v1::Delivery::VirtualNode);
    let again = requests.submit_request(submission(burst(), "pod-7")).await.unwrap().into_inner().request.unwrap();
    assert_eq!(again.id, "req-1", "the same key and body are the same request");
    let other = v1::RequestSpec { target_namespace: "other".to_owned(), ..burst() };
    let conflict = requests.submit_request(submission(other, "pod-7")).await.unwrap_err();
    assert_eq!(detail(&conflict).code, "idempotency-conflict");

    // Nobody lends yet: why not is for the cluster to see, and to show to its users.
    let explain = v1::ExplainRequestRequest { request: "req-1".to_owned(), seek_alternatives: false };
    let reply = requests.explain_request(explain).await.unwrap().into_inner();
    assert_eq!(reply.donors[0].code, "donor-silent", "{reply:?}");
    let listed = requests.list_requests(v1::ListRequestsRequest::default()).await.unwrap().into_inner().requests;
    assert_eq!(listed.len(), 1);

    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 2);
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    let _agents = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));

    let watch = v1::WatchRequest { from_revision: 0, request: "req-1".to_owned() };
    let mut events = WatchServiceClient::new(campus.clone()).watch(watch).await.unwrap().into_inner();
    let active = async {
        loop {
            if let Some(Object::Lease(lease)) = events.message().await.unwrap().unwrap().object
                && lease.state() == v1::LeaseState::Active
            {
                return lease;
            }
        }
    };
    let lease = within("an active lease", active).await;
    assert_eq!((lease.delivery(), lease.target_namespace.as_str()), (v1::Delivery::VirtualNode, "lab"));

    let renew = |key: &str, may_shorten| v1::RenewLeaseRequest {
        lease: lease.id.clone(),
        duration_ms: 0,
        idempotency_key: key.to_owned(),
        may_shorten,
    };
    let renewed = LeaseServiceClient::new(campus.clone()).renew_lease(renew("n", false)).await.unwrap().into_inner();
    assert!(renewed.lease.unwrap().expires_at_ms >= lease.expires_at_ms);
    let at_donor = LeaseServiceClient::new(federation.channel(&donor.pem)).renew_lease(renew("n", false)).await;
    assert_refused(at_donor, Code::PermissionDenied, "lease", "lease-1");
    let release = |key: &str| v1::ReleaseLeaseRequest { lease: lease.id.clone(), idempotency_key: key.to_owned() };
    // The donor sees the lease; it is not the donor's to give back.
    let at_donor = LeaseServiceClient::new(federation.channel(&donor.pem)).release_lease(release("d")).await;
    assert_refused(at_donor, Code::PermissionDenied, "lease", "lease-1");
    let released = LeaseServiceClient::new(campus).release_lease(release("r")).await.unwrap().into_inner().lease;
    assert_eq!(released.unwrap().end_reason(), v1::EndReason::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_person_requested_is_not_the_clusters_to_release() {
    let federation = Federation::start().await;
    let (origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 2);
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    let _agents = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));
    let alice = federation.user("alice");
    let submitted = RequestServiceClient::new(alice.clone()).submit_request(submission(burst(), "a")).await.unwrap();
    let request = submitted.into_inner().request.unwrap().id;
    let mut events = WatchServiceClient::new(alice.clone())
        .watch(v1::WatchRequest { from_revision: 0, request })
        .await
        .unwrap()
        .into_inner();
    let active = async {
        loop {
            if let Some(Object::Lease(lease)) = events.message().await.unwrap().unwrap().object
                && lease.state() == v1::LeaseState::Active
            {
                return lease.id;
            }
        }
    };
    let lease = within("an active lease", active).await;
    let release = |key: &str| v1::ReleaseLeaseRequest { lease: lease.clone(), idempotency_key: key.to_owned() };
    let by_cluster = LeaseServiceClient::new(federation.channel(&origin.pem)).release_lease(release("c")).await;
    assert_refused(by_cluster, Code::PermissionDenied, "lease", &lease);
    let by_alice = LeaseServiceClient::new(alice).release_lease(release("b")).await.unwrap();
    assert_eq!(by_alice.into_inner().lease.unwrap().end_reason(), v1::EndReason::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_thing_that_is_not_a_clusters_to_ask_is_refused() {
    let federation = Federation::start().await;
    let campus = federation.join("polytech-campus").await;
    let mut requests = RequestServiceClient::new(federation.channel(&campus.pem));

    let elsewhere = v1::RequestSpec { origin: "startup-pc".to_owned(), tenant: "startup-robots".to_owned(), ..burst() };
    let theirs = v1::RequestSpec { tenant: "startup-robots".to_owned(), ..burst() };
    let nobodys = v1::RequestSpec { tenant: "nobody".to_owned(), ..burst() };
    for (spec, field, value) in [
        (elsewhere, "spec.origin", "startup-pc"),
        (theirs, "spec.tenant", "startup-robots"),
        (nobodys, "spec.tenant", "nobody"),
    ] {
        let dry = v1::SubmitRequestRequest { dry_run: true, ..submission(spec.clone(), "dry") };
        assert_refused(requests.submit_request(dry).await, Code::PermissionDenied, field, value);
        assert_refused(requests.submit_request(submission(spec, "k")).await, Code::PermissionDenied, field, value);
    }
    // A certificate of a cluster that no institution has (any more).
    let moon = identity_of(&federation.ca(), "moon");
    let from_moon = v1::RequestSpec { origin: "moon".to_owned(), ..burst() };
    let reply = RequestServiceClient::new(federation.channel(&moon)).submit_request(submission(from_moon, "k")).await;
    assert_refused(reply, Code::PermissionDenied, "spec.origin", "moon");

    // Alice's request comes from the campus too: its cluster may not take it back, another one does not even see it.
    let alice = RequestServiceClient::new(federation.user("alice")).submit_request(submission(spec(), "a")).await;
    let id = alice.unwrap().into_inner().request.unwrap().id;
    let cancel = |key: &str| v1::CancelRequestRequest { request: id.clone(), idempotency_key: key.to_owned() };
    let centre = identity_of(&federation.ca(), "ncc-main");
    let mut at_centre = RequestServiceClient::new(federation.channel(&centre));
    assert_refused(at_centre.cancel_request(cancel("c")).await, Code::NotFound, "request", &id);
    let explain = v1::ExplainRequestRequest { request: id.clone(), seek_alternatives: false };
    assert_refused(at_centre.explain_request(explain).await, Code::NotFound, "request", &id);
    assert_refused(requests.cancel_request(cancel("c")).await, Code::PermissionDenied, "request", &id);
    let by_alice = RequestServiceClient::new(federation.user("alice")).cancel_request(cancel("b")).await;
    assert_eq!(by_alice.unwrap().into_inner().request.unwrap().state(), v1::RequestState::Cancelled);

    // Clusters may not call what only users and maintainers may.
    let quote = v1::QuoteRequestRequest { spec: Some(burst()), queue_anyway: true };
    assert_refused(requests.quote_request(Request::new(quote)).await, Code::PermissionDenied, "", "");
    let renew = v1::RenewLeaseRequest {
        lease: "lease-1".to_owned(),
        duration_ms: 0,
        idempotency_key: "renew".to_owned(),
        may_shorten: false,
    };
    // No lease at all is not found; the leases of its own requests are a cluster's to renew.
    let reply = LeaseServiceClient::new(federation.channel(&campus.pem)).renew_lease(renew).await;
    assert_refused(reply, Code::NotFound, "lease", "lease-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_node_serves_a_namespace_that_is_named() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    let unnamed = v1::RequestSpec { target_namespace: String::new(), ..burst() };
    let reply = requests.submit_request(submission(unnamed, "k")).await;
    assert_refused(reply, Code::InvalidArgument, "spec.target_namespace", "");
    let reply = requests.submit_request(submission(burst(), "k")).await.unwrap();
    assert_eq!(reply.into_inner().request.unwrap().id, "req-1");
}
