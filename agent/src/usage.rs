//! Whether work uses the leases that this cluster lends.
//!
//! ```text
//! pods of leases ─┐
//!                 ├─▶ LeaseUses ─▶ reconcile: reports idle and in_use
//! load of GPUs ───┘  (DCGM exporters, if configured)
//! ```
//!
//! A lease is in use while one of its pods has not finished, also while that pod waits. Where the load of GPUs is read,
//! a lease whose pods all run, on GPUs without load, is idle as well. Ignorance is use: a broken watch, an exporter
//! that does not answer or a GPU without a figure never makes a lease idle.

mod dcgm_scraper;
mod gpu_load;
mod lease_pod;
mod lease_uses;
mod use_watch;

use std::sync::Arc;

use comity_runtime::Shutdown;
use gpu_load::GpuLoad;
use tokio::sync::watch;

use crate::exporters::ExporterEndpoint;

pub use lease_uses::{LeaseUse, LeaseUses};
pub(crate) use use_watch::UseContext;

/// Starts to observe; `dcgm` tells the load of GPUs.
pub(crate) fn start(context: UseContext, dcgm: Option<ExporterEndpoint>, shutdown: &Shutdown) {
    let load = dcgm.map(|endpoint| {
        let (load, known) = watch::channel(GpuLoad::default());
        shutdown.spawn(dcgm_scraper::scrape(endpoint, load, Arc::clone(&context.clock), shutdown.token()));
        known
    });
    shutdown.spawn(use_watch::run(context, load, shutdown.token()));
}
