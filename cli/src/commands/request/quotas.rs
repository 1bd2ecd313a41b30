//! `comity quotas`: what tenants may use, and what they use.

use clap::Args;
use comity_proto::v1;

use crate::commands::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::session::Session;

const QUOTAS_EXAMPLES: &str = "\
Examples:
  comity quotas
  comity quotas --tenant poly-ml
  comity quotas -o json | jq -r '.items[] | select(.availableMilli == 0).by'

You see the quotas of your tenants and of their institutions. Limits on each user show what you use yourself.
";

/// `comity quotas`.
#[derive(Debug, Args)]
#[command(after_help = QUOTAS_EXAMPLES)]
pub struct QuotasArgs {
    /// Only quotas that count this tenant
    #[arg(long, add = known_ids::tenants())]
    tenant: Option<String>,
}

impl QuotasArgs {
    /// Lists them.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let query = v1::ListQuotasRequest { page: None, tenant: self.tenant.clone().unwrap_or_default() };
        session.print(&listings::quotas(&session.channel()?, &query).await?)
    }
}
