//! Flags that every command takes.

use std::path::PathBuf;

use clap::Args;

use crate::output::Format;

/// Flags that every command takes.
#[derive(Debug, Args)]
pub struct GlobalArgs {
    /// Brokers, comma-separated; the first one that answers is used
    #[arg(long, global = true, env = "COMITY_BROKER", value_name = "HOST:PORT,…", help_heading = "Global options")]
    pub broker: Option<String>,
    /// Directory with your key.pem, cert.pem and ca.pem [default: ~/.config/comity/identity]
    #[arg(long, global = true, env = "COMITY_IDENTITY", value_name = "DIR", help_heading = "Global options")]
    pub identity: Option<PathBuf>,
    /// Output format: table for people, json or yaml for scripts
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
    /// Allow reads from a broker that lags behind the leader
    #[arg(long, global = true, help_heading = "Global options")]
    pub stale: bool,
    /// Show broker, caller and each call on standard error; twice for debug logs
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
}
