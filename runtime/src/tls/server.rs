//! TLS of servers: handshakes with the newest identity, and connections that know their peer.

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

use super::early_preface::EarlyPreface;
use super::peer::PeerInfo;
use super::refusal::Refusal;
use super::validity::RefusedForTime;
use super::verify_client::{ClientCertificates, ClientVerifier};
use super::{ALPN, ALPN_HTTP1};
use crate::crypto;
use crate::identity::{Roots, TlsIdentity};

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
    refused: RefusedForTime,
}

impl ServerTls {
    /// Presents the newest identity of the channel. Client certificates are optional.
    pub fn new(identity: watch::Receiver<TlsIdentity>, roots: &Roots) -> Self {
        Self::with_client_certificates(identity, roots, ClientCertificates::Optional)
    }

    /// Like [`new`](Self::new), with optional or required client certificates.
    pub fn with_client_certificates(
        identity: watch::Receiver<TlsIdentity>,
        roots: &Roots,
        clients: ClientCertificates,
    ) -> Self {
        let refused = RefusedForTime::default();
        let verifier = ClientVerifier::new(roots, clients, refused.clone());
        let mut config = ServerConfig::builder_with_provider(crypto::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(NewestServerIdentity(identity.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), identity, refused }
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
        let peer = PeerInfo::of(stream.get_ref().1.peer_certificates(), remote_addr);
        let session = stream.get_ref().1;
        // A server of HTTP/2 alone greets by itself.
        let greets = self.acceptor.config().alpn_protocols.len() > 1 && session.alpn_protocol() == Some(ALPN);
        let preface = greets.then(EarlyPreface::default);
        Ok(ServerConnection { stream, peer, preface, _slot: None })
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

/// An accepted TLS connection. Releases its slot when it closes.
#[derive(Debug)]
pub struct ServerConnection {
    stream: TlsStream<TcpStream>,
    peer: PeerInfo,
    preface: Option<EarlyPreface>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl ServerConnection {
    /// The peer of the connection.
    pub const fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Keeps a slot of the listener until the connection closes.
    pub(super) fn hold(self, slot: OwnedSemaphorePermit) -> Self {
        Self { _slot: Some(slot), ..self }
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
        let Self { stream, preface, .. } = &mut *self;
        match preface {
            Some(preface) => preface.poll_read(Pin::new(stream), cx, buffer),
            None => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
