//! `comity`, the command for people: it asks brokers, shows what they say, and can run a whole federation on one
//! machine.
//!
//! ```text
//!   args ─▶ Session (brokers, identity, format) ─▶ commands/<noun> ─ gRPC ─▶ broker
//!                                                       │
//!                        shapes (JSON, YAML, tables) ◀──┘──▶ Failure ─▶ exit code
//!   dev: three brokers and four agents in this process, and the story of one lease
//! ```
//!
//! What this crate never does: decide anything about policy or placement (brokers do; `policy check` asks the same
//! crate that they use), print a secret that was not asked for, or leave anything behind.

pub mod args;
pub mod commands;
pub mod dev;
pub mod exit;
pub mod failure;
pub mod output;
pub mod session;
pub mod shapes;
pub mod units;
mod usage;
mod wire_names;

use std::process::ExitCode;

use clap::Parser as _;
use comity_runtime::TelemetryConfig;
use tracing::Instrument as _;

pub use args::{Args, Command, GlobalArgs};
pub use exit::Exit;
pub use failure::Failure;

/// Parses the command line, runs the command, and tells how it ended.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::report(&error, std::env::args_os()),
    };
    comity_runtime::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&args, &Failure::unavailable(format!("cannot start: {error}"))),
    };
    match runtime.block_on(run(&args)) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => report(&args, &failure),
    }
}

async fn run(args: &Args) -> Result<(), Failure> {
    let _telemetry =
        comity_runtime::telemetry::init(&telemetry(args)).map_err(|error| Failure::configuration(error.to_string()))?;
    let session = session::Session::new(&args.global);
    // One trace from here through the broker to the agents.
    dispatch(&args.command, &session).instrument(tracing::info_span!("comity")).await
}

async fn dispatch(command: &Command, session: &session::Session) -> Result<(), Failure> {
    match command {
        Command::Dev(command) => command.run(session).await,
        Command::Cluster(command) => command.run(session).await,
        Command::Offers(command) => command.run(session).await,
        Command::Request(command) => command.run(session).await,
        Command::Quote(command) => command.run(session).await,
        Command::Lease(command) => command.run(session).await,
        Command::Peering(command) => command.run(session).await,
        Command::Policy(command) => command.run(session).await,
        Command::Raft(command) => command.run(session).await,
        Command::Completions(command) => command.run(),
        Command::Version(command) => command.run(session).await,
    }
}

fn telemetry(args: &Args) -> TelemetryConfig {
    let mut config = TelemetryConfig::from_environment("comity");
    // A person wants answers, not logs; RUST_LOG has the last word for whoever looks for a fault.
    let filter = match args.global.verbose {
        0 => "off",
        1 => "info",
        _ => "debug,h2=info,hyper=info,tower=info",
    };
    config.filter = std::env::var("RUST_LOG").unwrap_or_else(|_| filter.to_owned());
    config
}

fn report(args: &Args, failure: &Failure) -> ExitCode {
    match args.global.output {
        output::Format::Table => eprint!("{}", failure.text()),
        output::Format::Json | output::Format::Yaml => eprintln!("{}", failure.json()),
    }
    failure.exit.into()
}
