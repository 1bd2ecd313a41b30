//! `comity quote`: placement, start time and price of a request, without submitting it.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;

use super::{OUTPUT, SpecArgs, read_spec};
use crate::failure::Failure;
use crate::session::{Session, call};
use crate::views::Quote;

const QUOTE_EXAMPLES: &str = "\
Examples:
  comity quote --tenant poly-ml --origin polytech-campus --class frontier --gpus 3 --duration 2h
  comity quote --tenant poly-ml --origin polytech-campus --template notebook-small
  comity quote -f request.yaml -o json | jq .priceMilliCredits
";

/// `comity quote`.
#[derive(Debug, Args)]
#[command(after_help = QUOTE_EXAMPLES)]
pub struct QuoteArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Show each donor's reason even if no donor could ever serve the request (otherwise exit code 6)
    #[arg(long, help_heading = OUTPUT)]
    queue_anyway: bool,
}

impl QuoteArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let spec = read_spec(&self.spec)?;
        let mut client = RequestServiceClient::new(session.channel()?);
        let request = v1::QuoteRequestRequest { spec: Some(spec), queue_anyway: self.queue_anyway };
        let response = call(client.quote_request(request)).await;
        let response = response.map_err(|failure| failure.written_in(self.spec.written_in()))?;
        session.print(&Quote::from(response))
    }
}
