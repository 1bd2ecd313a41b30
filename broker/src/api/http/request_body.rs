//! The body of the gRPC request that stands for an HTTP request.
//!
//! It is read when the service reads it, so the limits and the timeout of calls cover a slow client too.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage as _, Value};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;

use crate::api::http::call::{HttpCall, MessageSource};
use crate::api::http::grpc_frames::framed;
use crate::api::http::{body_size, json_message, query_string};
use crate::api::rpc::MAX_USER_MESSAGE_BYTES;

/// Field of a watch that says after which revision to start.
const FROM_REVISION: &str = "from_revision";

/// Bytes of a body that is decoded at once, and that a caller without a certificate may send.
pub const SMALL_BODY_BYTES: usize = 64 << 10;
/// Permits for larger bodies.
static LARGE_BODIES: Semaphore = Semaphore::const_new(2);

/// How much a caller may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    /// Without a certificate: joins, and calls that are refused anyway.
    Anonymous,
    /// With a certificate.
    Certified,
}

impl BodyLimit {
    const fn bytes(self) -> usize {
        match self {
            Self::Anonymous => SMALL_BODY_BYTES,
            Self::Certified => MAX_USER_MESSAGE_BYTES,
        }
    }
}

/// Revision after which the events of a call start, once its message was read; 0: all objects first.
#[derive(Debug, Clone, Default)]
pub struct Start(Arc<OnceLock<u64>>);

impl Start {
    /// The revision; 0 before the message was read.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.0.get().copied().unwrap_or_default()
    }
}

/// The message of `call` as the body of a gRPC request.
#[must_use]
pub fn grpc_body(call: &HttpCall, body: Body, limit: BodyLimit, start: Start) -> Body {
    let (input, source, last_event) = (call.method.input(), call.source.clone(), call.last_event);
    let read = async move {
        let mut message = match source {
            MessageSource::Query(query) => json_message::decode(input.clone(), &query_string::to_json(&input, &query)?),
            MessageSource::Json => {
                let json = read_bounded(body, limit).await?;
                decode_json(input, if json.is_empty() { Bytes::from_static(b"{}") } else { json }).await
            }
            // The service decodes it.
            MessageSource::Proto => return Ok(Frame::data(framed(&read_bounded(body, limit).await?))),
        }?;
        if let Some(revision) = last_event
            && message.descriptor().get_field_by_name(FROM_REVISION).is_some()
        {
            message.set_field_by_name(FROM_REVISION, Value::U64(revision));
        }
        let from = message.get_field_by_name(FROM_REVISION).and_then(|value| value.as_u64());
        // Set once, because the body is read once.
        let _ = start.0.set(from.unwrap_or_default());
        Ok::<_, Status>(Frame::data(framed(&message.encode_to_vec())))
    };
    Body::new(StreamBody::new(futures::stream::once(read)))
}

/// Headers of the gRPC request: those of the client, without the ones about its body and connection.
#[must_use]
pub fn grpc_headers(mut headers: HeaderMap) -> HeaderMap {
    use http::header::{
        ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE,
        TRANSFER_ENCODING, UPGRADE,
    };
    for name in [
        ACCEPT,
        ACCEPT_ENCODING,
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        EXPECT,
        HOST,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    headers.insert(TE, http::HeaderValue::from_static("trailers"));
    headers
}

/// Decodes JSON. A decoded message can take sixty times the memory of its text, so few large ones are decoded at once,
/// beside the threads that serve the group.
async fn decode_json(input: MessageDescriptor, json: Bytes) -> Result<DynamicMessage, Status> {
    if json.len() <= SMALL_BODY_BYTES {
        return json_message::decode(input, &json);
    }
    let failed = |_| Status::internal("the message could not be decoded");
    let _permit = LARGE_BODIES.acquire().await.map_err(|_| Status::internal("the broker stops"))?;
    tokio::task::spawn_blocking(move || json_message::decode(input, &json)).await.map_err(failed)?
}

async fn read_bounded(body: Body, limit: BodyLimit) -> Result<Bytes, Status> {
    Ok(body_size::at_most(body, limit.bytes()).collect().await?.to_bytes())
}
