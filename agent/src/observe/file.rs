//! The inventory of a host without Kubernetes, from a YAML file.
//!
//! The file is polled once a second and read when it changed. An invalid file is logged, and the last valid inventory
//! stays published.

mod amounts;
mod file_nodes;
#[cfg(test)]
mod fuzz_inventory;
mod inventory_format;
mod mistakes;
mod node_wiring;
mod sharing_mode;
pub mod site_node;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use comity_agent_model::node_id::NodeSalt;
use comity_proto::v1;
use tokio::sync::watch;

use super::{Inventory, InventorySettings, LocalReserve};
use inventory_format::InventoryFile;
use mistakes::{Problem, Problems, UnknownFields};

pub use mistakes::InventoryMistake;

/// Polling interval.
const POLL: Duration = Duration::from_secs(1);
/// Largest file: a hundred times the inventory of a large machine room.
const MAX_INVENTORY_BYTES: u64 = 4 << 20;

/// A complete inventory with comments, to begin with.
pub const SAMPLE_INVENTORY: &str = include_str!("../../inventory.sample.yaml");

/// Whether the host of an inventory runs the pods of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsPods {
    /// Leases only show their quota.
    Nowhere,
    /// In containers, by the section `site`.
    Here,
}

/// Why an inventory file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryFileError {
    /// It cannot be read.
    #[error("cannot read the inventory {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The host cannot lend it as containers.
    #[error("the inventory {}: {reason}", path.display())]
    Site {
        /// The file.
        path: PathBuf,
        /// A sentence.
        reason: String,
    },
    /// It is invalid; at least one mistake.
    #[error("{}", first_of(.0))]
    Wrong(Vec<InventoryMistake>),
}

/// Mistakes that one sentence names. `comity-agent doctor` has a line for each.
const NAMED_MISTAKES: usize = 3;

fn first_of(mistakes: &[InventoryMistake]) -> String {
    let named = mistakes.iter().take(NAMED_MISTAKES).map(ToString::to_string).collect::<Vec<_>>().join("; also ");
    match mistakes.len().saturating_sub(NAMED_MISTAKES) {
        0 => named,
        more => format!("{named}; and {more} more, which `comity-agent doctor` lists"),
    }
}

/// Reads the file and follows it. Must be called within a tokio runtime; ends when the inventory is dropped.
///
/// # Errors
/// [`InventoryFileError`] for the first reading; later ones are logged.
pub async fn observe(
    path: &Path,
    settings: InventorySettings,
    runs_pods: RunsPods,
) -> Result<Inventory, InventoryFileError> {
    let (mut seen, nodes) = look(path, &settings, runs_pods).await?;
    let (publish, receiver) = watch::channel(Some(Arc::new(nodes)));
    let path = path.to_owned();
    let follow = async move {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = version(&path).await;
            if now == seen {
                continue;
            }
            match look(&path, &settings, runs_pods).await {
                Ok((version, nodes)) => {
                    seen = version;
                    tracing::info!(path = %path.display(), nodes = nodes.len(), "read the inventory again");
                    publish.send_replace(Some(Arc::new(nodes)));
                }
                Err(error) => {
                    // Logged once for each change of the file.
                    seen = now;
                    tracing::error!(%error, "the inventory stays as it was");
                }
            }
        }
    };
    Ok(Inventory::new(receiver, tokio::spawn(follow)))
}

/// Modification time and length of the file, to detect changes.
type Version = Option<(SystemTime, u64)>;

async fn version(path: &Path) -> Version {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

async fn look(
    path: &Path,
    settings: &InventorySettings,
    runs_pods: RunsPods,
) -> Result<(Version, Vec<v1::Node>), InventoryFileError> {
    let failed = |reason: String| InventoryFileError::Read { path: path.to_owned(), reason };
    // The version is read first, so that a concurrent change is seen at the next poll.
    let seen = version(path).await;
    if let Some((_, length)) = seen
        && length > MAX_INVENTORY_BYTES
    {
        return Err(failed(format!("it has {length} bytes, at most {MAX_INVENTORY_BYTES} are read")));
    }
    let text = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
    let mut nodes = parse(path, &text, &settings.salt, &settings.reserve)?;
    if runs_pods == RunsPods::Here {
        site_node::check(path, &mut nodes)?;
    }
    Ok((seen, nodes))
}

/// Reads an inventory; `path` is for the errors only.
///
/// # Errors
/// [`InventoryFileError::Wrong`] with all mistakes. A text that is no YAML, or a value of the wrong type, ends the
/// reading.
pub fn parse(
    path: &Path,
    text: &str,
    salt: &NodeSalt,
    reserve: &LocalReserve,
) -> Result<Vec<v1::Node>, InventoryFileError> {
    let mut unknown = UnknownFields::new(path, text);
    let file = serde_saphyr::with_deserializer_from_str(text, |yaml| {
        serde_ignored::deserialize::<_, _, InventoryFile>(yaml, |at| unknown.record(&at.to_string()))
    });
    let mut problems = Problems::default();
    let mut nodes = Vec::new();
    match file {
        Ok(file) => nodes = file_nodes::nodes(&file, salt, reserve, &mut problems),
        Err(error) => {
            let plain = error.without_snippet();
            let location = plain.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
            let reason = plain.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            problems.push(Problem(location, reason));
        }
    }
    let mut mistakes = unknown.mistakes;
    mistakes.extend(problems.0.into_iter().map(|Problem(at, reason)| InventoryMistake::new(path, at, reason)));
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    if mistakes.is_empty() { Ok(nodes) } else { Err(InventoryFileError::Wrong(mistakes)) }
}
