//! `comity request templates`: the catalogue from which requests are made.

use clap::Args;
use comity_proto::v1;

use crate::commands::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::session::Session;

const TEMPLATES_EXAMPLES: &str = "\
Examples:
  comity request templates
  comity request templates --tenant poly-ml -o json
  comity request submit --tenant poly-ml --origin polytech-campus --template notebook-small
";

/// `comity request templates`.
#[derive(Debug, Args)]
#[command(after_help = TEMPLATES_EXAMPLES)]
pub struct RequestTemplatesArgs {
    /// Only templates that this tenant is offered
    #[arg(long, add = known_ids::tenants())]
    tenant: Option<String>,
}

impl RequestTemplatesArgs {
    /// Lists them.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let query = v1::ListRequestTemplatesRequest {
            page: None,
            consistency: session.consistency(),
            tenant: self.tenant.clone().unwrap_or_default(),
        };
        session.print(&listings::request_templates(&session.channel()?, &query).await?)
    }
}
