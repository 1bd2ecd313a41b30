//! Bounds the memory of users' messages: an empty file of a policy bundle has two bytes on the wire and fifty decoded,
//! and a caller may have many calls under way. Agents' streams have limits of their own.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll};

use bytes::{Bytes, BytesMut};
use comity_core::Refusal;
use comity_core::refusal::Code;
use comity_proto::DecodedSizeLimit;
use comity_runtime::tls::{HeldSlots, KeyedSlots, PeerInfo, SlotLimit};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::api::http::procedures::{Procedures, Shape};
use crate::api::http::request_body::SMALL_BODY_BYTES;
use crate::api::rpc::MAX_USER_MESSAGE_BYTES;
use crate::api::rpc::peer_limit::Calling;
use crate::api::rpc_error::RpcError;

/// Limit of a user's message. The policy bundle with the most files and the request with the most donors take less than
/// a fifth of it. Depth 0 is a bundle or a request, depth 1 a file or a donor, depth 2 what is in these.
const CALL_LIMIT: DecodedSizeLimit =
    DecodedSizeLimit { max_bytes: 1 << 20, bytes_by_depth: &[1_024, 128, 64], opaque: &[] };
/// Messages of more than 64 KiB that a caller may have under way. Only policy bundles are that large.
const MAX_LARGE_MESSAGES: usize = 4;
/// Bytes before each message: one says whether it is compressed, four are its length.
const HEADER_BYTES: usize = 5;

/// Limits the messages of calls. Must be inside the layers that count calls and explain failures.
#[derive(Debug, Clone, Default)]
pub struct MessageLimitLayer {
    large: KeyedSlots<Calling>,
}

impl<S> Layer<S> for MessageLimitLayer {
    type Service = MessageLimit<S>;
    fn layer(&self, inner: S) -> MessageLimit<S> {
        MessageLimit { inner, large: self.large.clone() }
    }
}

/// Service of [`MessageLimitLayer`].
#[derive(Debug, Clone)]
pub struct MessageLimit<S> {
    inner: S,
    large: KeyedSlots<Calling>,
}

impl<S> Service<Request<Body>> for MessageLimit<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !has_one_message(request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        let calling = Calling::of(request.extensions().get::<PeerInfo>());
        // Held until the answer, because the handler may keep the message until then.
        let held = Arc::new(OnceLock::new());
        let (large, holds) = (self.large.clone(), Arc::clone(&held));
        let bounded = |body| Body::new(StreamBody::new(futures::stream::once(read_all(body, large, calling, holds))));
        let call = self.inner.call(request.map(bounded));
        Box::pin(async move {
            let response = call.await;
            drop(held);
            response
        })
    }
}

/// Whether the client sends exactly one message in the call, as users do.
fn has_one_message(path: &str) -> bool {
    let shape = Procedures::all().find(path).map(Shape::of);
    matches!(shape, Some(Shape::Unary | Shape::Events))
}

/// Reads a whole body once the service asks for it, so that its messages are checked before the service decodes any.
async fn read_all(
    mut body: Body,
    large: KeyedSlots<Calling>,
    calling: Calling,
    held: Arc<OnceLock<HeldSlots<Calling>>>,
) -> Result<Frame<Bytes>, Status> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        read.extend_from_slice(&data);
        if read.len() > SMALL_BODY_BYTES + HEADER_BYTES && held.get().is_none() {
            let slot = take_large(&large, &calling)?;
            // Set once, because the body is read once.
            let _ = held.set(slot);
        }
        if read.len() > MAX_USER_MESSAGE_BYTES + HEADER_BYTES {
            // The service refuses the message that is too long.
            break;
        }
    }
    messages(&read).try_for_each(check_decoded_size)?;
    Ok(Frame::data(read.freeze()))
}

fn take_large(large: &KeyedSlots<Calling>, calling: &Calling) -> Result<HeldSlots<Calling>, RpcError> {
    large.take([SlotLimit { key: calling.clone(), most: MAX_LARGE_MESSAGES }]).map_err(|SlotLimit { most, .. }| {
        let larger = format!("more than {} KiB", SMALL_BODY_BYTES >> 10);
        let reason = format!("{calling} has {most} messages of {larger} under way, which is the limit of one caller");
        RpcError::LimitReached { reason, remedy: "wait until some of these calls are done" }
    })
}

/// The messages of a body. The service decodes those behind the first, too.
fn messages(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let ([_, length @ ..], rest) = body.split_first_chunk::<HEADER_BYTES>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (message, rest) = rest.split_at_checked(length)?;
        body = rest;
        Some(message)
    })
}

/// Refuses a message that would take too much memory. Malformed ones are left to the decoder.
fn check_decoded_size(message: &[u8]) -> Result<(), RpcError> {
    CALL_LIMIT.check(message).map_err(|refused| {
        let remedy = "send fewer parts, such as files or donors, in one message";
        Refusal::new(Code::LimitReached, refused.to_string(), remedy).at("message", refused.bytes).into()
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;

    use comity_proto::v1;
    use prost::Message as _;
    use prost_reflect::{Kind, MessageDescriptor};
    use tokio::sync::Semaphore;
    use tokio::task::{LocalSet, spawn_local};
    use tower::ServiceExt as _;

    use super::*;
    use crate::api::http::grpc_frames::framed;

    const APPLY: &str = "/comity.v1.PolicyService/ApplyPolicy";

    fn check(files: Vec<v1::PolicyFile>) -> Vec<u8> {
        let bundle = v1::PolicyBundle { files, commit: String::new() };
        v1::CheckPolicyRequest { bundle: Some(bundle) }.encode_to_vec()
    }

    fn large() -> Vec<u8> {
        check(vec![v1::PolicyFile { path: "all.yaml".to_owned(), text: "#".repeat(70_000) }])
    }

    fn request(user: &str, path: &str, body: impl Into<Bytes>) -> Request<Body> {
        let body = Body::new(http_body_util::Full::from(body.into()));
        let mut request = Request::post(path).body(body).unwrap();
        let spiffe = Some(format!("spiffe://dev.test/user/{user}").parse().unwrap());
        let peer = PeerInfo::anonymous(([192, 0, 2, 1], 1).into());
        request.extensions_mut().insert(PeerInfo { spiffe, ..peer });
        request
    }

    /// Answers once it has read the body and `may_end` lets it; a body that fails ends the call, as in a service.
    async fn call(layer: MessageLimitLayer, request: Request<Body>, may_end: &'static Semaphore) -> Status {
        let service = move |request: Request<Body>| async move {
            let answer = match request.into_body().collect().await {
                Ok(_) => may_end.acquire().await.map(|_one| Status::ok("")).unwrap(),
                Err(refused) => refused,
            };
            Ok::<Response<Body>, Infallible>(answer.into_http())
        };
        let response = layer.layer(tower::service_fn(service)).oneshot(request).await.unwrap();
        Status::from_header_map(response.headers()).unwrap()
    }

    async fn call_of_alice(body: Vec<u8>) -> Status {
        static OPEN: Semaphore = Semaphore::const_new(1);
        call(MessageLimitLayer::default(), request("alice", APPLY, body), &OPEN).await
    }

    #[tokio::test]
    async fn many_empty_parts_are_refused_before_they_take_memory() {
        let empty = check(vec![v1::PolicyFile::default(); 30_000]);
        let refused = call_of_alice(framed(&empty).to_vec()).await;
        let detail = comity_proto::error_detail(&refused).unwrap();
        assert_eq!((detail.code.as_str(), detail.field.as_str()), ("limit-reached", "message"), "{refused:?}");
        assert!(detail.reason.contains("more parts than fit into 1 MiB"), "{detail:?}");
        assert_eq!((detail.value.as_str(), detail.remedy.is_empty()), (empty.len().to_string().as_str(), false));
        let small = framed(&check(Vec::new()));
        let second = [&small[..], &framed(&empty)[..]].concat();
        let before_what_is_too_large = [&framed(&empty)[..], &framed(&vec![0; MAX_USER_MESSAGE_BYTES])[..]].concat();
        for body in [second, before_what_is_too_large] {
            assert_eq!(call_of_alice(body).await.code(), tonic::Code::ResourceExhausted);
        }
        assert_eq!(call_of_alice(small.to_vec()).await.code(), tonic::Code::Ok);
    }

    #[test]
    fn the_largest_honest_messages_pass() {
        let files = vec![v1::PolicyFile { path: "a/b.yaml".into(), text: "b: \"c\"\n".repeat(900) }; 512];
        let donors = vec!["national-centre-main".to_owned(); 256];
        let data = vec![v1::DataNeed { dataset: "imagenet".to_owned(), ..v1::DataNeed::default() }; 16];
        let spec = v1::RequestSpec { allow_donors: donors.clone(), deny_donors: donors, data, ..Default::default() };
        let submit = v1::SubmitRequestRequest { spec: Some(spec), ..v1::SubmitRequestRequest::default() };
        for message in [check(files), submit.encode_to_vec()] {
            assert!(message.len() < MAX_USER_MESSAGE_BYTES, "{}", message.len());
            check_decoded_size(&message).unwrap();
        }
    }

    #[tokio::test]
    async fn caller_holds_many_large_messages() {
        // The compiler cannot show that a service made of a closure may run on another thread.
        LocalSet::new().run_until(hold_many()).await;
    }

    async fn hold_many() {
        static CLOSED: Semaphore = Semaphore::const_new(0);
        let (layer, message) = (MessageLimitLayer::default(), framed(&large()));
        let start = |user: &'static str, message: &Bytes| {
            let (layer, request) = (layer.clone(), request(user, APPLY, message.clone()));
            spawn_local(call(layer, request, &CLOSED))
        };
        let alice = Calling::of(request("alice", APPLY, Bytes::new()).extensions().get::<PeerInfo>());
        let calls: Vec<_> = (0..=MAX_LARGE_MESSAGES).map(|_| start("alice", &message)).collect();
        let others = [start("alice", &framed(&check(Vec::new()))), start("bob", &message)];
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(layer.large.in_use(&alice), MAX_LARGE_MESSAGES);
        CLOSED.add_permits(1);
        let mut refused = Vec::new();
        for call in calls {
            refused.extend(Some(call.await.unwrap()).filter(|status| status.code() != tonic::Code::Ok));
        }
        let [refused] = &refused[..] else { panic!("{refused:?}") };
        let reason = "spiffe://dev.test/user/alice has 4 messages of more than 64 KiB under way";
        assert!(refused.message().starts_with(reason), "{refused:?}");
        for other in others {
            assert_eq!(other.await.unwrap().code(), tonic::Code::Ok);
        }
        assert!(layer.large.is_unused());
    }

    /// Repeated fields of `message`, at `depth`, that the limit does not count.
    fn uncounted(message: &MessageDescriptor, depth: usize) -> Vec<String> {
        let is_counted = depth < CALL_LIMIT.bytes_by_depth.len();
        let fields = message.fields().flat_map(|field| {
            let has_length = matches!(field.kind(), Kind::Message(_) | Kind::String | Kind::Bytes);
            let alone = field.is_list() || field.is_map();
            let own = (alone && !(is_counted && has_length)).then(|| field.full_name().to_owned());
            let within = match field.kind() {
                Kind::Message(within) if depth < 8 => uncounted(&within, depth + 1),
                _ => Vec::new(),
            };
            own.into_iter().chain(within).collect::<Vec<_>>()
        });
        fields.collect()
    }

    #[test]
    fn every_repeated_field_of_a_users_message_counts_at_least_what_it_takes() {
        for (path, method) in Procedures::all().iter().filter(|(path, _)| has_one_message(path)) {
            assert_eq!(uncounted(&method.input(), 0), Vec::<String>::new(), "{path}");
        }
        assert!(!has_one_message("/comity.v1.AgentService/Connect"));
        let [spec, part, within] = CALL_LIMIT.bytes_by_depth else { panic!("three depths") };
        assert!(size_of::<v1::RequestSpec>() <= *spec && size_of::<String>() <= *within);
        let parts = [size_of::<v1::PolicyFile>(), size_of::<v1::DataNeed>(), size_of::<String>()];
        assert!(parts.iter().all(|size| size <= part), "{parts:?}");
    }
}
