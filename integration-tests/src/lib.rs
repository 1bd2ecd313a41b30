//! Runs federations of real processes for scenario tests and benchmarks.
//!
//! A [`Federation`] is three `comity-broker` processes and any number of `comity-agent` processes, driven through the
//! `comity` command, so that tests see what users see. Tests can kill processes at any point and search their files,
//! logs and memory.
//!
//! The programs are those beside the test binary; `./test` builds them first.

pub mod brokers;
pub mod burst;
pub mod chaos;
mod comity;
pub mod durable;
pub mod eviction;
pub mod failover;
mod federation;
pub mod flood;
pub mod growth;
pub mod history;
pub mod hostile;
pub mod pods;
mod process;
mod programs;
mod statistics;
mod stores;
mod wait;
mod watch;

pub use comity::Comity;
pub use federation::{AgentSpec, Federation, FederationConfig, InventorySource, free_port};
pub use process::Process;
pub use process::memory::{Finding, search_files, search_memory};
pub use process::place::{Launcher, Place};
pub use process::usage::{memory, processor_time};
pub use programs::{apply_admission, deploy, program};
pub use wait::{PATIENCE, until};
pub use watch::{Seen, Watch, now_ms};
