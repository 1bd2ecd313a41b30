//! Which nodes, and which work for them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comity_simulation::resample::{with_cpu_only, with_sharing};
use comity_simulation::trace::Trace;

use super::whole::whole;

/// A trace's files, and what is made of its tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (how many) and model
    #[arg(long, value_name = "CSV")]
    pub(crate) nodes: PathBuf,
    /// CSV of pods with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU) and, where models matter,
    /// gpu_spec
    #[arg(long, value_name = "CSV")]
    pods: PathBuf,
    /// Tasks of whole GPUs are exchanged for shares, until shares ask for so many percent of the GPUs that are asked
    /// for
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(1..=100))]
    sharing_percent: Option<u8>,
    /// Tasks without GPUs are drawn again, until they are so many percent of all tasks
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(0..=90))]
    cpu_only_percent: Option<u8>,
}

impl WorkloadArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be used, or has no such tasks to draw.
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
