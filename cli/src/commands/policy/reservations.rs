//! `comity policy reservations`: what reservations keep, now or in their next windows.

use clap::Args;

use crate::failure::Failure;
use crate::listings;
use crate::session::Session;

const RESERVATIONS_EXAMPLES: &str = "\
Examples:
  comity policy reservations
  comity policy reservations -o json | jq '.items[] | select(.shortMilli > 0)'
";

/// `comity policy reservations`.
#[derive(Debug, Args)]
#[command(after_help = RESERVATIONS_EXAMPLES)]
pub struct PolicyReservationsArgs {}

impl PolicyReservationsArgs {
    /// Lists them.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        session.print(&listings::reservations(&session.channel()?, session.consistency()).await?)
    }
}
