//! Examples at the end of each full help.

pub(super) const AGENT_EXAMPLES: &str = "\
Examples:
  comity-agent join agent.token  # from 'comity cluster invite', once
  comity-agent run --config /var/lib/comity-agent/agent.yaml";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  comity-agent run --config /var/lib/comity-agent/agent.yaml
  comity-agent run --config agent.yaml --dump-config  # what is in force";

pub(super) const JOIN_EXAMPLES: &str = "\
Examples:
  comity-agent join agent.token  # a file with the token; - reads standard input
  echo TOKEN | comity-agent join -";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  comity-agent doctor --config /var/lib/comity-agent/agent.yaml";

pub(super) const DEVICES_EXAMPLES: &str = "\
Examples:
  comity-agent devices --config /var/lib/comity-agent/agent.yaml
  comity-agent devices --config agent.yaml -o json";

pub(super) const SAMPLE_INVENTORY_EXAMPLES: &str = "\
Examples:
  comity-agent sample-inventory > inventory.yaml";

pub(super) const IDENTITY_KEY_EXAMPLES: &str = "\
Examples:
  comity-agent identity-key --state /var/lib/comity-agent";

pub(super) const PEERS_EXAMPLES: &str = "\
Examples:
  comity-agent peers list
  comity-agent peers accept ncc-main --key ed25519:...";

pub(super) const PEERS_LIST_EXAMPLES: &str = "\
Examples:
  comity-agent peers list
  comity-agent peers list --config agent.yaml -o json";

pub(super) const PEERS_ACCEPT_EXAMPLES: &str = "\
Examples:
  comity-agent peers accept ncc-main --key ed25519:...";

pub(super) const PODMAN_EXAMPLES: &str = "\
Examples:
  comity-agent podman -- ps --all
  comity-agent podman -- load --input image.tar";

pub(super) const PEERS_FORGET_EXAMPLES: &str = "\
Examples:
  comity-agent peers forget ncc-main";

pub(super) const FORGET_AUDIT_ANCHOR_EXAMPLES: &str = "\
Examples:
  comity-agent forget-audit-anchor --config /var/lib/comity-agent/agent.yaml";

pub(super) const FORGET_POLICY_EXAMPLES: &str = "\
Examples:
  comity-agent forget-policy --config /var/lib/comity-agent/agent.yaml";

pub(super) const NODE_EXAMPLES: &str = "\
Examples:
  comity-agent node  # as deploy/agent/tun/nodes.yaml runs it";

pub(super) const READ_DEVICES_EXAMPLES: &str = "\
Examples:
  comity-agent read-devices --node gpu-1  # deploy/agent/devices.yaml runs it";

pub(super) const LIQO_POLICIES_EXAMPLES: &str = "\
Examples:
  comity-agent liqo-policies --config agent.yaml > liqo-policies.yaml";

pub(super) const WEBHOOK_EXAMPLES: &str = "\
Examples:
  comity-agent webhook install --config agent.yaml  # with your own kubeconfig";

pub(super) const WEBHOOK_INSTALL_EXAMPLES: &str = "\
Examples:
  comity-agent webhook install --config agent.yaml  # with your own kubeconfig
  comity-agent webhook install --config agent.yaml --dry-run";
