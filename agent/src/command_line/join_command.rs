//! `comity-agent join`: checks, writes a configuration if there is none, and only then spends the token.

use std::path::{Path, PathBuf};

use clap::Args;
use comity_runtime::checks::{CheckList, Outcome};
use comity_runtime::{SystemClock, SystemEntropy, TelemetryConfig, telemetry};
use serde::Serialize;

use super::failure::Failure;
use super::first_setup::{Setup, set_up};
use super::output_format::OutputFormat;
use super::run_command::{identity_key, run_agent};
use super::settings::Settings;
use crate::app::AgentError;
use crate::config::Config;
use crate::enrollment::join::{JoinInput, RefusedToken, check_owner, is_to_join, join_or_load};
use crate::enrollment::join_error::JoinError;
use crate::enrollment::token_source::JoinTokenSource;
use crate::preflight::{JoinChecks, Skippable};

/// `comity-agent join`.
#[derive(Debug, Args)]
pub(super) struct JoinArgs {
    /// Join token, a file with it, or - for standard input.
    ///
    /// Default: that of the configuration.
    #[arg(value_name = "TOKEN|FILE|-")]
    token: Option<JoinTokenSource>,
    /// Only makes the checks.
    ///
    /// Writes nothing, and does not use the token.
    #[arg(long)]
    dry_run: bool,
    /// Runs the agent after joining.
    #[arg(long, conflicts_with = "dry_run")]
    run: bool,
    /// Leaves out a check.
    #[arg(long, value_enum, value_name = "CHECK", hide_short_help = true)]
    skip: Vec<Skippable>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    output: OutputFormat,
    #[command(flatten)]
    settings: Settings,
}

/// The answer for scripts.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct JoinReport {
    /// SPIFFE id of the member; absent if it did not join.
    id: Option<String>,
    checks: CheckList,
    /// Configuration file to run with.
    config: PathBuf,
    /// Commands that come next.
    next: Vec<String>,
}

impl JoinReport {
    fn text(&self) -> String {
        let mut text = self.checks.text();
        if let Some(id) = &self.id {
            if self.checks.checks.is_empty() {
                text.push_str(&format!(
                    "the state directory has the identity {id} already; no new token was used\n\
                     if the brokers refuse it since the cluster was evicted, join with the token of a new invitation\n"
                ));
            } else {
                text.push_str(&format!("joined as {id}\n"));
            }
        }
        for command in &self.next {
            text.push_str(&format!("next: {command}\n"));
        }
        text
    }
}

pub(super) async fn join(args: JoinArgs) -> Result<(), Failure> {
    let JoinArgs { token, dry_run, run, skip, output, settings } = args;
    if settings.dump_config {
        print!("{}", settings.resolve()?.dump());
        return Ok(());
    }
    let given = token.map(JoinTokenSource::loaded).transpose().map_err(AgentError::from)?;
    let parsed = given.as_ref().map(JoinTokenSource::read).transpose().map_err(AgentError::from)?;
    let mut setup = set_up(settings, parsed.as_ref()).await?;
    if given.is_some() {
        setup.config.join_token_file = given;
    } else if let Some(configured) = setup.config.join_token_file.take() {
        setup.config.join_token_file = Some(configured.loaded().map_err(AgentError::from)?);
    }
    let mut report = JoinReport { config: setup.config_file.clone(), ..JoinReport::default() };
    if let Some(token) = &parsed {
        check_owner(&setup.config.state_dir, token).map_err(AgentError::from)?;
    }
    if is_to_join(&setup.config.state_dir, setup.config.join_token_file.as_ref()) {
        report.checks = check(&setup, dry_run, &skip).await?;
        if report.checks.has_failed() {
            output.print(&report.text(), &report);
            return Err(Failure::NotJoined { failed: report.checks.count(Outcome::Failed) });
        }
        if dry_run {
            output.print(&dry_run_text(&report, &setup), &report);
            return Ok(());
        }
    }
    // The running agent logs as configured; alone, joining tells only what goes wrong.
    let telemetry = if run { None } else { Some(telemetry::init(&quiet(&setup.config))?) };
    report.id = Some(spend_token(&setup.config).await?);
    if run {
        output.print(&report.text(), &report);
        return run_agent(setup.config).await;
    }
    report.next = next_commands(&setup.config_file, &report);
    output.print(&report.text(), &report);
    drop(telemetry);
    Ok(())
}

/// Writes the drafts, unless it is a dry run, and makes all checks.
async fn check(setup: &Setup, dry_run: bool, skip: &[Skippable]) -> Result<CheckList, Failure> {
    let Setup { config, .. } = setup;
    let no_token = || AgentError::from(JoinError::NoToken { state: config.state_dir.clone() });
    let source = config.join_token_file.as_ref().ok_or_else(no_token)?;
    let token = source.read().map_err(AgentError::from)?;
    if !dry_run && setup.is_certain() {
        // Also if a later check fails: the remedy may be to edit them.
        setup.write().map_err(AgentError::from)?;
    }
    let mut checks = CheckList::default();
    checks.extend(setup.found.iter().cloned());
    let more = JoinChecks {
        config,
        token: &token,
        inventory_draft: setup.inventory_draft.as_ref().map(|draft| draft.text.as_str()),
        dry_run,
        skip,
        clock: &SystemClock::new(),
        entropy: &SystemEntropy,
    };
    checks.extend(more.run().await.checks);
    Ok(checks)
}

fn quiet(config: &Config) -> TelemetryConfig {
    TelemetryConfig {
        service: "comity-agent".to_owned(),
        log_format: config.log.format,
        filter: "warn".to_owned(),
        otlp_endpoint: None,
    }
}

/// Joins, unless this host is a member by the same token already. The member's id.
async fn spend_token(config: &Config) -> Result<String, Failure> {
    let key = identity_key(config)?;
    let joined = join_or_load(JoinInput {
        state: &config.state_dir,
        token: config.join_token_file.as_ref(),
        refused: RefusedToken::Fails,
        brokers: &config.brokers,
        key: &key,
        store: None,
        voucher: config.voucher.as_ref(),
        clock: &SystemClock::new(),
        entropy: &SystemEntropy,
    })
    .await;
    Ok(joined.map_err(AgentError::from)?.identity.id().to_string())
}

fn dry_run_text(report: &JoinReport, setup: &Setup) -> String {
    let mut text = report.text();
    for draft in setup.drafts() {
        text.push_str(&format!("would write {}:\n{}", draft.path.display(), draft.text));
    }
    text.push_str("dry run: nothing was written, and the join token is still valid\n");
    text
}

fn next_commands(config: &Path, report: &JoinReport) -> Vec<String> {
    let cluster = report.id.as_deref().and_then(|id| id.rsplit('/').next()).unwrap_or_default();
    vec![
        format!("comity-agent run --config {}", config.display()),
        format!("comity cluster show {cluster}    # connected, once the agent runs"),
    ]
}
