//! The server's half: the newest certificate at each handshake, and a connection that knows its peer.

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

use super::ALPN;
use super::peer::PeerInfo;
use super::refusal::Refusal;
use super::validity::RefusedForTime;
use super::verify_client::ClientVerifier;
use crate::crypto;
use crate::identity::{Roots, TlsIdentity};

/// Whether a client must show a certificate. One that is shown is always verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Join and health need none; every other call is refused by authorisation.
    Optional,
    /// Raft among brokers.
    Required,
}

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The client was too slow.
    #[error("no TLS handshake within {}s", .0.as_secs())]
    Timeout(Duration),
    /// The client's certificate was refused, or it refused ours.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, or what came was not TLS 1.3.
    #[error("{0}")]
    Broken(String),
}

/// TLS for a listener. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    shown: watch::Receiver<TlsIdentity>,
    refused: RefusedForTime,
}

impl ServerTls {
    /// Shows the newest identity of the channel; client certificates are optional.
    pub fn new(identity: watch::Receiver<TlsIdentity>, roots: &Roots) -> Self {
        Self::with_client_certificates(identity, roots, ClientCertificates::Optional)
    }

    /// Like [`new`](Self::new), with the choice.
    pub fn with_client_certificates(
        identity: watch::Receiver<TlsIdentity>,
        roots: &Roots,
        clients: ClientCertificates,
    ) -> Self {
        let refused = RefusedForTime::default();
        let verifier = ClientVerifier::new(roots, clients == ClientCertificates::Required, refused.clone());
        let mut config = ServerConfig::builder_with_provider(crypto::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(Newest(identity.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), shown: identity, refused }
    }

    /// Whom it refuses because of the time of their certificates.
    pub fn refused_for_time(&self) -> RefusedForTime {
        self.refused.clone()
    }

    /// Carries out one handshake.
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
                let shown = self.shown.borrow().clone();
                let reason = Refusal::describe(&error, Some(&shown));
                if Refusal::is_refusal(&error) {
                    HandshakeError::Refused(reason)
                } else {
                    HandshakeError::Broken(reason)
                }
            })?;
        let peer = PeerInfo::of(stream.get_ref().1.peer_certificates(), remote_addr);
        Ok(ServerConnection { stream, peer, _slot: None })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Newest(watch::Receiver<TlsIdentity>);

impl ResolvesServerCert for Newest {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().certified_key())
    }
}

/// An accepted TLS connection; gives back its slot when it closes.
#[derive(Debug)]
pub struct ServerConnection {
    stream: TlsStream<TcpStream>,
    peer: PeerInfo,
    _slot: Option<OwnedSemaphorePermit>,
}

impl ServerConnection {
    /// Who is at the other end.
    pub const fn peer(&self) -> &PeerInfo {
        &self.peer
    }

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
        Pin::new(&mut self.stream).poll_read(cx, buffer)
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
