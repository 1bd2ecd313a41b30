//! Pages, snapshots, resuming, and `resync-required`.

use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_event::Object;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use tonic::{Code, Streaming};

use crate::federation::{Federation, assert_refused, detail, spec, within};

async fn next(events: &mut Streaming<v1::WatchEvent>) -> v1::WatchEvent {
    within("an event", events.message()).await.unwrap().unwrap()
}

async fn submit(federation: &Federation, user: &str, key: &str) -> String {
    let call = v1::SubmitRequestRequest {
        spec: Some(spec()),
        idempotency_key: key.to_owned(),
        queue_anyway: true,
        dry_run: false,
    };
    let reply = RequestServiceClient::new(federation.user(user)).submit_request(call).await.unwrap();
    reply.into_inner().request.unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged_without_gaps() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    for number in 1..=7 {
        assert_eq!(submit(&federation, "alice", &format!("key-{number}")).await, format!("req-{number}"));
    }
    let mut requests = RequestServiceClient::new(federation.user("hana"));
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = Some(v1::PageRequest { size: 3, token });
        let list = v1::ListRequestsRequest { page, ..v1::ListRequestsRequest::default() };
        let reply = requests.list_requests(list).await.unwrap().into_inner();
        assert!(reply.requests.len() <= 3);
        seen.extend(reply.requests.into_iter().map(|request| request.id));
        token = reply.page.unwrap().next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, (1..=7).map(|number| format!("req-{number}")).collect::<Vec<_>>());
    // Another tenant's people see none of them.
    let reply =
        RequestServiceClient::new(federation.user("ivan")).list_requests(v1::ListRequestsRequest::default()).await;
    assert!(reply.unwrap().into_inner().requests.is_empty());
    let large = v1::ListRequestsRequest {
        page: Some(v1::PageRequest { size: 501, token: String::new() }),
        ..v1::ListRequestsRequest::default()
    };
    assert_refused(requests.list_requests(large).await, Code::InvalidArgument, "page.size", "501");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_not_found_and_the_nearest_visible_one_is_suggested() {
    let federation = Federation::start().await;
    let campus = federation.join("polytech-campus").await;
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    let mut leases = LeaseServiceClient::new(federation.user("alice"));

    let of = |tenant: &str| v1::ListRequestsRequest { tenant: tenant.to_owned(), ..Default::default() };
    assert!(requests.list_requests(of("poly-ml")).await.unwrap().into_inner().requests.is_empty());
    assert_refused(requests.list_requests(of("nosuch")).await, Code::NotFound, "tenant", "nosuch");
    let near = requests.list_requests(of("poly-lm")).await.unwrap_err();
    assert_eq!(detail(&near).remedy, "did you mean poly-ml?");
    let of_donor = v1::ListLeasesRequest { cluster: "ncc-mian".to_owned(), ..Default::default() };
    let near = leases.list_leases(of_donor).await.unwrap_err();
    assert_eq!(detail(&near).remedy, "did you mean ncc-main?");

    let mistaken = v1::RequestSpec { tenant: "poly-lm".to_owned(), ..spec() };
    let quote = v1::QuoteRequestRequest { spec: Some(mistaken.clone()), queue_anyway: true };
    assert_refused(requests.quote_request(quote).await, Code::NotFound, "spec.tenant", "poly-lm");
    let mut gpus = spec().gpus.unwrap();
    gpus.class = "midrnage".to_owned();
    let mistaken = v1::RequestSpec { gpus: Some(gpus), ..spec() };
    let call = v1::SubmitRequestRequest { spec: Some(mistaken), idempotency_key: "k".to_owned(), ..Default::default() };
    let near = requests.submit_request(call).await.unwrap_err();
    assert_eq!((near.code(), detail(&near).remedy.as_str()), (Code::NotFound, "did you mean midrange?"));

    // A cluster is told the names of its own institution only.
    let mut at_campus = RequestServiceClient::new(federation.channel(&campus.pem));
    let near = at_campus.list_requests(of("startup-robot")).await.unwrap_err();
    assert!(!detail(&near).remedy.contains("startup-robots"), "{near:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_a_snapshot_then_changes_and_resumes_without_gaps() {
    let mut federation = Federation::start().await;
    federation.join("polytech-campus").await;
    submit(&federation, "alice", "one").await;
    let mut watch = WatchServiceClient::new(federation.user("alice"));
    let mut events = watch.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let mut snapshot = Vec::new();
    let synced = loop {
        let event = next(&mut events).await;
        match event.object.unwrap() {
            Object::Synced(_) => break event.revision,
            Object::Request(request) => snapshot.push(request.id),
            Object::Cluster(cluster) => snapshot.push(cluster.id),
            other => panic!("not in this federation yet: {other:?}"),
        }
    };
    assert_eq!(snapshot, ["polytech-campus", "req-1"]);
    assert_eq!(synced, federation.revision().await);

    submit(&federation, "alice", "two").await;
    submit(&federation, "alice", "three").await;
    let live = [next(&mut events).await, next(&mut events).await];
    assert_eq!(live.each_ref().map(|event| event.revision), [synced + 1, synced + 2]);

    // Resuming gives what came after, nothing twice and nothing missing.
    let resume = v1::WatchRequest { from_revision: synced + 1, request: String::new() };
    let mut resumed = watch.watch(resume).await.unwrap().into_inner();
    let event = next(&mut resumed).await;
    assert_eq!(event.revision, synced + 2);
    assert!(matches!(event.object, Some(Object::Request(request)) if request.id == "req-3"));

    // Others see nothing of it, and a filter passes just its request.
    let only = v1::WatchRequest { from_revision: synced, request: "req-3".to_owned() };
    let mut filtered = watch.watch(only).await.unwrap().into_inner();
    assert_eq!(next(&mut filtered).await.revision, synced + 2);
    let mut other = WatchServiceClient::new(federation.user("ivan"));
    let resume = v1::WatchRequest { from_revision: synced, request: String::new() };
    let mut unseen = other.watch(resume).await.unwrap().into_inner();
    let nothing = tokio::time::timeout(std::time::Duration::from_millis(300), unseen.message()).await;
    assert!(nothing.is_err(), "{nothing:?}");

    // A revision that is still to come.
    let future = v1::WatchRequest { from_revision: federation.revision().await + 100, request: String::new() };
    let value = future.from_revision.to_string();
    assert_refused(watch.watch(future).await.map(|_| ()), Code::FailedPrecondition, "from_revision", &value);
    federation.restart().await;
    let mut watch = WatchServiceClient::new(federation.user("alice"));
    // Replaying the log fills the ring again: a watcher that lost its broker goes on where it was.
    let old = v1::WatchRequest { from_revision: synced, request: String::new() };
    let mut resumed = watch.watch(old).await.unwrap().into_inner();
    assert_eq!(next(&mut resumed).await.revision, synced + 1);
    let begin = v1::WatchRequest::default();
    let mut again = watch.watch(begin).await.unwrap().into_inner();
    assert!(next(&mut again).await.revision >= 1);
}
