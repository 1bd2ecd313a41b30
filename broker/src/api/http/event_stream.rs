//! A stream of messages as server-sent events, <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage as _};
use tonic::Status;
use tonic::body::Body;

use crate::api::http::call::EVENT_STREAM;
use crate::api::http::grpc_frames::FrameReader;
use crate::api::http::{connect_error, json_message};

/// Pause after which a comment shows that the connection lives. Proxies commonly cut connections after 30 s or more.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": keepalive\n\n";
/// Event that marks the end of the current objects.
const SYNCED: &str = "synced";

/// The response that sends the messages of `frames` as events.
#[must_use]
pub fn response(frames: FrameReader, message: MessageDescriptor, from: u64) -> Response<Body> {
    let events = EventStream { frames, events: EventWriter::new(message, from), ended: false };
    let body = stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), events))
    });
    let mut response = Response::new(Body::new(StreamBody::new(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct EventStream {
    frames: FrameReader,
    events: EventWriter,
    ended: bool,
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let Ok(next) = tokio::time::timeout(COMMENT_INTERVAL, self.frames.next()).await else {
            return Some(Bytes::from_static(COMMENT));
        };
        match next.and_then(|message| message.map(|message| self.events.event(&message)).transpose()) {
            Ok(Some(event)) => Some(event.into()),
            Ok(None) => None,
            Err(status) => {
                self.ended = true;
                Some(error_event(&status).into())
            }
        }
    }
}

/// Writes messages as events whose id is the revision from which a client can resume.
struct EventWriter {
    message: MessageDescriptor,
    /// Whether the current objects were all sent: before, there is nothing to resume.
    synced: bool,
}

impl EventWriter {
    fn new(message: MessageDescriptor, from: u64) -> Self {
        Self { message, synced: from > 0 }
    }

    fn event(&mut self, bytes: &[u8]) -> Result<String, Status> {
        let internal = |error: &dyn std::fmt::Display| Status::internal(format!("an event is no message: {error}"));
        let message = DynamicMessage::decode(self.message.clone(), bytes).map_err(|error| internal(&error))?;
        let json = json_message::to_json(&message).map_err(|error| internal(&error))?;
        let kind = kind(&message);
        let revision = message.get_field_by_name("revision").and_then(|value| value.as_u64());
        // Several events may share a revision, so only those before are certainly complete.
        let resume = match revision {
            Some(revision) if kind.as_deref() == Some(SYNCED) => {
                self.synced = true;
                Some(revision)
            }
            Some(revision) if self.synced => Some(revision.saturating_sub(1)),
            _ => None,
        };
        let id = resume.map_or_else(String::new, |revision| format!("id: {revision}\n"));
        let kind = kind.map_or_else(String::new, |kind| format!("event: {kind}\n"));
        Ok(format!("{kind}{id}data: {}\n\n", String::from_utf8_lossy(&json)))
    }
}

/// Name of the field that the message's oneof holds.
fn kind(message: &DynamicMessage) -> Option<String> {
    let descriptor = message.descriptor();
    let mut fields = descriptor.oneofs().flat_map(|oneof| oneof.fields().collect::<Vec<_>>());
    fields.find(|field| message.has_field(field)).map(|field| field.json_name().to_owned())
}

fn error_event(status: &Status) -> String {
    format!("event: error\ndata: {}\n\n", connect_error::to_json(status))
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;
    use comity_proto::v1::watch_event::{Object, Synced};
    use http_body_util::BodyExt as _;
    use prost::Message as _;

    use super::*;
    use crate::api::http::grpc_frames::framed;
    use crate::api::http::procedures::Procedures;

    fn message() -> MessageDescriptor {
        Procedures::all().pool().get_message_by_name("comity.v1.WatchEvent").expect("a message of the API")
    }

    fn lease(revision: u64) -> v1::WatchEvent {
        let lease = v1::Lease { id: "lease-1".to_owned(), ..v1::Lease::default() };
        v1::WatchEvent { revision, object: Some(Object::Lease(lease)) }
    }

    fn written(writer: &mut EventWriter, event: &v1::WatchEvent) -> String {
        writer.event(&event.encode_to_vec()).expect("an event")
    }

    #[test]
    fn ids_are_revisions_from_which_a_client_misses_nothing() {
        let mut writer = EventWriter::new(message(), 0);
        // Part of the current objects: a client that lost the connection here starts from the beginning.
        assert_eq!(
            written(&mut writer, &lease(5)),
            "event: lease\ndata: {\"revision\":\"5\",\"lease\":{\"id\":\"lease-1\"}}\n\n"
        );
        let synced = v1::WatchEvent { revision: 9, object: Some(Object::Synced(Synced {})) };
        assert_eq!(written(&mut writer, &synced), "event: synced\nid: 9\ndata: {\"revision\":\"9\",\"synced\":{}}\n\n");
        // Another event of revision 10 may follow.
        assert!(written(&mut writer, &lease(10)).contains("\nid: 9\n"));
        assert!(written(&mut EventWriter::new(message(), 7), &lease(8)).contains("\nid: 7\n"));
    }

    fn frames(end: &Status) -> FrameReader {
        let mut trailers = http::HeaderMap::new();
        end.add_header(&mut trailers).expect("a valid status");
        let message = framed(&lease(5).encode_to_vec());
        let frames = [Ok::<_, Status>(Frame::data(message)), Ok(Frame::trailers(trailers))];
        FrameReader::new(Body::new(StreamBody::new(stream::iter(frames))), 1_000)
    }

    #[tokio::test]
    async fn a_failed_stream_ends_with_an_event_of_the_error() {
        let response = response(frames(&Status::aborted("too slow")), message(), 0);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(body.to_vec()).expect("text");
        let expected = "event: error\ndata: {\"code\":\"aborted\",\"message\":\"too slow\"}\n\n";
        assert!(text.starts_with("event: lease\n") && text.ends_with(expected), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_sends_comments() {
        let silent = FrameReader::new(Body::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Status>>())), 8);
        let mut body = response(silent, message(), 0).into_body();
        for _ in 0..2 {
            let frame = body.frame().await.expect("a frame").expect("no error");
            assert_eq!(frame.into_data().ok().as_deref(), Some(COMMENT));
        }
    }
}
