//! `comity-agent run`, and the commands that print something of its configuration.

use comity_agent_liqo::donor::policy_manifest;
use comity_runtime::{IdentityKey, Shutdown, SystemEntropy, TelemetryConfig, atomic_file, telemetry};

use super::failure::Failure;
use super::settings::Settings;
use crate::app::{Agent, AgentError, IDENTITY_KEY_FILE};
use crate::config::Config;

pub(super) async fn run(settings: Settings) -> Result<(), Failure> {
    let dump = settings.dump_config;
    let config = settings.resolve()?;
    if dump {
        // A configuration that `run` refuses is not printed either.
        config.check()?;
        print!("{}", config.dump());
        return Ok(());
    }
    run_agent(config).await
}

/// Runs the agent until a signal.
pub(super) async fn run_agent(config: Config) -> Result<(), Failure> {
    let _telemetry = telemetry::init(&TelemetryConfig {
        service: "comity-agent".to_owned(),
        log_format: config.log.format,
        filter: config.log.filter.clone(),
        otlp_endpoint: config.log.otlp_endpoint.clone(),
    })?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    let agent = tokio::select! {
        agent = Agent::start(config) => agent?,
        () = shutdown.triggered() => return Ok(()),
    };
    let successor = tokio::select! {
        () = shutdown.triggered() => None,
        successor = agent.replaced() => Some(successor),
    };
    agent.shutdown().await;
    successor.map_or(Ok(()), |successor| {
        Err(Failure::System(format!("{successor} is the active agent now; started again, this replica is its standby")))
    })
}

pub(super) fn print_identity_key(settings: Settings) -> Result<(), Failure> {
    let dump = settings.dump_config;
    let config = settings.resolve()?;
    if dump {
        print!("{}", config.dump());
    } else {
        println!("{}", identity_key(&config)?.public());
    }
    Ok(())
}

/// Prints the admission policies that lending through Liqo needs, as a manifest.
pub(super) fn print_liqo_policies(settings: Settings) -> Result<(), Failure> {
    let (dump, config) = (settings.dump_config, settings.resolve()?);
    if dump {
        print!("{}", config.dump());
        return Ok(());
    }
    let manifest = policy_manifest(&config.liqo.policies());
    print!("{}", manifest.map_err(|error| Failure::System(format!("cannot write the policies: {error}")))?);
    Ok(())
}

/// The identity key, made if there is none.
pub(super) fn identity_key(config: &Config) -> Result<IdentityKey, AgentError> {
    atomic_file::create_private_dir(&config.state_dir)?;
    Ok(IdentityKey::load_or_generate(&config.state_dir.join(IDENTITY_KEY_FILE), &SystemEntropy)?)
}
