//! TLS of servers: handshakes with the newest identity, and connections that know their peer.

mod early_preface;
mod idle;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

pub use self::idle::IdleLimits;

use self::early_preface::EarlyPreface;
use self::idle::{IdleTimer, Overdue, Write};
use super::admission::ConnectionSlots;
use super::peer::PeerInfo;
use super::refusal::Refusal;
use super::validity::RefusedForTime;
use super::verify_client::{ClientCertificates, ClientVerifier};
use super::{ALPN, ALPN_HTTP1};
use crate::crypto;
use crate::identity::{TlsIdentity, TrustedRoots};

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The handshake took too long.
    #[error("no TLS handshake within {}s", .0.as_secs())]
    Timeout(Duration),
    /// One side refused the other's certificate.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, or the client did not speak TLS 1.3.
    #[error("{0}")]
    Broken(String),
}

/// TLS for a listener. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    identity: watch::Receiver<TlsIdentity>,
    roots: TrustedRoots,
    refused: RefusedForTime,
}

impl ServerTls {
    /// Presents the newest identity of the channel. Client certificates are optional.
    pub fn new(identity: watch::Receiver<TlsIdentity>, roots: impl Into<TrustedRoots>) -> Self {
        Self::with_client_certificates(identity, roots, ClientCertificates::Optional)
    }

    /// Like [`new`](Self::new), with optional or required client certificates.
    pub fn with_client_certificates(
        identity: watch::Receiver<TlsIdentity>,
        roots: impl Into<TrustedRoots>,
        clients: ClientCertificates,
    ) -> Self {
        let refused = RefusedForTime::default();
        let roots = roots.into();
        let verifier = ClientVerifier::new(roots.clone(), clients, refused.clone());
        let mut config = ServerConfig::builder_with_provider(crypto::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(NewestServerIdentity(identity.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), identity, roots, refused }
    }

    /// Also accepts HTTP/1.1, from clients that call with JSON.
    #[must_use]
    pub fn with_http1(self) -> Self {
        let mut config = ServerConfig::clone(self.acceptor.config());
        config.alpn_protocols.push(ALPN_HTTP1.to_vec());
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), ..self }
    }

    /// The clients that it refused because their certificates were expired or not valid yet.
    pub fn refused_for_time(&self) -> RefusedForTime {
        self.refused.clone()
    }

    /// Performs one handshake.
    ///
    /// # Errors
    /// [`HandshakeError`] with the reason in words.
    pub async fn accept(
        &self,
        stream: TcpStream,
        remote_addr: SocketAddr,
        timeout: Duration,
    ) -> Result<ServerConnection, HandshakeError> {
        let stream = tokio::time::timeout(timeout, self.acceptor.accept(stream))
            .await
            .map_err(|_| HandshakeError::Timeout(timeout))?
            .map_err(|error| {
                let identity = self.identity.borrow().clone();
                let reason = Refusal::describe(&error, Some(&identity));
                if Refusal::is_refusal(&error) {
                    HandshakeError::Refused(reason)
                } else {
                    HandshakeError::Broken(reason)
                }
            })?;
        let peer = PeerInfo::of(stream.get_ref().1.peer_certificates(), &self.roots, remote_addr);
        let session = stream.get_ref().1;
        // A server of HTTP/2 alone greets by itself.
        let greets = self.acceptor.config().alpn_protocols.len() > 1 && session.alpn_protocol() == Some(ALPN);
        let preface = greets.then(EarlyPreface::default);
        Ok(ServerConnection { stream, peer, preface, idle: None, _held: None })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct NewestServerIdentity(watch::Receiver<TlsIdentity>);

impl ResolvesServerCert for NewestServerIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().certified_key())
    }
}

/// An accepted TLS connection. Releases its slots when it closes.
#[derive(Debug)]
pub struct ServerConnection {
    stream: TlsStream<TcpStream>,
    peer: PeerInfo,
    preface: Option<EarlyPreface>,
    idle: Option<IdleTimer>,
    _held: Option<HeldConnection>,
}

/// What a connection holds of its listener.
#[derive(Debug)]
#[expect(dead_code, reason = "held until the connection closes")]
pub(super) struct HeldConnection {
    pub(super) place: OwnedSemaphorePermit,
    pub(super) slots: ConnectionSlots,
}

impl ServerConnection {
    /// The peer of the connection.
    pub const fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Keeps slots of the listener until the connection closes.
    pub(super) fn hold(self, held: HeldConnection) -> Self {
        Self { _held: Some(held), ..self }
    }

    /// Closes the connection when nobody uses it. Its server must count the calls in [`PeerInfo::calls`].
    pub(super) fn close_when_idle(self, limits: IdleLimits) -> Self {
        let idle = IdleTimer::new(limits, self.peer.calls.clone());
        Self { idle: Some(idle), ..self }
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Option<Overdue> {
        self.idle.as_mut().and_then(|idle| idle.poll_overdue(cx))
    }

    /// Ends a write that waits for the peer if the connection must close.
    fn end_overdue<T>(
        &mut self,
        write: Write,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let Some(idle) = &mut self.idle {
            idle.note_write(write, &written);
        }
        match self.poll_overdue(cx) {
            Some(_) if written.is_pending() => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            _ => written,
        }
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.peer.clone()
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.poll_overdue(cx) {
            // As if the peer had closed it: calls that begin meanwhile fail unsent, and clients repeat them.
            Some(Overdue::Idle) => return Poll::Ready(Ok(())),
            Some(Overdue::Cut) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            None => {}
        }
        let Self { stream, preface, .. } = &mut *self;
        match preface {
            Some(preface) => preface.poll_read(Pin::new(stream), cx, buffer),
            None => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.end_overdue(Write::Buffer, written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.end_overdue(Write::Flush, flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.end_overdue(Write::Flush, shut_down, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.end_overdue(Write::Buffer, written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
