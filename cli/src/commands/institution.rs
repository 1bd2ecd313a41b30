//! `comity institution`: suspends institutions and resumes them.

pub(crate) mod revocation;

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use serde::Serialize;

use self::revocation::{Revocation, RevocationAnswer, RevocationArgs};
use super::completions::known_ids;
use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::{Session, call, idempotency_key};

const SUSPEND_EXAMPLES: &str = "\
Examples:
  comity institution suspend polytechnic --dry-run
  comity institution suspend polytechnic --leases drain
  comity institution suspend polytechnic --yes

Within seconds, no broker lets a call of its clusters through, or of people whose roles are all in it.
It lends and borrows nothing, and its waiting requests keep their place. Leases that it lends or
borrows, and those of its tenants elsewhere, stop: somebody else may hold its keys. Choose
'--leases drain' to give their work the donor's notice, or '--leases finish' to let their terms run
out. Donors remove tunnels, tokens and namespaces at once; those that are offline do so when they are
back. Open invitations for its clusters and by its operators are void. Repeat the command to treat its
leases more tightly. 'comity institution resume' lifts the suspension; no certificate is lost. Only a
maintainer may suspend and resume.
";
const RESUME_EXAMPLES: &str = "\
Examples:
  comity institution resume polytechnic

Its certificates are valid again, its agents connect within seconds, and its waiting requests are
placed. Leases that have not ended yet go on; ended ones do not come back.
";

/// `comity institution`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  comity institution suspend polytechnic\n  comity institution resume polytechnic\n"
)]
pub enum InstitutionCommand {
    /// Suspend an institution: end its calls, and treat its leases
    #[command(after_help = SUSPEND_EXAMPLES)]
    Suspend(InstitutionSuspendArgs),
    /// Lift the suspension of an institution
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(InstitutionResumeArgs),
}

/// `comity institution suspend`.
#[derive(Debug, Args)]
pub struct InstitutionSuspendArgs {
    /// Institution, as in policy documents
    #[arg(add = known_ids::institutions())]
    institution: String,
    #[command(flatten)]
    revocation: RevocationArgs,
}

/// `comity institution resume`.
#[derive(Debug, Args)]
pub struct InstitutionResumeArgs {
    /// Suspended institution
    #[arg(add = known_ids::institutions())]
    institution: String,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl InstitutionCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Suspend(args) => session.print(&args.run(session).await?),
            Self::Resume(args) => {
                let request = v1::ResumeInstitutionRequest {
                    institution: args.institution.clone(),
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                call(FederationServiceClient::new(session.channel()?).resume_institution(request)).await?;
                session.print(&Resumed { institution: args.institution.clone() })
            }
        }
    }
}

impl InstitutionSuspendArgs {
    async fn run(&self, session: &Session) -> Result<RevocationAnswer, Failure> {
        let client = FederationServiceClient::new(session.channel()?);
        let subject = Revocation::Suspension(self.institution.clone());
        self.revocation
            .run(subject, |dry_run, leases, idempotency_key| {
                let (mut client, institution) = (client.clone(), self.institution.clone());
                async move {
                    let request =
                        v1::SuspendInstitutionRequest { institution, leases: leases.into(), dry_run, idempotency_key };
                    Ok(call(client.suspend_institution(request)).await?.effects.unwrap_or_default())
                }
            })
            .await
    }
}

/// The answer of `resume`.
#[derive(Serialize)]
struct Resumed {
    institution: String,
}

impl Answer for Resumed {
    fn table(&self, _now_ms: u64) -> Sheet {
        format!("resumed {}", self.institution).as_str().into()
    }
}
