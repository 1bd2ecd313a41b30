//! `comity request`: submit, follow, cancel and explain requests for GPUs.

use std::time::Duration;

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;

mod cancel;
mod ctrl_c;
mod example;
mod follow;
mod isolation_arg;
mod quotas;
mod quote;
mod read_spec;
mod run;
mod spec_args;
mod spec_file;
mod submit;
mod templates;
mod wiring_args;

pub use cancel::RequestCancelArgs;
pub use example::RequestExampleArgs;
use follow::ChangeLines;
pub use follow::{Change, Followed, Follower};
pub use quotas::QuotasArgs;
pub use quote::QuoteArgs;
pub use read_spec::read_spec;
pub use run::RunArgs;
pub(crate) use spec_args::OUTPUT;
pub use spec_args::SpecArgs;
pub use submit::SubmitArgs;
pub use templates::RequestTemplatesArgs;

use self::ctrl_c::{CtrlC, stopped_waiting};
use super::completions::known_ids;
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::listings;
use crate::live::{ChangeSource, WatchArgs};
use crate::output::{Format, write_stdout};
use crate::session::{Session, call};
use crate::units::DurationBounds;
use crate::views::{Explanation, Request};

const REQUEST_LIST_EXAMPLES: &str = "\
Examples:
  comity request list
  comity request list --tenant poly-ml --all -o json
  comity request list --watch
";
const REQUEST_SHOW_EXAMPLES: &str = "\
Examples:
  comity request show req-42
";
const WATCH_EXAMPLES: &str = "\
Examples:
  comity request watch req-42                     follow it until its lease is active or it ends
  comity request watch req-42 -o json             print each change as one JSON object per line
";
const EXPLAIN_EXAMPLES: &str = "\
Examples:
  comity request explain req-42        show for each donor why not, and what would unblock it
";

/// `comity request`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 3 --wait
  comity request explain req-42
")]
#[expect(clippy::large_enum_variant, reason = "a process parses one")]
pub enum RequestCommand {
    /// Submit a request for GPUs
    Submit(SubmitArgs),
    /// List requests
    #[command(after_help = REQUEST_LIST_EXAMPLES)]
    List(RequestListArgs),
    /// Show one request
    #[command(after_help = REQUEST_SHOW_EXAMPLES)]
    Show(RequestIdArgs),
    /// Follow a request until its lease is active or it ends
    #[command(after_help = WATCH_EXAMPLES)]
    Watch(RequestWatchArgs),
    /// Cancel a request and its lease, if any
    Cancel(RequestCancelArgs),
    /// Show for each donor why a request is not placed there, and what would unblock it
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(RequestIdArgs),
    /// List the request templates that your tenants are offered, for submit and quote with --template
    Templates(RequestTemplatesArgs),
    /// Print a complete request file, for submit and quote with --file
    Example(RequestExampleArgs),
}

/// `comity request list`.
#[derive(Debug, Args)]
pub struct RequestListArgs {
    /// Only requests of this tenant
    #[arg(long, add = known_ids::tenants())]
    tenant: Option<String>,
    /// Include ended requests
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

/// `comity request show` and `comity request explain`.
#[derive(Debug, Args)]
pub struct RequestIdArgs {
    /// Request, as in req-42
    #[arg(add = known_ids::requests())]
    request: String,
}

/// `comity request watch`.
#[derive(Debug, Args)]
pub struct RequestWatchArgs {
    /// Request, as in req-42
    #[arg(add = known_ids::requests())]
    request: String,
    /// Stop watching after this time (exit code 5); the request continues
    #[arg(long, value_parser = DurationBounds::WAIT.parser(), allow_hyphen_values = true, value_name = "DURATION")]
    timeout: Option<u64>,
}

impl RequestCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Submit(args) => args.run(session).await,
            Self::List(args) => args.run(session).await,
            Self::Show(args) => {
                let mut client = RequestServiceClient::new(session.channel()?);
                let request =
                    v1::GetRequestRequest { request: args.request.clone(), consistency: session.consistency() };
                let response = call(client.get_request(request)).await?;
                session.print(&Request::from(response.request.unwrap_or_default()))
            }
            Self::Watch(args) => {
                let follower = Follower::new(session.channel()?, &args.request);
                let limit = args.timeout.map(Duration::from_millis);
                let mut lines = ChangeLines::default();
                let followed = follower.until_active(limit, |change| match session.format {
                    Format::Table => write_stdout(lines.next(change, now_ms(), session.page())?),
                    Format::Json | Format::Yaml | Format::Markdown => session.print_event(change),
                });
                let followed = CtrlC::listen()?.run_until(followed, || stopped_waiting(&args.request)).await?;
                followed.into_result()
            }
            Self::Cancel(args) => args.run(session).await,
            Self::Templates(args) => args.run(session).await,
            Self::Example(args) => args.run(),
            Self::Explain(args) => {
                let mut client = RequestServiceClient::new(session.channel()?);
                let request = v1::ExplainRequestRequest { request: args.request.clone(), seek_alternatives: true };
                session.print(&Explanation::from(call(client.explain_request(request)).await?))
            }
        }
    }
}

impl RequestListArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let query = v1::ListRequestsRequest {
            page: None,
            consistency: session.consistency(),
            tenant: self.tenant.clone().unwrap_or_default(),
            include_ended: self.all,
        };
        self.watch.show(session, ChangeSource::Stream, || listings::requests(&channel, &query)).await
    }
}
