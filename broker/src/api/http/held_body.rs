//! A response body that holds something until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// Drops what it holds at the end of the body, before the client learns of it, or when the client is gone.
struct HeldBody<T> {
    body: Body,
    held: Option<T>,
}

/// The same body, which holds `held`.
pub fn hold<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Body::new(HeldBody { body, held: Some(held) })
}

impl<T: Unpin> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let ends = match &frame {
            Some(Ok(frame)) => frame.is_trailers() || self.body.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if ends {
            self.held = None;
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Weak};

    use http::HeaderMap;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn held(frames: Vec<Frame<Bytes>>) -> (Body, Weak<()>) {
        let token = Arc::new(());
        let weak = Arc::downgrade(&token);
        let frames = futures::stream::iter(frames.into_iter().map(Ok::<_, Status>));
        (hold(Body::new(StreamBody::new(frames)), token), weak)
    }

    fn message() -> Frame<Bytes> {
        Frame::data(Bytes::from_static(b"one"))
    }

    #[tokio::test]
    async fn it_is_held_until_the_trailers() {
        let (mut body, weak) = held(vec![message(), Frame::trailers(HeaderMap::new())]);
        body.frame().await.unwrap().unwrap();
        assert_eq!(weak.strong_count(), 1);
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert_eq!(weak.strong_count(), 0);
    }

    #[tokio::test]
    async fn it_is_released_at_an_end_without_trailers_and_by_a_client_that_leaves() {
        let (mut body, weak) = held(vec![message()]);
        body.frame().await.unwrap().unwrap();
        assert!(body.frame().await.is_none());
        assert_eq!(weak.strong_count(), 0);
        let (body, weak) = held(vec![message()]);
        drop(body);
        assert_eq!(weak.strong_count(), 0);
    }
}
