//! `comity`, the command-line client: it calls brokers, prints their answers, and can run a whole federation on one
//! machine.
//!
//! ```text
//!   args ─▶ Session (brokers, identity, format) ─▶ commands/<noun> ─ gRPC ─▶ broker
//!                                                       │
//!                        views (JSON, YAML, tables) ◀──┘──▶ Failure ─▶ exit code
//!   dev: three brokers and four agents in this process, and a demonstration of one lease
//! ```
//!
//! This crate never decides about policy or placement (brokers do; `policy check` calls the crate that they use), never
//! prints a secret unasked, and leaves nothing behind. It prints through [`output`], which shows only printable text,
//! whoever sent it. Only the output of the command of `comity run` goes on as it comes, as with `ssh`.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "everything printed goes through `output`")]

pub mod args;
pub mod clock;
pub mod commands;
pub mod confirm;
mod context_names;
pub mod dev;
pub mod exit;
pub mod failure;
pub mod global_args;
pub mod help;
mod listings;
pub mod live;
pub mod output;
pub mod session;
pub mod units;
mod usage;
pub mod views;
pub mod wire_names;

use std::process::ExitCode;

use clap::CommandFactory as _;
use comity_runtime::TelemetryConfig;
use tracing::Instrument as _;

pub use args::{Args, Command};
pub use exit::{Exit, Success};
pub use failure::Failure;
pub use global_args::GlobalArgs;

/// Longest wait for threads when a command has ended.
const LAST_THREADS: std::time::Duration = std::time::Duration::from_secs(1);

/// Parses the command line, runs the command, and prints any failure on standard error.
pub fn main() -> ExitCode {
    // Where a shell asks for completions, this answers and exits.
    clap_complete::CompleteEnv::with_factory(Args::command).completer("comity").complete();
    let args = match help::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return usage::report(&error, std::env::args_os()),
    };
    args.global.color.apply();
    comity_runtime::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&args, &Failure::unavailable(format!("cannot start: {error}"))),
    };
    let done = runtime.block_on(run(&args));
    // A thread that waits for a terminal or a pipe does not keep the process.
    runtime.shutdown_timeout(LAST_THREADS);
    match done {
        Ok(success) => success.into(),
        Err(failure) => report(&args, &failure),
    }
}

async fn run(args: &Args) -> Result<Success, Failure> {
    let _telemetry =
        comity_runtime::telemetry::init(&telemetry(args)).map_err(|error| Failure::configuration(error.to_string()))?;
    let session = session::Session::new(&args.global);
    // This span starts the trace that brokers and agents continue.
    let work = async {
        let done = dispatch(&args.command, &session).await;
        session.keep_learnt_brokers();
        let success = done?;
        session.renew_if_due().await;
        Ok(success)
    };
    work.instrument(tracing::info_span!("comity")).await
}

async fn dispatch(command: &Command, session: &session::Session) -> Result<Success, Failure> {
    let done = match command {
        Command::Policy(command) => return command.run(session).await,
        Command::Run(command) => return command.run(session).await,
        Command::Dev(command) => command.run(session).await,
        Command::Login(command) => command.run(session).await,
        Command::Context(command) => command.run(session),
        Command::User(command) => command.run(session).await,
        Command::Cluster(command) => command.run(session).await,
        Command::Institution(command) => command.run(session).await,
        Command::Invitation(command) => command.run(session).await,
        Command::Offers(command) => command.run(session).await,
        Command::Quotas(command) => command.run(session).await,
        Command::Request(command) => command.run(session).await,
        Command::Quote(command) => command.run(session).await,
        Command::Lease(command) => command.run(session).await,
        Command::Peering(command) => command.run(session).await,
        Command::Audit(command) => command.run(session).await,
        Command::Raft(command) => command.run(session).await,
        Command::Doctor(command) => command.run(session).await,
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(help::command(help::Detail::Full)),
        Command::Version(command) => command.run(session).await,
        Command::Status(command) => command.run(session).await,
        Command::Top(command) => command.run(session).await,
        Command::Whoami(command) => command.run(session).await,
    };
    done.map(|()| Success::Done)
}

fn telemetry(args: &Args) -> TelemetryConfig {
    let mut config = TelemetryConfig::from_environment("comity");
    // People want answers, not logs. RUST_LOG overrides this for debugging.
    let filter = match args.global.verbose {
        0 => "off",
        1 => "off,comity::calls=debug",
        _ => "debug,h2=info,hyper=info,tower=info",
    };
    config.filter = std::env::var("RUST_LOG").unwrap_or_else(|_| filter.to_owned());
    config
}

fn report(args: &Args, failure: &Failure) -> ExitCode {
    let failure = &match &args.command {
        Command::Policy(command) if command.has_detailed_exitcode() => failure.clone().with_detailed_exitcode(),
        Command::Run(_) => failure.clone().of_run(),
        _ => failure.clone(),
    };
    if args.global.output.is_for_scripts() {
        output::write_stderr(&(failure.json() + "\n"));
    } else {
        output::write_stderr(&output::labelled(&failure.text(), output::Page::stderr()));
    }
    failure.exit.into()
}
