//! `comity-agent peers`: other clusters, and a person's decision about their identity keys; and about the anchor of the
//! audit log.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comity_agent_state::record::{PeerRecord, Trust};
use comity_runtime::{ClusterName, IdentityPublicKey};

use super::examples::{PEERS_ACCEPT_EXAMPLES, PEERS_FORGET_EXAMPLES, PEERS_LIST_EXAMPLES};
use super::failure::Failure;
use super::output_format::OutputFormat;
use super::settings::Settings;
use crate::services::local_api::{
    LocalApiError, SOCKET, accept_identity_key, fetch_peers, forget_anchor, forget_cluster, forget_policy,
};

/// Commands of `comity-agent peers`.
#[derive(Debug, Subcommand)]
pub(super) enum PeersAction {
    /// Prints the clusters that this agent remembers, with their identity keys.
    #[command(after_long_help = PEERS_LIST_EXAMPLES)]
    List(Box<ListPeers>),
    /// Trusts another identity key of a cluster, which was refused because the agent knows another one.
    ///
    /// Ask the operators of that cluster for the key first (comity-agent identity-key prints it there), and not by way
    /// of the broker. With the key that is known already, the refused one is dropped, and the known one counts as
    /// accepted.
    #[command(after_long_help = PEERS_ACCEPT_EXAMPLES)]
    Accept(Box<AcceptPeer>),
    /// Forgets a cluster: its next identity key counts as its first.
    #[command(after_long_help = PEERS_FORGET_EXAMPLES)]
    Forget(Box<ForgetPeerArgs>),
}

/// `comity-agent peers list`.
#[derive(Debug, Args)]
pub(super) struct ListPeers {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    output: OutputFormat,
    #[command(flatten)]
    settings: Settings,
}

/// `comity-agent peers accept`.
#[derive(Debug, Args)]
pub(super) struct AcceptPeer {
    /// The cluster.
    cluster: String,
    /// Its identity key, "ed25519:BASE64".
    #[arg(long, value_name = "KEY")]
    key: IdentityPublicKey,
    #[command(flatten)]
    settings: Settings,
}

/// `comity-agent peers forget`.
#[derive(Debug, Args)]
pub(super) struct ForgetPeerArgs {
    /// The cluster.
    cluster: String,
    #[command(flatten)]
    settings: Settings,
}

/// Carries out a command of `comity-agent peers` at the running agent.
pub(super) async fn act(action: PeersAction) -> Result<(), Failure> {
    match action {
        PeersAction::List(args) => {
            let ListPeers { output, settings } = *args;
            let peers = fetch_peers(&socket(settings)?).await.map_err(failed)?;
            output.print(&text(&peers), &peers);
        }
        PeersAction::Accept(args) => {
            let AcceptPeer { cluster, key, settings } = *args;
            let cluster = parsed(&cluster)?;
            let peer = accept_identity_key(&socket(settings)?, &cluster, &key).await.map_err(failed)?;
            println!("cluster {cluster} has identity key {}", peer.identity_key);
        }
        PeersAction::Forget(args) => {
            let ForgetPeerArgs { cluster, settings } = *args;
            let cluster = parsed(&cluster)?;
            forget_cluster(&socket(settings)?, &cluster).await.map_err(failed)?;
            println!("cluster {cluster} is forgotten; its next identity key counts as its first");
        }
    }
    Ok(())
}

/// Lets the running agent forget the anchor of the audit log.
pub(super) async fn forget_audit_anchor(settings: Settings) -> Result<(), Failure> {
    forget_anchor(&socket(settings)?).await.map_err(failed)?;
    println!("the anchor is forgotten; the next head of the audit log counts as the first");
    Ok(())
}

/// Lets the running agent forget the signed policy.
pub(super) async fn forget_signed_policy(settings: Settings) -> Result<(), Failure> {
    forget_policy(&socket(settings)?).await.map_err(failed)?;
    println!("the verified policy is forgotten; the next signed one counts as the first");
    Ok(())
}

fn socket(settings: Settings) -> Result<PathBuf, Failure> {
    Ok(settings.resolve()?.state_dir.join(SOCKET))
}

fn failed(error: LocalApiError) -> Failure {
    Failure::System(error.to_string())
}

fn parsed(cluster: &str) -> Result<ClusterName, Failure> {
    ClusterName::new(cluster).map_err(|error| Failure::System(error.to_string()))
}

/// One line for each cluster, and one more for a key that waits for a decision.
fn text(peers: &[PeerRecord]) -> String {
    let mut text = String::new();
    let width = peers.iter().map(|peer| peer.cluster.len()).max().unwrap_or(0);
    for peer in peers {
        let institution = if peer.institution.is_empty() { "-" } else { peer.institution.as_str() };
        let trust = match peer.trust {
            Trust::FirstUse => "first use",
            Trust::Voucher => "voucher",
            Trust::Accepted => "accepted",
        };
        text.push_str(&format!("{:width$}  {}  {trust}  {institution}\n", peer.cluster, peer.identity_key));
        if let Some(refused) = peer.refused {
            text.push_str(&format!(
                "{:width$}  {}  refused: accept it, or keep the one above, with comity-agent peers accept {} \
                 --key KEY\n",
                "", refused.identity_key, peer.cluster
            ));
        }
    }
    if peers.is_empty() { "this agent remembers no other cluster\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use comity_agent_state::record::RefusedKey;
    use comity_runtime::{IdentityKey, SeededEntropy};

    use super::*;

    #[test]
    fn a_refused_key_stands_below_the_known_one_with_the_command_that_decides() {
        let key = |seed| IdentityKey::generate(&SeededEntropy::new(seed)).public();
        let peer = |cluster: &str, trust, refused| PeerRecord {
            cluster: cluster.to_owned(),
            identity_key: key(1),
            trust,
            institution: "poly".to_owned(),
            since_ms: 1,
            had_lease: false,
            refused,
        };
        let refused = RefusedKey { identity_key: key(2), at_ms: 2 };
        let text = text(&[peer("lab", Trust::FirstUse, Some(refused)), peer("centre", Trust::Voucher, None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("lab     {}  first use  poly", key(1)));
        assert!(lines[1].contains(&key(2).to_string()) && lines[1].contains("peers accept lab --key"), "{text}");
        assert_eq!(lines[2], format!("centre  {}  voucher  poly", key(1)));
        assert!(super::text(&[]).contains("no other cluster"));
    }
}
