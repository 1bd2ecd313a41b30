//! A time limit for the body of a request: a client that sends it slowly would hold a call for ever.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use comity_proto::{ErrorDetails, error_status, v1};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::{Code, Status};

/// A body that fails if it has not ended in time.
struct TimedBody {
    body: Body,
    limit: Duration,
    deadline: Instant,
    /// Made for the first byte that is not there yet.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The same body, which fails unless it ends within `limit` from now.
#[must_use]
pub fn end_within(body: Body, limit: Duration) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(TimedBody { body, limit, deadline: Instant::now() + limit, sleep: None })
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Looks at the clock first: a client may always have one more byte ready.
        let deadline = self.deadline;
        if Instant::now() >= deadline {
            return Poll::Ready(Some(Err(too_slow(self.limit))));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(too_slow(self.limit))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn too_slow(limit: Duration) -> Status {
    let detail = v1::ErrorDetail {
        code: "cancelled".to_owned(),
        reason: format!("the message did not arrive within {} s", limit.as_secs()),
        remedy: "send it in one go".to_owned(),
        ..v1::ErrorDetail::default()
    };
    error_status(Code::DeadlineExceeded, &detail, ErrorDetails::new())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use futures::StreamExt as _;
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A byte each second.
    fn trickle(bytes: usize) -> Body {
        let bytes = futures::stream::iter(0..bytes).then(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Status>(Frame::data(Bytes::from_static(b"x")))
        });
        end_within(Body::new(StreamBody::new(bytes.boxed())), LIMIT)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_ends_at_the_limit() {
        let began = Instant::now();
        let status = Status::from_error(Box::new(trickle(100).collect().await.unwrap_err()));
        assert_eq!((status.code(), began.elapsed()), (Code::DeadlineExceeded, LIMIT));
        assert!(status.message().contains("did not arrive within 10 s"), "{status:?}");
        assert_eq!(trickle(5).collect().await.unwrap().to_bytes().len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_body_ends_at_the_limit_and_a_complete_one_never() {
        let silent = Body::new(StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Status>>()));
        let began = Instant::now();
        assert!(end_within(silent, LIMIT).collect().await.is_err());
        assert_eq!(began.elapsed(), LIMIT);
        let body = end_within(Body::new(Full::from("whole")), LIMIT);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
    }
}
