//! `comity audit`: who did what, and why; and whether somebody changed the records since.

use clap::Subcommand;

mod list_records;
mod log_pages;
mod record_sheet;
mod verified;
mod verify_log;

pub use list_records::AuditListArgs;
pub(crate) use log_pages::all_records;
pub(crate) use record_sheet::cited;
pub use verify_log::AuditVerifyArgs;

use crate::failure::Failure;
use crate::session::Session;

/// `comity audit`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity audit list --since 2h\n  comity audit verify\n")]
pub enum AuditCommand {
    /// List records: who did what, and the policy behind it
    List(AuditListArgs),
    /// Find any edit, gap or swap in the audit log of every broker
    Verify(AuditVerifyArgs),
}

impl AuditCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, of the check, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::List(args) => args.run(session).await,
            Self::Verify(args) => args.run(session).await,
        }
    }
}
