//! Whole federations of real processes, for the scenario tests.
//!
//! A [`Federation`] is three `comity-broker` processes and any number of `comity-agent` processes, driven through the
//! `comity` command as a person would; so what a test sees is what a user sees. Processes can be killed at any point,
//! and searched: their files, logs and memory.
//!
//! The programs are those that `cargo build` put beside the test binary; `./test` builds them first.

mod admin;
pub mod brokers;
pub mod burst;
pub mod chaos;
mod comity;
pub mod durable;
pub mod failover;
mod federation;
pub mod growth;
pub mod history;
mod memory;
pub mod pods;
mod process;
mod processes;
mod programs;
mod stores;
mod wait;
mod watch;

pub use comity::Comity;
pub use federation::{AgentSpec, Donor, Federation, FederationConfig, Launcher, PATIENCE, Place};
pub use memory::{Finding, search_files, search_memory};
pub use process::Process;
pub use processes::memory;
pub use programs::{deploy, program};
pub use wait::until;
pub use watch::{Seen, Watch, now_ms};
