#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;

use comity_runtime::ManualClock;
use futures::FutureExt as _;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::burst::OFFLOAD_LABEL;
use crate::crd::GpuRequestSpec;

/// An API server with one object, and a broker.
#[derive(Default)]
struct World {
    object: Value,
    version: u64,
    /// Calls, as in "PATCH finalizers".
    calls: Vec<String>,
    events: Vec<(String, String)>,
    submitted: Vec<String>,
    explained: usize,
    answer: Option<Result<v1::Request, RequestError>>,
    live: Vec<v1::Request>,
    /// The namespace has not opted in.
    stays_here: bool,
}

impl World {
    fn called(&self, what: &str) -> usize {
        self.calls.iter().filter(|call| call.as_str() == what).count()
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (code, json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason }))
        };
        if path.ends_with("/events") {
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            self.events.push((text("reason"), text("note")));
            return (201, body.clone());
        }
        if path.ends_with("/namespaces/team-a") {
            let offload = if self.stays_here { "false" } else { "true" };
            let labels = json!({ TENANT_LABEL: "vision", OFFLOAD_LABEL: offload });
            return (200, json!({ "metadata": { "name": "team-a", "labels": labels } }));
        }
        assert_eq!(*method, Method::PATCH, "{path}");
        let is_status = path.ends_with("/status");
        self.calls.push(if is_status { "status" } else { "finalizers" }.to_owned());
        if self.object.is_null() {
            return status(404, "NotFound");
        }
        let given = &body["metadata"]["resourceVersion"];
        if !given.is_null() && *given != self.object["metadata"]["resourceVersion"] {
            return status(409, "Conflict");
        }
        self.version += 1;
        self.object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if is_status {
            self.object["status"] = body["status"].clone();
        } else {
            self.object["metadata"]["finalizers"] = body["metadata"]["finalizers"].clone();
        }
        let answer = self.object.clone();
        if body["metadata"]["finalizers"] == json!([]) && !answer["metadata"]["deletionTimestamp"].is_null() {
            self.object = Value::Null;
        }
        (200, answer)
    }
}

type Shared = Arc<Mutex<World>>;

struct Broker(Shared);

impl Requests for Broker {
    fn submit(&self, _spec: v1::RequestSpec, key: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        let mut world = self.0.lock().unwrap();
        world.submitted.push(key);
        let answer = world.answer.clone().unwrap();
        async move { answer }.boxed()
    }
    fn cancel(&self, _request: String, _key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        async { Ok(()) }.boxed()
    }
    fn release(&self, _lease: String, _key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        async { Ok(()) }.boxed()
    }
    fn renew(&self, _lease: String, _key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        async { Ok(()) }.boxed()
    }
    fn get(&self, request: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        async move { Err(RequestError::NotFound(request)) }.boxed()
    }
    fn explain(&self, _request: String) -> BoxFuture<'_, Result<v1::ExplainRequestResponse, RequestError>> {
        let mut world = self.0.lock().unwrap();
        world.explained += 1;
        let free = world.explained;
        let reason = format!("{free} of 8 GPUs are free");
        let verdict = v1::DonorVerdict { donor: "institute".to_owned(), reason, ..v1::DonorVerdict::default() };
        let summary = "not placed: one donor".to_owned();
        let answer = v1::ExplainRequestResponse { donors: vec![verdict], summary, ..Default::default() };
        async move { Ok(answer) }.boxed()
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<v1::Request>, RequestError>> {
        let live = self.0.lock().unwrap().live.clone();
        async move { Ok(live) }.boxed()
    }
}

struct Bench {
    world: Shared,
    controller: Controller,
    state: ControllerState,
    clock: ManualClock,
}

impl Bench {
    /// An object of generation 1 that its watch has shown.
    fn new(answer: Result<v1::Request, RequestError>) -> Self {
        let mut object = GpuRequest::new("train", GpuRequestSpec { gpus: Some(1), ..GpuRequestSpec::default() });
        object.metadata.namespace = Some("team-a".to_owned());
        object.metadata.uid = Some("u-1".to_owned());
        object.metadata.resource_version = Some("1".to_owned());
        object.metadata.generation = Some(1);
        let object = serde_json::to_value(&object).unwrap();
        let world = World { object, version: 1, answer: Some(answer), ..World::default() };
        let world = Arc::new(Mutex::new(world));
        let served = Arc::clone(&world);
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = Arc::clone(&served);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = world.lock().unwrap().answer(&head.method, head.uri.path(), &body);
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::io::Error>(answer.unwrap())
            }
        });
        let clock = ManualClock::at_unix_ms(1_000_000);
        let controller = Controller {
            cluster: "here".to_owned(),
            client: kube::Client::new(service, "default"),
            requests: Arc::new(Broker(Arc::clone(&world))),
            desired: watch::channel(Update::default()).1,
            service: watch::channel(NodeService { borrows: Ok(()), ..NodeService::none("") }).1,
            clock: Arc::new(clock.clone()),
            default_class: "frontier".to_owned(),
            default_tenant: String::new(),
            saved: watch::Sender::default(),
        };
        let mut bench = Self { world, controller, state: ControllerState::default(), clock };
        bench.state.requests.take(Event::InitDone::<GpuRequest>, |_| None);
        bench.show();
        bench
    }

    /// The watch shows the object's current state.
    fn show(&mut self) {
        let object: GpuRequest = serde_json::from_value(self.world.lock().unwrap().object.clone()).unwrap();
        self.state.requests.take(Event::Apply(object), |object| Some((key(object)?, Some(object.clone()))));
    }

    async fn turn(&mut self) -> bool {
        self.controller.turn(&mut self.state).await
    }

    fn world<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        work(&mut self.world.lock().unwrap())
    }
}

fn queued() -> v1::Request {
    v1::Request {
        id: "req-1".to_owned(),
        state: v1::RequestState::Queued.into(),
        message: "waiting for a donor".to_owned(),
        ..v1::Request::default()
    }
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_stays_until_a_retry() {
    let reason = "no class \"huge\"; list the classes that exist".to_owned();
    let mut bench = Bench::new(Err(RequestError::Refused { code: "not-found".to_owned(), reason: reason.clone() }));
    for _ in 0..5 {
        assert!(!bench.turn().await, "a refusal is not waited for");
        bench.show();
        bench.clock.advance(Duration::from_secs(60));
    }
    bench.world(|world| {
        assert_eq!(world.object["status"]["state"], "Refused");
        assert_eq!(world.object["status"]["message"], json!(reason));
        assert_eq!(world.events, [("ComityRefused".to_owned(), reason)]);
        assert_eq!(world.submitted.len(), 1, "asked once");
        assert_eq!((world.called("finalizers"), world.called("status")), (1, 1));
        world.answer = Some(Ok(queued()));
    });
    bench.clock.advance(REFUSED_FOR);
    bench.turn().await;
    bench.world(|world| {
        assert_eq!(world.object["status"]["state"], "Queued");
        assert_eq!(world.submitted, ["gpurequest-u-1", "gpurequest-u-1"]);
    });
}

#[tokio::test]
async fn a_late_watch_makes_nothing_twice() {
    let mut bench = Bench::new(Ok(queued()));
    for _ in 0..5 {
        // Its watch still shows the object as it was before all writes.
        bench.turn().await;
        bench.world(|world| world.live = vec![queued()]);
    }
    bench.world(|world| {
        assert_eq!(world.submitted.len(), 1);
        assert_eq!(world.events.len(), 1, "{:?}", world.events);
        // The second says why it waits.
        assert_eq!((world.called("finalizers"), world.called("status")), (1, 2));
        world.object["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
        world.version += 1;
        world.object["metadata"]["resourceVersion"] = json!(world.version.to_string());
    });
    bench.show();
    for _ in 0..5 {
        bench.turn().await;
    }
    bench.world(|world| {
        assert!(world.object.is_null());
        assert_eq!((world.called("finalizers"), world.called("status")), (2, 2));
    });
}

#[tokio::test]
async fn an_outdated_object_waits_for_its_next_copy() {
    let mut bench = Bench::new(Ok(queued()));
    bench.world(|world| {
        world.object["metadata"]["resourceVersion"] = json!("7");
        world.version = 7;
    });
    assert!(!bench.turn().await, "its watch will show it");
    bench.world(|world| assert!(world.submitted.is_empty() && world.called("status") == 0));
    bench.show();
    bench.turn().await;
    bench.world(|world| assert_eq!(world.object["status"]["state"], "Queued"));
}

#[tokio::test]
async fn the_reason_to_wait_is_in_the_message_and_changes_once_a_minute() {
    let mut bench = Bench::new(Ok(queued()));
    bench.turn().await;
    bench.world(|world| {
        assert_eq!(world.object["status"]["message"], "waiting for a donor");
        world.live = vec![queued()];
    });
    for _ in 0..6 {
        bench.show();
        bench.turn().await;
        bench.clock.advance(Duration::from_secs(9));
    }
    bench.world(|world| {
        assert_eq!(world.object["status"]["message"], "institute: 1 of 8 GPUs are free");
        assert_eq!((world.explained, world.events.len()), (1, 1));
    });
    bench.clock.advance(Duration::from_secs(60));
    bench.show();
    bench.turn().await;
    bench.world(|world| assert_eq!(world.object["status"]["message"], "institute: 2 of 8 GPUs are free"));
}

#[tokio::test]
async fn a_namespace_that_has_not_opted_in_requests_no_virtual_nodes() {
    let mut bench = Bench::new(Ok(queued()));
    bench.world(|world| world.stays_here = true);
    bench.turn().await;
    bench.world(|world| {
        assert_eq!(world.object["status"]["conditions"][0]["reason"], "NamespaceNotOptedIn");
        assert!(world.object["status"]["message"].as_str().unwrap().contains("comity.dev/offload=true"));
        assert!(world.submitted.is_empty());
        world.stays_here = false;
    });
    bench.clock.advance(INCOMPLETE_FOR);
    bench.show();
    bench.turn().await;
    bench.world(|world| assert_eq!(world.submitted.len(), 1));
}

#[tokio::test]
async fn without_virtual_nodes_only_namespaces_are_requested() {
    let mut bench = Bench::new(Ok(queued()));
    bench.controller.service = watch::channel(NodeService::none("Liqo is not installed")).1;
    bench.turn().await;
    bench.world(|world| {
        assert_eq!(world.object["status"]["state"], "Refused");
        assert_eq!(world.object["status"]["conditions"][0]["reason"], "VirtualNodeUnavailable");
        assert!(world.object["status"]["message"].as_str().unwrap().contains("Liqo is not installed"));
        assert!(world.submitted.is_empty());
        world.object["spec"]["delivery"] = json!("Namespace");
        world.object["metadata"]["generation"] = json!(2);
        world.version += 1;
        world.object["metadata"]["resourceVersion"] = json!(world.version.to_string());
    });
    bench.show();
    bench.turn().await;
    bench.world(|world| assert_eq!(world.submitted.len(), 1));
}
