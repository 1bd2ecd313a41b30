//! Connections to the API server of a donor. They have a mark, by which the fabric's packet filter knows them.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use comity_agent_model::api_port::DONOR_API_MARK;
use futures::future::BoxFuture;
use http::Uri;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ConfigExt as _};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tower::{BoxError, Service, ServiceBuilder};

/// A client for the donor's API server of `config`, each with new connections.
///
/// # Errors
/// When the configuration's certificates, keys or headers cannot be used.
pub fn donor_client(config: kube::Config) -> Result<kube::Client, BoxError> {
    let tls = config.rustls_https_connector_with_connector(MarkedTcp)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let http = Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace))
}

/// Connects with the mark.
///
/// # Errors
/// Those of the system.
pub async fn connect_to_donor(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    match socket2::SockRef::from(&socket).set_mark(DONOR_API_MARK) {
        Ok(()) => {}
        // An agent without the right to the network has no packet filter either: mode netstack.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error),
    }
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

/// Connects to the host and port of an address.
#[derive(Clone)]
struct MarkedTcp;

impl Service<Uri> for MarkedTcp {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        Box::pin(async move {
            let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let mut failed = io::Error::from(io::ErrorKind::NotFound);
            for address in lookup_host((host, server.port_u16().unwrap_or(443))).await? {
                match connect_to_donor(address).await {
                    Ok(stream) => return Ok(TokioIo::new(stream)),
                    Err(error) => failed = error,
                }
            }
            Err(failed)
        })
    }
}
