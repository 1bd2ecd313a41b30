//! `comity-agent webhook install`, which the cluster's owner runs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_agent_model::settings::SettingChecks;
use comity_agent_workload::webhook::{Effect, Renewal, WebhookObjects, WebhookSettings, find_secret, install};
use comity_runtime::{Clock as _, SystemClock};

use super::examples::WEBHOOK_INSTALL_EXAMPLES;
use super::failure::Failure;
use crate::app::AgentError;
use crate::config::{Config, ConfigError};
use crate::services::webhook_registrations::webhook_registrations;

/// Commands of `comity-agent webhook`.
#[derive(Debug, Subcommand)]
pub(super) enum WebhookAction {
    /// Makes the webhooks' certificate, and registers the webhooks that the configuration needs.
    ///
    /// Run it with your own rights, which the agent does not have: whoever may write a registration has every right in
    /// the cluster. Repeat it after a change of webhook, burst, liqo or fabric.tun.remap in the configuration, and when
    /// the agent warns that the certificate ends. A good certificate stays.
    #[command(after_long_help = WEBHOOK_INSTALL_EXAMPLES)]
    Install(InstallArgs),
}

/// `comity-agent webhook install`.
#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// The agent's configuration file.
    #[arg(long, env = "COMITY_AGENT_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Your kubeconfig, not the agent's. Default: ~/.kube/config.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Its context. Default: the current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Replaces certificate, key and paths now, because somebody else may have the key.
    ///
    /// Calls fail for up to 10 seconds, until the agent has read them.
    #[arg(long)]
    renew: bool,
    /// Lets the API server check the changes, and writes nothing.
    #[arg(long, conflicts_with = "output")]
    dry_run: bool,
    /// yaml prints the objects for kubectl apply --server-side -f -, with the private key, and writes nothing.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: InstallOutput,
}

/// The output of an installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum InstallOutput {
    /// The changes that were made.
    #[default]
    Text,
    /// Objects that somebody else applies.
    Yaml,
}

pub(super) async fn act(action: WebhookAction) -> Result<(), Failure> {
    let WebhookAction::Install(args) = action;
    let config = Config::read(&args.config)?;
    let settings = settings_of(&config, &args.config)?;
    let path = args.kubeconfig.map_or_else(default_kubeconfig, Ok)?;
    let source = KubernetesSource::Kubeconfig { path, context: args.context };
    let client = KubernetesApi::connect(&source).await.map_err(AgentError::from)?.client();
    let found = find_secret(&client, &settings).await.map_err(Failure::System)?;
    let renewal = if args.renew { Renewal::Always } else { Renewal::WhenNeeded };
    let (registrations, now) = (webhook_registrations(&config), SystemClock::new().now());
    let objects = WebhookObjects::plan(&settings, &registrations, found.as_ref(), renewal, now);
    let objects = objects.map_err(Failure::System)?;
    if args.output == InstallOutput::Yaml {
        for object in objects.all() {
            let text = serde_saphyr::to_string(object).map_err(|error| Failure::System(error.to_string()))?;
            println!("---\n{text}");
        }
        return Ok(());
    }
    let effect = if args.dry_run { Effect::DryRun } else { Effect::Apply };
    for change in install(&client, &objects, effect).await.map_err(Failure::System)? {
        println!("{change}{}", if args.dry_run { " (dry run)" } else { "" });
    }
    Ok(())
}

fn settings_of(config: &Config, file: &Path) -> Result<WebhookSettings, Failure> {
    let settings = config.webhook.clone().ok_or_else(|| {
        Failure::System(format!(
            "{} has no section webhook; add it (docs/join.md), or remove the registrations of an agent that no longer \
             has it: kubectl delete mutatingwebhookconfiguration -l app.kubernetes.io/managed-by=comity-agent",
            file.display()
        ))
    })?;
    let mut checks = SettingChecks::default();
    settings.gather(&mut checks);
    checks.finish().map_err(ConfigError::from)?;
    Ok(settings)
}

fn default_kubeconfig() -> Result<PathBuf, Failure> {
    let home = std::env::home_dir().ok_or_else(|| Failure::System("there is no home; give --kubeconfig".to_owned()))?;
    Ok(home.join(".kube/config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_the_section_is_named() {
        let refused = |text: &str| {
            let dir = tempfile::tempdir().expect("a directory");
            let file = dir.path().join("agent.yaml");
            std::fs::write(&file, text).expect("it is written");
            let config = Config::read(&file).expect("it is a configuration");
            settings_of(&config, &file).expect_err("it is refused").to_string()
        };
        assert!(refused("kubernetes: {}\n").contains("agent.yaml has no section webhook"));
        assert!(refused("webhook: {url: 'http://a:1'}\n").contains("https://HOST:PORT"));
    }
}
