//! `comity version`: versions of this client and of the broker.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Answer, Sheet, fields};
use crate::session::{Session, call};

const VERSION_EXAMPLES: &str = "\
Examples:
  comity version                 versions of this client and, if one is given, of the broker
  comity version --client
";

/// `comity version`.
#[derive(Debug, Args)]
#[command(after_help = VERSION_EXAMPLES)]
pub struct VersionArgs {
    /// Only the client's version; call no broker
    #[arg(long)]
    client: bool,
}

/// The answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client: &'static str,
    broker: Option<String>,
    trust_domain: Option<String>,
    ca_sha256: Option<String>,
}

impl Answer for Versions {
    fn table(&self, _now_ms: u64) -> Sheet {
        fields(&[
            ("comity", self.client.to_owned()),
            ("Broker", self.broker.clone().unwrap_or_default()),
            ("Federation", self.trust_domain.clone().unwrap_or_default()),
            ("CA SHA-256", self.ca_sha256.clone().unwrap_or_default()),
        ])
    }
}

impl VersionArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] if a broker is given and does not answer.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let client = env!("CARGO_PKG_VERSION");
        let mut versions = Versions { client, broker: None, trust_domain: None, ca_sha256: None };
        if !self.client && session.names_broker()? {
            let mut federation = FederationServiceClient::new(session.channel()?);
            let answer = call(federation.get_federation(v1::GetFederationRequest {})).await?;
            versions.broker = Some(answer.broker_version);
            versions.trust_domain = Some(answer.trust_domain);
            versions.ca_sha256 = Some(answer.ca_sha256);
        }
        session.print(&versions)
    }
}
