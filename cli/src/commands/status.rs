//! `comity status`: the federation on one screen.

use clap::Args;

mod advice;
mod group_health;
mod observed;
mod overview;

pub(super) use observed::Observed;
pub(super) use overview::{WaitingRequest, queue_table, waiting_requests};

use self::group_health::GroupHealth;
use self::overview::Overview;
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::session::Session;

const OVERVIEW_EXAMPLES: &str = "\
Examples:
  comity status
  comity status -o json | jq -r '.attention[].command'

Shows what you may see. A maintainer sees everything; others see their tenants' leases and requests.
";

/// `comity status`.
#[derive(Debug, Args)]
#[command(after_help = OVERVIEW_EXAMPLES)]
pub struct StatusArgs {}

impl StatusArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of a call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let (observed, group) =
            futures::try_join!(Observed::read(session, &channel), GroupHealth::read(session, &channel))?;
        session.print(&Overview::new(observed, group, now_ms()))
    }
}
