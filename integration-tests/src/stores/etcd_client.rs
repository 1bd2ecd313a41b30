//! A minimal client of etcd's gRPC API over mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_testkit::ClientPem;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use generated::kv_client::KvClient;
use generated::maintenance_client::MaintenanceClient;
pub(super) use generated::{PutRequest, RangeRequest, RangeResponse, StatusRequest, StatusResponse};

#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
mod generated {
    tonic::include_proto!("etcdserverpb");
}

/// For TCP and TLS together, as Comity's clients have it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A page of keys.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// A client of one member. Clones share its connection.
#[derive(Clone)]
pub(super) struct EtcdClient(Channel);

impl EtcdClient {
    /// A client of the member at `endpoint`, "127.0.0.1:PORT", which connects at the first call.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub(super) fn new(endpoint: &str, pem: &ClientPem) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.authority.as_bytes()) {
            roots.add(certificate?)?;
        }
        let chain = CertificateDer::pem_slice_iter(pem.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (tls, address) = (TlsConnector::from(Arc::new(config)), endpoint.to_owned());
        let connector = tower::service_fn(move |_: http::Uri| {
            let (tls, address) = (tls.clone(), address.clone());
            async move {
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
                Ok::<_, std::io::Error>(TokioIo::new(tls.connect(name, stream).await?))
            }
        });
        // The scheme is http because the connector brings its own TLS.
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}")).context("an endpoint")?;
        Ok(Self(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_with_connector_lazy(connector)))
    }

    pub(super) async fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        KvClient::new(self.0.clone()).put(PutRequest { key, value }).await?;
        Ok(())
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let mut client = KvClient::new(self.0.clone()).max_decoding_message_size(MAX_PAGE_BYTES);
        Ok(client.range(request).await?.into_inner())
    }

    pub(super) async fn status(&self) -> Result<StatusResponse> {
        Ok(MaintenanceClient::new(self.0.clone()).status(StatusRequest {}).await?.into_inner())
    }
}
