//! Checks that this cluster's API server has a certificate for the name that Liqo advertises: the origin verifies only
//! that name, because its connection goes through the tunnel.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::ForwardTarget;
use rustls::CertificateError;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(5);
const OPERATION: &str = "check the certificate of this cluster's API server";

/// Checks `url`, "https://HOST:PORT", with the CA (base64 of PEM) that goes with it, by a handshake with the API
/// server.
pub(crate) async fn check(server: &ForwardTarget, url: &str, ca: &str) -> Result<(), DeliveryError> {
    let host = host_of(url).ok_or_else(|| wrong(url, "it is no https address"))?;
    let name = ServerName::try_from(host.clone()).map_err(|_| wrong(url, "its host is no name and no address"))?;
    let pem = STANDARD.decode(ca).map_err(|_| wrong(url, "the CA beside it is not base64"))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| wrong(url, "the CA beside it is not PEM"))?;
        roots.add(certificate).map_err(|error| wrong(url, &format!("the CA beside it cannot be used: {error}")))?;
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| DeliveryError::temporary(OPERATION, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let attempt = async {
        let stream = TcpStream::connect(server.address()).await?;
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.map(drop)
    };
    match tokio::time::timeout(TIMEOUT, attempt).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(classify(url, &host, &error)),
        Err(_) => Err(DeliveryError::temporary(OPERATION, format!("no answer within {} s", TIMEOUT.as_secs()))),
    }
}

fn host_of(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']);
    (uri.scheme_str() == Some("https") && !host.is_empty()).then(|| host.to_owned())
}

fn classify(url: &str, host: &str, error: &std::io::Error) -> DeliveryError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => wrong(url, &format!("the API server's certificate does not carry {host}")),
        Some(rustls::Error::InvalidCertificate(reason)) => {
            wrong(url, &format!("the API server's certificate does not chain to the CA beside it: {reason:?}"))
        }
        _ => DeliveryError::temporary(OPERATION, error),
    }
}

fn wrong(url: &str, reason: &str) -> DeliveryError {
    DeliveryError::permanent(
        "liqo-api-address",
        format!(
            "Liqo hands out {url:?} as this cluster's API server, and {reason}; set apiServer.address (and \
             apiServer.ca) in Liqo's values to a name that the certificate carries"
        ),
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A server with a certificate for this name, and its CA in base64.
    async fn server(name: &str) -> (ForwardTarget, String) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        (ForwardTarget::new("127.0.0.1", port), STANDARD.encode(made.cert.pem()))
    }

    #[tokio::test]
    async fn only_a_name_that_the_certificate_carries_will_do() {
        let (target, ca) = server("api.example.org").await;
        check(&target, "https://api.example.org:6443", &ca).await.unwrap();
        let other_ca = server("api.example.org").await.1;
        for (url, ca, part) in [
            ("https://203.0.113.10:6443", &ca, "does not carry 203.0.113.10"),
            ("https://other.example.org", &ca, "does not carry other.example.org"),
            ("http://api.example.org", &ca, "no https address"),
            ("", &ca, "no https address"),
            ("https://api.example.org", &other_ca, "does not chain"),
            ("https://api.example.org", &"!".to_owned(), "not base64"),
        ] {
            let error = check(&target, url, ca).await.unwrap_err();
            assert!(matches!(error, DeliveryError::Permanent { code: "liqo-api-address", .. }), "{error}");
            assert!(error.to_string().contains(part) && error.to_string().contains("apiServer.address"), "{error}");
        }
        let silent = ForwardTarget::new("127.0.0.1", 1);
        let error = check(&silent, "https://api.example.org", &ca).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Temporary { .. }), "{error}");
    }
}
