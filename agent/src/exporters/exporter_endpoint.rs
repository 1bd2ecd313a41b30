//! Where exporters are.

use std::str::FromStr;

use http::Uri;
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};

/// "http://host:port/path" of exporters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExporterEndpoint {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: PathAndQuery,
}

/// Why a URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address of exporters: write http://host:port/metrics, as in http://dcgm.gpu-operator:9400/metrics"
)]
pub struct InvalidEndpoint(String);

impl FromStr for ExporterEndpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        // Whatever stands before an "@" may be a password.
        let refused = || InvalidEndpoint(text.rsplit_once('@').map_or(text, |(_, host)| host).to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(refused)?;
        if uri.scheme_str() != Some("http") || authority.host().is_empty() {
            return Err(refused());
        }
        let path = uri.path_and_query().filter(|path| path.as_str() != "/").cloned();
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().ok_or_else(refused)?,
            path: path.unwrap_or_else(|| PathAndQuery::from_static("/metrics")),
        })
    }
}

impl TryFrom<String> for ExporterEndpoint {
    type Error = InvalidEndpoint;

    fn try_from(text: String) -> Result<Self, InvalidEndpoint> {
        text.parse()
    }
}

impl From<ExporterEndpoint> for String {
    fn from(ExporterEndpoint { host, port, path }: ExporterEndpoint) -> Self {
        format!("http://{host}:{port}{path}")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_http_urls_with_a_port() {
        for (text, full) in [
            ("http://dcgm.gpu-operator:9400/metrics", "http://dcgm.gpu-operator:9400/metrics"),
            ("http://dcgm:9400", "http://dcgm:9400/metrics"),
            ("http://[fd00::1]:80/m?x=1", "http://[fd00::1]:80/m?x=1"),
        ] {
            assert_eq!(String::from(text.parse::<ExporterEndpoint>().unwrap()), full);
        }
        for text in [
            "",
            "dcgm:9400",
            "http://dcgm/metrics",
            "https://dcgm:9400/metrics",
            "http://user:secret@dcgm:9400/metrics",
            "http:///metrics",
        ] {
            let error = text.parse::<ExporterEndpoint>().unwrap_err().to_string();
            assert!(error.contains("http://host:port") && !error.contains("secret"), "{error}");
        }
    }
}
