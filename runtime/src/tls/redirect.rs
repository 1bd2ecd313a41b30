//! Redirects of calls to another broker: records requests while they are sent, and detects redirects in responses.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request};
use hyper::body::{Body as _, Frame, SizeHint};
use tonic::body::Body;

/// Metadata of a refusal that redirects the caller to another broker. The call may be repeated there, because it had no
/// effect here or is idempotent.
pub const ELSEWHERE_METADATA: &str = "comity-elsewhere";

/// Recorded bytes of a request, at most: the size of the largest message from users.
const MAX_RECORDED_BYTES: usize = 4 << 20;

/// Whether response headers or trailers redirect the caller.
pub(super) fn is_redirect(metadata: &HeaderMap) -> bool {
    metadata.contains_key(ELSEWHERE_METADATA)
}

/// A request that can be repeated once it was sent completely. Streams of the caller never can.
pub(super) struct RepeatableRequest {
    head: Parts,
    recording: Arc<Mutex<Recording>>,
}

/// The body of a request as far as it was sent.
#[derive(Default)]
struct Recording {
    data: Vec<Bytes>,
    bytes: usize,
    is_complete: bool,
    /// The body exceeds [`MAX_RECORDED_BYTES`], so nothing is recorded.
    is_too_large: bool,
}

impl RepeatableRequest {
    /// Splits a request into the one to send and its recording.
    pub(super) fn record(request: Request<Body>) -> (Request<Body>, Self) {
        let (head, body) = request.into_parts();
        let is_complete = body.is_end_stream();
        let recording = Arc::new(Mutex::new(Recording { is_complete, ..Recording::default() }));
        let recorded = Body::new(RecordedBody { body, recording: Arc::downgrade(&recording) });
        (Request::from_parts(head.clone(), recorded), Self { head, recording })
    }

    /// The request again; `None` if it was not sent completely or is too large.
    pub(super) fn repeat(&self) -> Option<Request<Body>> {
        let recording = lock(&self.recording);
        let body = ReplayedBody(recording.data.clone().into());
        (recording.is_complete && !recording.is_too_large)
            .then(|| Request::from_parts(self.head.clone(), Body::new(body)))
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that records its data while it is sent.
struct RecordedBody {
    body: Body,
    /// Dropped once the response has started, so that a long stream is not recorded.
    recording: Weak<Mutex<Recording>>,
}

impl hyper::body::Body for RecordedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(recording) = self.recording.upgrade() else { return Poll::Ready(frame) };
        let mut recording = lock(&recording);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !recording.is_too_large
        {
            recording.bytes = recording.bytes.saturating_add(data.len());
            if recording.bytes > MAX_RECORDED_BYTES {
                *recording = Recording { is_too_large: true, ..Recording::default() };
            } else {
                recording.data.push(data.clone());
            }
        }
        recording.is_complete |= frame.is_none() || self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A recorded body that is sent again.
struct ReplayedBody(std::collections::VecDeque<Bytes>);

impl hyper::body::Body for ReplayedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// A response body that calls `on_redirect` if its trailers redirect the caller, as at the end of a stream.
pub(super) struct WatchedBody<F> {
    body: Body,
    on_redirect: Option<F>,
}

impl<F: FnOnce() + Send + Unpin + 'static> WatchedBody<F> {
    pub(super) fn watch(body: Body, on_redirect: F) -> Body {
        Body::new(Self { body, on_redirect: Some(on_redirect) })
    }
}

impl<F: FnOnce() + Send + Unpin + 'static> hyper::body::Body for WatchedBody<F> {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && frame.trailers_ref().is_some_and(is_redirect)
            && let Some(on_redirect) = self.on_redirect.take()
        {
            on_redirect();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
