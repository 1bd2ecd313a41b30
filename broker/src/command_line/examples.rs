//! Examples at the end of each full help.

pub(super) const BROKER_EXAMPLES: &str = "\
Examples:
  comity-broker up  # sets up this host's broker, and runs it
  comity-broker run --data /var/lib/comity-broker";

pub(super) const INIT_EXAMPLES: &str = "\
Examples:
  comity-broker init --data data --trust-domain dev.example --admin-out ingrid";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  comity-broker run --data /var/lib/comity-broker";

pub(super) const ADD_IDENTITY_EXAMPLES: &str = "\
Examples:
  comity-broker add-identity --data data --id 2 --out broker-2";

pub(super) const ISSUE_USER_EXAMPLES: &str = "\
Examples:
  comity-broker issue-user --data data --name ingrid --out ingrid";

pub(super) const CA_ROOT_EXAMPLES: &str = "\
Examples:
  comity-broker ca root --trust-domain comity.example --out root
  comity-broker ca root --succeeds root --out root-2";

pub(super) const CA_INTERMEDIATE_EXAMPLES: &str = "\
Examples:
  comity-broker ca intermediate --root root --out next";

pub(super) const CA_INSTALL_EXAMPLES: &str = "\
Examples:
  comity-broker ca install --from next --data /var/lib/comity-broker
  comity-broker ca install --from last --data /var/lib/comity-broker --yes   # ends the trust in the old root";

pub(super) const CA_STATUS_EXAMPLES: &str = "\
Examples:
  comity-broker ca status --data /var/lib/comity-broker";
