//! `comity policy push`: the commits of a clone as an artifact of a registry.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use comity_broker::policy_source::{ArtifactPush, PullError, PushedArtifact};

use super::git::GitClone;
use crate::failure::Failure;
use crate::output::{Format, note};
use crate::session::Session;
use crate::views::PolicyPushed;

const PUSH_EXAMPLES: &str = "\
Examples:
  comity policy push oci://registry.example/federation/policy:main
  comity policy push oci://registry.example/policy:main --repo ~/policy --branch main
  comity policy push oci+http://localhost:5000/policy:main     a registry on this machine

Pushes the branch with its whole history as a Git bundle, for 'comity policy source set
oci://…'. Brokers judge the commits as they do those of a repository. The same artifact is
made by 'git bundle create policy.bundle main' and
'oras push NAME:TAG policy.bundle:application/vnd.comity.policy.v1.git-bundle'.
";
/// Where `docker login`, `oras login` and `podman login --compat-auth-file` write.
const CONFIG_FILE: &str = "config.json";
/// How often a push that takes long says so.
const PUSH_PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// `comity policy push`.
#[derive(Debug, Args)]
#[command(after_help = PUSH_EXAMPLES)]
pub struct PolicyPushArgs {
    /// Address of the artifact, oci://HOST/NAME:TAG
    address: String,
    /// Directory of the clone
    #[arg(long, value_name = "DIR", default_value = ".")]
    repo: PathBuf,
    /// Branch of the clone
    #[arg(long, value_name = "NAME", default_value = "main")]
    branch: String,
    /// Credentials, in the form of Docker's config.json [default: $DOCKER_CONFIG/config.json or ~/.docker/config.json]
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,
    /// PEM file with authorities of the registry, beside those of this machine
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
}

impl PolicyPushArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut push = ArtifactPush::to(&self.address, &self.branch)
            .map_err(|error| Failure::usage(error.reason).remedy(error.remedy))?;
        push.registry_config = self.registry_config.clone().or_else(usual_config);
        push.authorities.clone_from(&self.registry_ca);
        let clone = GitClone::around(&self.repo).await?;
        let bundle = clone.bundle(&self.branch).await?;
        let pushed = match session.format {
            Format::Table | Format::Markdown => with_progress(&push, bundle).await,
            // Standard error has nothing but an error.
            Format::Json | Format::Yaml => push.push(bundle).await,
        };
        let pushed = pushed.map_err(|error| Failure::unavailable(error.reason).remedy(error.remedy))?;
        session.print(&PolicyPushed::from(pushed))
    }
}

/// Pushes, and says so on standard error.
async fn with_progress(push: &ArtifactPush, bundle: Vec<u8>) -> Result<PushedArtifact, PullError> {
    let (began, host) = (Instant::now(), push.host());
    note(&format!("pushing {} KiB to {host}", bundle.len().div_ceil(1024)));
    let mut pushing = std::pin::pin!(push.push(bundle));
    loop {
        match tokio::time::timeout(PUSH_PROGRESS_INTERVAL, &mut pushing).await {
            Ok(pushed) => return pushed,
            Err(_) => note(&format!(
                "still pushing to {host}: {} s of at most {} s",
                began.elapsed().as_secs(),
                push.deadline.as_secs()
            )),
        }
    }
}

/// The file that Docker's own client reads, if it is there.
fn usual_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")))?;
    Some(folder.join(CONFIG_FILE)).filter(|file| file.is_file())
}
