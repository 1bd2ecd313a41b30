//! Flags that select a trace of nodes and tasks.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comity_simulation::resample::{with_cpu_only, with_sharing};
use comity_simulation::trace::Trace;

use super::whole::whole;

/// A trace's files, and changes to its mix of tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (their number) and model
    #[arg(long, value_name = "CSV")]
    pub(crate) nodes: PathBuf,
    /// CSV of pods with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU) and, where models matter,
    /// gpu_spec
    #[arg(long, value_name = "CSV")]
    pods: PathBuf,
    /// Replaces tasks of whole GPUs by tasks of GPU shares, until shares make up this percentage of the GPU demand
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(1..=100))]
    sharing_percent: Option<u8>,
    /// Resamples tasks without GPUs until they make up this percentage of all tasks
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(0..=90))]
    cpu_only_percent: Option<u8>,
}

impl WorkloadArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file is unusable, or the trace has no task of the kind to draw.
    pub(crate) fn read(&self) -> Result<Trace> {
        let mut trace = Trace::read(&self.nodes, &self.pods)?;
        if let Some(percent) = self.sharing_percent {
            trace.tasks = with_sharing(&trace.tasks, percent).context("--sharing-percent")?;
        }
        if let Some(percent) = self.cpu_only_percent {
            trace.tasks = with_cpu_only(&trace.tasks, percent).context("--cpu-only-percent")?;
        }
        Ok(trace)
    }
}
