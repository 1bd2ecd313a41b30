//! The answer of a dry run.

use std::path::PathBuf;

use serde::Serialize;

use crate::output::{Answer, Sheet, fields};
use crate::units::{counted, format_bytes, format_cpu, format_memory};
use crate::views::Request;

/// Files that a dry run names to people.
const SHOWN_FILES: usize = 20;

/// What would happen.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunPlan {
    pub(super) image: String,
    pub(super) command: Vec<String>,
    pub(super) term_ms: u64,
    /// Files and links that would be sent, and their bytes.
    pub(super) files: Vec<String>,
    pub(super) bytes: u64,
    /// Links that lead out of the folder.
    pub(super) left_out: Vec<PathBuf>,
    /// The request, as the broker read it.
    pub(super) request: Request,
}

impl Answer for RunPlan {
    fn table(&self, _now_ms: u64) -> Sheet {
        let gpus = &self.request.spec.gpus;
        let amounts = match (gpus.cpu_milli_per_gpu, gpus.memory_mib_per_gpu) {
            (0, 0) => "as little as the donor gives; see --cpu-per-gpu and --memory-per-gpu".to_owned(),
            (cpu, memory) => format!("{}, {} for each share", format_cpu(cpu), format_memory(memory)),
        };
        let shown = self.files.iter().take(SHOWN_FILES).cloned();
        let more = self.files.len().saturating_sub(SHOWN_FILES);
        let more = (more > 0).then(|| format!("and {more} more; -o json names all"));
        let files = shown.chain(more).collect::<Vec<_>>().join(", ");
        let left_out: Vec<String> = self.left_out.iter().map(|link| link.display().to_string()).collect();
        fields(&[
            ("GPUs", format!("{} for {}", gpus.summary(), self.request.spec.tenant)),
            ("CPU, memory", amounts),
            ("Image", self.image.clone()),
            ("Command", self.command.join(" ")),
            ("Lease", format!("renewed while the command runs, every {} s at the latest", self.term_ms / 1_000)),
            ("Sent", format!("{}, {}", counted(self.files.len() as u64, "file", "files"), format_bytes(self.bytes))),
            ("Files", files),
            ("Left out", left_out.join(", ")),
        ])
    }
}
