//! Lets a server that also speaks HTTP/1.1 greet HTTP/2 clients before they speak.
//!
//! Such a server looks at the first bytes of a connection to learn its protocol, and the clients of this crate wait for
//! the server's greeting, which shows that it accepted their certificate. TLS negotiated the protocol already: the
//! server gets the preface of HTTP/2 (RFC 9113, section 3.4) at once, and the client's own is checked and left out.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of the preface that the server got, and that the client sent.
#[derive(Debug, Default)]
pub(super) struct EarlyPreface {
    given: usize,
    received: usize,
}

impl EarlyPreface {
    /// Reads from a connection of HTTP/2.
    pub(super) fn poll_read(
        &mut self,
        mut stream: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let early = &PREFACE[self.given..];
        if !early.is_empty() {
            let count = early.len().min(buffer.remaining());
            buffer.put_slice(&early[..count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        while self.received < PREFACE.len() {
            let expected = &PREFACE[self.received..];
            let mut bytes = [0; PREFACE.len()];
            let mut read = ReadBuf::new(&mut bytes[..expected.len()]);
            ready!(stream.as_mut().poll_read(cx, &mut read))?;
            match read.filled() {
                // The client closed the connection.
                [] => return Poll::Ready(Ok(())),
                sent if expected.starts_with(sent) => self.received += sent.len(),
                _ => {
                    let reason = "the client negotiated HTTP/2 and does not begin with its preface";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
                }
            }
        }
        stream.poll_read(cx, buffer)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn read(preface: &mut EarlyPreface, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 64];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| preface.poll_read(Pin::new(&mut *stream), cx, &mut buffer)).await?;
        Ok(buffer.filled().to_vec())
    }

    #[tokio::test]
    async fn the_server_reads_one_preface_before_the_client_sends_it() {
        let (mut client, mut server) = tokio::io::duplex(256);
        let mut preface = EarlyPreface::default();
        assert_eq!(read(&mut preface, &mut server).await.unwrap(), PREFACE);
        for part in PREFACE.chunks(7) {
            client.write_all(part).await.unwrap();
        }
        client.write_all(b"settings").await.unwrap();
        assert_eq!(read(&mut preface, &mut server).await.unwrap(), b"settings");
        drop(client);
        assert!(read(&mut preface, &mut server).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn another_beginning_is_refused() {
        let (mut client, mut server) = tokio::io::duplex(256);
        let mut preface = EarlyPreface::default();
        read(&mut preface, &mut server).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        assert_eq!(read(&mut preface, &mut server).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
