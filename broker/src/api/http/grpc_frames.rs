//! gRPC's framing: a flag, a length and a message; a status at the end.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use comity_proto::{ErrorDetails, error_status, v1};
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::{Code, Status};

/// Bytes before a message: the flag for compression and the length.
const PREFIX: usize = 5;

/// A message as one frame.
#[must_use]
pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    // Callers bound messages far below 4 GiB.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Reads the messages of a gRPC response.
#[derive(Debug)]
pub struct FrameReader {
    body: Body,
    buffer: BytesMut,
    /// Maximum bytes of one message.
    limit: usize,
}

impl FrameReader {
    /// Reads messages of at most `limit` bytes.
    #[must_use]
    pub fn new(body: Body, limit: usize) -> Self {
        Self { body, buffer: BytesMut::new(), limit }
    }

    /// The next message; `None` after the last one. Cancel-safe.
    ///
    /// # Errors
    /// The status that ends the response, if it is not OK.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take_buffered()? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                return Err(Status::internal("the response ended without a status"));
            };
            match frame?.into_data() {
                Ok(data) => self.buffer.put(data),
                Err(other) => return end(other.trailers_ref()),
            }
        }
    }

    fn take_buffered(&mut self) -> Result<Option<Bytes>, Status> {
        if self.buffer.len() < PREFIX {
            return Ok(None);
        }
        let mut prefix = &self.buffer[..PREFIX];
        let (compressed, length) = (prefix.get_u8() != 0, prefix.get_u32() as usize);
        if compressed {
            return Err(Status::internal("the response is compressed"));
        }
        if length > self.limit {
            return Err(too_large(length, self.limit));
        }
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

fn too_large(length: usize, limit: usize) -> Status {
    let detail = v1::ErrorDetail {
        code: "message-too-large".to_owned(),
        reason: format!("the answer has {length} bytes, and the limit over HTTP is {limit} bytes"),
        field: String::new(),
        value: format!("{length} bytes"),
        remedy: "ask for a smaller page, or call with gRPC".to_owned(),
    };
    error_status(Code::ResourceExhausted, &detail, ErrorDetails::new())
}

fn end(trailers: Option<&http::HeaderMap>) -> Result<Option<Bytes>, Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() == Code::Ok => Ok(None),
        Some(status) => Err(status),
        None => Err(Status::internal("the response has no status")),
    }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn reader(chunks: Vec<Vec<u8>>, status: &Status) -> FrameReader {
        let mut trailers = http::HeaderMap::new();
        status.add_header(&mut trailers).expect("a valid status");
        let data = chunks.into_iter().map(|chunk| Ok::<_, Status>(Frame::data(Bytes::from(chunk))));
        let frames: Vec<_> = data.chain([Ok(Frame::trailers(trailers))]).collect();
        FrameReader::new(Body::new(StreamBody::new(futures::stream::iter(frames))), 8)
    }

    #[tokio::test]
    async fn messages_are_found_however_the_bytes_are_cut() {
        let bytes: Vec<u8> = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for size in [1, 4, 7, bytes.len()] {
            let chunks = bytes.chunks(size).map(<[u8]>::to_vec).collect();
            let mut reader = reader(chunks, &Status::new(Code::Ok, ""));
            for expected in [&b"one"[..], b"", b"three"] {
                assert_eq!(reader.next().await.expect("no error").as_deref(), Some(expected));
            }
            assert_eq!(reader.next().await.expect("OK"), None);
        }
    }

    #[tokio::test]
    async fn a_failure_at_the_end_and_too_large_a_message_are_errors() {
        let mut failed = reader(vec![framed(b"one").to_vec()], &Status::aborted("too slow"));
        assert!(failed.next().await.expect("the first").is_some());
        assert_eq!(failed.next().await.expect_err("its end").code(), Code::Aborted);
        let mut large = reader(vec![framed(b"nine byte").to_vec()], &Status::new(Code::Ok, ""));
        assert_eq!(large.next().await.expect_err("too large").code(), Code::ResourceExhausted);
        let mut cut = FrameReader::new(Body::empty(), 8);
        assert_eq!(cut.next().await.expect_err("no status").code(), Code::Internal);
    }
}
