//! Flags of `comity-broker run` and `up`: how a broker runs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use comity_runtime::host_name::HostName;
use comity_runtime::telemetry;

/// Topics of the full help.
const ADDRESSES: &str = "Addresses";
const CERTIFICATES: &str = "Certificates";
const POLICY: &str = "Policy from Git or a registry";
const LOGS: &str = "Logs and snapshots";

/// Names in a broker's certificate.
#[derive(Debug, Args)]
pub(super) struct HostArgs {
    /// Further name or address in its certificate.
    ///
    /// Such as a load balancer's; repeatable. Always there are the hosts of its addresses, localhost, 127.0.0.1 and
    /// ::1. Kept in broker.json until a later command gives others.
    #[arg(long = "host", hide_short_help = true, help_heading = ADDRESSES, env = "COMITY_BROKER_HOST",
        value_name = "NAME", value_delimiter = ',')]
    pub(super) given: Vec<HostName>,
}

impl HostArgs {
    /// The names, without duplicates.
    pub(super) fn names(&self) -> BTreeSet<HostName> {
        self.given.iter().cloned().collect()
    }
}

/// How a broker runs.
#[derive(Debug, Args)]
pub(super) struct RunOptions {
    /// Listen address for agents and users.
    ///
    /// Default: all interfaces, port from `members`. Not kept: give it at each start.
    #[arg(long, help_heading = ADDRESSES, env = "COMITY_BROKER_CLIENT_LISTEN", value_name = "ADDRESS:PORT")]
    pub(super) client_listen: Option<SocketAddr>,
    /// Listen address for other brokers.
    ///
    /// Default: all interfaces, port from `members`. Not kept: give it at each start.
    #[arg(long, help_heading = ADDRESSES, env = "COMITY_BROKER_RAFT_LISTEN", value_name = "ADDRESS:PORT")]
    pub(super) raft_listen: Option<SocketAddr>,
    /// Listen address for metrics and probes, without authentication; default 127.0.0.1:7480.
    ///
    /// Not kept: give it at each start.
    #[arg(long, hide_short_help = true, help_heading = ADDRESSES, env = "COMITY_BROKER_ADMIN_LISTEN",
        value_name = "ADDRESS:PORT")]
    pub(super) admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) hosts: HostArgs,
    /// Directory of an authority that another program keeps current: tls.crt, tls.key, ca.crt.
    ///
    /// Such as a mounted Secret of cert-manager. Default: DATA/ca, which `comity-broker ca install` keeps.
    #[arg(long, hide_short_help = true, help_heading = CERTIFICATES, env = "COMITY_BROKER_CA", value_name = "DIR")]
    pub(super) ca: Option<PathBuf>,
    /// Validity of cluster certificates, in seconds; default 1 day.
    #[arg(long, hide_short_help = true, help_heading = CERTIFICATES, env = "COMITY_BROKER_CLUSTER_CERTIFICATES_S",
        value_name = "SECONDS")]
    pub(super) cluster_certificates_s: Option<u64>,
    /// Validity of renewed user certificates, in seconds; default 30 days.
    #[arg(long, hide_short_help = true, help_heading = CERTIFICATES, env = "COMITY_BROKER_USER_CERTIFICATES_S",
        value_name = "SECONDS")]
    pub(super) user_certificates_s: Option<u64>,
    /// File with credentials for the policy's repository: lines https://USER:TOKEN@HOST, as Git keeps them.
    ///
    /// Private to the broker's user. Each token goes to the host of its line only. Read at each pull, so that a new
    /// token needs no restart.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_CREDENTIALS",
        value_name = "FILE")]
    pub(super) policy_credentials: Option<PathBuf>,
    /// PEM file with authorities of the policy's repository, beside those of this machine.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_CA", value_name = "FILE")]
    pub(super) policy_ca: Option<PathBuf>,
    /// Private key for the policy's repository over SSH, without passphrase.
    ///
    /// Private to the broker's user. Read at each pull. No agent and no settings of SSH count.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_SSH_KEY", value_name = "FILE")]
    pub(super) policy_ssh_key: Option<PathBuf>,
    /// Keys of servers over SSH, in the form of known_hosts; others are not trusted.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_KNOWN_HOSTS",
        value_name = "FILE")]
    pub(super) policy_known_hosts: Option<PathBuf>,
    /// OTLP/gRPC endpoint to which the leader sends the audit log, e.g. https://collector.example:4317.
    ///
    /// Give it to every broker. Each record is sent at least once, in order; the next leader goes on where the last one
    /// stopped.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_AUDIT_OTLP", value_name = "URL")]
    pub(super) audit_otlp: Option<String>,
    /// Private file with lines NAME: VALUE that the endpoint of the audit log needs, such as an authorization.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_AUDIT_OTLP_HEADERS",
        value_name = "FILE", requires = "audit_otlp")]
    pub(super) audit_otlp_headers: Option<PathBuf>,
    /// PEM file with the authorities of that endpoint, instead of those of this machine.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_AUDIT_OTLP_CA",
        value_name = "FILE", requires = "audit_otlp")]
    pub(super) audit_otlp_ca: Option<PathBuf>,
    /// Credentials for the policy's registry, in the form of Docker's config.json; only `auths` counts.
    ///
    /// Private to the broker's user. Read at each pull.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_REGISTRY_CONFIG",
        value_name = "FILE")]
    pub(super) policy_registry_config: Option<PathBuf>,
    /// Public keys of cosign, one of which must have signed an artifact with the policy.
    ///
    /// PEM, ECDSA P-256 or Ed25519, one or more. Read at each pull. Without it nothing but the address is checked.
    #[arg(long, hide_short_help = true, help_heading = POLICY, env = "COMITY_BROKER_POLICY_OCI_KEY", value_name = "FILE")]
    pub(super) policy_oci_key: Option<PathBuf>,
    /// Log entries between snapshots, more if snapshots take long; default 10000.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_SNAPSHOT_EVERY", value_name = "N")]
    pub(super) snapshot_every: Option<u64>,
    /// Log filter, e.g. info,comity_broker=debug.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_LOG",
        default_value = telemetry::DEFAULT_FILTER, value_name = "FILTER")]
    pub(super) log: String,
    /// Log format: text or json.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_LOG_FORMAT", default_value = "text",
        value_name = "FORMAT")]
    pub(super) log_format: String,
    /// OTLP/gRPC endpoint for traces, e.g. http://collector:4317.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_BROKER_OTLP_ENDPOINT", value_name = "URL")]
    pub(super) otlp_endpoint: Option<String>,
    /// Print the configuration in force as JSON and exit.
    #[arg(long, hide_short_help = true)]
    pub(super) dump_config: bool,
}
