//! Flags that every command takes.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::context_names::context_names;
use crate::output::{ColorMode, Format};

/// Flags that every command takes.
#[derive(Debug, Args)]
pub struct GlobalArgs {
    /// Brokers, comma-separated; the first one that answers is used
    #[arg(long, global = true, env = "COMITY_BROKER", value_name = "HOST:PORT,…", help_heading = "Global options")]
    pub broker: Option<String>,
    /// Directory with your key.pem, cert.pem and ca.pem [default: the context's]
    #[arg(long, global = true, env = "COMITY_IDENTITY", value_name = "DIR", help_heading = "Global options")]
    pub identity: Option<PathBuf>,
    /// Context to use in place of the current one: brokers and identity, as 'comity login' saved them
    #[arg(long, global = true, env = "COMITY_CONTEXT", value_name = "NAME", add = context_names(),
        help_heading = "Global options")]
    pub context: Option<String>,
    /// Output format: table for people, json or yaml for scripts, markdown for a comment
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub output: Format,
    /// Show every column of a table, however wide it gets
    #[arg(long, global = true, help_heading = "Global options")]
    pub wide: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = "Global options")]
    pub color: ColorMode,
    /// Allow reads from a broker that lags behind the leader
    #[arg(long, global = true, help_heading = "Global options")]
    pub stale: bool,
    /// Show broker, caller and each call on standard error; twice for debug logs
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
}

impl GlobalArgs {
    /// Ignores COMITY_BROKER and COMITY_IDENTITY if the command line says more: it has `--context`, or is a login with
    /// a token, which names the brokers. A renewal is of the identity in force.
    pub fn prefer_flags(&mut self, matches: &ArgMatches) {
        let is_variable = |arg| matches.value_source(arg) == Some(ValueSource::EnvVariable);
        let names_context = matches.value_source("context") == Some(ValueSource::CommandLine);
        let logs_in = matches.subcommand().is_some_and(|(name, login)| name == "login" && !login.get_flag("renew"));
        if !names_context && !logs_in {
            return;
        }
        if is_variable("broker") {
            self.broker = None;
        }
        if is_variable("identity") {
            self.identity = None;
        }
    }
}
