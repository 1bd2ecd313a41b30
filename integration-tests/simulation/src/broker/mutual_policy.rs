//! A policy under which all members lend to each other.

use std::fmt::Write as _;

/// A bundle with one class, one agreement among all, no quotas, and for each name an institution, a cluster and a
/// tenant. `peeringStep` is long because handshakes are not simulated.
pub(super) fn policy(members: &[&str]) -> String {
    const HEAD: &str = "apiVersion: policy.comity.dev/v1\n";
    let mut text = format!(
        "{HEAD}kind: Federation\nmetadata: {{name: replay}}\nspec:\n  trustDomain: replay.example\n  \
         maintainers: [\"spiffe://replay.example/user/admin\"]\n  defaults: {{peeringStep: 3650d}}\n  \
         limits: {{maxQueuedRequests: 50000, maxQueuedRequestsPerInstitution: 50000, \
         maxQueuedRequestsPerTenant: 50000}}\n---\n\
         {HEAD}kind: GpuClass\nmetadata: {{name: gpu}}\nspec: {{selector: 'device.memoryMiB > 0', rank: 1}}\n---\n\
         {HEAD}kind: Agreement\nmetadata: {{name: all}}\nspec: {{parties: [{}], classes: [gpu]}}\n",
        members.join(", ")
    );
    for name in members {
        let _ = write!(
            text,
            "---\n{HEAD}kind: Institution\nmetadata: {{name: {name}}}\n\
             spec: {{displayName: {name}, contact: ops@{name}.example, clusters: [{name}]}}\n\
             ---\n{HEAD}kind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{institution: {name}, lends: [{{classes: [gpu]}}]}}\n\
             ---\n{HEAD}kind: Tenant\nmetadata: {{name: {name}}}\nspec:\n  institution: {name}\n  \
             members: [{{id: \"spiffe://replay.example/user/alice\", role: submitter}}]\n  classes: [gpu]\n  \
             clusters: [{name}]\n"
        );
    }
    text
}
