//! `comity cluster evict`.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;

use crate::commands::completions::known_ids;
use crate::commands::institution::revocation::{Revocation, RevocationAnswer, RevocationArgs};
use crate::failure::Failure;
use crate::session::{Session, call};

const EVICT_EXAMPLES: &str = "\
Examples:
  comity cluster evict ncc-main --dry-run       says what would end
  comity cluster evict ncc-main
  comity cluster evict ncc-main --leases drain  with the donor's notice
  comity cluster evict ncc-main --yes           in a script: do not ask

All its certificates and open invitations are void: within seconds its streams and calls end on every
broker, and none is renewed. Its offer is withdrawn and its waiting requests are cancelled. Its leases
stop, because a stolen key is the usual reason; choose '--leases drain' or '--leases finish' if it
leaves in peace. Partners remove tunnels, tokens and namespaces at once; those that are offline do so
when they are back. Requests that it served are queued again. Operators of its institution and
maintainers may evict it. 'comity cluster invite' lets it join again: if a maintainer evicted it, only
a maintainer may do that. Repeat the command to treat its leases more tightly, or to make an
operator's eviction a maintainer's.
";

/// `comity cluster evict`.
#[derive(Debug, Args)]
#[command(after_help = EVICT_EXAMPLES)]
pub struct ClusterEvictArgs {
    /// Member cluster, as in ncc-main
    #[arg(add = known_ids::clusters())]
    cluster: String,
    #[command(flatten)]
    revocation: RevocationArgs,
}

impl ClusterEvictArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<RevocationAnswer, Failure> {
        let client = FederationServiceClient::new(session.channel()?);
        let subject = Revocation::Eviction(self.cluster.clone());
        self.revocation
            .run(subject, |dry_run, leases, idempotency_key| {
                let (mut client, cluster) = (client.clone(), self.cluster.clone());
                async move {
                    let request = v1::EvictClusterRequest { cluster, leases: leases.into(), dry_run, idempotency_key };
                    Ok(call(client.evict_cluster(request)).await?.effects.unwrap_or_default())
                }
            })
            .await
    }
}
