//! Calls that a broker sends away, to be made at another broker: the request is kept while it is sent, and answers are
//! looked at on their way in.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request};
use hyper::body::{Body as _, Frame, SizeHint};
use tonic::body::Body;

/// Metadata of a refusal by which a broker says that another may do better, and that the same call may be made there:
/// nothing was carried out here, or its repetition does no harm.
pub const ELSEWHERE_METADATA: &str = "comity-elsewhere";

/// Bytes of a request that are kept: the largest message that users send.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Whether a broker sends the caller elsewhere.
pub(super) fn is_said(metadata: &HeaderMap) -> bool {
    metadata.contains_key(ELSEWHERE_METADATA)
}

/// A request that can be sent again once it was sent whole. Streams of the caller never are.
pub(super) struct Kept {
    head: Parts,
    sent: Arc<Mutex<Sent>>,
}

#[derive(Default)]
struct Sent {
    data: Vec<Bytes>,
    bytes: usize,
    whole: bool,
    too_large: bool,
}

impl Kept {
    /// The request to send, and what is kept of it.
    pub(super) fn keep(request: Request<Body>) -> (Request<Body>, Self) {
        let (head, body) = request.into_parts();
        let sent = Arc::new(Mutex::new(Sent { whole: body.is_end_stream(), ..Sent::default() }));
        let sending = Body::new(Sending { body, sent: Arc::downgrade(&sent) });
        (Request::from_parts(head.clone(), sending), Self { head, sent })
    }

    /// The request once more, where it was sent whole.
    pub(super) fn again(&self) -> Option<Request<Body>> {
        let sent = lock(&self.sent);
        let again = Again(sent.data.clone().into());
        (sent.whole && !sent.too_large).then(|| Request::from_parts(self.head.clone(), Body::new(again)))
    }
}

fn lock(sent: &Mutex<Sent>) -> MutexGuard<'_, Sent> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sending {
    body: Body,
    /// Gone once the answer has begun: a stream that goes on is not kept.
    sent: Weak<Mutex<Sent>>,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(sent) = self.sent.upgrade() else { return Poll::Ready(frame) };
        let mut sent = lock(&sent);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !sent.too_large
        {
            sent.bytes = sent.bytes.saturating_add(data.len());
            if sent.bytes > MAX_KEPT_BYTES {
                *sent = Sent { too_large: true, ..Sent::default() };
            } else {
                sent.data.push(data.clone());
            }
        }
        sent.whole |= frame.is_none() || self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Again(std::collections::VecDeque<Bytes>);

impl hyper::body::Body for Again {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// An answer that tells where its end sends the caller elsewhere: that of a stream.
pub(super) struct Watched<F> {
    body: Body,
    elsewhere: Option<F>,
}

impl<F: FnOnce() + Send + Unpin + 'static> Watched<F> {
    pub(super) fn watch(body: Body, elsewhere: F) -> Body {
        Body::new(Self { body, elsewhere: Some(elsewhere) })
    }
}

impl<F: FnOnce() + Send + Unpin + 'static> hyper::body::Body for Watched<F> {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && frame.trailers_ref().is_some_and(is_said)
            && let Some(elsewhere) = self.elsewhere.take()
        {
            elsewhere();
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
